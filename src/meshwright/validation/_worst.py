"""The rows that a prediction is furthest off on, with what the prediction consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.base.units import format_bytes, format_seconds
from meshwright.core import interval
from meshwright.validation._points import Point
from meshwright.validation._report import Report

__all__ = ["Miss", "explain", "misses"]

MOST_CAUSES = 5
"""Causes named in a line of the terminal."""


@dataclass(frozen=True, slots=True)
class Miss:
    """One prediction beside its measurement.

    Parameters
    ----------
    quantity : str
        ``time`` (seconds) or ``memory`` (bytes).
    row : int
        Row of the file, from 1.
    measured_value, predicted_value : float
        In seconds, or bytes.
    causes : tuple of (str, float)
        What the predicted value consists of, the largest first.
    description : str
        What the row says.
    interval : tuple of float
        Ends of the interval of what ``plan`` would predict, in seconds; empty for memory, and where there is none.
    """

    quantity: str
    row: int
    measured_value: float
    predicted_value: float
    causes: tuple[tuple[str, float], ...]
    description: str
    interval: tuple[float, ...] = ()

    @property
    def error_ratio(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_value / self.measured_value - 1.0


def misses(report: Report, quantity: str) -> list[Miss]:
    """Return every row of a file that measures a quantity, the one furthest off first.

    `quantity`: ``time`` or ``memory``.
    """
    known = interval.factors()
    found = [_miss(report, point, quantity, known) for point in report.points if _measures(point, quantity)]
    return sorted(found, key=lambda miss: (-abs(miss.error_ratio), miss.row))


def _measures(point: Point, quantity: str) -> bool:
    """Tell whether a row measured a quantity."""
    return point.measured_bytes > 0.0 if quantity == "memory" else point.ran and point.measured_seconds > 0.0


def _miss(report: Report, point: Point, quantity: str, known: Mapping[str, interval.TimeInterval]) -> Miss:
    """Return a row as a miss."""
    of_memory = quantity == "memory"
    has_ends = point.kind is not None and not point.kind.no_interval and not of_memory
    ends = interval.around(point.planned_seconds, point.kind, known) if point.kind and has_ends else None
    causes = [(cause, value) for cause, value in (_held(point) if of_memory else point.causes) if value > 0.0]
    return Miss(
        quantity,
        point.row,
        point.measured_bytes if of_memory else point.measured_seconds,
        point.predicted_bytes if of_memory else point.predicted_seconds,
        tuple(sorted(causes, key=lambda item: (-item[1], item[0]))),
        report.descriptions[point.row - 1] if report.descriptions else "",
        () if ends is None else (ends.low_seconds, ends.high_seconds),
    )


def _held(point: Point) -> list[tuple[str, float]]:
    """Return the causes of what the set measures: of the whole peak, of what is reserved (no context),
    or allocated (nor allocator).
    """
    without: tuple[tuple[str, ...], ...] = ((), ("context",), ("context", "allocator"))
    choices = [[(cause, value) for cause, value in point.memory_causes if cause not in left_out] for left_out in without]
    return min(choices, key=lambda causes: abs(sum(value for _, value in causes) - point.predicted_bytes))


def explain(reports: Sequence[Report], n: int) -> str:
    """Return the `n` worst rows of every set as text, time and memory apart.

    `n`: rows of each.
    """
    lines = []
    for report in reports:
        for quantity, shown in (("time", format_seconds), ("memory", format_bytes)):
            worst = misses(report, quantity)[:n]
            if worst:
                lines.append(f"{report.kind}: worst rows by {quantity}")
            for miss in worst:
                total = sum(value for _, value in miss.causes)
                causes = ", ".join(f"{cause} {value / total:.0%}" for cause, value in miss.causes[:MOST_CAUSES])
                ends = f" (as planned, 80 %: {' to '.join(shown(end) for end in miss.interval)})" if miss.interval else ""
                lines.append(
                    f"  row {miss.row}: {shown(miss.predicted_value)}{ends} for {shown(miss.measured_value)} "
                    f"({miss.error_ratio:+.1%})" + (f": {causes}" if causes else "")
                )
                lines.append(f"    {miss.description}")
    return "\n".join(lines)
