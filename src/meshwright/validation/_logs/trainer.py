"""Logs of the Hugging Face Trainer: ``trainer_state.json``, or what it prints (its head, progress, the last summary)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, clock, number, windows

__all__ = ["reading", "state"]

_HEAD = (
    ("micro_batch", re.compile(r"Instantaneous batch size per device = ([\d,]+)")),
    ("global_batch", re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)")),
    ("accumulation", re.compile(r"Gradient Accumulation steps = ([\d,]+)")),
    ("steps", re.compile(r"Total optimization steps = ([\d,]+)")),
    ("epochs", re.compile(r"Num Epochs = ([\d,]+)")),
    ("begun", re.compile(r"Continuing training from global step ([\d,]+)")),
)
_PROGRESS = re.compile(r"\|\s*(\d+)/(\d+) \[([\d:]+)<[^,\]]*, *[\d.?]+ ?(?:s/it|it/s)")
_SUMMARY = re.compile(rf"['\"]train_runtime['\"]: ['\"]?({NUMBER})")
_RATE = re.compile(rf"['\"]train_steps_per_second['\"]: ['\"]?({NUMBER})")
_SAMPLES = re.compile(rf"['\"]train_samples_per_second['\"]: ['\"]?({NUMBER})")

_FACTORY = re.compile(r'"current_steps": (\d+), .*"elapsed_time": "(?:(\d+) days?, )?([\d:]+)"')

_ROUNDED = 0.0005
"""Steps per second are told to three places: by how much a figure may be off."""

_MANY = 20
"""So many steps of an epoch make its last batch, which may be small, no matter."""

_WHOLE = (
    "the time is that of the whole run over its steps: warm-up, evaluation and checkpoints are in it (a log with the progress "
    "bar tells single steps)"
)


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a printed log says; None where it has neither progress nor summary of the Trainer.

    `lines`: of the file, with their numbers.
    """
    found = Reading("accelerate")
    head: dict[str, int] = {}
    moments: list[tuple[TimedLine, float]] = []
    runtime, rate, samples, last, factory = 0.0, 0.0, 0.0, 0, False
    for row, text in lines:
        for name, pattern in _HEAD:
            if match := pattern.search(text):
                head[name] = int(match[1].replace(",", ""))
        for match in _PROGRESS.finditer(text):
            if head.get("steps", int(match[2])) == int(match[2]):  # else the bar of an evaluation
                moments.append((TimedLine(row, int(match[1])), clock(match[3])))
        if match := _FACTORY.search(text):  # trainer_log.jsonl of LLaMA-Factory, which trains by the Trainer
            moments.append((TimedLine(row, int(match[1])), 86400.0 * int(match[2] or 0) + clock(match[3])))
            factory = True
        if match := _SUMMARY.search(text):
            runtime, last = number(match[1]), row
            rate, samples = (number(told[1]) if (told := one.search(text)) else 0.0 for one in (_RATE, _SAMPLES))
    if not (moments or runtime) or not ("micro_batch" in head or runtime or factory):
        return None
    found.entries = windows(moments, found.notes)
    steps = head.get("steps", 0) or _counted(runtime, rate, last, found)
    if len(found.entries) < 3 and runtime > 0.0 and steps:
        _whole(found, head, TimedLine(last, steps, samples_per_second=samples), runtime)
    _settings(found, head.get("global_batch", 0), head.get("micro_batch", 0), head.get("accumulation", 0))
    return found


def _whole(found: Reading, head: Mapping[str, int], entry: TimedLine, runtime: float) -> None:
    """Say the time of a whole run over the steps that it made: its samples a second are over all steps, resumed or not, and
    the last batch of an epoch may be smaller.
    """
    begun = head.get("begun", 0)
    if not 0 <= begun < entry.step:
        found.notes.append(f"line {entry.line}: {entry.step} steps in all, {begun} of them before the run; left out")
        return
    ran = (entry.step - begun) / entry.step
    rate = entry.samples_per_second * ran if entry.step >= _MANY * max(head.get("epochs", 1), 1) else 0.0
    found.entries = [replace(entry, seconds=runtime / (entry.step - begun), samples_per_second=rate)]
    found.notes.append(_WHOLE)
    if begun:
        found.notes.append(f"the run went on from step {begun}: its time is over the {entry.step - begun} steps after it")


def _counted(runtime: float, rate: float, row: int, found: Reading) -> int:
    """Return the steps that the summary's rate makes; 0 where rounding leaves too little of it."""
    if rate > 20.0 * _ROUNDED:
        return round(runtime * rate)
    if runtime > 0.0 < rate:
        found.notes.append(f"line {row}: {rate:g} steps a second, rounded to three places, do not tell how many; left out")
    return 0


def state(text: str) -> Reading | None:
    """Return what the text of a ``trainer_state.json`` says; None where it is none."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("log_history"), list):
        return None
    found = Reading("accelerate")
    for entry in content["log_history"]:
        runtime = entry.get("train_runtime", 0.0) if isinstance(entry, dict) else 0.0
        step = entry.get("step", content.get("global_step", 0)) if runtime else 0
        if isinstance(runtime, int | float) and isinstance(step, int) and runtime > 0.0 and step > 0:
            rate = entry.get("train_samples_per_second", 0.0)
            found.entries = [TimedLine(1, step, runtime / step, samples_per_second=rate if isinstance(rate, float) else 0.0)]
            found.notes = [_WHOLE]
    if not found.entries:
        found.notes.append("log_history has no train_runtime, which stands in the file of a run that ended")
    micro = content.get("train_batch_size")
    if isinstance(micro, int) and micro > 0:
        found.settings["micro_batch"] = str(micro)
    return found


def _settings(found: Reading, whole: int, micro: int, accumulation: int) -> None:
    """Say the plan in the columns of runs of one's own, as far as the head tells it."""
    if whole and micro:
        found.settings |= {"global_batch": str(whole), "micro_batch": str(micro)}
        replicas = whole // (micro * max(accumulation, 1))
        if replicas >= 1 and replicas * micro * max(accumulation, 1) == whole:
            found.settings["data"] = str(replicas)
