"""Networks of groups of servers that exchange most of what is sent: rings inside the groups, and from group to group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.topoopt.rings import mean_hops
from meshwright.planners.topoopt.step import PlacementTraffic

__all__ = ["grids"]

HEAVY_RATIO = 0.1
"""Servers are of one group that exchange so much of what the two that exchange most do."""

MOST_ORDERED = 7
"""In groups of so many servers all rings are compared; in larger ones servers follow each other by number."""

LEAST_INTERFACES = 4
"""With fewer a server cannot lie on a ring of its group and on another."""


def grids(traffic: PlacementTraffic, n: int, degree: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield rings of networks in which every server lies on rings of its group and on rings of its place in the groups.

    `traffic`: says who exchanges most.
    `n`, `degree`: servers and interfaces of each.
    Yields: nothing where servers do not fall into groups of one size.

    Notes
    -----
    The parts of an operator by columns exchange whole tensors and are few, its parts along samples all-reduce weights and are
    many. Rings over a place lead from group to group in the same steps for all places, or on a half of the places in other
    steps, those that leave the fewest hops.
    """
    groups = _groups(traffic.pair_bytes + traffic.pair_bytes.T)
    if not groups or degree < LEAST_INTERFACES:
        return
    steps = [k for k in range(1, len(groups) // 2 + 1) if math.gcd(k, len(groups)) == 1]
    for n_inside in range(2, degree - 1, 2):
        inside = [ring for group in groups for ring in _inside(traffic, group, n_inside)]
        yield inside + _between(groups, (), steps, 0, degree - n_inside)
        for half in _halves(inside[0], groups[0]):
            found = [inside + _between(groups, half, steps, k, degree - n_inside) for k in range(1, len(steps))]
            if found:
                yield min(found, key=lambda rings: mean_hops(n, rings))


def _groups(exchanged: NDArray[np.float64]) -> list[tuple[int, ...]]:
    """Return servers in groups that exchange much, ascending; none where these are not several of one size."""
    heavy = exchanged >= HEAVY_RATIO * exchanged.max() if exchanged.any() else np.zeros_like(exchanged, dtype=bool)
    found: list[tuple[int, ...]] = []
    left = set(range(len(exchanged)))
    while left:
        reached, rest = set[int](), [min(left)]
        while rest:
            server = rest.pop()
            reached.add(server)
            rest += [other for other in np.flatnonzero(heavy[server]).tolist() if other not in reached]
        left -= reached
        found.append(tuple(sorted(reached)))
    sizes = {len(group) for group in found}
    return found if len(sizes) == 1 and len(found) > 1 and max(sizes) > 1 else []


def _inside(traffic: PlacementTraffic, group: tuple[int, ...], n_interfaces: int) -> list[tuple[int, ...]]:
    """Return rings through a group, one beside the other: those on which neighbours exchange and all-reduce most."""
    if len(group) == 2:
        return [group] * n_interfaces
    beside = traffic.pair_bytes + traffic.pair_bytes.T
    others = itertools.permutations(group[1:]) if len(group) <= MOST_ORDERED else iter([group[1:]])
    orders = [(group[0], *order) for order in others if order[0] <= order[-1]]
    together = {
        (a, b): sum(n_bytes for members, n_bytes in traffic.group_bytes if a in members and b in members)
        for a, b in itertools.combinations(group, 2)
    }
    worth = {pair: float(beside[pair]) + together[pair] for pair in together}

    def shared(order: Sequence[int]) -> float:
        return sum(worth[min(pair), max(pair)] for pair in zip(order, (*order[1:], order[0]), strict=True))

    best = sorted(orders, key=lambda order: (-shared(order), order))
    return [best[k % len(best)] for k in range(n_interfaces // 2)]


def _between(
    groups: Sequence[tuple[int, ...]], half: Sequence[int], steps: Sequence[int], at: int, n_interfaces: int
) -> list[tuple[int, ...]]:
    """Return rings over every place in the groups: in the first steps, over the places of a half in those from `at` on."""
    n, found = len(groups), list[tuple[int, ...]]()
    for place in range(len(groups[0])):
        first = at if place in half else 0
        for k in range(n_interfaces if n == 2 else n_interfaces // 2):
            step = steps[(first + k) % len(steps)]
            found.append(tuple(groups[i * step % n][place] for i in range(n)))
    return found


def _halves(ring: Sequence[int], group: Sequence[int]) -> list[tuple[int, ...]]:
    """Return halves of the places of a group along its ring: from the first, from a quarter on, and every other."""
    places = [group.index(server) for server in ring]
    n = len(places)
    if n % 2:
        return []
    turned = [*places[n // 4 :], *places[: n // 4]]
    return list(dict.fromkeys(tuple(sorted(half)) for half in (places[: n // 2], turned[: n // 2], places[::2])))
