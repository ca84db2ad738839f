"""The best plan by a profile of the machine at hand: degrees, micro-batches, schedule, sharding, cuts and places, all simulated."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Alternative, Answer, Bound, Objective
from meshwright.core.strategy import Strategy
from meshwright.costs import profiled
from meshwright.costs.profiled.readers.profile_json import Profile
from meshwright.planners.best.limits import Limits as Params
from meshwright.solvers.pipeline.chain_cut import cut

__all__ = ["STOPS_EARLY", "Params", "search"]

STOPS_EARLY = True

_SCHEDULES = ("1f1b", "zb_h1", "gpipe")
"""Schedules with one stage per rank; of plans equally fast, that with the first of them is answered."""

_POLISHED = 6
"""Plans whose cuts and places are improved move by move."""

_SWEEPS = 4
"""Times that all moves are tried in a row."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Degrees and schedule of a plan, before its layers are cut; `bound_seconds` holds for every cut and place."""

    pipeline: int
    data: int
    tensor: int
    n_microbatches: int
    schedule: str
    shard: int
    recompute: str
    bound_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A plan, its simulated step, and the bytes by which its fullest device overflows."""

    choice: _Choice
    plan: Plan
    seconds: float
    missing_bytes: float

    @property
    def rank(self) -> tuple[float, ...]:
        """What plans are ordered by: those that fit first, then the faster, then fewer devices."""
        return (self.missing_bytes, self.seconds, self.plan.n_devices)


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the plan with the shortest simulated step on a profiled machine.

    Parameters
    ----------
    problem : Problem
        A profile that ``meshwright profile`` wrote, on the machine whose links it holds or on a cluster given.
    params : Params
        What may be fixed, as in search best. Context and expert degrees above 1 and interleaved schedules are not part of the space.
    seed : int
        Not used: deterministic.
    stop : Stop
        `n_iterations` replaces ``params.evaluations``; `seconds` ends the search early, after one choice of degrees at least.

    Returns
    -------
    Answer
        ``objective`` is the simulated step; ``bound`` holds for every plan of the space: all stages of the same degrees, one stage
        per rank.

    Raises
    ------
    InputError
        When the costs are no profile, or nothing of what is allowed divides the batch.

    Notes
    -----
    Layers are first cut so that the slowest stage is as fast as can be; then the best few plans are improved by moving a layer over
    a cut and by swapping two devices, as long as the simulated step gets shorter. What is not tried is counted in a note.
    """
    profile = problem.model_spec.instance
    if not isinstance(profile, Profile) or problem.cluster is None:
        raise InputError("search measured: needs a profile ('meshwright profile') with links, or with --cluster beside it")
    notes: list[str] = []
    if not problem.batch.global_batch:
        most = 4 * max(measure.rows for group in profile.measures.values() for measure in group)
        problem = replace(problem, batch=replace(problem.batch, global_batch=most))
        notes.append(f"no --global-batch given: {most} samples a step are assumed")
    if not 0.0 < params.memory_ratio <= 1.0:
        raise InputError(f"--set memory_ratio={params.memory_ratio:g}: give a share of the memory, up to 1")
    cluster = problem.required_cluster
    choices = sorted(_choices(problem, profile, params), key=lambda choice: choice.bound_seconds)
    if not choices:
        raise InputError(
            f"search measured: no degrees allowed divide the global batch of {problem.batch.global_batch} samples on "
            f"{cluster.n_devices} devices; profiles hold no context or expert degrees above 1"
        )
    devices = tuple(range(cluster.n_devices))
    found: list[_Found] = []
    limit = stop.n_iterations or params.evaluations
    deadline = time.monotonic() + stop.seconds if stop.seconds else float("inf")
    for choice in choices:
        fastest = min((entry.seconds for entry in found if entry.missing_bytes == 0.0), default=float("inf"))
        if choice.bound_seconds >= fastest:
            break
        if found and (stop.is_asked() or time.monotonic() > deadline):
            notes.append(
                f"stopped before its end, as asked: {len(choices) - len(found)} of {len(choices)} choices were not tried"
            )
            break
        if len(found) == limit:
            notes.append(
                f"{len(choices) - limit} of {len(choices)} choices of degrees were not tried; allow more with evaluations"
            )
            break
        stages = cut(_work(problem, profile, choice), choice.pipeline)
        found.append(_judged(problem, choice, stages, devices, params.memory_ratio))
    found.sort(key=lambda entry: entry.rank)
    better = sorted(
        (_polished(problem, entry, params.memory_ratio) for entry in found[:_POLISHED]), key=lambda entry: entry.rank
    )
    best = better[0]
    if best.missing_bytes > 0.0:
        return Answer(
            plan=None, missing_bytes=best.missing_bytes, nearest="more devices, or fewer samples a step", notes=tuple(notes)
        )
    value = Objective("step_seconds", best.seconds)
    lowest = min(choice.bound_seconds for choice in choices)
    others = tuple(
        Alternative(entry.plan, Objective("step_seconds", entry.seconds), "slower")
        for entry in [*better[1:], *found[_POLISHED:]][:10] if entry.missing_bytes == 0.0
    )  # fmt: skip
    return Answer(
        best.plan, value, Bound(lowest, "relaxation"), others, n_iterations=len(found), notes=tuple(notes), problem=problem
    )


def _choices(problem: Problem, profile: Profile, params: Params) -> Iterator[_Choice]:
    """Return all degrees, numbers of micro-batches, schedules and shardings that the batch and the profile allow."""
    n, batch, n_layers = problem.required_cluster.n_devices, problem.batch.global_batch, len(profile.layers)
    measured = sorted({tensor for _, tensor in profile.measures})
    counts = [m for m in range(1, batch + 1) if batch % m == 0]
    if any(allowed and 1 not in allowed for allowed in (params.context, params.expert)):
        return
    tensors = [t for t in measured if not params.tensor or t in params.tensor]
    pipelines = [p for p in range(1, min(n, n_layers) + 1) if not params.pipeline or p in params.pipeline]
    datas = [d for d in range(1, n + 1) if not params.data or d in params.data]
    for tensor, pipeline, data, m in itertools.product(tensors, pipelines, datas, counts):
        rows = batch // (m * data)
        if pipeline * data * tensor > n or batch % (m * data):
            continue
        wanted = params.micro_batch or ((problem.batch.micro_batch,) if problem.batch.micro_batch else ())
        if wanted and rows not in wanted:
            continue
        for schedule in _SCHEDULES if pipeline > 1 else _SCHEDULES[:1]:
            if schedule not in (*params.schedules, "gpipe" if params.schedules == Params().schedules else ""):
                continue
            for shard in params.shard if data > 1 else (0,):
                for recompute in params.recompute:
                    if recompute == "selective":  # no profile knows what it keeps
                        continue
                    choice = _Choice(pipeline, data, tensor, m, schedule, shard, recompute, 0.0)
                    yield replace(choice, bound_seconds=_bound(_work(problem, profile, choice), choice, profile))


def _work(problem: Problem, profile: Profile, choice: _Choice) -> NDArray[np.float64]:
    """Return the seconds of each layer over all micro-batches of a step on one rank."""
    rows = problem.batch.global_batch / (choice.n_microbatches * choice.data)
    seconds = [profiled.layer_seconds(profile, op, rows, choice.tensor) for op in range(len(profile.layers))]
    again = choice.recompute == "full"
    return np.array([sum(times) + (times[0] if again else 0.0) for times in seconds]) * choice.n_microbatches


def _bound(work: NDArray[np.float64], choice: _Choice, profile: Profile) -> float:
    """Return seconds that no cut undercuts: an equal share of all work, the dearest layer, one micro-batch through all stages."""
    weights = profile.weight_bytes / (choice.pipeline * choice.tensor)
    update = profile.optimizer_seconds_per_byte * weights / (choice.data if choice.shard else 1)
    through = float(work.sum()) / choice.n_microbatches if choice.schedule != "zb_h1" else 0.0
    return max(float(work.sum()) / choice.pipeline + update, float(work.max()), through)


def _judged(problem: Problem, choice: _Choice, sizes: tuple[int, ...], devices: tuple[int, ...], memory_ratio: float) -> _Found:
    """Return the plan of a cut on some devices, simulated."""
    width = choice.data * choice.tensor
    strategy = Strategy(data=choice.data, tensor=choice.tensor, shard=choice.shard)
    ends = list(itertools.accumulate(sizes))
    stages = tuple(
        Stage(
            tuple(range(end - size, end)), tuple(devices[i * width : (i + 1) * width]), strategy, (choice.recompute,) * size
        )
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )  # fmt: skip
    batch = problem.batch.global_batch
    plan = Plan(stages, choice.n_microbatches, batch // (choice.n_microbatches * choice.data), choice.schedule, batch)
    timeline = sim.simulate(problem, plan, profiled.stage_costs(problem, plan))
    missing = sim.excess_bytes(problem, plan, timeline.peak_bytes, memory_ratio)
    return _Found(choice, plan, timeline.step_seconds, max(0.0, missing))


def _polished(problem: Problem, start: _Found, memory_ratio: float) -> _Found:
    """Return a plan improved by moving layers over cuts and swapping devices until nothing helps."""
    best = start
    sizes = tuple(len(stage.ops) for stage in start.plan.stages)
    used = tuple(device for stage in start.plan.stages for device in stage.devices)
    devices = (*used, *(d for d in range(problem.required_cluster.n_devices) if d not in used))
    for _ in range(_SWEEPS):
        before = best
        for moved in _moves(sizes):
            tried = _judged(problem, start.choice, moved, devices, memory_ratio)
            if tried.rank < best.rank:
                best, sizes = tried, moved
        for a, b in itertools.combinations(range(len(devices)), 2):
            if a // len(start.plan.stages[0].devices) == b // len(start.plan.stages[0].devices) or a >= len(used):
                continue
            order = list(devices)
            order[a], order[b] = order[b], order[a]
            tried = _judged(problem, start.choice, sizes, tuple(order), memory_ratio)
            if tried.rank < best.rank:
                best, devices = tried, tuple(order)
        if best is before:
            break
    return best


def _moves(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return the cuts in which one layer lies on the other side of a boundary."""
    for i in range(len(sizes) - 1):
        for step in (1, -1):
            moved = list(sizes)
            moved[i] += step
            moved[i + 1] -= step
            if min(moved) > 0:
                yield tuple(moved)
