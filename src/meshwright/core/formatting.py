"""Words for plans, layers and devices that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.core import interval, peaks
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.result import Result
from meshwright.core.timeline import PHASES

__all__ = [
    "axes_of", "describe", "devices_of", "fullest", "layers_of", "peak_margin", "ranges_of", "seen_from", "shown_risk", "step_interval", "utilization",  # noqa: E501
]  # fmt: skip


def describe(plan: Plan) -> str:
    """Return a plan's degrees and schedule in one line."""
    degrees = plan.stages[0].strategy
    ranks = len(plan.ranks())
    parts = []
    if len({stage.strategy for stage in plan.stages}) == 1:
        for name in ("data", "context", "tensor", "expert"):
            if getattr(degrees, name) > 1:
                parts.append(f"{name} {getattr(degrees, name)}")
    else:
        parts.append("data x tensor " + "|".join(f"{stage.strategy.data}x{stage.strategy.tensor}" for stage in plan.stages))
    if ranks > 1:
        parts.append(f"pipeline {ranks}" + (f" x {len(plan.stages) // ranks} virtual" if len(plan.stages) > ranks else ""))
    most = max((stage.strategy for stage in plan.stages), key=lambda strategy: (strategy.shard, strategy.shard_degree))
    if most.shard:
        over = f" over {most.shard_degree}" if most.shard_degree else ""
        parts.append({1: "optimizer sharded", 2: "optimizer and gradients sharded", 3: "fully sharded"}[most.shard] + over)
    words = [word for stage in plan.stages for word in stage.recompute]
    order = ("selective", *sorted(set(words) - {"none", "selective", "full"}), "full")
    named = {"selective": "selectively", "full": "all"}
    parts += [f"{words.count(word)} layers recompute {named.get(word, word)}" for word in order if word in words]
    schedule = f"{plan.schedule}, " if ranks > 1 else ""
    parts.append(f"{schedule}{plan.n_microbatches} micro-batches of {plan.micro_batch}")
    return ", ".join(parts)


def devices_of(cluster: Cluster | None, stage: Stage) -> str:
    """Return the devices of a stage in ranges, with their kind where the cluster has several: ``0-3 H100-SXM-80GB``."""
    text = ranges_of(sorted(stage.devices))
    if cluster is None or len(cluster.kinds) == 1:
        return text
    return " ".join((text, *dict.fromkeys(cluster.device(device).name for device in stage.devices)))


def ranges_of(numbers: Sequence[int]) -> str:
    """Return ids as ranges: 0-7,16."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:4])
    return text + (f",... ({len(numbers)})" if len(runs) > 4 else "")


def axes_of(plan: Plan) -> tuple[str, ...]:
    """Return the axes that tables of stages show: data and tensor always, the others where a stage uses them."""
    used = [axis for axis in ("context", "expert") if any(getattr(stage.strategy, axis) > 1 for stage in plan.stages)]
    return ("data", *used, "tensor")


def layers_of(graph: Graph, stage: Stage) -> str:
    """Return the layers of a stage: the first, the last and how many."""
    names = [graph.ops[op].name for op in stage.ops]
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})" if names else "-"


def seen_from(result: Result) -> str:
    """Return from which pipeline rank causes are seen, in words, where another one is clearly busier; empty elsewhere.

    The causes are those of the rank that ends last, which with unequal stages may be one that mostly waits.
    """
    timeline = result.timeline
    if timeline is None or dict(timeline.causes).get("imbalance", 0.0) < 0.05 * timeline.step_seconds:
        return ""
    mine = np.array(result.plan.rank_of_stage())[timeline.stage]
    n_ranks = len(timeline.peak_bytes)
    ends, busy = np.zeros(n_ranks), np.zeros(n_ranks)
    ended = timeline.phase != PHASES.index("send")
    np.maximum.at(ends, mine[ended], timeline.end_seconds[ended])
    works = timeline.microbatch >= 0
    works &= timeline.rank >= 0
    np.add.at(busy, mine[works], timeline.end_seconds[works] - timeline.start_seconds[works])
    return f"seen from rank {int(np.argmax(ends))}, which ends last; rank {int(np.argmax(busy))} is the busiest"


def step_interval(result: Result) -> interval.Interval | None:
    """Return where 80 % of measured steps lie; None where the cost model is not the one that was measured, or nothing was
    played.
    """
    cluster, timeline = result.problem.cluster, result.timeline
    if cluster is None or timeline is None or not result.stage_costs or result.problem.costs not in interval.MEASURED_COSTS:
        return None
    problem = result.problem
    if not problem.graph.fully_trained:  # no measured run was a fine-tune
        return None
    kind = interval.kind_of(problem.graph, cluster, result.plan, result.stage_costs, problem.framework.name)
    return interval.around(timeline.step_seconds, kind)


def fullest(result: Result) -> tuple[float, float] | None:
    """Return peak and memory of the device with the least room, in bytes; None without a cluster, or where nothing was played."""  # noqa: E501
    cluster, timeline = result.problem.cluster, result.timeline
    if cluster is None or timeline is None or not timeline.peak_bytes:
        return None
    limits = [min(cluster.device(device).memory_bytes for device in devices) for devices in result.plan.ranks()]
    return min(zip(timeline.peak_bytes, limits, strict=True), key=lambda entry: (entry[1] - entry[0], entry))


def peak_margin(result: Result) -> peaks.PeakRoom | None:
    """Return how measured peaks lie around predicted ones; None where the memory model is not the one that was measured."""
    if result.problem.costs not in interval.MEASURED_COSTS or fullest(result) is None:
        return None
    return peaks.peaks(result.problem.framework.name)


def shown_risk(result: Result) -> float:
    """Return the chance of not fitting that a peak is shown with: the question's, or the usual one where it takes predictions
    as they are.
    """
    asked = result.problem.memory_risk
    return asked if asked < peaks.PLAIN_RISK else peaks.RISK


def utilization(result: Result) -> float | None:
    """Return model FLOPs per second over the peak of the devices used; None where FLOPs are not known."""
    cluster, timeline, plan = result.problem.cluster, result.timeline, result.plan
    if cluster is None or timeline is None:
        return None
    done = peak = 0.0
    for stage, load in zip(plan.stages, result.stage_costs, strict=True):
        done += load.model_flops * plan.n_microbatches * len(stage.devices)
    if done == 0.0:
        return None
    for device in {device for stage in plan.stages for device in stage.devices}:
        peak += cluster.device(device).peak(result.problem.training.precision)
    return done / timeline.step_seconds / peak
