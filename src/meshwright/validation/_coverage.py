"""How many measured runs lie inside the interval of their prediction,
and how far predictions are on rows nothing is fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from meshwright.core import interval
from meshwright.validation._points import Point

__all__ = ["coverage"]


def coverage(points: Sequence[Point], held_out: Set[int]) -> dict[str, object] | None:
    """Return the share of runs inside their interval, of all rows and of those held out; None where no device is told.

    `held_out`: rows whose like no constant is fitted to.
    Returns: ``expected_ratio`` (what the interval promises), ``coverage_ratio``, and ``held_out`` with ``n_rows``,
    ``mape_ratio`` and ``coverage_ratio``, or None where every row is fitted.
    """
    timed = [point for point in points if point.ran and point.measured_seconds > 0.0 and point.device]
    if not timed:
        return None
    known = interval.factors()
    inside = {}
    for point in timed:
        ends = interval.around(point.predicted_seconds, point.device.split("+"), known)
        inside[point.row] = ends.low_seconds <= point.measured_seconds <= ends.high_seconds
    held = [point for point in timed if point.row in held_out]
    errors = [abs(point.predicted_seconds / point.measured_seconds - 1.0) for point in held]
    return {
        "expected_ratio": interval.COVERAGE_RATIO,
        "coverage_ratio": float(np.mean(list(inside.values()))),
        "held_out": {
            "n_rows": len(held),
            "mape_ratio": float(np.mean(errors)),
            "coverage_ratio": float(np.mean([inside[point.row] for point in held])),
        }
        if held
        else None,
    }
