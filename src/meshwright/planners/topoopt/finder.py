"""Our topology finder: rings for all-reduce groups, a matching for the rest, degrees counted exactly;
several to choose from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshwright.base.errors import InputError
from meshwright.planners.topoopt import grids
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.rings import mean_hops
from meshwright.planners.topoopt.routing.shortest import GivenUp
from meshwright.planners.topoopt.step import PlacementTraffic
from meshwright.solvers.graph import matching
from meshwright.solvers.graph.circulants import best_jumps

__all__ = ["fabrics", "hamiltonian", "lay", "random_cycles"]

N_DRAWS = 40
LONGEST_MATCHING = 64

WIDE_BYTES = 8e6
"""From so many bytes between two servers on topologies are also tried with several routes a pair."""


def fabrics(
    traffic: PlacementTraffic,
    n: int,
    degree: int,
    bytes_per_second: float,
    latency_seconds: float,
    drawn: Sequence[tuple[int, ...]],
    asked: Callable[[], bool] = lambda: False,
) -> Iterator[Fabric]:
    """Yield topologies worth trying for a traffic, no server with more than `degree` interfaces.

    `n`: servers.
    `degree`: interfaces of a server.
    `bytes_per_second`, `latency_seconds`: of one link.
    `drawn`: rings through all servers from `random_cycles`, ``degree // 2`` of them.
    `asked`: whether to end, with the network that is being made left out; the first is made in any case.
    Yields: connected topologies, routes chosen for the traffic.

    Notes
    -----
    Every split of the degree between rings through all servers, rings through the groups of the plan and links of a matching
    is tried, with rings of the best jumps and with rings drawn at random: the union of random rings all-reduces as fast as any
    and has about the mean distance of a random regular graph. TopoOpt fixes the split by the traffic's proportions.
    """
    made: Fabric | None = None
    for count, cycles in _layouts(traffic, n, degree, drawn):
        try:
            made = Fabric(
                "topoopt", n, count, bytes_per_second, latency_seconds, cycles=cycles, demand_bytes=traffic.pair_bytes,
                asked=asked if made else lambda: False,
            )  # fmt: skip
        except InputError:
            continue  # not connected
        except GivenUp:
            return
        made.balance(traffic.pair_bytes, traffic.group_bytes)
        yield made
        if n <= LONGEST_MATCHING and traffic.pair_bytes.max() >= WIDE_BYTES:
            yield made.refitted(traffic.pair_bytes, traffic.group_bytes, degree)


Layout = tuple[dict[tuple[int, int], float], Sequence[tuple[int, ...]]]
"""Directed links, and rings that lie on them."""


def _layouts(traffic: PlacementTraffic, n: int, degree: int, drawn: Sequence[tuple[int, ...]]) -> Iterator[Layout]:
    """Yield different networks of `fabrics`, not all of them connected."""
    seen: set[tuple[tuple[tuple[int, int], float], ...]] = set()
    for rings in grids.grids(traffic, n, degree):
        laid: dict[tuple[int, int], float] = {}
        for ring in rings:
            _close(ring, laid, np.full(n, degree, dtype=np.int64))
        yield laid, rings
    most_rings = degree // 2 if n > 2 else degree
    for style in ("jumps", "random"):
        orders = hamiltonian(n, most_rings) if style == "jumps" else drawn
        for n_full in range(most_rings, -1, -1):
            for n_matched in range(0, degree - 2 * n_full + 1) if n <= LONGEST_MATCHING else (0, degree - 2 * n_full):
                count, cycles = lay(traffic, n, degree, orders[:n_full], n_matched)
                key = tuple(sorted(count.items()))
                if key not in seen:
                    seen.add(key)
                    yield count, cycles


def lay(
    traffic: PlacementTraffic, n: int, degree: int, orders: Sequence[tuple[int, ...]], n_matched: int
) -> tuple[dict[tuple[int, int], float], list[tuple[int, ...]]]:
    """Return links and rings: the given rings, then rings for the heaviest groups, then a matching.

    `n`: servers.
    `degree`: interfaces of a server.
    `orders`: rings through all servers that come first.
    `n_matched`: interfaces kept for the matching.

    Returns
    -------
    count : dict of (int, int) to float
        Directed links.
    cycles : list of tuple of int
        The rings.
    """
    count: dict[tuple[int, int], float] = {}
    free = np.full(n, degree, dtype=np.int64)
    cycles: list[tuple[int, ...]] = []
    for order in orders:
        _close(order, count, free)
        cycles.append(order)
    rings: dict[tuple[int, ...], int] = {}
    while True:
        open_groups = []
        for members, n_bytes in traffic.group_bytes:
            size = len(members)
            need = 2 if size > 2 else 1
            if size == n or (free[list(members)] < need + n_matched).any():
                continue
            has = rings.get(members, 0) + 0.5 * len(orders)
            open_groups.append((-2.0 * (size - 1) / size * n_bytes / (has + 0.5), members))
        if not open_groups:
            break
        _, members = min(open_groups)
        size, used = len(members), rings.get(members, 0)
        steps = [k for k in range(1, size // 2 + 1) if math.gcd(k, size) == 1]
        step = steps[used % len(steps)]
        order = tuple(members[i * step % size] for i in range(size))
        _close(order, count, free)
        if order not in cycles:
            cycles.append(order)
        rings[members] = used + 1
    demand = traffic.pair_bytes
    if n_matched or (free > 0).any():
        for a, b in matching.rounds(demand, free, max(n_matched, int(free.max()))):
            count[a, b] = count.get((a, b), 0.0) + 1.0
            count[b, a] = count.get((b, a), 0.0) + 1.0
    return count, cycles


def _close(order: tuple[int, ...], count: dict[tuple[int, int], float], free: np.ndarray) -> None:
    """Lay a ring (a single link between two servers) and take its interfaces."""
    pairs = [(order[0], order[1])] if len(order) == 2 else list(zip(order, order[1:] + order[:1], strict=True))
    for a, b in pairs:
        count[a, b] = count.get((a, b), 0.0) + 1.0
        count[b, a] = count.get((b, a), 0.0) + 1.0
        free[[a, b]] -= 1


def hamiltonian(n: int, n_rings: int) -> list[tuple[int, ...]]:
    """Return rings through all servers in steps of the best jumps; repeated where there are not enough."""
    if n < 3:
        return [tuple(range(n))] * n_rings
    jumps = best_jumps(n, 2 * n_rings) if n_rings else ()
    rings = [tuple(i * jump % n for i in range(n)) for jump in jumps if math.gcd(jump, n) == 1]
    return [rings[i % len(rings)] for i in range(n_rings)]


def random_cycles(
    n: int, n_rings: int, rng: np.random.Generator, asked: Callable[[], bool] = lambda: False
) -> list[tuple[int, ...]]:
    """Return rings through all servers, the first ``0, 1, 2, ...``, the others drawn:
    of several draws the one of fewest hops.

    `asked`: whether to draw no more.
    """
    first = tuple(range(n))
    if n_rings <= 1 or n < 5:
        return [first] * n_rings
    best: list[tuple[int, ...]] = []
    fewest = math.inf
    for _ in range(N_DRAWS if n <= 64 else 8):
        drawn = [first]
        laid = {frozenset(pair) for pair in zip(first, first[1:] + first[:1], strict=True)}
        for _ in range(n_rings - 1):
            ring = _fresh(n, laid, rng)
            laid |= {frozenset(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)}
            drawn.append(ring)
        hops = mean_hops(n, drawn)
        if hops < fewest:
            best, fewest = drawn, hops
        if asked():
            break
    return best


def _fresh(n: int, laid: set[frozenset[int]], rng: np.random.Generator) -> tuple[int, ...]:
    """Return a drawn ring with as few links that lie already as a hundred exchanges of two servers reach."""
    ring = rng.permutation(n).tolist()
    for _ in range(100):
        clashes = [i for i in range(n) if frozenset((ring[i], ring[(i + 1) % n])) in laid]
        if not clashes:
            break
        for i in clashes:
            j = int(rng.integers(n))
            ring[i], ring[j] = ring[j], ring[i]
    return tuple(ring)
