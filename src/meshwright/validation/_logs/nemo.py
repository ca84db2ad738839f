"""Logs of NeMo: iteration lines of its own, and those of Lightning's progress bar."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, number

__all__ = ["reading"]

_SECONDS = re.compile(rf"train_step_timing in s\s*[:=]\s*({NUMBER})")
_STEP = re.compile(rf"\bglobal_step\s*[:=]\s*({NUMBER})")
_BATCH = re.compile(rf"\bglobal_batch_size\s*[:=]\s*({NUMBER})")
_STARTED = re.compile(r"Training epoch \d+, iteration (\d+)/\d+ \|")


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no line of a training step of NeMo.

    `lines`: of the file, with their numbers. Steps are counted from 0 there. Megatron-Core trains.
    """
    found, untimed = Reading("megatron"), 0
    for row, text in lines:
        seconds, step = _SECONDS.search(text), _STEP.search(text)
        if seconds and step:
            batch, at = _BATCH.search(text), int(number(step[1])) + 1
            entry = TimedLine(row, at, number(seconds[1]), int(number(batch[1])) if batch else 0)
            if found.entries and found.entries[-1].step == at:
                found.entries[-1] = entry  # a progress bar is written again
            else:
                found.entries.append(entry)
        elif _STARTED.search(text):
            untimed += 1
            if untimed == 1:
                found.notes.append(f"line {row}: no train_step_timing: set log_step_timing in exp_manager; left out")
    return found if found.entries or untimed else None
