"""Figures of judged answers that the terminal and the page share; words for plans, layers and devices are in `words`."""

from __future__ import annotations

from meshwright.base.units import format_seconds
from meshwright.core import interval, peaks
from meshwright.core.cluster import Cluster
from meshwright.core.flops import model_flops
from meshwright.core.interval.run_kind import Kind, kind_of
from meshwright.core.result import Result
from meshwright.core.timeline import PHASES
from meshwright.core.words import axes_of, describe, devices_of, layers_of, ranges_of

__all__ = [
    "axes_of", "describe", "devices_of", "fullest", "layers_of", "no_interval", "peak_margin", "planning_time", "ranges_of", "seen_from", "shown_risk", "step_interval", "utilization", "utilization_causal",  # noqa: E501
]  # fmt: skip


def seen_from(result: Result) -> str:
    """Return from which pipeline rank causes are seen, in words, where another one is clearly busier; empty elsewhere.

    The causes are those of the rank that ends last, which with unequal stages may be one that mostly waits.
    """
    timeline = result.timeline
    if timeline is None or dict(timeline.causes).get("imbalance", 0.0) < 0.05 * timeline.step_seconds:
        return ""
    import numpy as np

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
    kind = _kind(result, cluster)
    return None if kind.no_interval else interval.around(timeline.step_seconds, kind)


def no_interval(result: Result) -> str:
    """Return why a step of our cost model has no interval, without a full stop; empty where it has one."""
    cluster = result.problem.cluster
    if cluster is None or not result.stage_costs or result.problem.costs not in interval.MEASURED_COSTS:
        return ""
    return _kind(result, cluster).no_interval


def _kind(result: Result, cluster: Cluster) -> Kind:
    """Return what kind of run an answer is of."""
    problem = result.problem
    return kind_of(problem.graph, cluster, result.plan, result.stage_costs, problem.framework.word, problem.training.precision)


def fullest(result: Result) -> tuple[float, float] | None:
    """Return peak and memory of the device that is fullest, by share, in bytes; None without a cluster, or where nothing was played."""  # noqa: E501
    cluster, timeline = result.problem.cluster, result.timeline
    if cluster is None or timeline is None or not timeline.peak_bytes:
        return None
    limits = [min(cluster.device(device).memory_bytes for device in devices) for devices in result.plan.ranks()]
    return min(zip(timeline.peak_bytes, limits, strict=True), key=lambda entry: (-entry[0] / entry[1], entry))


def planning_time(result: Result) -> str:
    """Return how long the search took, and how much of it kernels were compiled for their first use, where that counts."""
    compiled = result.compiling_seconds
    part = f" ({format_seconds(compiled)} of it compiling)" if compiled >= 0.02 * result.planning_seconds > 0.0 else ""
    return f"{format_seconds(result.planning_seconds)} of planning{part}"


def peak_margin(result: Result) -> peaks.PeakRoom | None:
    """Return how measured peaks lie around predicted ones; None where the memory model is not the one that was measured."""
    if result.problem.costs not in interval.MEASURED_COSTS or fullest(result) is None:
        return None
    return peaks.peaks(result.problem.framework.holds_as)


def shown_risk(result: Result) -> float:
    """Return the chance of not fitting that a peak is shown with: the question's, or the usual one where it takes predictions
    as they are.
    """
    asked = result.problem.memory_risk
    return asked if asked < peaks.PLAIN_RISK else peaks.RISK


def utilization(result: Result) -> float | None:
    """Return model FLOPs per second over the peak of the devices used; None where FLOPs are not known.

    Causal attention counts the full square, masked half included, as most published figures do.
    """
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


def utilization_causal(result: Result) -> float | None:
    """Return the same with what causal attention masks left out (half of its square); None where FLOPs are not known."""
    share = utilization(result)
    if share is None:
        return None
    graph = result.problem.graph
    return share * (model_flops(graph, halve_causal=True) / model_flops(graph))
