"""As many rings at once as the direct links between a few devices carry: what a library finds in a hybrid cube mesh."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from meshwright.network.wired import Wired

__all__ = ["LARGEST", "direct_links", "ring_bandwidth"]

LARGEST = 8
"""Rings of larger groups are not enumerated."""


def direct_links(cluster: Wired, group: NDArray[np.int64]) -> tuple[NDArray[np.float64], float, NDArray[np.int64]]:
    """Return the bandwidth of direct links between the members of a group, and their largest latency.

    `group`, shape (size,), int64: devices.

    Returns `bytes_per_second`, shape (size, size), float64: sum over parallel links from row to column; 0 where there is none;
    `latency_seconds`: largest latency of these links; `links`, int64: their ids.
    """
    links = cluster.links
    position = np.full(cluster.n_devices + cluster.n_switches, -1)
    position[group] = np.arange(len(group))
    inside = np.flatnonzero((position[links.source] >= 0) & (position[links.target] >= 0))
    table = np.zeros((len(group), len(group)))
    np.add.at(table, (position[links.source[inside]], position[links.target[inside]]), links.bytes_per_second[inside])
    return table, float(links.latency_seconds[inside].max(initial=0.0)), inside


def ring_bandwidth(bytes_per_second: NDArray[np.float64]) -> float:
    """Return the largest total bandwidth of directed rings through all members that share the links.

    `bytes_per_second`, shape (size, size), float64: bandwidth from member to member; size 2 to `LARGEST`.
    Returns: bytes per second of all rings together; 0 where no ring passes through all members.

    Notes
    -----
    A linear program over all rings: each gets a bandwidth, no link carries more than it can. Libraries use whole links per
    ring; on the nodes we know both agree.
    """
    size = len(bytes_per_second)
    can = bytes_per_second > 0
    walks = [
        (0, *rest)
        for rest in permutations(range(1, size))
        if can[rest[-1], 0] and can[0, rest[0]] and all(can[a, b] for a, b in pairwise(rest))
    ]
    if not walks:
        return 0.0
    if len(walks) == 1:
        return float(min(bytes_per_second[a, b] for a, b in zip(walks[0], walks[0][1:] + walks[0][:1], strict=True)))
    from scipy.optimize import linprog

    ring = np.array(walks)
    edge = ring * size + np.roll(ring, -1, axis=1)
    use = np.zeros((size * size, len(ring)))
    np.add.at(use, (edge.ravel(), np.repeat(np.arange(len(ring)), size)), 1.0)
    kept = use.any(axis=1)
    scale = bytes_per_second.max()
    found = linprog(-np.ones(len(ring)), A_ub=use[kept], b_ub=bytes_per_second.ravel()[kept] / scale, method="highs")
    return float(-found.fun * scale)
