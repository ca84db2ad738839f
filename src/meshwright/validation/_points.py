"""A measured run beside its prediction (`Point`), or why there is none (`Skipped`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.errors import InputError

__all__ = ["Point", "Skipped", "count", "counts", "fitted", "ratio"]


@dataclass(frozen=True, slots=True)
class Point:
    """One row: measured and predicted.

    Parameters
    ----------
    row : int
        Row in the file, from 1, the header not counted.
    measured_seconds, predicted_seconds : float
        Of one step (or one collective); 0 where the set measures memory only, inf where the run failed for memory.
    measured_bytes, predicted_bytes : float
        Largest memory of one device; 0 where the set has none.
    group : str
        Rows of one group did the same work on the same devices by different plans; empty for none. What follows `` by `` names
        the release of the program, where a set has several: groups with the same words before it did the same work, too.
    fits : bool
        Whether the prediction fits the devices' memory.
    ran : bool
        Whether the run did.
    device : str
        Kind of device it ran on: what the prediction's interval goes by.
    note : str
        What was assumed about the row's plan, where the set does not tell it.
    causes, memory_causes : tuple of (str, float)
        What the predicted step (seconds) and peak memory (bytes) consist of.
    """

    row: int
    measured_seconds: float
    predicted_seconds: float
    measured_bytes: float = 0.0
    predicted_bytes: float = 0.0
    group: str = ""
    fits: bool = True
    ran: bool = True
    device: str = ""
    note: str = ""
    causes: tuple[tuple[str, float], ...] = ()
    memory_causes: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    row: int
    reason: str


LEAST = 1e-9
"""Measured numbers below it, in whatever unit, stand for nothing that ran."""

UNFITTED = ("amp", "korthikanti_iteration", "megatron_sc21_weak_scaling")
"""Sets that are only predicted: no constant is fitted to any of their rows."""


def fitted(kind: str, row: int, fields: Mapping[str, str]) -> bool:
    """Tell whether a row belongs to the half of its set that constants are fitted to; the others are held out.

    `row`: from 1: odd rows are fitted; of vTrain's runs on up to eight devices, of which there are many, every sixth; of
    sets in `UNFITTED` none.
    """
    if kind in UNFITTED:
        return False
    few = kind == "vtrain" and fields["gpus"].strip() in ("1", "2", "4", "8")
    return row % 6 == 1 if few else row % 2 == 1


def count(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a whole number of a row.

    Raises `InputError` when it is missing and there is no default, or no whole number of at least 1 (0 where that is what a
    missing one stands for).
    """
    text = fields.get(name, "").strip()
    if not text or text == "n/a":
        if default is None:
            raise InputError(f"{name} is not given")
        return default
    try:
        value = _number(text)
    except ValueError:
        raise InputError(f"{name} is '{text}', which is no number") from None
    least = 0 if default == 0 else 1
    if not least <= value < 1e15 or value != int(value):
        raise InputError(f"{name} is {text}; it must be a whole number of at least {least}")
    return int(value)


def counts(fields: Mapping[str, str], name: str) -> list[int]:
    """Return whole numbers with | between them, one for each stage.

    Raises `InputError` when there is none, or one is no whole number.
    """
    texts = [text.strip() for text in fields.get(name, "").split("|")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        raise InputError(f"{name} is '{fields.get(name, '').strip()}'; whole numbers with | between them are needed")
    return [int(text) for text in texts]


def ratio(fields: Mapping[str, str], name: str) -> float:
    """Return a positive measured number of a row.

    Raises `InputError` when it is missing, no number, not above 0 or infinite.
    """
    text = fields.get(name, "").strip()
    try:
        value = _number(text)
    except ValueError:
        raise InputError(f"{name} is '{text}', which is no number" if text else f"{name} is not given") from None
    if not LEAST < value < math.inf:
        raise InputError(f"{name} is {text}; it must be a number above 0")
    return value


def _number(text: str) -> float:
    """Return a number, in which commas may stand between thousands."""
    return float(text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text) else text)
