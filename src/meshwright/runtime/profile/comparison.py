"""Measured against predicted: one table, one JSON object, two tracks in one Chrome trace."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import numpy as np

from meshwright.base import files
from meshwright.base.trace_events import durations, in_order, microseconds, names
from meshwright.base.units import format_bytes, format_seconds
from meshwright.core.plan import Plan
from meshwright.core.result import Result
from meshwright.runtime.profile import exposed

__all__ = ["as_json", "for_other_devices", "lines", "write_trace"]

FORMAT = "meshwright/run/1"


def as_json(plan: Plan, measured: dict[str, Any], predicted: Result | None, reference: list[float] | None) -> dict[str, Any]:
    """Return what happened beside what was said, as the JSON object of ``run --json``.

    `measured`: what `meshwright.runtime.job.worker.train` returned.
    `predicted`: the simulated step; None where it could not be simulated.
    `reference`: losses of one process.
    """
    seconds = measured["step_seconds"]
    warm = seconds[1:] or seconds
    stages = [_stage(plan, i, measured, predicted) for i in range(len(plan.stages))]
    found = exposed.measured_seconds(plan, measured["ranks"])
    timeline = None if predicted is None else predicted.timeline
    said = [None] * len(stages) if timeline is None else exposed.predicted_seconds(plan, timeline)
    for i, stage in enumerate(stages):
        stage["communication_seconds"] = {"measured": found[i] if warm else None, "predicted": said[i]}
    entry: dict[str, Any] = {
        "format": FORMAT,
        "losses": [loss if math.isfinite(loss) else None for loss in measured["losses"]],  # JSON has no NaN
        "gradient_norms": [norm if math.isfinite(norm) else None for norm in measured["gradient_norms"]],
        "first_step": measured["first_step"],
        "step_seconds": {
            "measured": statistics.median(warm) if warm else None,
            "predicted": None if predicted is None or predicted.timeline is None else predicted.timeline.step_seconds,
        },
        "all_step_seconds": seconds,
        "stages": stages,
        "bubble_ratio": _bubble(plan, measured, predicted, statistics.median(warm) if warm else 0.0),
        "n_ranks": len(measured["ranks"]),
    }
    if reference is not None:
        entry["reference_losses"] = [loss if math.isfinite(loss) else None for loss in reference]
    return entry


def _stage(plan: Plan, stage: int, measured: dict[str, Any], predicted: Result | None) -> dict[str, Any]:
    """Return one stage: compute of all its micro-batches, and the peak memory of its fullest rank.

    Beside what was measured, which is of tensors, stands what was predicted of these, where the prediction tells them from the
    device's context.
    """
    mine = [rank for rank in measured["ranks"] if rank["device"] in plan.stages[stage].devices]
    compute = [rank["compute_seconds"].get(str(stage), rank["compute_seconds"].get(stage)) for rank in mine]
    peaks = [rank["peak_bytes"].get(str(stage), rank["peak_bytes"].get(stage)) for rank in mine]
    cpu = [rank["cpu_seconds"].get(str(stage), rank["cpu_seconds"].get(stage)) for rank in mine]
    known = [peak for peak in peaks if peak is not None]
    load = predicted.stage_costs[stage] if predicted is not None and predicted.stage_costs else None
    timeline = None if predicted is None else predicted.timeline
    said = () if timeline is None else (timeline.allocated_bytes if known else ()) or timeline.peak_bytes
    return {
        "compute_seconds": {
            "measured": max((value for value in compute if value is not None), default=None),
            "predicted": None
            if load is None
            else (load.forward_total_seconds + load.backward_total_seconds) * plan.n_microbatches,
        },
        "cpu_seconds": {"measured": max((value for value in cpu if value is not None), default=None)},
        "peak_bytes": {
            "measured": max(known) if known else None,
            "predicted": said[plan.rank_of_stage()[stage]] if said else None,
        },
    }


def _bubble(plan: Plan, measured: dict[str, Any], predicted: Result | None, step: float) -> dict[str, float | None]:
    """Return the share of the step in which ranks do not compute, averaged over ranks."""
    n_stages = len(plan.stages)
    idle = None
    if step > 0.0 and measured["ranks"]:
        busy = [sum(rank["compute_seconds"].values()) for rank in measured["ranks"]]
        idle = 1.0 - statistics.fmean(busy) / step
    said = None
    if predicted is not None and predicted.timeline is not None and predicted.timeline.step_seconds > 0.0:
        stage_costs = [
            predicted.stage_costs[i].forward_total_seconds + predicted.stage_costs[i].backward_total_seconds
            for i in range(n_stages)
        ]
        weights = [len(stage.devices) for stage in plan.stages]
        total = sum(load * weight for load, weight in zip(stage_costs, weights, strict=True)) * plan.n_microbatches
        said = 1.0 - total / plan.n_devices / predicted.timeline.step_seconds
    return {"measured": idle, "predicted": said}


def lines(entry: dict[str, Any]) -> str:
    """Return the comparison as a person reads it."""
    rows: list[tuple[str, ...]] = [("", "measured", "predicted", "measured / predicted")]

    def add(name: str, pair: dict[str, Any], form: Any) -> None:
        found, said = pair["measured"], pair["predicted"]
        ratio = "-" if found is None or not said else f"{found / said:.2f}" if found < 100.0 * said else f"{found / said:,.0f}"
        rows.append((name, "-" if found is None else form(found), "-" if said is None else form(said), ratio))

    add("step", entry["step_seconds"], format_seconds)
    for i, stage in enumerate(entry["stages"]):
        add(f"stage {i}: compute", stage["compute_seconds"], format_seconds)
        if entry["n_ranks"] > 1:
            add(f"stage {i}: communication", stage["communication_seconds"], format_seconds)
        add(f"stage {i}: peak memory", stage["peak_bytes"], format_bytes)
    shares = ["-" if share is None else f"{share:.1%}" for share in entry["bubble_ratio"].values()]
    rows.append(("not computing", *shares, "-"))  # of shares near nothing a ratio says nothing
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    text = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]
    losses = entry["losses"]
    if losses and None not in (losses[0], losses[-1]):
        text.append(
            f"loss: {losses[0]:.4f} in the first step, {losses[-1]:.4f} in the last of {len(losses)}; "
            + ("one process" if entry["n_ranks"] == 1 else f"{entry['n_ranks']} processes")
        )
    if losses and entry.get("reference_losses"):
        pairs = zip(losses, entry["reference_losses"][-len(losses) :], strict=False)
        furthest = max((abs(a - b) for a, b in pairs if None not in (a, b)), default=math.nan)
        text.append(f"one process, trained from the same weights: losses differ by at most {furthest:.1e}")
    return "\n".join(text)


def for_other_devices(predicted: Result | None, backend: str) -> list[str]:
    """Return a sentence where a step was predicted for other devices than the CPUs of this machine, on which it ran."""
    cluster = None if predicted is None else predicted.problem.cluster
    if predicted is None or cluster is None or backend != "gloo" or predicted.problem.model_spec.costs == "profiled":
        return []
    kinds = ", ".join(kind.name for kind in cluster.kinds)
    return [f"predicted is for {kinds}, measured on CPUs here; 'meshwright profile' measures them for --profile"]


def write_trace(path: str, measured: dict[str, Any], predicted: Result | None) -> None:
    """Write one Chrome trace with a track of what happened beside one of what was said, for every rank.

    Raises `InputError` when the file cannot be written.
    """
    from meshwright.writers import chrome_trace

    trace: dict[str, Any] = {"traceEvents": [], "displayTimeUnit": "ms"}
    if predicted is not None and predicted.timeline is not None:
        trace = chrome_trace.as_json(predicted)
    events: list[dict[str, Any]] = trace["traceEvents"]
    for event in events:
        if event["name"] == "process_name":
            event["args"]["name"] = f"predicted: {event['args']['name']}"
    first = 1 + max((event["pid"] for event in events), default=-1)
    spans = []
    for rank, mine in zip(measured["ranks"], exposed.on_one_clock(measured["ranks"]), strict=True):
        process = first + rank["rank"]
        events += names(process, f"measured: rank {rank['rank']} (device {rank['device']})", {0: "compute", 1: "communicate"})
        spans += _spans(process, mine)
    named = [event for event in events if event["ph"] == "M"]
    trace["traceEvents"] = named + in_order([*(event for event in events if event["ph"] != "M"), *spans])
    files.write(path, json.dumps(trace, separators=(",", ":")) + "\n")


def _spans(process: int, rank: list[tuple[int, int, str, float, float]]) -> list[dict[str, Any]]:
    """Return one duration event per span of a rank."""
    starts, ends = (np.array([span[column] for span in rank]) for column in (3, 4))
    return [
        {
            "ph": "X", "name": phase if microbatch < 0 else f"{phase} {microbatch}", "cat": phase, "pid": process,
            "tid": 1 if phase in ("wait", "reduce", "gather") else 0, "ts": ts, "dur": dur, "args": {"stage": stage},
        }
        for (stage, microbatch, phase, _, _), ts, dur in zip(
            rank, microseconds(starts).tolist(), durations(starts, ends).tolist(), strict=True
        )
    ]  # fmt: skip
