"""Shortest routes of all pairs of servers that load links evenly, chosen a part at a time so that one can give up."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["GivenUp", "hops", "routes"]

ROUTED_TOGETHER = 20_000
"""Pairs that choose their routes between two looks at the clock."""


class GivenUp(Exception):
    """A network was not finished, as asked."""


def hops(
    source: NDArray[np.int64], target: NDArray[np.int64], n_servers: int, n_nodes: int, *, forwards: bool
) -> NDArray[np.int64]:
    """Return hops from every node (column) to every server (row), -1 where there is no way.

    `source`, `target`: ends of every link.
    `n_servers`, `n_nodes`: nodes that are no servers follow.
    `forwards`: whether servers pass on traffic of others.
    """
    from meshwright._kernels.topoopt import short_routes

    order = np.argsort(target, kind="stable")
    first = np.searchsorted(target[order], np.arange(n_nodes + 1)).astype(np.int64)
    found: NDArray[np.int64] = short_routes.distances(first, np.ascontiguousarray(source[order]), n_servers, forwards)
    return found


def routes(
    first: NDArray[np.int64], target: NDArray[np.int64], seconds_per_byte: NDArray[np.float64], hops: NDArray[np.int64],
    order: NDArray[np.int64], amount: NDArray[np.float64], n_passes: int, *, forwards: bool, asked: Callable[[], bool],
) -> NDArray[np.int64]:  # fmt: skip
    """Return the links of one shortest route for every pair, -1 after the last; pairs choose in order, larger demands first.

    `first`, `target`, `seconds_per_byte`: links by source node. `hops`: from `hops`.
    `order`, `amount`: pairs ``source * n_servers + target`` and their bytes.
    `n_passes`: how often every pair chooses, the last times with all others in place.
    `asked`: whether to give up.
    Raises `GivenUp` when that was asked.
    """
    from meshwright._kernels.topoopt import short_routes

    links = np.full((len(order), max(int(hops[:, : len(hops)].max(initial=1)), 1)), -1, dtype=np.int64)
    load = np.zeros(len(target))
    for at in itertools.chain.from_iterable([range(0, len(order), ROUTED_TOGETHER)] * n_passes):
        if asked():
            raise GivenUp
        few = slice(at, at + ROUTED_TOGETHER)
        short_routes.routes(first, target, seconds_per_byte, hops, order[few], amount[few], load, links[few], forwards)
    return links
