"""One step of a rank as PyTorch's profiler sees it, its tasks marked, in a file that Kineto's readers take."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from meshwright.base.trace_events import names
from meshwright.runtime.job.trainer import Trainer

__all__ = ["STEP", "file_of", "recorded"]

STEP = "ProfilerStep#0"
"""What the recorded step is called, as `torch.profiler` calls steps."""

_TASKS = 1_000_000_007
"""Thread on which tasks stand: no thread of the system has such a number."""


def file_of(folder: str, rank: int) -> Path:
    """Return the file of a rank."""
    return Path(folder) / f"rank-{rank}.json"


def recorded(trainer: Trainer, folder: str, step: Callable[[], float]) -> float:
    """Run a step under PyTorch's profiler, write its trace, and return what the step returned.

    Parameters
    ----------
    trainer : Trainer
        This process.
    folder : str
        Where the file of this rank is written; it exists.
    step : callable
        Trains one step.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if trainer.executor.device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profiler, torch.profiler.record_function(STEP):
        began = time.perf_counter()  # entering takes a while the first time
        value = step()
        if trainer.executor.device.type == "cuda":
            torch.cuda.synchronize()
    path = file_of(folder, trainer.rank)
    profiler.export_chrome_trace(str(path))
    trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    events: list[dict[str, Any]] = trace["traceEvents"]
    whole = next(event for event in events if event.get("name") == STEP and event.get("ph") == "X")
    whole["cat"] = "user_annotation"
    events += _tasks(trainer, whole, trainer.executor.began - began)
    path.write_text(json.dumps(trace, separators=(",", ":")) + "\n", encoding="utf-8")
    return value


def _tasks(trainer: Trainer, whole: dict[str, Any], late_seconds: float) -> list[dict[str, Any]]:
    """Return the tasks of the step as annotations on a thread of their own; its clock began so late after the step's."""
    found = [event for event in names(whole["pid"], "", {_TASKS: "tasks of the plan"}) if event["name"] == "thread_name"]
    for span in trainer.spans:
        start, stop = span.start_seconds + late_seconds, span.end_seconds + late_seconds
        name = span.phase if span.microbatch < 0 else f"{span.phase} {span.microbatch}"
        found.append({
            "ph": "X", "name": name, "cat": "user_annotation", "pid": whole["pid"], "tid": _TASKS,
            "ts": whole["ts"] + 1e6 * start, "dur": 1e6 * (stop - start), "args": {"stage": span.stage},
        })  # fmt: skip
    return found
