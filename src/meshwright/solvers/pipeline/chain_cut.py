"""Cutting a chain into consecutive parts so that the heaviest part is as light as can be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut"]


def cut(work: NDArray[np.float64], n_parts: int) -> tuple[int, ...]:
    """Return the lengths of the parts.

    Parameters
    ----------
    work : ndarray, shape (n,), float64
        Weight of each element, at least 0.
    n_parts : int
        Number of parts, between 1 and n; none is empty.

    Returns
    -------
    tuple of int
        Lengths in order; of cuts equally good, the one with the shortest last parts.

    Notes
    -----
    Dynamic programming over prefixes in O(n^2 n_parts).
    """
    n = len(work)
    prefix = np.concatenate([[0.0], np.cumsum(work)])
    best = np.full((n_parts + 1, n + 1), np.inf)
    came = np.zeros((n_parts + 1, n + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for part in range(1, n_parts + 1):
        for end in range(part, n + 1):
            heaviest = np.maximum(best[part - 1, :end], prefix[end] - prefix[:end])
            at = end - 1 - int(np.argmin(heaviest[::-1]))
            best[part, end], came[part, end] = heaviest[at], at
    lengths: list[int] = []
    end = n
    for part in range(n_parts, 0, -1):
        start = int(came[part, end])
        lengths.append(end - start)
        end = start
    return tuple(reversed(lengths))
