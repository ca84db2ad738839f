"""Logs of nanotron: iteration lines whose numbers are shortened to three digits and a letter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType

from meshwright.validation._logs.entries import Line, Reading, TimedLine

__all__ = ["reading"]

_ITERATION = re.compile(r"iteration: (\d+) / \d+ \|(.*tokens_per_sec_per_gpu:.*)")
_SHORT = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([KMGTP]?)")
_LETTERS = MappingProxyType({"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15})


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no iteration line of nanotron.

    `lines`: of the file, with their numbers. Seconds are told to three digits; memory is of the rank that writes.
    """
    found = Reading("nanotron")
    for row, text in lines:
        if not (match := _ITERATION.search(text)):
            continue
        step, cells = int(match[1]), dict(re.findall(r"(\w+): ([^|]*)", match[2]))
        if found.entries and found.entries[-1].step == step:
            continue  # another rank's line of the same iteration
        seconds = _number(cells.get("elapsed_time_per_iteration_ms", "")) * 1e-3
        if not seconds > 0.0:
            found.notes.append(f"line {row}: iteration {step} tells no time above 0; left out")
            continue
        found.entries.append(
            TimedLine(
                row, step, seconds, int(_number(cells.get("global_batch_size", ""))),
                device_tokens_per_second=_number(cells["tokens_per_sec_per_gpu"]),
                device_flops_per_second=_number(cells.get("model_tflops_per_gpu", "")) * 1e12,
            )
        )  # fmt: skip
        found.reserved_bytes = max(found.reserved_bytes, _number(cells.get("cuda_max_memory_reserved", "")))
    return found if found.entries or found.notes else None


def _number(text: str) -> float:
    """Return a number such as ``11.5K``; 0 where it is none."""
    match = _SHORT.fullmatch(text.strip())
    return float(match[1]) * _LETTERS[match[2]] if match else 0.0
