"""How to split amounts over several ways each so that the busiest link is as little busy as possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["even_out"]

DETOUR_RATIO = 1e-3
"""What a second of link time counts next to a second of the busiest link: ways of equal worth are as short as can be."""

METHODS = ("highs", "highs-ipm")
"""Solvers in turn: the first gives up now and then on rings that load links alike, without an answer."""


def even_out(
    busy_seconds: NDArray[np.float64], item: NDArray[np.int64], base_seconds: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the share of every way, those of one item adding up to 1, that minimise the largest link time.

    Parameters
    ----------
    busy_seconds : ndarray, shape (n_ways, n_links), float64
        Time each link would be busy if all of the way's item took that way.
    item : ndarray, shape (n_ways,), int64
        What is sent that way; items are numbered from 0 without gaps.
    base_seconds : ndarray, shape (n_links,), float64, or None
        Time links are busy with something else.

    Returns
    -------
    ndarray, shape (n_ways,), float64
        Optimal shares; those below one part in ten thousand are dropped. Equal ones where no solver has an answer.

    Notes
    -----
    A linear programme: minimise t with ``shares @ busy + base <= t``. Links with equal columns are one row.
    """
    n_ways, n_items = len(busy_seconds), int(item.max()) + 1
    if n_ways == n_items:
        return np.ones(n_ways)
    from scipy import sparse
    from scipy.optimize import linprog

    base = np.zeros(busy_seconds.shape[1]) if base_seconds is None else base_seconds
    scale = busy_seconds.max()
    rows = np.unique(np.round(np.vstack([busy_seconds, base]).T / scale, 12), axis=0)
    rows = rows[rows[:, :-1].max(axis=1) > 0]
    limit = sparse.csr_matrix(np.hstack([rows[:, :-1], -np.ones((len(rows), 1))]))
    detour = DETOUR_RATIO * busy_seconds.sum(axis=1) / scale / max(len(base), 1)
    whole = sparse.csr_matrix((np.ones(n_ways), (item, np.arange(n_ways))), shape=(n_items, n_ways + 1))
    for method in METHODS:
        found = linprog(
            np.append(detour, 1.0), A_ub=limit, b_ub=-rows[:, -1], A_eq=whole, b_eq=np.ones(n_items),
            bounds=[(0, None)] * (n_ways + 1), method=method,
        )  # fmt: skip
        if found.x is not None:
            break
    else:
        return 1.0 / np.bincount(item)[item]
    shares = np.where(found.x[:-1] > 1e-4, found.x[:-1], 0.0)
    result: NDArray[np.float64] = shares / np.bincount(item, shares)[item]
    return result
