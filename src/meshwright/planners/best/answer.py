"""The joint search as a whole: branch and bound, then layers moved, then the splits that are left, and what it says of them."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.base.units import format_seconds
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer
from meshwright.core.strategy import ON_HOST
from meshwright.costs import analytic
from meshwright.planners.best import limits, splits
from meshwright.planners.best.beside import simplest
from meshwright.planners.best.beside.runners_up import NextBest, listed
from meshwright.planners.best.beside.simplest import SimplestWithin
from meshwright.planners.best.branch_and_bound import BestFirstSearch, Entry
from meshwright.planners.best.incumbents import describe, rank
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import MeshDegrees, pools

__all__ = ["answer"]

_MOST_DIVED = 2  # plans played at most among the meshes that are tried first
_N_CLIMBS = 4  # steps from the best mesh of these to better ones near it, at most
_N_ROUNDS = 4  # in which all meshes are searched
_MOST_SIMPLER = 16  # plans played at most to find a simpler one
_MOST_OTHERS = 5  # for each runner-up: plans played at most,
_LONGER = (1.05, 1.25, math.inf)  # how much longer than the answer they are looked for at first, and then,
_MOST_MOVED = 10  # moves of its layers,
_MOST_SPLIT = 16  # and other splits of the layers of any plan of its degrees
_STOPPED_NEAREST = "time was up before all was looked at that comes near, or would be enough: there may be something nearer"
_MOST_LOOKED = 400  # sets of plans that may always be looked at for a simpler plan, and for runners-up


def answer(problem: Problem, params: Limits, stop: Stop, notes: tuple[str, ...] = (), known: tuple[Plan, ...] = ()) -> Answer:
    """Return the best plan of the joint space within limits, and a proven bound on every other.

    Parameters
    ----------
    problem : Problem
        A model of ours on a cluster, its batch decided (`with_batch`).
    params : Limits
        What may be fixed.
    stop : Stop
        When to stop.
    notes : tuple of str
        Sentences to pass on.
    known : tuple of Plan
        Plans known before, of a question that differs little: those of the space that fit are found already.

    Returns
    -------
    Answer
        ``objective`` is the simulated step. Without a plan, nothing missing and a last note that says why where none is legal.

    Raises
    ------
    InputError
        When more than all of the memory is asked for.
    """
    if params.memory_ratio > 1.0:
        raise InputError(f"--set memory_ratio={params.memory_ratio:g}: more than all of the memory; give a share up to 1")
    started = time.monotonic()
    first: list[Plan] = list(known)
    if problem.costs == "sharded":
        # its plans are the first ones known, so the answer is never slower than Megatron's split gives
        half = replace(stop, seconds=stop.seconds / 2)
        plain = _searched(replace(problem, costs="analytic"), params, half, [])
        first += [found.plan for found in sorted(plain.found, key=rank)[: params.alternatives]]
    left = max(stop.seconds - (time.monotonic() - started), 1e-3) if stop.seconds else 0.0
    state = _searched(problem, params, replace(stop, seconds=left), first)
    if state.found and not state.was_stopped:  # once time is up nothing more is looked at
        _simplify(state)
        _find_others(state)
    found = replace(state.answer(notes), certificate=state.certificate())
    if found.nearest:
        found = _with_more(problem, params, stop, found, state)
    return _with_splits(problem, found) if problem.costs == "sharded" and found.plan is not None else found


def _with_more(problem: Problem, params: Limits, stop: Stop, found: Answer, state: BestFirstSearch) -> Answer:
    """Say of an answer without a plan with what more it would have one, as far as there is time left for it."""
    stop = replace(stop, seconds=0.0, asked=lambda: state.is_over)  # one limit of time for all that is looked at
    away = _on_hosts(problem, params, stop)
    nearest = _enough_devices(problem, params, stop) or found.nearest
    late = (_STOPPED_NEAREST,) if state.was_stopped else ()
    extra = {**found.extra, "stopped_early": state.was_stopped}
    return replace(found, nearest=nearest, notes=(*found.notes, *away, *late), extra=extra)


def _searched(problem: Problem, params: Limits, stop: Stop, first: list[Plan]) -> BestFirstSearch:
    """Return the search after it has run, with plans known before it starts."""
    state = BestFirstSearch(problem, params, stop)
    for pool in pools(problem.required_cluster):
        state.add(pool)
    for plan in first:
        state.know(plan)
    _dive(state)
    _prove(state)
    splits.improve(state)
    splits.dig(state)
    splits.close(state)
    return state


def _prove(state: BestFirstSearch) -> None:
    """Search all meshes, in rounds: a better plan played in one spares the next what it would build in vain."""
    most = state.n_evaluations + state.budget
    for _ in range(_N_ROUNDS):
        _run(state, min(math.ceil(state.budget / _N_ROUNDS), most - state.n_evaluations))


def _run(state: BestFirstSearch, n_most: int) -> None:
    """Search until so many plans are played; where bounds are alike and all that is allowed goes to building, play some of those built,
    of the least bounds.
    """
    most = state.n_evaluations + n_most
    state.allow(n_most)
    state.run()
    away, others = state.away, [entry for entry in state.heap if entry[4] is None]
    state.look_at([entry for entry in state.heap if entry[4] is not None], away + others)
    state.allow(min(_MOST_DIVED, most - state.n_evaluations))
    state.run()
    state.look_at(state.heap + others, away)


def _dive(state: BestFirstSearch, *, any_plan: bool = False) -> None:
    """Find complete good plans before the proof: search meshes that people would try first, in ever larger sets (`limits.usual`),
    then those near the best of them, larger micro-batches among them, as long as that finds a better one.

    Nothing is done twice: what is found out of these meshes is part of the proof, which goes on with all of them. The plans keep the
    search from looking at worse ones closely, and are the answer where it is stopped. `any_plan`: end with the first set in which one fits.
    """
    state.dive(True)
    usual = limits.usual(state.problem, state.params)
    waves: list[list[Entry]] = [[] for _ in range(limits.N_USUAL + 1)]
    for entry in state.heap:
        waves[usual(entry[3]) if isinstance(entry[3], MeshDegrees) else limits.N_USUAL].append(entry)
    everything = [entry for wave in waves for entry in wave]
    for asked in waves[: limits.N_USUAL]:
        everything = everything[len(asked) :]  # the first of them are those of this set
        state.look_at(asked, everything)
        _run(state, _MOST_DIVED)
        everything = everything + state.heap
        if any_plan and state.found:
            return
    for _ in range(_N_CLIMBS if state.found else 0):
        best = min(state.found, key=rank).config.mesh
        near: list[Entry] = []
        others: list[Entry] = []
        for entry in everything:
            (near if isinstance(entry[3], MeshDegrees) and _is_near(entry[3], best) else others).append(entry)
        state.look_at(near, others)
        _run(state, _MOST_DIVED)
        everything = others + state.heap
        if min(state.found, key=rank).config.mesh == best:
            break
    state.look_at(everything, [])
    state.dive(False)
    state.pursue(None)


def _is_near(mesh: MeshDegrees, other: MeshDegrees) -> bool:
    """Return whether two meshes differ in two degrees at most."""
    n_unlike = (mesh.pipeline != other.pipeline) + (mesh.data != other.data) + (mesh.context != other.context)
    n_unlike += (mesh.tensor != other.tensor) + (mesh.expert != other.expert) + (mesh.micro_batch != other.micro_batch)
    return n_unlike <= 2


def _simplify(state: BestFirstSearch) -> None:
    """Look for a plan that is simpler than the best and nearly as quick."""
    if state.params.within_ratio > 0.0:
        state.pursue(SimplestWithin(state.found, state.params.within_ratio))
        state.allow(_MOST_SIMPLER, max(state.n_looked, _MOST_LOOKED))
        state.run()
        state.pursue(None)


def _find_others(state: BestFirstSearch) -> None:
    """Look for the best plans of other degrees, and optimise each as the best one is."""
    n_others = state.params.alternatives - 1
    if n_others < 1:
        return
    chosen = simplest.chosen(state.found, state.params.within_ratio)
    n_looked = max(state.n_looked, _MOST_LOOKED)
    state.allow(_MOST_OTHERS * n_others, n_looked)
    for longer in _LONGER:  # bounds need not be told above a limit, and are found sooner
        others = NextBest(state.found, chosen, n_others, new_only=True, longest_seconds=longer * chosen.step_seconds)
        if not others.is_listed:
            state.pursue(others)
            state.run()
    state.pursue(NextBest(state.found, chosen, n_others, new_only=False))
    state.allow(_MOST_OTHERS * n_others, n_looked)
    state.run()
    splits.improve(state, listed(state.found, chosen, n_others), _MOST_MOVED)
    splits.close(state, _MOST_SPLIT * n_others)
    state.pursue(None)


def _with_splits(problem: Problem, found: Answer) -> Answer:
    """Say which layers are split otherwise than Megatron does."""
    from meshwright.costs import sharded

    assert found.plan is not None
    return replace(
        found,
        notes=(*found.notes, sharded.described(problem, found.plan)),
        extra={**found.extra, "splits": sharded.splits(problem, found.plan)},
    )


def _on_hosts(problem: Problem, params: Limits, stop: Stop) -> tuple[str, ...]:
    """Return a note where a plan fits these devices with the optimizer's state on their hosts; none where that is allowed already,
    nothing is known of the hosts, or no plan was found.
    """
    framework = problem.framework
    known = "optimizer" in framework.limits.offloads
    if (
        stop.is_asked()
        or "optimizer" in params.offload
        or analytic.unknown_host(problem)
        or (problem.framework_asked and not known)
    ):
        return ()
    if not known:  # of the runtime that is assumed, all but this
        problem = replace(problem, framework=replace(framework, limits=replace(framework.limits, offloads=ON_HOST)))
    state = BestFirstSearch(
        problem, replace(params, offload=("optimizer", *(word for word in params.offload if word == "activations"))), stop
    )
    state.allow(1)
    for pool in pools(problem.required_cluster):
        state.add(pool)
    _dive(state, any_plan=True)
    if not state.found:
        return ()
    best = min(state.found, key=rank)
    how = "--set offload=none,optimizer" + (
        "" if known else ", with a framework that has it (--for; 'meshwright list frameworks')"
    )
    return (
        f"with the optimizer's state on the host it fits: {describe(best.config)}; a step of at most about {format_seconds(best.step_seconds)}: {how}",
    )


def _enough_devices(problem: Problem, params: Limits, stop: Stop) -> str:
    """Return the smallest doubling of a built-in kind of cluster on which a usual plan fits, and what; empty when there is none.
    The step is that of the first plan found: the best takes no longer.

    Only where none of the usual meshes fits on any of them are all meshes tried.
    """
    kind, _, count = problem.required_cluster.name.partition(":")
    if not count.isdigit() or params.data:
        return ""
    for usual, doubling in itertools.product((True, False), range(1, 8)):
        if stop.is_asked():
            return ""
        n_devices = int(count) * 2**doubling
        larger = replace(problem, cluster=clusters.cluster(f"{kind}:{n_devices}"))
        if any(word != "none" for word in params.offload) and analytic.unknown_host(larger):
            return ""  # the question's devices are others than those of the kind
        state = BestFirstSearch(larger, params, stop)
        state.allow(1)
        for pool in pools(larger.cluster):  # type: ignore[arg-type]
            state.add(pool)
        if usual:
            _dive(state, any_plan=True)
        else:
            state.run()
        if state.found:
            best = min(state.found, key=rank)
            among = " with usual degrees" if usual else ""
            return (
                f"fits on {kind}:{n_devices}: {describe(best.config)}; a step of at most about "
                f"{format_seconds(best.step_seconds)}; the smallest doubling{among}"
            )
    return ""
