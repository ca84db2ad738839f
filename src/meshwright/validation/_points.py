"""A measured run beside its prediction (`Point`), or why there is none (`Skipped`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.core.interval import Kind

__all__ = ["CellError", "Point", "Skipped", "count", "counts", "fitted", "ratio"]


class CellError(InputError):
    """A cell that cannot be read.

    Parameters
    ----------
    column : str
        Its column.
    message : str
        What is wrong with it.
    row : int
        Its row, from 1; 0 where the reader of a cell does not know it.
    """

    def __init__(self, column: str, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.column, self.row = column, row

    def in_row(self, row: int) -> CellError:
        """Return the same for a row."""
        return CellError(self.column, str(self), row)


@dataclass(frozen=True, slots=True)
class Point:
    """One row: measured and predicted.

    Parameters
    ----------
    row : int
        Row in the file, from 1, the header not counted.
    measured_seconds, predicted_seconds : float
        Of one step (or one collective); 0 where the set measures memory only, inf where the run failed for memory. Predicted
        with all that is known of the set's program, constants fitted to its runs included.
    measured_bytes, predicted_bytes : float
        Largest memory of one device, in the set's own sense (peak, reserved or allocated); measured 0 where the set has none.
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
    planned_seconds, planned_bytes : float
        The same predictions as ``plan`` would make them of the row's plan: the default `Framework`, precision told and nothing
        else; 0 where the set predicts no plan (collectives, activations of one layer).
    planned_fits : bool
        Whether that prediction fits with the room that ``plan`` leaves (`meshwright.core.peaks.RISK`).
    kind : Kind or None
        What intervals go by; None where the set predicts no plan.
    framework : str
        What ran it, as after ``--for``; empty where the row tells none.
    room_ratio : float
        Memory of the fullest device over its peak as planned.
    recompute_told : bool
        Whether the row tells what it recomputed; where not, the room that ``plan`` leaves refuses it only if nothing fits.
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
    planned_seconds: float = 0.0
    planned_bytes: float = 0.0
    planned_fits: bool = True
    kind: Kind | None = None
    framework: str = ""
    room_ratio: float = math.inf
    recompute_told: bool = True


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    row: int
    reason: str


LEAST = 1e-9
"""Measured numbers below it, in whatever unit, stand for nothing that ran."""

UNFITTED = ("amp", "korthikanti_iteration", "megatron_sc21_weak_scaling")
"""Sets that are only predicted: no constant is fitted to any of their rows."""


def fitted(kind: str, row: int, fields: Mapping[str, str], *, built_in: bool = False) -> bool:
    """Tell whether a row belongs to the half of its set that constants are fitted to; the others are held out.

    Parameters
    ----------
    kind : str
        The set.
    row : int
        From 1: odd rows are fitted; of vTrain's runs on up to eight devices, of which there are many, every sixth; of sets in
        `UNFITTED` none.
    fields : Mapping
        The row.
    built_in : bool
        Whether the file is one of the package: of runs in the columns of one's own, only those are fitted.
    """
    if kind in UNFITTED or (kind == "own_runs" and not built_in):
        return False
    few = kind == "vtrain" and fields["gpus"].strip() in ("1", "2", "4", "8")
    return row % 6 == 1 if few else row % 2 == 1


def count(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a whole number of a row.

    Raises
    ------
    CellError
        When it is missing and there is no default, or no whole number of at least 1 (0 where that is what a missing one stands
        for).
    """
    text = fields.get(name, "").strip()
    if not text or text == "n/a":
        if default is None:
            raise CellError(name, f"{name} is not given")
        return default
    try:
        value = _number(text)
    except ValueError:
        raise CellError(name, f"{name} is '{text}', which is no number") from None
    least = 0 if default == 0 else 1
    if not least <= value < 1e15 or value != int(value):
        raise CellError(name, f"{name} is {text}; it must be a whole number of at least {least}")
    return int(value)


def counts(fields: Mapping[str, str], name: str) -> list[int]:
    """Return whole numbers with | between them, one for each stage.

    Raises
    ------
    CellError
        When there is none, or one is no whole number.
    """
    texts = [text.strip() for text in fields.get(name, "").split("|")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in texts):
        raise CellError(name, f"{name} is '{fields.get(name, '').strip()}'; whole numbers with | between them are needed")
    return [int(text) for text in texts]


def ratio(fields: Mapping[str, str], name: str) -> float:
    """Return a positive measured number of a row.

    Raises
    ------
    CellError
        When it is missing, no number, not above 0 or infinite.
    """
    text = fields.get(name, "").strip()
    try:
        value = _number(text)
    except ValueError:
        raise CellError(name, f"{name} is '{text}', which is no number" if text else f"{name} is not given") from None
    if not LEAST < value < math.inf:
        raise CellError(name, f"{name} is {text}; it must be a number above 0")
    return value


def _number(text: str) -> float:
    """Return a number, in which commas may stand between thousands."""
    return float(text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text) else text)
