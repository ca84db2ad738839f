"""How many measured runs lie inside the interval of their prediction, and how far predictions are on rows nothing is fitted
to.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from meshwright.core import interval
from meshwright.validation._points import Point

__all__ = ["coverage"]


def coverage(points: Sequence[Point], held_out: Set[int]) -> dict[str, object] | None:
    """Return the share of runs inside the interval of what ``plan`` would predict, of all rows that have one and of those held
    out; None for none.

    Parameters
    ----------
    points : sequence of Point
        Predicted rows of a set.
    held_out : set of int
        Rows whose like no constant is fitted to.

    Returns
    -------
    dict or None
        ``expected_ratio`` (what the interval promises), ``coverage_ratio``, and ``held_out`` with ``n_rows``, ``mape_ratio``
        and ``coverage_ratio``, or None where every row is fitted. Intervals of built-in sets rest on their own rows, too: only
        ``_intervals.left_out`` says how they hold on a set that is new.
    """
    timed = [
        point for point in points if point.ran and point.measured_seconds > 0.0 and point.kind and not point.kind.no_interval
    ]
    if not timed:
        return None
    known = interval.factors()
    inside = {}
    for point in timed:
        assert point.kind is not None
        ends = interval.around(point.planned_seconds, point.kind, known)
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
