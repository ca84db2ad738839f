"""The simulated step as a Chrome trace: one process per pipeline rank, opened by Perfetto or chrome://tracing.

References
----------
.. [1] Trace Event Format, Google, 2016: duration events (``X``), counters (``C``), metadata (``M``); times in microseconds.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright import _files
from meshwright.errors import InputError
from meshwright.result import Result
from meshwright.timeline import PHASES, Timeline

__all__ = ["as_json", "write"]

_COMPUTE, _REDUCE, _SEND = 0, 1, 2
"""Threads of a rank; sends to rank k run on thread _SEND + k, one at a time."""


def as_json(result: Result) -> dict[str, Any]:
    """Return the trace as the JSON object of the format.

    Parameters
    ----------
    result : Result
        With a plan and a timeline.

    Returns
    -------
    dict
        ``traceEvents`` and a few fields about where they come from.

    Raises
    ------
    InputError
        When there is no timeline.
    """
    timeline = result.timeline
    if timeline is None or result.answer.plan is None:
        raise InputError("there is no timeline to write: nothing fits, or the cost model cannot tell how long the stages take")
    ranks = result.plan.ranks()
    events: list[dict[str, Any]] = []
    for rank, devices in enumerate(ranks):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": _title(rank, devices)}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    rank_of_stage = result.plan.rank_of_stage()
    spans = _spans(timeline, rank_of_stage)
    for rank, thread in sorted({(span["pid"], span["tid"]) for span in spans}):
        name = {_COMPUTE: "compute", _REDUCE: "reduce"}.get(thread, f"send to rank {thread - _SEND}")
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": name}})
    events.extend(spans)
    events.extend(_memory(timeline))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": result.problem.reading.name,
            "cluster": "" if result.problem.cluster is None else result.problem.cluster.name,
            "schedule": result.plan.schedule,
            "step_seconds": timeline.step_seconds,
        },
    }


def write(result: Result, path: str) -> None:
    """Write the trace to a file, whole or not at all.

    Parameters
    ----------
    result : Result
        With a plan and a timeline.
    path : str
        The file; the ending ``.json`` is what viewers expect.

    Raises
    ------
    InputError
        When there is no timeline or the file cannot be written.
    """
    _files.write(path, json.dumps(as_json(result), separators=(",", ":")) + "\n")


def _title(rank: int, devices: tuple[int, ...]) -> str:
    """Say which devices a rank has: all of a few, the first and last of many."""
    if len(devices) == 1:
        return f"rank {rank}: device {devices[0]}"
    if len(devices) <= 8:
        return f"rank {rank}: devices {', '.join(str(device) for device in devices)}"
    return f"rank {rank}: {len(devices)} devices, {devices[0]} to {devices[-1]}"


def _spans(timeline: Timeline, rank_of_stage: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return one duration event per span."""
    columns = (timeline.stage, timeline.microbatch, timeline.phase, timeline.start_seconds, timeline.end_seconds)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    back = {(s, j): end for s, j, code, _, end in rows if PHASES[code] in ("backward", "backward_input")}
    events = []
    for stage, microbatch, code, start, end in rows:
        phase, thread = PHASES[code], _COMPUTE
        if phase == "reduce":
            thread = _REDUCE
        elif phase == "send":
            # What leaves after the stage's backward task is a gradient; an activation has left before.
            to_stage = stage - 1 if start >= back[stage, microbatch] else stage + 1
            thread = _SEND + rank_of_stage[to_stage]
        events.append(
            {
                "ph": "X",
                "name": phase if microbatch < 0 else f"{phase} {microbatch}",
                "cat": phase,
                "pid": rank_of_stage[stage],
                "tid": thread,
                "ts": start * 1e6,
                "dur": (end - start) * 1e6,
                "args": {"stage": stage} if microbatch < 0 else {"stage": stage, "microbatch": microbatch},
            }
        )
    return events


def _memory(timeline: Timeline) -> list[dict[str, Any]]:
    """Return one counter event per change of a rank's memory."""
    return [
        {"ph": "C", "name": "memory", "pid": rank, "ts": second * 1e6, "args": {"bytes": held}}
        for rank, (seconds, n_bytes) in enumerate(zip(timeline.memory_seconds, timeline.memory_bytes, strict=True))
        for second, held in zip(seconds.tolist(), n_bytes.tolist(), strict=True)
    ]
