"""Rings of an all-reduce group laid over the links of a network, and the flows that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from meshwright.solvers.graph import hamiltonian

__all__ = ["DRAWN_RATIO", "Flow", "Ring", "along", "by_member", "drawn_rings", "mean_hops", "over_paths"]

Flow = tuple[tuple[int, ...], float]
"""Links, and the part of a rank's traffic that goes over them."""

Ring = list[tuple[int, tuple[int, ...]]]
"""Members in order, each with the links to the next."""

DRAWN_RATIO = 2
"""Rings drawn for a group, per member."""


def along(link_of: Mapping[tuple[int, int], int], cycle: Sequence[int], inside: set[int]) -> Ring:
    """Return the ring of some servers of a cycle, each sending to the next along the links of the cycle."""
    start = next(i for i, server in enumerate(cycle) if server in inside)
    turned = [*cycle[start:], *cycle[:start], cycle[start]]
    ring: Ring = []
    links: list[int] = []
    member = turned[0]
    for a, b in pairwise(turned):
        links.append(link_of[a, b])
        if b in inside:
            ring.append((member, tuple(links)))
            member, links = b, []
    return ring


def drawn_rings(link_of: Mapping[tuple[int, int], int], members: tuple[int, ...]) -> list[list[Ring]]:
    """Return rings drawn over the links between members, each in both directions."""
    beside = {a: [b for b in members if (a, b) in link_of and (b, a) in link_of] for a in members}
    cycles = hamiltonian.draw(beside, DRAWN_RATIO * len(members), np.random.default_rng(0))
    return [[along(link_of, way, set(members)) for way in (cycle, cycle[::-1])] for cycle in cycles]


def over_paths(
    link_of: Mapping[tuple[int, int], int], n_servers: int, members: tuple[int, ...], paths: Sequence[Sequence[int]]
) -> list[Flow]:
    """Return flows from every member over every path, equal shares; a path is jumps from a server to the next."""
    flows: list[Flow] = []
    for member in members:
        for jumps in paths:
            links, at = [], member
            for jump in jumps:
                links.append(link_of[at, (at + jump) % n_servers])
                at = (at + jump) % n_servers
            flows.append((tuple(links), 1.0 / len(paths)))
    return flows


def by_member(rings: Sequence[Ring], shares: Sequence[float]) -> list[Flow]:
    """Return the flows of the rings that carry something, member by member."""
    found = [
        (member, i, (links, share))
        for i, (ring, share) in enumerate(zip(rings, shares, strict=True))
        if share > 0
        for member, links in ring
    ]
    return [flow for _, _, flow in sorted(found, key=lambda entry: entry[:2])]


def mean_hops(n: int, rings: Sequence[tuple[int, ...]]) -> float:
    """Return the mean number of links between different servers over rings in both directions; infinite where some cannot be
    reached.

    `n`: servers.
    `rings`: servers in order; two of them are a link.
    """
    beside = np.zeros((n, n), dtype=np.float32)
    for ring in rings:
        beside[list(ring), [*ring[1:], ring[0]]] = 1.0
    beside = np.maximum(beside, beside.T)
    reached, total = np.eye(n, dtype=np.float32), 0
    while True:
        total += int((reached == 0).sum())
        further = ((reached @ beside + reached) > 0).astype(np.float32)
        if (further == reached).all():
            return math.inf if (reached == 0).any() else total / (n * (n - 1))
        reached = further
