"""Mapped pipelines with tensors and optimizer state sharded, activations recomputed: the variants of a plan that fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright import _plugins, sim
from meshwright.plan import Plan
from meshwright.problem import Problem
from meshwright.search._pipelines import Judged
from meshwright.strategy import RECOMPUTE, Strategy

__all__ = ["Fitted", "fitted", "micro_batches"]

_PLANS = 6  # mapped pipelines whose variants are simulated


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Variants that fit, best first; where there is none, by how many bytes the nearest exceeds its fullest device."""

    plans: tuple[Judged, ...]
    missing_bytes: float


def micro_batches(problem: Problem) -> tuple[int, ...]:
    """Return the micro-batches to try: the one asked for, or a few where only the global batch is given."""
    if problem.batch.micro_batch or not problem.batch.global_batch:
        return (problem.batch.micro_batch or 1,)
    return tuple(size for size in (1, 2, 4, 8) if problem.batch.global_batch % size == 0)


def fitted(problem: Problem, ranked: Sequence[Judged]) -> Fitted:
    """Return the best variants of mapped pipelines that fit into memory.

    Parameters
    ----------
    problem : Problem
        A model with a cost model of its layers.
    ranked : sequence of Judged
        Mapped pipelines without any sharding, best first; the first few different ones count.

    Returns
    -------
    Fitted
        Simulated.

    Notes
    -----
    Replicas of a stage that stand next to each other in its order split layers between them (sequence parallel), or all replicas
    share out the optimizer's state, gradients and weights; all layers recompute alike. The menu of strategies is the cost
    model's: what is illegal for the model is left out.
    """
    cluster = problem.cluster
    assert cluster is not None
    module = _plugins.load("costs", problem.costs, "cost model")
    found: list[Judged] = []
    missing = float("inf")
    for one in _different(ranked):
        for label, plan in _variants(problem, one.plan):
            if any(module.illegal(problem, stage.strategy, plan.micro_batch) for stage in plan.stages):
                continue
            timeline = sim.simulate(problem, plan, module.loads(problem, plan))
            over = max(
                peak - min(cluster.device(device).memory_bytes for device in devices)
                for peak, devices in zip(timeline.peak_bytes, plan.ranks(), strict=True)
            )
            if over > 0.0:
                missing = min(missing, over)
            else:
                found.append(Judged(plan, timeline.step_seconds, f"{one.label}{label}"))
    order = sorted(range(len(found)), key=lambda i: (found[i].seconds_per_sample, i))
    return Fitted(tuple(found[i] for i in order), missing)


def _different(ranked: Sequence[Judged]) -> list[Judged]:
    """Return the first few plans of different stages or devices."""
    seen: set[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = set()
    kept: list[Judged] = []
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
    """Yield the plan with tensor degrees, sharded state and recomputation, and a label of what changed."""
    degrees = [stage.strategy.data for stage in plan.stages]
    asked = problem.batch.global_batch
    for tensor, micro_batch in itertools.product((1, 2, 4, 8), micro_batches(problem)):
        if any(degree % tensor for degree in degrees) or (asked and asked % (micro_batch * max(degrees) // tensor)):
            continue
        split = [degree // tensor for degree in degrees]
        slots = asked // (micro_batch * max(split)) if asked else plan.n_microbatches
        shards = (0, 1, 2, 3) if max(split) > 1 else (0,)
        for shard, recompute, schedule in itertools.product(shards, RECOMPUTE, ("gpipe", "1f1b")):
            stages = tuple(
                replace(
                    stage, recompute=(recompute,) * len(stage.ops),
                    strategy=Strategy(data=data, tensor=tensor, sequence_parallel=tensor > 1, shard=shard),
                    ring=stage.ring if tensor == 1 else (),
                )
                for stage, data in zip(plan.stages, split, strict=True)
            )  # fmt: skip
            label = f", micro-batch {micro_batch}, tensor {tensor}, shard {shard}, recompute {recompute}, {schedule}"
            yield label, Plan(stages, slots, micro_batch, schedule, slots * micro_batch * max(split))
