"""Logs of NeMo: iteration lines of its own, and those of Lightning's progress bar."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, clock, number, windows

__all__ = ["reading"]

_SECONDS = re.compile(rf"train_step_timing in s\s*[:=]\s*({NUMBER})")
_STEP = re.compile(rf"\bglobal_step\s*[:=]\s*({NUMBER})")
_BATCH = re.compile(rf"\bglobal_batch_size\s*[:=]\s*({NUMBER})")
_BAR = re.compile(r"\|\s*(\d+)/\d+ \[([\d:]+)<[^\]]*\b(?:reduced_train_loss|consumed_samples)=")
_STARTED = re.compile(r"Training epoch \d+, iteration (\d+)/\d+ \|")


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no line of a training step of NeMo.

    `lines`: of the file, with their numbers. Steps are counted from 0 there. Megatron-Core trains.
    """
    found, untimed = Reading("megatron"), 0
    moments: list[tuple[TimedLine, float]] = []
    for row, text in lines:
        seconds, step = _SECONDS.search(text), _STEP.search(text)
        if seconds and step:
            batch, at = _BATCH.search(text), int(number(step[1])) + 1
            entry = TimedLine(row, at, number(seconds[1]), int(number(batch[1])) if batch else 0)
            if found.entries and found.entries[-1].step == at:
                found.entries[-1] = entry  # a progress bar is written again
            else:
                found.entries.append(entry)
        elif bar := _BAR.search(text):  # without step timing: the clock of the bar
            moments.append((TimedLine(row, int(number(step[1])) + 1 if step else int(bar[1])), clock(bar[2])))
        elif _STARTED.search(text):
            untimed += 1
            if untimed == 1:
                found.notes.append(f"line {row}: no train_step_timing: set log_step_timing in exp_manager; left out")
    found.entries = found.entries or windows(moments, found.notes)
    if moments and not found.entries:
        found.notes.append("its bar covers less than a minute, too short for its clock of seconds")
    return found if found.entries or untimed or moments else None
