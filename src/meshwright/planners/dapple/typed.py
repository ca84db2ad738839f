"""A plan as DAPPLE's tables write it: devices of each stage, ``8:8``, and where the layers are split, ``@13:6``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright import sim
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms import typed
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Objective
from meshwright.core.strategy import Strategy
from meshwright.core.timeline import Timeline
from meshwright.planners.dapple.costs.dapple import stage_costs

__all__ = ["answer"]

SCHEDULES = ("1f1b", "early_backward_a", "early_backward_b", "gpipe")
"""Which may be typed."""

TRIED = ("1f1b", "early_backward_b")
"""Which are tried where none is typed, as by the search; of one stage the first is like any."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was typed: replicas and layers of each stage; micro-batches (0: any) and schedule (empty: any)."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    n_microbatches: int
    schedule: str


def answer(problem: Problem, text: str, min_micro_batch: int, recompute: str) -> Answer:
    """Return the plan that was typed, with the simulated seconds of its step.

    `problem`: completed: a profile with its batch, a cluster, a global batch.
    `text`: ``DEVICES:DEVICES:...[@LAYERS:...][,n_microbatches=N][,schedule=WORD]``, or ``dp`` (one stage of all devices) or
    ``straight`` (stages of one device) in the place of the devices. Stages take devices in the order of their ids.
    `min_micro_batch`: fewest samples of a micro-batch.
    `recompute`: ``never``, ``always``, or ``choose``: stages that do not fit otherwise.
    Returns: where micro-batches or schedule were left out, the quickest that fits, or the quickest where none does.
    Raises `InputError` when the text is no such plan, or does not go with model, cluster and batch.
    """
    asked, notes = _asked(problem, text)
    best: tuple[bool, float, Plan] | None = None
    for plan in _plans(problem, asked, min_micro_batch):
        plan, timeline = _played(problem, plan, recompute)
        excess = sim.excess_bytes(problem, plan, timeline.peak_bytes) > 0.0
        if best is None or (excess, timeline.step_seconds) < best[:2]:
            best = (excess, timeline.step_seconds, plan)
    if best is None:
        batch = problem.batch.global_batch
        raise InputError(
            f"--fix {text}: a micro-batch needs a sample for each of {max(asked.sizes)} replicas, and min_micro_batch "
            f"{min_micro_batch} at least; a global batch of {batch} has too few"
            + (f" for {asked.n_microbatches} micro-batches" if asked.n_microbatches else "")
        )
    plan = best[2]
    if not asked.n_microbatches:
        told = "of the numbers of micro-batches that divide the batch" + ("" if best[0] else " and fit")
        notes += (f"{plan.n_microbatches} micro-batches: {told}, the quickest",)
    if not asked.schedule and len(asked.sizes) > 1:
        notes += (f"schedule {plan.schedule}: the quicker of {' and '.join(TRIED)}",)
    if uneven := [i for i, n in enumerate(asked.sizes) if plan.global_batch // plan.n_microbatches % n]:
        notes += (
            f"the {plan.global_batch // plan.n_microbatches} samples of a micro-batch do not divide over the replicas of "
            f"{'stage' if len(uneven) == 1 else 'stages'} {', '.join(map(str, uneven))}: the fullest replica counts",
        )
    return Answer(plan, Objective("step_seconds", best[1]), notes=notes)


def _asked(problem: Problem, text: str) -> tuple[_Asked, tuple[str, ...]]:
    """Return what was typed, layers shared out where they were left out, and a note that says so."""
    n_devices, n_layers = problem.required_cluster.n_devices, len(problem.graph.ops)
    spelled = re.sub(r"^\s*dp\b", str(n_devices), text, flags=re.IGNORECASE)
    spelled = re.sub(r"^\s*straight\b", ":".join(["1"] * n_devices), spelled, flags=re.IGNORECASE)
    told = typed.parse(spelled, n_layers, ("n_microbatches", "schedule"))
    sizes = tuple(typed.whole(one, text, "the devices of a stage") for one in told.words)
    if sum(sizes) > n_devices:
        raise InputError(f"--fix {text}: takes {sum(sizes)} devices; {problem.required_cluster.name} has {n_devices}")
    given = dict(told.options)
    schedule = given.get("schedule", "")
    if schedule and schedule not in SCHEDULES:
        raise UnknownNameError("schedule (of --fix)", schedule, SCHEDULES)
    n = typed.whole(given["n_microbatches"], text, "micro-batches") if "n_microbatches" in given else 0
    if n and problem.batch.global_batch % n:
        raise InputError(f"--fix {text}: {n} micro-batches do not divide the global batch of {problem.batch.global_batch}")
    if told.counts:
        return _Asked(sizes, told.counts, n, schedule), ()
    counts = typed.balanced(_layer_seconds(problem)[None, :] / np.array(sizes)[:, None])
    asked = _Asked(sizes, counts, n, schedule)
    if len(sizes) == 1:
        return asked, ()
    return asked, (
        f"the plan does not say which layers: they are split @{':'.join(map(str, counts))}, where the slowest stage computes "
        "for the least time",
    )


def _layer_seconds(problem: Problem) -> np.ndarray:
    """Return what one device takes for each layer, forward and backward."""
    order = problem.graph.topological_order()
    alone = Plan(tuple(Stage((op,), (0,)) for op in order), 1, 1, "1f1b", 1)
    return np.array([cost.forward_seconds + cost.backward_input_seconds for cost in stage_costs(problem, alone)])


def _plans(problem: Problem, asked: _Asked, min_micro_batch: int) -> Iterator[Plan]:
    """Yield the plans that the text allows."""
    order, batch = problem.graph.topological_order(), problem.batch.global_batch
    stages, layer, device = [], 0, 0
    for count, size in zip(asked.counts, asked.sizes, strict=True):
        ops, devices = order[layer : layer + count], tuple(range(device, device + size))
        stages.append(Stage(ops, devices, Strategy(data=size), ("none",) * count))
        layer, device = layer + count, device + size
    widest = max(asked.sizes)
    for n in (asked.n_microbatches,) if asked.n_microbatches else (n for n in range(1, batch + 1) if batch % n == 0):
        if batch // n < max(widest, min_micro_batch):
            continue
        for schedule in (asked.schedule,) if asked.schedule else TRIED[: len(stages)]:
            yield Plan(tuple(stages), n, batch // n // widest, schedule, batch)


def _played(problem: Problem, plan: Plan, recompute: str) -> tuple[Plan, Timeline]:
    """Return the plan with what its stages recompute, and its step."""
    recomputing = tuple(replace(stage, recompute=("full",) * len(stage.ops)) for stage in plan.stages)
    if recompute == "always":
        plan = replace(plan, stages=recomputing)
    timeline = sim.simulate(problem, plan, stage_costs(problem, plan))
    if recompute != "choose":
        return plan, timeline
    missing = sim.rank_excess_bytes(problem, plan, timeline.peak_bytes)
    if max(missing) <= 0.0:
        return plan, timeline
    chosen = tuple(other if more > 0.0 else stage for stage, other, more in zip(plan.stages, recomputing, missing, strict=True))
    plan = replace(plan, stages=chosen)
    return plan, sim.simulate(problem, plan, stage_costs(problem, plan))
