"""Mapped pipelines with tensors and optimizer state sharded, activations recomputed: the variants of a plan that fit."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright import sim
from meshwright.base import registry
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.strategy import RECOMPUTE, Strategy
from meshwright.core.timeline import Timeline
from meshwright.costs import analytic, offers
from meshwright.planners.parmesan.pipelines import MOST_UNEQUAL, EvaluatedPlan

__all__ = ["fitted", "least_seconds_per_sample", "micro_batches"]

_TENSOR_DEGREES = (1, 2, 4, 8)
_SCHEDULES = ("gpipe", "1f1b", "zb_h1")
_SPARED = 8  # plans whose stages recompute as few layers as still fit
_PLANS = 6  # mapped pipelines whose variants are simulated


def micro_batches(problem: Problem) -> tuple[int, ...]:
    """Return the micro-batches to try: the one asked for, or a few where only the global batch is given."""
    if problem.batch.micro_batch or not problem.batch.global_batch:
        return (problem.batch.micro_batch or 1,)
    return tuple(size for size in (1, 2, 4, 8) if problem.batch.global_batch % size == 0)


def least_seconds_per_sample(problem: Problem) -> float:
    """Return what all devices together need for one sample at least: compute only, shared out perfectly; 0 where the cost model
    does not say.

    Notes
    -----
    A layer counts with the tensor degree and number of samples that suit it best. If layer l takes ``c[l, k]`` seconds on one
    device of kind k, sharing layers out among ``n[k]`` devices is a linear program;
    ``sum over l of min over k of y[k] c[l, k]``, divided by the sum of ``n[k] y[k]``, bounds it from below for every
    ``y >= 0``, and is its value where kinds differ by one factor and y is the inverse of the time that all layers take.
    """
    cluster = problem.required_cluster
    module = registry.load("costs", problem.costs, "cost model")
    if not offers(problem.costs, ("illegal", "compute_seconds")):
        return 0.0
    row_of_op = analytic.rows(problem)
    seconds = np.full((len(cluster.kinds), len(row_of_op)), np.inf)
    # a replica of a stage takes the samples of one or more replicas of the widest
    sizes = sorted({size * n for size in micro_batches(problem) for n in range(1, min(cluster.n_devices, MOST_UNEQUAL) + 1)})
    for tensor, size in itertools.product(_TENSOR_DEGREES, sizes):
        strategy = Strategy(tensor=tensor, sequence_parallel=tensor > 1)
        if tensor > cluster.n_devices or module.illegal(problem, strategy, size):
            continue
        for kind, device in enumerate(cluster.kinds):
            of_row = module.compute_seconds(problem, strategy, size, device)
            each = np.array([of_row[row] for row in row_of_op]) * tensor / size
            seconds[kind] = np.minimum(seconds[kind], each)
    weight = 1.0 / seconds.sum(axis=1)
    shared = float(np.bincount(cluster.kind_of_device, minlength=len(weight)) @ weight)
    return float((seconds * weight[:, np.newaxis]).min(axis=0).sum()) / shared


def fitted(
    problem: Problem, ranked: Sequence[EvaluatedPlan], others: Sequence[EvaluatedPlan] = ()
) -> tuple[tuple[EvaluatedPlan, ...], float]:
    """Return the best variants of mapped pipelines that fit into memory.

    `ranked`: mapped pipelines without any sharding, best first; the first few different ones count.
    `others`: candidates as they are.

    Returns
    -------
    fits : tuple of Judged
        Variants that fit, simulated, best first.
    missing_bytes : float
        By how many bytes the nearest of the others exceeds its fullest device; infinite where all fit.

    Notes
    -----
    Replicas of a stage that stand next to each other in its order split layers between them (sequence parallel), or all
    replicas share out the optimizer's state, gradients and weights; each stage recomputes no more than it takes to fit. The
    menu of strategies is the cost model's: what is illegal for the model is left out. A variant whose busiest stage alone,
    recomputing nothing, works longer than the first few found so far take is not played.
    """
    module = registry.load("costs", problem.costs, "cost model")
    found: list[EvaluatedPlan] = []
    seconds: list[float] = []  # per sample of what was found, ascending
    missing = float("inf")
    for candidate in _candidates(problem, module, _different(ranked)):
        if (found and candidate.too_large) or (len(seconds) >= _SPARED and candidate.work_seconds >= seconds[_SPARED - 1]):
            continue
        for schedule in _SCHEDULES if len(candidate.plan.stages) > 1 else ("1f1b",):
            fits, over = _recomputed(problem, module, replace(candidate.plan, schedule=schedule))
            missing = min(missing, over)
            if fits is not None:
                found.append(replace(fits, label=f"{candidate.label}, {schedule}"))
                bisect.insort(seconds, fits.seconds_per_sample)
    for one in others:
        timeline, excess = _played(problem, module, one.plan)
        if max(excess) <= 0.0:
            found.append(replace(one, step_seconds=timeline.step_seconds))
    order = sorted(range(len(found)), key=lambda i: (found[i].seconds_per_sample, i))
    best = [_spared(problem, module, found[i]) for i in order[:_SPARED]] + [found[i] for i in order[_SPARED:]]
    return tuple(sorted(best, key=lambda one: one.seconds_per_sample)), missing


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A variant that recomputes nothing: what its busiest stage works per sample, and whether its state alone is too large."""

    plan: Plan
    label: str
    work_seconds: float
    too_large: bool


def _candidates(problem: Problem, module: Any, pipelines: Sequence[EvaluatedPlan]) -> list[_Candidate]:
    """Return the legal variants of some pipelines: those whose state fits first, of these the ones with the "
    "least work first."""
    assert problem.cluster is not None
    found, illegal = [], getattr(module, "illegal", analytic.illegal)
    for one in pipelines:
        for label, plan in _variants(problem, one.plan):
            asked = zip(plan.stages, plan.samples_of_replicas(), strict=True)
            if any(illegal(problem, stage.strategy, samples) for stage, samples in asked):
                continue
            stage_costs = module.stage_costs(problem, plan)
            most = max(load.forward_total_seconds + load.backward_total_seconds for load in stage_costs)
            free = [sim.free_bytes(map(problem.cluster.device, stage.devices), problem.memory_ratio) for stage in plan.stages]
            too_large = any(load.static_bytes > limit for load, limit in zip(stage_costs, free, strict=True))
            found.append(_Candidate(plan, f"{one.label}{label}", plan.n_microbatches * most / plan.global_batch, too_large))
    return sorted(found, key=lambda candidate: (candidate.too_large, candidate.work_seconds))


def _recomputed(problem: Problem, module: Any, plan: Plan) -> tuple[EvaluatedPlan | None, float]:
    """Return the plan with each stage recomputing no more than it takes to fit, and by how many bytes it failed to at most."""
    levels = [0] * len(plan.stages)
    while True:
        now = _with_recompute(plan, [(RECOMPUTE[level], len(s.ops)) for level, s in zip(levels, plan.stages, strict=True)])
        timeline, excess = _played(problem, module, now)
        if max(excess) <= 0.0:
            return EvaluatedPlan(now, timeline.step_seconds, ""), float("inf")
        full = [stage for stage, over in enumerate(excess) if over > 0.0]
        if any(levels[stage] == len(RECOMPUTE) - 1 for stage in full):
            return None, max(excess)
        for stage in full:
            levels[stage] += 1


def _spared(problem: Problem, module: Any, one: EvaluatedPlan) -> EvaluatedPlan:
    """Return a plan that fits with as few layers of each stage recomputing as still fit, where that is quicker."""
    words = [stage.recompute[0] for stage in one.plan.stages]
    low, high = [0] * len(words), [len(stage.ops) for stage in one.plan.stages]
    best = one
    while low != high:
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        plan = _with_recompute(one.plan, list(zip(words, middle, strict=True)))
        timeline, excess = _played(problem, module, plan)
        for stage, over in enumerate(excess):
            if over <= 0.0:
                high[stage] = middle[stage]
            elif low[stage] < high[stage]:  # a stage that was settled may exceed later: the order of tasks follows the others
                low[stage] = middle[stage] + 1
        if max(excess) <= 0.0 and timeline.step_seconds < best.step_seconds:
            best = EvaluatedPlan(plan, timeline.step_seconds, one.label)
    plan = _with_recompute(one.plan, list(zip(words, high, strict=True)))
    timeline, excess = _played(problem, module, plan)
    quicker = max(excess) <= 0.0 and timeline.step_seconds < best.step_seconds
    return EvaluatedPlan(plan, timeline.step_seconds, one.label) if quicker else best


def _with_recompute(plan: Plan, each: Sequence[tuple[str, int]]) -> Plan:
    """Return the plan with so many first layers of each stage recomputing in one way, the others not at all."""
    stages = tuple(
        replace(stage, recompute=(word,) * n + ("none",) * (len(stage.ops) - n))
        for stage, (word, n) in zip(plan.stages, each, strict=True)
    )
    return replace(plan, stages=stages)


def _played(problem: Problem, module: Any, plan: Plan) -> tuple[Timeline, tuple[float, ...]]:
    """Return the simulated step, and by how many bytes each stage exceeds its smallest device; below zero where it fits."""
    timeline = sim.simulate(problem, plan, module.stage_costs(problem, plan))
    return timeline, sim.rank_excess_bytes(problem, plan, timeline.peak_bytes)


def _different(ranked: Sequence[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return the first few plans of different stages or devices."""
    seen: set[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = set()
    kept: list[EvaluatedPlan] = []
    shapes: set[tuple[int, ...]] = set()
    for one in ranked:
        key = tuple((stage.ops, stage.devices) for stage in one.plan.stages)
        shape = tuple(len(stage.devices) for stage in one.plan.stages)
        # the best of every shape first: long pipelines are slower but hold less
        if key not in seen and (len(kept) < _PLANS or shape not in shapes):
            seen.add(key)
            shapes.add(shape)
            kept.append(one)
    return kept


def _variants(problem: Problem, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with tensor degrees and sharded state, and a label of what changed."""
    degrees = [stage.strategy.data for stage in plan.stages]
    asked = problem.batch.global_batch
    for tensor, micro_batch in itertools.product(_TENSOR_DEGREES, micro_batches(problem)):
        if any(degree % tensor for degree in degrees) or (asked and asked % (micro_batch * max(degrees) // tensor)):
            continue
        split = [degree // tensor for degree in degrees]
        slots = asked // (micro_batch * max(split)) if asked else plan.n_microbatches
        shards = (0, 1, 2, 3) if max(split) > 1 else (0,)
        for shard in shards:
            stages = tuple(
                replace(
                    stage, strategy=Strategy(data=data, tensor=tensor, sequence_parallel=tensor > 1,
                    shard=shard if data > 1 else 0),
                    ring=stage.ring if tensor == 1 else (),
                )
                for stage, data in zip(plan.stages, split, strict=True)
            )  # fmt: skip
            label = f", micro-batch {micro_batch}, tensor {tensor}, shard {shard}"
            yield label, Plan(stages, slots, micro_batch, plan.schedule, slots * micro_batch * max(split))
