"""The simulated step as a Chrome trace: one process per pipeline rank, opened by Perfetto or chrome://tracing.

References
----------
.. [1] Trace Event Format, Google, 2016: duration events (``X``), flow events (``s``, ``f``), counters (``C``), metadata
   (``M``); times in microseconds.

Notes
-----
Spans of the first pipeline rank have Kineto's column ``stream``, and communication NCCL's names, so that Holistic Trace
Analysis reads the file as the trace of that rank; `meshwright.writers.kineto_trace` writes every rank, with launches.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.base.trace_events import durations, in_order, microseconds, names
from meshwright.core.result import Result
from meshwright.core.timeline import PHASES, Timeline
from meshwright.writers.kineto_trace import kernel_name

__all__ = ["FROZEN", "RINGS", "as_json", "write"]

FROZEN = RINGS = True
"""What was simulated is shown: what is trained, and the rings."""

_COMPUTE, _REDUCE, _SEND = 0, 1, 2
"""Threads of a rank; sends to rank k run on thread _SEND + k, one at a time."""
_BACKWARD = ("backward", "backward_input")
"""Tasks whose end lets a gradient leave."""
_NANOSECOND = 1e-3
"""In microseconds."""


def as_json(result: Result) -> dict[str, Any]:
    """Return the trace as the JSON object of the format.

    Returns: ``traceEvents`` and a few fields about where they come from.
    Raises `InputError` when there is no timeline.
    """
    timeline = result.timeline
    if timeline is None or result.answer.plan is None:
        raise InputError("there is no timeline to write: nothing fits, or the cost model cannot tell how long the stages take")
    ranks = result.plan.ranks()
    rank_of_stage = result.plan.rank_of_stage()
    spans = _spans(timeline, rank_of_stage, [stage.strategy.shard > 0 for stage in result.plan.stages])
    used = {(span["pid"], span["tid"]) for span in spans}
    events: list[dict[str, Any]] = []
    for rank, devices in enumerate(ranks):
        events += names(rank, _title(rank, devices), {thread: _thread(thread) for other, thread in used if other == rank})
    events.extend(in_order([*spans, *_memory(timeline), *_flows(spans, rank_of_stage)]))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "otherData": {
            "model": result.problem.model_spec.name,
            "cluster": "" if result.problem.cluster is None else result.problem.cluster.name,
            "schedule": result.plan.schedule,
            "step_seconds": timeline.step_seconds,
        },
    }


def write(result: Result, path: str) -> None:
    """Write the trace to a file, whole or not at all.

    Viewers expect the ending ``.json``.
    Raises `InputError` when there is no timeline or the file cannot be written.
    """
    files.write(path, json.dumps(as_json(result), separators=(",", ":")) + "\n")


def _thread(thread: int) -> str:
    return {_COMPUTE: "compute", _REDUCE: "reduce"}.get(thread, f"send to rank {thread - _SEND}")


def _title(rank: int, devices: tuple[int, ...]) -> str:
    """Say which devices a rank has: all of a few, the first and last of many."""
    if len(devices) == 1:
        return f"rank {rank}: device {devices[0]}"
    if len(devices) <= 8:
        return f"rank {rank}: devices {', '.join(str(device) for device in devices)}"
    return f"rank {rank}: {len(devices)} devices, {devices[0]} to {devices[-1]}"


def _spans(timeline: Timeline, rank_of_stage: tuple[int, ...], shards: list[bool]) -> list[dict[str, Any]]:
    """Return one duration event per span; `shards`: whether the data axis of a stage shards anything."""
    starts = microseconds(timeline.start_seconds).tolist()
    lengths = durations(timeline.start_seconds, timeline.end_seconds).tolist()
    columns = (timeline.stage, timeline.microbatch, timeline.phase, timeline.start_seconds, timeline.end_seconds)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    back = {(s, j): end for s, j, code, _, end in rows if PHASES[code] in _BACKWARD}
    events = []
    for (stage, microbatch, code, start, _), ts, dur in zip(rows, starts, lengths, strict=True):
        phase, thread = PHASES[code], _COMPUTE
        args = {"stage": stage} if microbatch < 0 else {"stage": stage, "microbatch": microbatch}
        head = kernel_name(phase, shards[stage]) if phase in ("send", "reduce", "gather") else phase
        if phase == "reduce":
            thread = _REDUCE
        elif phase == "send":
            # What leaves after the stage's backward task is a gradient; an activation has left before.
            args["to_stage"] = stage - 1 if start >= back[stage, microbatch] else stage + 1
            thread = _SEND + rank_of_stage[args["to_stage"]]
        args |= {"stream": thread} if rank_of_stage[stage] == 0 else {}
        name = head if microbatch < 0 else f"{head} {microbatch}"
        place = {"pid": rank_of_stage[stage], "tid": thread}
        events.append({"ph": "X", "name": name, "cat": phase, **place, "ts": ts, "dur": dur, "args": args})
    return events


def _flows(spans: list[dict[str, Any]], rank_of_stage: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return an arrow from what leaves a rank to the task that waits for it: from the send,
    or from the task if that takes no time.
    """
    sends: dict[tuple[int, int, int], dict[str, Any]] = {}
    tasks: dict[tuple[int, int, bool], dict[str, Any]] = {}
    for span in spans:
        args, phase = span["args"], span["cat"]
        if phase == "send" and span["dur"] > 0.0:
            sends[args["stage"], args["microbatch"], args["to_stage"]] = span
        elif phase == "forward" or phase in _BACKWARD:
            tasks[args["stage"], args["microbatch"], phase == "forward"] = span
    arrows = []
    for (stage, microbatch, forward), task in tasks.items():
        to_stage = stage + 1 if forward else stage - 1
        waiting = tasks.get((to_stage, microbatch, forward))
        if waiting is None or rank_of_stage[to_stage] == rank_of_stage[stage]:
            continue
        send = sends.get((stage, microbatch, to_stage))
        last = max(task["ts"], task["ts"] + task["dur"] - _NANOSECOND)
        arrows.append((forward, send or task, last if send is None else send["ts"], waiting))
    leaves = microseconds(np.array([moment for _, _, moment, _ in arrows]) / 1e6).tolist()
    events: list[dict[str, Any]] = []
    for i, (forward, source, _, waiting) in enumerate(arrows):
        arrow = {"name": "activation" if forward else "gradient", "cat": "transfer", "id": i}
        events.append({"ph": "s", **arrow, "pid": source["pid"], "tid": source["tid"], "ts": leaves[i]})
        events.append({"ph": "f", "bp": "e", **arrow, "pid": waiting["pid"], "tid": waiting["tid"], "ts": waiting["ts"]})
    return events


def _memory(timeline: Timeline) -> list[dict[str, Any]]:
    """Return one counter event per change of a rank's memory."""
    return [
        {"ph": "C", "name": "memory", "pid": rank, "ts": second, "args": {"bytes": held}}
        for rank, (seconds, n_bytes) in enumerate(zip(timeline.memory_seconds, timeline.memory_bytes, strict=True))
        for second, held in zip(microseconds(seconds).tolist(), n_bytes.tolist(), strict=True)
    ]
