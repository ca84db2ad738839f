"""DAPPLE's problem done right: any stages, each with its own replicas, that fit; ranked by the exact schedule; with a bound."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base import units
from meshwright.core.problem import Problem
from meshwright.core.result import Alternative, Answer, Bound, Objective
from meshwright.planners.dapple import device_orders, exact
from meshwright.planners.dapple.arrays import PlanLimits, PlanSpace, kept_states, samples, space_of
from meshwright.planners.dapple.evaluate import Around, Cut, Evaluator, PlanOutline
from meshwright.planners.dapple.profile import ProfiledTraining, training_of
from meshwright.planners.dapple.states import States, states_of

if TYPE_CHECKING:
    from meshwright._kernels.dapple.pipeline_suffix import RunSettings, Suffixes

__all__ = ["PlanLimits", "answer"]

MOST_STATES = 320
"""States beyond which only some cuts are tried."""

COARSE_STATES = 64
"""States beyond which fewer cuts are tried first, for a step that the search over all of them need not exceed."""

SLACK_RATIO = 1.02
"""How much longer than that plans may take, so that more than one is left to improve."""

MOST_PROVEN = (8, 26)
"""Devices and states up to which all other plans are ruled out one by one, if the steps allowed suffice."""

MOST_UNEVEN = 16
"""Devices up to which plans with uneven shares are looked for too, as an alternative."""

WORTH_RATIO = 1.02
"""How much quicker they must be to be mentioned."""

N_JUDGED = 8
"""Plans that are improved by small moves and then played by the simulator, transfers sharing links."""


def answer(problem: Problem, limits: PlanLimits) -> Answer:
    """Return the quickest plan found, in simulated seconds of a step, with a bound.

    `problem`: completed: a `ProfiledTraining`, a cluster, a global batch.
    Returns: without a plan where none fits the memory.

    Notes
    -----
    For every number of micro-batches and every order of the devices a dynamic program over (stages left, cut, devices taken)
    minimises warm-up + steady phase + drain + reductions, where the pivot is whichever stage makes that largest, so it need not
    be guessed as in the paper [1]_. The best of each number of stages are played by the exact schedule, with both warm-up
    depths, and improved by moving cuts and devices.

    References
    ----------
    .. [1] Fan et al., DAPPLE, PPoPP 2021, section 4: T_w + T_s + T_e with the pivot stage Q.
    """
    training = training_of(problem)
    states = states_of(problem.model_spec)
    notes = _notes(states, training)
    kept = kept_states(states, MOST_STATES)
    if len(kept) < states.n_states:
        notes.append(f"of {states.n_states} cuts the {len(kept)} with the least traffic in equal intervals of time are tried")
    evaluator = Evaluator(problem, training, states, limits.recompute)
    space, first, ranked, best = _searched(evaluator, states, kept, limits)
    if limits.uneven:  # plans with even shares lie in the space as well, and another way leads to them
        even = _searched(evaluator, states, kept, replace(limits, uneven=False))[3]
        if even is not None and (best is None or even[0] < best[0]):
            best = evaluator.polished(even, Around(tuple(kept), space.n_microbatches, True))
    if best is None:
        return _infeasible(evaluator, space, problem, limits, tuple(notes))
    best, bound = _proof(evaluator, space, kept, limits, best)
    if space.max_stages < min(len(kept), problem.required_cluster.n_devices) and not limits.max_stages:
        notes.append(f"pipelines of at most {space.max_stages} stages were tried; --set max_stages=N tries more")
    extra = _extra(evaluator, first, problem, states)
    overlapped = extra["baselines"]["data_parallel_overlap"]
    if overlapped is not None and overlapped < best[0]:
        notes.append(
            f"data parallelism that reduces gradients beside its backward pass would take {units.format_seconds(overlapped)}; "
            "this plan's reductions wait for the backward pass, as in the paper"
        )
    alternatives = _alternatives(evaluator, ranked, best[1])
    uneven = _uneven(evaluator, states, kept, limits, best[0])
    if uneven is not None:
        alternatives = (uneven, *alternatives)
        notes.append(
            f"replicas that take unequal whole numbers of samples would need {units.format_seconds(uneven.objective.value)} a "
            "step: "
            "see the alternatives, or --set uneven=true"
        )
    if space.unit > 1:
        notes.append(f"stages take devices in multiples of {space.unit}")
    return Answer(
        plan=evaluator.plan(best[1]),
        objective=Objective("step_seconds", best[0]),
        bound=bound,
        alternatives=alternatives,
        notes=tuple(notes),
        extra=extra,
    )


def _searched(
    evaluator: Evaluator, states: States, kept: list[int], limits: PlanLimits
) -> tuple[PlanSpace, list[PlanOutline], list[tuple[float, PlanOutline]], tuple[float, PlanOutline] | None]:
    """Return the space of the limits, data parallelism, the best plans of every kind in their order, and the best after small
    moves (None where none fits).
    """
    problem, training = evaluator.problem, evaluator.training
    space = space_of(problem, training, states, kept, limits)
    upper_seconds, first = _data_parallel(evaluator, space, problem.batch.global_batch, limits)
    ranked = evaluator.ranked(first)
    if len(kept) > COARSE_STATES:
        coarse = space_of(problem, training, states, kept_states(states, COARSE_STATES), limits)
        ranked = evaluator.ranked(first + _candidates(problem, coarse, limits, upper_seconds))
        rough = evaluator.best([shape for _, shape in ranked[:N_JUDGED]])
        upper_seconds = upper_seconds if rough is None else min(upper_seconds, rough[0] * SLACK_RATIO)
    ranked = evaluator.ranked([shape for _, shape in ranked] + _candidates(problem, space, limits, upper_seconds))
    around = Around(tuple(kept), space.n_microbatches, limits.uneven)
    shapes = _starts([shape for _, shape in ranked])
    best = evaluator.best(first + shapes + [evaluator.improved(shape, around) for shape in shapes])
    return space, first, ranked, None if best is None else evaluator.polished(best, around)


def _extra(evaluator: Evaluator, data_parallel: list[PlanOutline], problem: Problem, states: States) -> dict[str, Any]:
    """Return what else the answer tells: data parallelism, with and without overlap, and one device that had the memory."""
    baselines: dict[str, float | None] = {"data_parallel": None, "data_parallel_overlap": None}
    if data_parallel:
        shape = data_parallel[0]
        baselines = {"data_parallel": evaluator.seconds(shape), "data_parallel_overlap": evaluator.overlapped_seconds(shape)}
    ratio = problem.batch.global_batch / evaluator.training.profile_batch
    return {"baselines": baselines, "one_device_seconds": float(states.compute_seconds[-1]) * ratio}


def _starts(ranked: list[PlanOutline]) -> list[PlanOutline]:
    """Return the first plans, and the first of each number of micro-batches and each number of stages,
    so that starts differ.
    """
    first: dict[tuple[str, int], PlanOutline] = {}
    for shape in ranked:
        first.setdefault(("micro-batches", shape.n_microbatches), shape)
        first.setdefault(("stages", len(shape.cuts)), shape)
    return list(dict.fromkeys([*ranked[:3], *list(first.values())[:N_JUDGED]]))


def _notes(states: States, training: ProfiledTraining) -> list[str]:
    """Return what the user should know about the cuts."""
    from meshwright.planners.dapple.profile import LinearisedProfile

    notes = []
    if isinstance(training.profile, LinearisedProfile):
        notes.append("the file has one time per state; a third of it is taken as forward")
    if states.is_prefix:
        notes.append("cuts follow one topological order: too many antichains")
    return notes


def _data_parallel(evaluator: Evaluator, space: PlanSpace, batch: int, limits: PlanLimits) -> tuple[float, list[PlanOutline]]:
    """Return the step of plain data parallelism (its best number of replicas and micro-batches) and its plans."""
    shapes = []
    for n_microbatches in space.n_microbatches:
        allowed = samples(space, batch // n_microbatches, limits)
        for order in space.orders:
            for i in np.flatnonzero(allowed)[-2:]:
                cut = Cut(evaluator.n_states - 1, order[: int(space.n_replicas[i])])
                shapes.append(PlanOutline(n_microbatches, (cut,), "1f1b"))
    best = evaluator.best(shapes)
    return (math.inf, []) if best is None else (best[0], [best[1]])


def _candidates(problem: Problem, space: PlanSpace, limits: PlanLimits, upper_seconds: float) -> list[PlanOutline]:
    """Return the best plan of every order, number of micro-batches and stages, by its closed-form seconds."""
    from meshwright._kernels.dapple import pipeline_suffix as kernel

    training = training_of(problem)
    layers = kernel.Layers(*space.layers)
    shapes: dict[tuple[float, int, int, int], PlanOutline] = {}
    whole = space.n_replicas % space.unit == 0
    n_units = space.n_replicas[whole] // space.unit
    for which, order in enumerate(space.orders):
        tables = device_orders.tables(
            problem.required_cluster,
            order,
            n_units,
            space.unit,
            published_links=training.published_links,
            memory_ratio=problem.memory_ratio,
        )
        for n_microbatches in space.n_microbatches:
            n_samples = problem.batch.global_batch // n_microbatches
            allowed = samples(space, n_samples, limits)[whole]
            rules = _rules(training, limits, n_microbatches, problem.batch.global_batch, upper_seconds, space.unit)
            places = kernel.Places(
                n_units, allowed, tables.reduce_class, tables.reduce_lines,
                tables.send_class, tables.send_lines, tables.memory_bytes, tables.gate,
            )  # fmt: skip
            found = kernel.by_stages(layers, places, rules, space.max_stages)
            for r in range(1, space.max_stages + 1):
                if np.isfinite(found.end_seconds[r, 0, 0]):
                    cuts = _cuts(found, r, order, (n_units, space.unit), space.kept)
                    key = (float(found.end_seconds[r, 0, 0]), r, n_microbatches, which)
                    shapes[key] = PlanOutline(n_microbatches, cuts, "1f1b")
    return [shapes[key] for key in sorted(shapes)]


def _cuts(
    found: Suffixes, r: int, order: tuple[int, ...], widths: tuple[NDArray[np.int64], int], kept: tuple[int, ...]
) -> tuple[Cut, ...]:
    """Follow the choices from the front."""
    n_units, unit = widths
    cuts, node, position = [], 0, 0
    while r:
        width = int(n_units[found.column[r, node, position]])
        node, r, start, position = int(found.next_node[r, node, position]), r - 1, position, position + width
        cuts.append(Cut(kept[node - 1], order[start * unit : position * unit]))
    return tuple(cuts)


def _proof(
    evaluator: Evaluator, space: PlanSpace, kept: list[int], limits: PlanLimits, best: tuple[float, PlanOutline]
) -> tuple[tuple[float, PlanOutline], Bound]:
    """Return the best plan and seconds that no plan within the limits can beat: its own where all others are ruled out."""
    from meshwright._kernels.dapple import pipeline_suffix as kernel

    problem, training = evaluator.problem, evaluator.training
    if len(kept) < evaluator.n_states:
        # on all cuts: the work of the step, shared out evenly
        alone = float(evaluator.states.compute_seconds[-1]) * problem.batch.global_batch / training.profile_batch
        return best, Bound(min(best[0], alone / problem.required_cluster.n_devices), "relaxation")
    lines = device_orders.free_reductions(problem.required_cluster, space.n_replicas, published_links=training.published_links)
    n_units, n_positions = space.n_replicas // space.unit, -(-problem.required_cluster.n_devices // space.unit)
    layers, lowest, numbers = kernel.Layers(*space.layers), best[0], []
    for n_microbatches in space.n_microbatches:
        n_samples = problem.batch.global_batch // n_microbatches
        rules = _rules(training, limits, n_microbatches, problem.batch.global_batch, best[0], space.unit)
        allowed = samples(space, n_samples, limits)
        table = kernel.lower_bound(layers, n_units, allowed, lines, rules, n_positions)
        lowest = min(lowest, float(table[1, 0, n_positions]))
        recomputed = layers.forward_seconds if limits.recompute == "always" else 0.0
        compute = layers.forward_seconds + layers.backward_seconds + recomputed
        numbers.append(exact.Numbers(n_microbatches, space.n_replicas, allowed, layers.forward_seconds, compute, table))
    # devices of a machine are exchangeable only where the machines are all there is to the cluster
    small = problem.required_cluster.n_devices <= MOST_PROVEN[0]
    if training.published_links and small and len(kept) <= MOST_PROVEN[1] and not limits.max_stages:
        first, following = layers.following_first, layers.following
        rows = [following[first[k] : first[k + 1]].tolist() for k in range(len(first) - 1)]
        found = exact.proven(evaluator, numbers, rows, kept, best, limits.proof_steps)
        if found is not None:
            return found, Bound(found[0], "exact")
    return best, Bound(lowest, "relaxation")


def _rules(
    training: ProfiledTraining, limits: PlanLimits, n_microbatches: int, batch: int, upper_seconds: float, unit: int
) -> RunSettings:
    """Return the numbers of one run of a kernel."""
    from meshwright._kernels.dapple import pipeline_suffix as kernel

    recompute = ("never", "choose", "always").index(limits.recompute)
    ratio = float(training.optimizer_scaling_ratio)
    return kernel.RunSettings(n_microbatches, batch // n_microbatches, 1, ratio, recompute, float(upper_seconds), unit)


def _infeasible(evaluator: Evaluator, space: PlanSpace, problem: Problem, limits: PlanLimits, notes: tuple[str, ...]) -> Answer:
    """Say by how much the nearest plan misses."""
    nearest = math.inf
    for n_microbatches in space.n_microbatches:
        allowed = samples(space, problem.batch.global_batch // n_microbatches, limits)
        widths = space.n_replicas[allowed > 0]
        for order in space.orders:
            for width in {int(widths[0]), int(widths[-1])}:
                for n_stages in range(1, min(evaluator.n_states, problem.required_cluster.n_devices // width) + 1):
                    shape = evaluator.even_shape(n_microbatches, order, width, n_stages)
                    nearest = min(nearest, evaluator.missing_bytes(shape))
    why = "more devices, devices with more memory, a smaller min_micro_batch, or a lower optimizer_memory_scaling"
    if limits.recompute == "never":
        why += ", or recompute=choose"
    return Answer(plan=None, missing_bytes=nearest, nearest="", notes=(*notes, f"what would help: {why}"))


def _uneven(
    evaluator: Evaluator, states: States, kept: list[int], limits: PlanLimits, even_seconds: float
) -> Alternative | None:
    """Return a plan whose replicas share micro-batches unevenly, where that is clearly quicker."""
    problem = evaluator.problem
    if limits.uneven or problem.required_cluster.n_devices > MOST_UNEVEN or len(kept) > COARSE_STATES:
        return None
    limits = replace(limits, uneven=True)
    space = space_of(problem, evaluator.training, states, kept, limits)
    space = replace(space, orders=space.orders[:1])
    wanted_seconds = even_seconds / WORTH_RATIO
    starts = _starts([shape for _, shape in evaluator.ranked(_candidates(problem, space, limits, wanted_seconds))])
    around = Around(tuple(kept), space.n_microbatches, True)
    found = evaluator.best([evaluator.improved(shape, around) for shape in starts], wanted_seconds)
    if found is None:
        return None
    why = "quicker, but replicas of a stage take unequal whole numbers of samples"
    return Alternative(evaluator.plan(found[1]), Objective("step_seconds", found[0]), why)


def _alternatives(evaluator: Evaluator, ranked: list[tuple[float, PlanOutline]], best: PlanOutline) -> tuple[Alternative, ...]:
    """Return the best plan of each other number of stages, best first."""
    by_stages: dict[int, PlanOutline] = {}
    for _, shape in ranked:
        if len(shape.cuts) != len(best.cuts):
            by_stages.setdefault(len(shape.cuts), shape)
    judged = sorted(((evaluator.seconds(shape), n) for n, shape in list(by_stages.items())[:5]))
    return tuple(
        Alternative(evaluator.plan(by_stages[n]), Objective("step_seconds", seconds), f"the best found with {n} stages")
        for seconds, n in judged
    )
