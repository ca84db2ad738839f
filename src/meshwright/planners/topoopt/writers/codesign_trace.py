"""The simulated step of a co-design as a Chrome trace: one process per server, its compute, sends and all-reduces;
circuits that change.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from meshwright.base import files
from meshwright.base.trace_events import durations, in_order, microseconds
from meshwright.planners.topoopt import windows
from meshwright.planners.topoopt.design import Design

__all__ = ["as_json", "write"]

_KINDS = ("compute", "send", "all-reduce", "circuits")
"""What servers and the optical switch do, in the order of their threads."""


def write(design: Design, path: str) -> None:
    """Write the step of the best plan."""
    files.write(path, json.dumps(as_json(design)) + "\n")


def as_json(design: Design) -> dict[str, Any]:
    """Return the trace as the JSON object of the Trace Event Format; times in microseconds.

    Notes
    -----
    Where circuits change during the step, it is that step: flows share links fairly, and a process more says which circuits are
    there, and when all are dark.
    """
    found = design.entry.found
    n, changing = found.fabric.n_servers, found.changing
    if changing is None:
        _, tasks, played = design.step.play(found.placement, found.fabric)
    else:
        tasks, played = windows.again(design.step, found.placement, changing)
    owner = [server for servers in found.placement.servers for server in servers]
    op_of = [i for i, servers in enumerate(found.placement.servers) for _ in servers]
    names = [operation.name for operation in design.workload.operations]
    rows: list[tuple[float, float, int, str, str, dict[str, Any]]] = []

    def span(server: int, kind: str, name: str, start: float, end: float, **more: Any) -> None:
        rows.append((start, end, server, kind, name, more))

    for task in range(len(tasks.n_before)):
        kind = f"{names[op_of[task >> 1]]} {'backward' if task & 1 else 'forward'}"
        span(owner[task >> 1], "compute", kind, float(played.start[task]), float(played.end[task]))
    for e in range(len(tasks.edge_bytes)):
        if tasks.edge_bytes[e]:
            a, b = (owner[int(end[e]) >> 1] for end in (tasks.edge_source, tasks.edge_target))
            start, end = float(played.edge_start[e]), float(played.edge_end[e])
            span(a, "send", f"to server {b}", start, end, n_bytes=int(tasks.edge_bytes[e]))
    members_of = list((changing.fabrics[0] if changing else found.fabric).groups)
    for i, name in enumerate(names):
        for r in range(int(tasks.reduce_first[i]), int(tasks.reduce_first[i + 1])):
            for server in members_of[int(tasks.reduce_group[r])]:
                start, end = float(played.reduce_start[r]), float(played.reduce_end[r])
                span(server, "all-reduce", name, start, end, n_bytes=int(tasks.reduce_bytes[r]))
    step_seconds = changing.seconds if changing else found.seconds
    if changing:
        for start, end, fabric in zip(
            changing.from_seconds, [*changing.from_seconds[1:], step_seconds], changing.fabrics, strict=True
        ):
            lit = min(start + changing.dark_seconds, end)
            span(n, "circuits", "dark", start, lit)
            span(n, "circuits", f"{len(fabric.wires())} circuits", lit, end, links=[list(pair) for pair in fabric.wires()])
    names_of = [f"server {server}" for server in range(n)] + ["optical switch"] * (changing is not None)
    events = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}} for number, name in enumerate(names_of)
    ]
    events += _events(rows)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"step_seconds": step_seconds, "model": design.workload.name},
    }


def _events(rows: list[tuple[float, float, int, str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the spans and the names of their threads: what runs at the same time on one server has a thread of its own."""
    rows = sorted(rows, key=lambda row: row[:5])
    starts = np.array([row[0] for row in rows])
    ends = np.array([row[1] for row in rows])
    busy_until: dict[tuple[int, str], list[float]] = {}
    lanes = []
    for start, end, server, kind, _, _ in rows:
        until = busy_until.setdefault((server, kind), [])
        lane = next((i for i, moment in enumerate(until) if moment <= start), len(until))
        until[lane : lane + 1] = [end]
        lanes.append(lane)
    threads: dict[tuple[int, str, int], int] = {}
    for server, kind in sorted(busy_until, key=lambda key: (key[0], _KINDS.index(key[1]))):
        for lane in range(len(busy_until[server, kind])):
            threads[server, kind, lane] = sum(key[0] == server for key in threads)
    named: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": server,
            "tid": thread,
            "args": {"name": f"{kind} {lane + 1}" if lane else kind},
        }
        for (server, kind, lane), thread in threads.items()
    ]
    spans = [
        {
            "ph": "X", "pid": server, "tid": threads[server, kind, lane], "name": name, "cat": kind, "ts": ts, "dur": dur,
            "args": more,
        }
        for (_, _, server, kind, name, more), lane, ts, dur in zip(
            rows, lanes, microseconds(starts).tolist(), durations(starts, ends).tolist(), strict=True
        )
    ]  # fmt: skip
    return [*named, *in_order(spans)]
