"""Fair shares: the max-min fair rate of flows over shared links, and when flows of given sizes end."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["finish_seconds", "rates"]


def rates(
    route_first: ArrayLike,
    route_links: ArrayLike,
    link_bytes_per_second: ArrayLike,
    route_shares: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return the max-min fair rate of every flow.

    All rates rise together from zero; where a link is full, the flows on it keep their rate and the others go on rising.

    Parameters
    ----------
    route_first : array_like of int, shape (n_flows + 1,)
        Links of flow f are ``route_links[route_first[f] : route_first[f + 1]]``, each at most once.
    route_links : array_like of int
        Ids of links.
    link_bytes_per_second : array_like of float, shape (n_links,)
        Bandwidth of each link.
    route_shares : array_like of float or None
        Which part of a flow goes over each of its links (multipath); None for all of it.

    Returns
    -------
    ndarray, shape (n_flows,), float64
        Bytes per second; infinite for a flow without links.

    References
    ----------
    .. [1] Bertsekas and Gallager, "Data Networks", 2nd ed., section 6.5.2 (max-min flow control).
    """
    from meshwright._kernels import fair_share

    found: NDArray[np.float64] = fair_share.rates(*_arrays(route_first, route_links, route_shares, link_bytes_per_second))
    return found


def finish_seconds(
    route_first: ArrayLike,
    route_links: ArrayLike,
    link_bytes_per_second: ArrayLike,
    n_bytes: ArrayLike,
    start_seconds: ArrayLike | None = None,
    route_shares: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return when each flow ends if flows share links max-min fairly, rates changing at every start and end.

    Parameters
    ----------
    route_first, route_links, link_bytes_per_second, route_shares
        As for `rates`.
    n_bytes : array_like of float, shape (n_flows,)
        Bytes of each flow.
    start_seconds : array_like of float, shape (n_flows,), or None
        When each flow starts; None for all at 0.

    Returns
    -------
    ndarray, shape (n_flows,), float64
        Seconds.
    """
    from meshwright._kernels import fair_share

    amount = np.array(n_bytes, dtype=np.float64)
    start = np.zeros(len(amount)) if start_seconds is None else np.array(start_seconds, dtype=np.float64)
    for array in (amount, start):
        array.setflags(write=False)
    routes = _arrays(route_first, route_links, route_shares, link_bytes_per_second)
    found: NDArray[np.float64] = fair_share.finish(*routes, start, amount)
    return found


def _arrays(
    first: ArrayLike, links: ArrayLike, shares: ArrayLike | None, rate: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the arguments as read-only arrays of the one type the kernels are compiled for."""
    route_links = np.array(links, dtype=np.int64)
    route_shares = np.ones(len(route_links)) if shares is None else np.array(shares, dtype=np.float64)
    made = (np.array(first, dtype=np.int64), route_links, route_shares, np.array(rate, dtype=np.float64))
    for array in made:
        array.setflags(write=False)
    return made
