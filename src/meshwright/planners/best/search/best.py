"""Our own search: the joint space of degrees, micro-batch, sharding, recomputation, schedule and layout, with a proven bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from meshwright import sim
from meshwright.base import options, registry
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Result
from meshwright.costs import LAYERS, offers
from meshwright.planners.best import answer as joint
from meshwright.planners.best.incumbents import STOPPED_WITHOUT
from meshwright.planners.best.limits import Limits as Params
from meshwright.planners.best.limits import closed_axes, usual_micro_batches
from meshwright.planners.best.question import awkward_batch, with_batch, within_limits
from meshwright.planners.best.space import divisors
from meshwright.planners.best.virtual import in_shape

if TYPE_CHECKING:
    from meshwright.planners.best.check import answers

__all__ = [
    "BASELINES",
    "CHECK_TELLS",
    "FROZEN",
    "STATES",
    "STOPS_EARLY",
    "Params",
    "check_infeasible",
    "check_plan",
    "closed_axes",
    "data_parallel",
    "in_shape",
    "search",
]

FROZEN = STATES = True

STOPS_EARLY = CHECK_TELLS = True
BASELINES = ("data_parallel", "megatron_grid")

_UNTOLD = Stop()


def search(problem: Problem, params: Params, *, seed: int, stop: Stop, known: tuple[Plan, ...] = ()) -> Answer:
    """Return the plan with the shortest simulated step of the joint space, and a proven bound on every other.

    Parameters
    ----------
    problem : Problem
        A model of ours on a cluster. A measured profile is planned by search measured, with the same options. A published instance with costs of its own is passed on to the search that reads it.
    params : Params
        What may be fixed or limited.
    seed : int
        Passed on; the joint search itself is deterministic.
    stop : Stop
        `n_iterations` replaces ``params.evaluations``; `seconds` ends the search early, with the gap reached.
    known : tuple of Plan
        Plans of a question that differs little: those that fit here are found already.

    Returns
    -------
    Answer
        ``objective`` is the simulated step in seconds; ``bound`` holds for every plan of the space.

    Raises
    ------
    InputError
        When the batch or a degree given is impossible.

    Notes
    -----
    Best-first branch and bound over meshes, then configurations: a bound comes from `solvers.pipeline_split`, the objective
    from the simulator. The space: all ranks of a pipeline have the same degrees; 1F1B and ZB-H1 with any split of the layers,
    virtual stages with layers spread evenly, or fewer of them at the ends. Where memory asks, layers recompute their cheap activations or everything: in any
    mixture under 1F1B, by one rule (the least work that fits each rank) under ZB-H1 and over virtual stages; a plan under ZB-H1 must
    fit with as many micro-batches as the schedule allows. Ranks are blocks of neighbouring devices (`layout`), of a torus also of its
    boxes; meshes that leave the last devices idle are part of it, in orders that put nodes of each sort first. `docs/explanation/best.md` has all of it.
    """
    model_spec = problem.model_spec
    if problem.costs == "profiled":
        measured: Answer = registry.load("search", "measured", "search").search(problem, params, seed=seed, stop=stop)
        return _noting_unused(measured, params)
    if model_spec.search != "best" and not offers(problem.costs, LAYERS):
        other = registry.load("search", model_spec.search, "search")
        answer: Answer = other.search(problem, other.Params(), seed=seed, stop=stop)
        note = f"{model_spec.format} brings its own costs: search best passes it on to search {model_spec.search}, with its default options"
        unheeded = () if getattr(other, "STOPS_EARLY", False) else stop.unheeded(model_spec.search)
        return replace(answer, notes=(note, *answer.notes, *unheeded))
    notes: list[str] = []
    problem = with_batch(problem, "best", notes)
    _check_number_of_tasks(problem, params)
    notes += filter(None, (awkward_batch(problem, params),))
    found = joint.answer(problem, params, stop, tuple(notes), known)
    if (
        found.plan is None and not found.missing_bytes and STOPPED_WITHOUT not in found.notes
    ):  # a whole model on one device is always legal: the options exclude it
        raise InputError(f"search best, with these options: {found.notes[-1]}")
    found = _noting_tensor(_noting_largest(_noting_unused(found, params), params, problem), params, problem)
    return replace(found, extra={**found.extra, "certificate": dict(found.certificate or {})})


def _check_number_of_tasks(problem: Problem, params: Params) -> None:
    """Refuse a batch whose plans of the smallest micro-batch cannot be simulated even over all devices, before any is built."""
    batch, n_devices = problem.batch, problem.required_cluster.n_devices
    sizes = params.micro_batch or (batch.micro_batch,) * (batch.micro_batch > 0)
    sizes = sizes or usual_micro_batches(problem.graph, batch.global_batch)
    n_tasks = {size: 2 * -(-batch.global_batch // (size * n_devices)) for size in sizes}
    if n_tasks[min(sizes)] > sim.MOST_TASKS:
        larger = [size for size in sizes if n_tasks[size] <= sim.MOST_TASKS]
        advice = f", or --micro-batch {min(larger)}" if larger else ""
        raise InputError(
            f"--global-batch {batch.global_batch}: {batch.global_batch} samples in micro-batches of {min(sizes)} are "
            f"{n_tasks[min(sizes)]} tasks a step on {n_devices} devices, and at most {sim.MOST_TASKS} can be simulated; "
            f"give a smaller batch{advice}"
        )


def _noting_largest(found: Answer, params: Params, problem: Problem) -> Answer:
    """Return the answer with a note where its micro-batch is the largest that is searched by itself, and a larger one would divide."""
    if params.micro_batch or problem.batch.micro_batch or found.plan is None:
        return found
    largest = usual_micro_batches(problem.graph, found.plan.global_batch)[-1]
    more = [size for size in divisors(found.plan.global_batch // found.plan.stages[0].strategy.data) if size > largest]
    if found.plan.micro_batch != largest or not more:
        return found
    said = f"micro-batches above {largest} are searched only if asked for; --micro-batch {more[0]} may be quicker"
    return replace(found, notes=(*found.notes, said))


def _noting_tensor(found: Answer, params: Params, problem: Problem) -> Answer:
    """Return the answer with a note where a model without attention has products that a tensor axis may split."""
    body = [operator for op in problem.graph.ops for operator in op.body]
    if params.tensor or any(one.size("heads", 0) for one in body) or not any(one.tensor_axis in ("out", "in") for one in body):
        return found
    said = "no attention heads: tensor degrees above 1 are searched only where they are named, as by --set tensor=1,2,4"
    return replace(found, notes=(*found.notes, said))


def _noting_unused(found: Answer, params: Params) -> Answer:
    """Return the answer with a note where a context exchange was asked for and there is no context axis."""
    if not params.context_exchange or found.plan is None or any(stage.strategy.context > 1 for stage in found.plan.stages):
        return found
    said = f"context_exchange={','.join(params.context_exchange)} changes nothing here: the answer has a context degree of 1"
    return replace(found, notes=(*found.notes, said))


def data_parallel(problem: Problem, settings: Mapping[str, float], stop: Stop) -> Answer:
    """Return every device as a replica of the whole model; what is sharded and recomputed and the micro-batch as memory asks for.

    Raises
    ------
    InputError
        When the devices do not divide the batch, or there are settings: those are of published graphs.
    """
    if settings:
        raise InputError(
            "search data_parallel: its --set options belong to published graphs; for other models there is nothing to set"
        )
    notes: list[str] = []
    problem = with_batch(problem, "data_parallel", notes)
    assert problem.cluster is not None
    n = problem.cluster.n_devices
    if problem.batch.global_batch % n:
        raise InputError(
            f"search data_parallel: {n} devices do not divide the global batch of {problem.batch.global_batch} samples; "
            f"give --global-batch a multiple of {n}"
        )
    one = (1,)
    limits = Params(tensor=one, context=one, expert=one, pipeline=one, data=(n,), schedules=("1f1b",))
    return within_limits(joint.answer(problem, limits, stop, tuple(notes)), "data_parallel")


def check_plan(result: Result, entry: dict[str, Any], place: str, stop: Stop = _UNTOLD) -> answers.AnswerVerdict:
    """Check what a plan file of this search claims, without the search: see `meshwright.planners.best.check.answers`.

    `stop`: is told how far the check has come. Of a plan whose stages were given, which claims no bound, the plan itself is checked.
    Raises `InputError` when a field is missing or of the wrong kind.
    """
    if isinstance(entry.get("fixed"), dict) and entry.get("bound") is None and not entry.get("certificate"):
        return _without_bound(result, entry)
    from meshwright.planners.best.check import answers  # most commands check nothing

    return answers.check_plan(result, entry, place, asdict(options.parse(Params, dict(result.settings), "search best")), stop)


def _without_bound(result: Result, entry: dict[str, Any]) -> answers.AnswerVerdict:
    """Check a plan that claims no more than its own step."""
    from meshwright.planners.best.check import answers

    assert result.timeline is not None
    value, said = result.timeline.step_seconds, entry.get("step_seconds")
    others = ("whether other plans are quicker: the file claims nothing of them",)
    if not isinstance(said, (int, float)) or not math.isclose(said, value, rel_tol=1e-9):
        reason = f"step_seconds is {said!r} in the file, and {value!r} by the plan in it"
        return answers.AnswerVerdict(False, value, math.nan, reason, not_checked=others)
    missing = sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes)
    if missing > 0.0:
        reason = f"the plan lacks {missing!r} bytes on its fullest device"
        return answers.AnswerVerdict(False, value, math.nan, reason, not_checked=others)
    return answers.AnswerVerdict(True, value, math.nan, "", (f"the plan takes {value!r} seconds, and fits",), others)


def check_infeasible(problem: Problem, entry: dict[str, Any], place: str, stop: Stop = _UNTOLD) -> answers.AnswerVerdict:
    """Check the answer that nothing fits, without the search.

    `problem`: model and cluster of the file. `stop`: as of `check_plan`. Raises `InputError` when a field is missing or of the wrong kind.
    """
    from meshwright.planners.best.check import answers

    settings = {str(key): str(value) for key, value in entry.get("settings", {}).items()}
    return answers.check_infeasible(problem, entry, place, asdict(options.parse(Params, settings, "search best")), stop)
