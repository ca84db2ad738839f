"""Which links are busiest over a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["busiest"]


def busiest(
    carried_bytes: NDArray[np.float64], bytes_per_second: NDArray[np.float64] | None, step_seconds: float, n_links: int = 10
) -> tuple[tuple[int, float], ...]:
    """Return the busiest links and the share of what they could carry in a step that they do carry.

    `carried_bytes`, shape (n_links,), float64: what each link carries: transfers between stages and collectives.
    `bytes_per_second`, shape (n_links,), float64, or None: bandwidth of each; None where links are not known.
    `n_links`: how many to return at most.
    Returns: link and share, busiest first, then by id; no idle ones.
    """
    if bytes_per_second is None or not carried_bytes.any() or step_seconds <= 0.0:
        return ()
    ratio = carried_bytes / bytes_per_second / step_seconds
    rounded = np.round(ratio, 12)
    least = -np.partition(-rounded, min(n_links, len(ratio)) - 1)[min(n_links, len(ratio)) - 1] if n_links > 0 else np.inf
    among = np.flatnonzero(rounded >= least)
    first = among[np.lexsort((among, -rounded[among]))][:n_links]
    return tuple((int(link), float(ratio[link])) for link in first if ratio[link] > 0.0)
