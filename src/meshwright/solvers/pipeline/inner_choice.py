"""The inner choice of one stage by itself: one way of each layer, the least time within a memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright._kernels.pipeline import knapsack as kernel

__all__ = ["greedy_and_exact"]


def greedy_and_exact(
    rows: Sequence[Sequence[tuple[float, float]]], limit_bytes: float, *, all_or_none: bool = False
) -> tuple[float, float, float]:
    """Return the time of the published greedy's choice, a lower bound on the least time, and a time that is reached.

    `rows`: of every layer its ways, as (seconds, bytes). `limit_bytes`: of all together. `all_or_none`: the greedy takes the
    smallest way of every layer where the fastest do not fit.
    Returns: seconds, infinite where nothing fits; the last two are equal unless the search outgrew its memory.
    """
    first = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    seconds, held = np.array([way for row in rows for way in row], dtype=np.float64).T.copy()
    chosen = np.zeros(len(rows), np.int64)
    greedy = float(kernel.greedy(first, seconds, held, limit_bytes, all_or_none, chosen))
    lower, upper = kernel.exact(first, seconds, held, limit_bytes, np.inf, chosen)
    return greedy, float(lower), float(upper)
