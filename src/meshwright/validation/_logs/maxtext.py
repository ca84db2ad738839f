"""Logs of MaxText: a line for every completed step, and the number of devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, number

__all__ = ["reading"]

_STEP = re.compile(rf"completed step: (\d+), seconds: ({NUMBER}), TFLOP/s/device: ({NUMBER})(?:, Tokens/s/device: ({NUMBER}))?")
_STARTED = re.compile(r"completed step: (\d+),")
_DEVICES = re.compile(r"Num_devices: (\d+), shape")


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no line of a completed step.

    `lines`: of the file, with their numbers. Steps are counted from 0 there; every host writes them.
    """
    found = Reading("maxtext")
    for row, text in lines:
        if match := _STEP.search(text):
            step = int(match[1]) + 1
            if not found.entries or found.entries[-1].step != step:  # else another host's line of the same step
                found.entries.append(
                    TimedLine(
                        row, step, number(match[2]), device_tokens_per_second=number(match[4] or "0"),
                        device_flops_per_second=number(match[3]) * 1e12,
                    )
                )  # fmt: skip
        elif match := _STARTED.search(text):
            found.notes.append(f"line {row}: step {match[1]} without its seconds; left out")
        elif match := _DEVICES.search(text):
            found.settings["devices"] = match[1]
    return found if found.entries or found.notes else None
