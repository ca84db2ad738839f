"""The prediction of a step written into the traces that PyTorch's profiler recorded of it, a rank each."""

from __future__ import annotations

import json
from typing import Any

from meshwright.base import files
from meshwright.core.result import Result
from meshwright.runtime.job.recording import STEP, file_of
from meshwright.runtime.ranks.layout import Layout
from meshwright.writers import kineto_trace

__all__ = ["merge"]

_PROCESS = "predicted"


def merge(folder: str, places: Layout, predicted: Result | None) -> tuple[str, ...]:
    """Put what was predicted of every rank beside what was recorded, both beginning with the step; return the files.

    Parameters
    ----------
    folder : str
        Where the processes left a file each.
    places : Layout
        The plan as ranks.
    predicted : Result or None
        What was said, if anything was.

    Returns
    -------
    tuple of str
        Those found here; other machines have their own.

    Notes
    -----
    Predicted kernels are of the category ``predicted`` and name no stream, so that what is analysed is what happened.
    """
    said = [] if predicted is None or predicted.timeline is None else kineto_trace.as_json(predicted)
    found = []
    for rank in range(places.n_ranks):
        path = file_of(folder, rank)
        if not path.is_file():
            continue
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if said:
            step = next(event for event in trace["traceEvents"] if event.get("name") == STEP and event.get("ph") == "X")
            trace["traceEvents"] += _moved(said[places.pipeline_rank_of(rank)]["traceEvents"], float(step["ts"]))
            files.write(str(path), json.dumps(trace, separators=(",", ":")) + "\n")
        found.append(str(path))
    return tuple(found)


def _moved(events: list[dict[str, Any]], ts: float) -> list[dict[str, Any]]:
    """Return the kernels of a predicted trace, later by so many microseconds, in a process of their own."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    titles = [event for event in events if event.get("name") == "thread_name" and event.get("pid") == 0]
    own = [{"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": "predicted by Meshwright"}}]
    own += [{**event, "pid": _PROCESS} for event in titles]
    for event in kernels:
        args = {key: value for key, value in event["args"].items() if key in ("stage", "microbatch")}
        own.append({**event, "pid": _PROCESS, "cat": _PROCESS, "ts": event["ts"] + ts, "args": args})
    return own
