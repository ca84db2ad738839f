"""Slow twin of `meshwright._kernels.topoopt.short_routes.widen`: more routes for every pair of servers:
shortest ways that share no link with those before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["widen"]

LONGER_HOPS = 2
"""How much longer than the first route another may be."""


def widen(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    ways: list[list[list[int]]],
    order: Sequence[int],
    n_servers: int,
    n_ways: int,
    *,
    forwards: bool,
) -> None:
    """Add routes to those every pair has, each the shortest over links its pair does not use yet; links taken least come first.

    Parameters
    ----------
    source, target : ndarray, shape (n_links,), int64
        Ends of every link.
    ways : list of list of list of int
        For every pair ``a * n_servers + b``: its routes, each the links; changed.
    order : sequence of int
        Pairs, in the order in which they choose.
    n_servers : int
        Servers.
    n_ways : int
        Routes of a pair at most.
    forwards : bool
        Whether servers pass on traffic.
    """
    out: dict[int, list[int]] = {}
    ends = target.tolist()
    for link, node in enumerate(source.tolist()):
        out.setdefault(node, []).append(link)
    taken = [0] * len(ends)
    for pair in order:
        for link in ways[pair][0]:
            taken[link] += 1
    for pair in order:
        a, b = divmod(pair, n_servers)
        used = set(ways[pair][0])
        while len(ways[pair]) < n_ways:
            route = _shortest(a, b, out, ends, used, taken, n_servers if not forwards else 0)
            if not route or len(route) > len(ways[pair][0]) + LONGER_HOPS:
                break
            ways[pair].append(route)
            used |= set(route)
            for link in route:
                taken[link] += 1


def _shortest(
    a: int, b: int, out: dict[int, list[int]], ends: list[int], used: set[int], taken: list[int], n_closed: int
) -> list[int]:
    """Return the links of a shortest way around used links; nodes below `n_closed` pass nothing on."""
    came: dict[int, int] = {a: -1}
    before: dict[int, int] = {}
    layer = [a]
    while layer and b not in came:
        following = []
        for link in sorted((x for v in layer for x in out.get(v, ()) if x not in used), key=lambda x: (taken[x], x)):
            node = ends[link]
            if node not in came and (node == b or node >= n_closed):
                came[node] = link
                following.append(node)
        for v in layer:
            for link in out.get(v, ()):
                if came.get(ends[link]) == link:
                    before[link] = v
        layer = following
    if b not in came:
        return []
    route, node = [], b
    while node != a:
        route.append(came[node])
        node = before[came[node]]
    return route[::-1]
