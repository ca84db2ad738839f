"""What a log says of steps, before any of it is believed: one entry per timed line, and the settings that stand beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

__all__ = ["NUMBER", "Line", "Reading", "TimedLine", "between", "clock", "moment", "number", "windows"]

NUMBER = r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\d,]*\d)"
"""A number of a log, with commas between thousands; a comma elsewhere, as some countries write decimals, makes it none."""

Line = tuple[int, str]
"""Number of a line in its file, from 1, and its text without colours."""

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class TimedLine:
    """One line that times steps.

    Parameters
    ----------
    line : int
        Where it stands, from 1.
    step : int
        The last step that it covers.
    seconds : float
        Of one step; 0 where the line tells a rate only.
    batch : int
        Samples of a step; 0 where the line does not say.
    samples_per_second, device_tokens_per_second, device_flops_per_second : float
        Rates that it tells: of all devices, of one, of one; 0 for none.
    """

    line: int
    step: int
    seconds: float = 0.0
    batch: int = 0
    samples_per_second: float = 0.0
    device_tokens_per_second: float = 0.0
    device_flops_per_second: float = 0.0


class Reading:
    """What a format makes of a log; filled while its lines are read.

    Parameters
    ----------
    framework : str
        Who wrote it, as after ``--for``.

    Attributes
    ----------
    entries : list of TimedLine
        In the order of the file.
    settings : dict of str to str
        What it says of the plan, in the columns of runs of one's own.
    options : dict of str to tuple of str
        Options of Megatron-LM that it prints.
    denied : tuple of str
        Options of Megatron-LM that it prints as not set.
    allocated_bytes, reserved_bytes : float
        Largest memory of a device that it tells; 0 for none.
    begun : list of int
        Lines at which another run begins: its settings are not those that stand before them.
    notes : list of str
        What was assumed or left out, each with its line.
    refused : str
        What it says of the run that cells of a row cannot, in a sentence; empty for nothing.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.entries: list[TimedLine] = []
        self.settings: dict[str, str] = {}
        self.options: dict[str, tuple[str, ...]] = {}
        self.denied: tuple[str, ...] = ()
        self.allocated_bytes = self.reserved_bytes = 0.0
        self.begun: list[int] = []
        self.notes: list[str] = []
        self.refused = ""


def number(text: str) -> float:
    """Return a number as `NUMBER` has it; not a number where it is none."""
    return float(text.replace(",", "")) if re.fullmatch(NUMBER, text.strip()) else float("nan")


def moment(line: str) -> float:
    """Return the first moment of a line in seconds; 0 where it tells none."""
    found = _MOMENT.search(line)
    if not found:
        return 0.0
    try:
        whole = datetime.fromisoformat(f"{found[1]} {found[2]}")
    except ValueError:
        return 0.0
    return (whole - datetime(1970, 1, 1)).total_seconds() + float(f"0.{found[3] or 0}")


def between(steps: Iterable[tuple[TimedLine, float]], notes: list[str]) -> Sequence[TimedLine]:
    """Return entries whose seconds are the time from the line before them, divided by the steps between.

    `steps`: each with the moment of its line; 0 where it has none. `notes`: restarts are added. The first line, and the
    first after a restart, have no line before them and are left out.
    """
    found: list[TimedLine] = []
    before: tuple[TimedLine, float] | None = None
    for entry, at in steps:
        if before is not None and entry.step < before[0].step:
            notes.append(f"line {entry.line}: step {entry.step} after step {before[0].step}: taken for a restart")
        elif before is not None and entry.step > before[0].step and at > before[1] > 0.0:
            seconds = (at - before[1]) / (entry.step - before[0].step)
            found.append(replace(entry, seconds=seconds))
        before = entry, at
    return found


def windows(moments: Sequence[tuple[TimedLine, float]], notes: list[str]) -> list[TimedLine]:
    """Return seconds per step over stretches of a progress bar that are long beside its resolution of one second.

    `moments`: entries, each with the bar's clock in seconds. `notes`: restarts are added.
    """
    if not moments:
        return []
    least = max(20.0, (moments[-1][1] - moments[0][1]) / 50.0)
    kept = [moments[0]]
    for entry, at in moments[1:]:
        if at - kept[-1][1] >= least or entry.step < kept[-1][0].step:
            kept.append((entry, at))
    return list(between([(entry, at + 1.0) for entry, at in kept], notes))  # a moment of 0 stands for none


def clock(text: str) -> float:
    """Return the seconds of ``01:02:03``."""
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60.0 + float(part or 0.0)
    return seconds
