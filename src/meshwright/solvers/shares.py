"""How to split one amount over several ways so that the busiest link is as little busy as possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["even_out"]


def even_out(busy_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares of the ways, adding up to 1, that minimise the largest link time.

    Parameters
    ----------
    busy_seconds : ndarray, shape (n_ways, n_links), float64
        Time each link would be busy if everything took that way.

    Returns
    -------
    ndarray, shape (n_ways,), float64
        Optimal shares; those below one part in ten thousand are dropped.

    Notes
    -----
    A linear programme: minimise t with ``shares @ busy <= t`` and ``sum(shares) == 1``. Links with equal columns are one row.
    """
    n_ways = len(busy_seconds)
    if n_ways == 1:
        return np.ones(1)
    from scipy.optimize import linprog

    scale = busy_seconds.max()
    rows = np.unique(np.round(busy_seconds.T / scale, 12), axis=0)
    rows = rows[rows.max(axis=1) > 0]
    limit = np.hstack([rows, -np.ones((len(rows), 1))])
    goal = np.append(np.zeros(n_ways), 1.0)
    found = linprog(
        goal, A_ub=limit, b_ub=np.zeros(len(rows)), A_eq=np.append(np.ones(n_ways), 0.0)[None], b_eq=[1.0],
        bounds=[(0, None)] * (n_ways + 1), method="highs",
    )  # fmt: skip
    shares = np.where(found.x[:-1] > 1e-4, found.x[:-1], 0.0)
    result: NDArray[np.float64] = shares / shares.sum()
    return result
