"""The simulated step of a co-design as a Chrome trace: one process per server, its compute, sends and all-reduces."""

from __future__ import annotations

import json
from typing import Any

from meshwright import _files
from meshwright.codesign.design import Design

__all__ = ["as_json", "write"]


def write(design: Design, path: str) -> None:
    """Write the step of the best plan.

    Parameters
    ----------
    design : Design
        The answer.
    path : str
        The file.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    _files.write(path, json.dumps(as_json(design)) + "\n")


def as_json(design: Design) -> dict[str, Any]:
    """Return the trace as the JSON object of the Trace Event Format; times in microseconds."""
    found = design.entry.found
    _, tasks, played = design.step.play(found.placement, found.fabric)
    owner = [server for servers in found.placement.servers for server in servers]
    op_of = [i for i, servers in enumerate(found.placement.servers) for _ in servers]
    names = [operation.name for operation in design.workload.operations]
    events: list[dict[str, Any]] = []
    for server in range(found.fabric.n_servers):
        events.append({"ph": "M", "name": "process_name", "pid": server, "args": {"name": f"server {server}"}})
        for thread, name in enumerate(("compute", "send", "all-reduce")):
            events.append({"ph": "M", "name": "thread_name", "pid": server, "tid": thread, "args": {"name": name}})

    def span(server: int, thread: int, name: str, start: float, end: float, **more: Any) -> None:
        events.append(
            {"ph": "X", "pid": server, "tid": thread, "name": name, "ts": start * 1e6, "dur": (end - start) * 1e6, "args": more}
        )

    for task in range(len(tasks.n_before)):
        what = f"{names[op_of[task >> 1]]} {'backward' if task & 1 else 'forward'}"
        span(owner[task >> 1], 0, what, float(played.start[task]), float(played.end[task]))
    for e in range(len(tasks.edge_bytes)):
        if tasks.edge_bytes[e]:
            a, b = (owner[int(end[e]) >> 1] for end in (tasks.edge_source, tasks.edge_target))
            span(
                a, 1, f"to server {b}", float(played.edge_start[e]), float(played.edge_end[e]), n_bytes=int(tasks.edge_bytes[e])
            )
    members_of = list(found.fabric.groups)
    for i, name in enumerate(names):
        for r in range(int(tasks.reduce_first[i]), int(tasks.reduce_first[i + 1])):
            for server in members_of[int(tasks.reduce_group[r])]:
                span(
                    server,
                    2,
                    name,
                    float(played.reduce_start[r]),
                    float(played.reduce_end[r]),
                    n_bytes=int(tasks.reduce_bytes[r]),
                )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"step_seconds": found.seconds, "model": design.workload.name},
    }
