"""TopologyFinder as released: rings of chosen jumps for the largest all-reduce groups, coin change for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.planners.topoopt.fabric import Fabric
from meshwright.solvers.graph.circulants import candidates, geometric
from meshwright.solvers.graph.coin_change import last_coins, shortest_sum

__all__ = ["Rings", "fabric", "find", "links"]

Paths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rings:
    """What TopologyFinder chose.

    Parameters
    ----------
    n_servers : int
        Servers.
    jumps : tuple of (int, tuple of int)
        Group size and the jumps laid for it, in the order of choice.
    paths : tuple of (int, tuple of tuple of int)
        For every group size: paths from a member to the next, each the jumps it takes.
    bidirectional : bool
        Whether every jump was also laid backwards.
    """

    n_servers: int
    jumps: tuple[tuple[int, tuple[int, ...]], ...]
    paths: tuple[tuple[int, Paths], ...]
    bidirectional: bool


def find(n: int, degree: int, traffic_bytes: Mapping[int, float], *, bidirectional: bool = True) -> Rings:
    """Return the rings for a traffic of all-reduces.

    `n`: servers.
    `degree`: interfaces of a server.
    `traffic_bytes`: for every group size, the sum over its all-reduces of size times ``(2 g - 1) / g``.

    References
    ----------
    .. [1] Wang et al., "TopoOpt", NSDI 2023, algorithm 1 and TotientPerms.

    Notes
    -----
    As the released program does it, not the paper: no interfaces are set aside for point-to-point traffic, a group's share of
    interfaces is the inverse of its share of the traffic, and the sum of sizes is weighted ``2 g - 1`` instead of
    ``2 (g - 1)``. Where the released program stops or reads past a list, fewer jumps are chosen.
    """
    total = sum(traffic_bytes.values())
    step = 2 if bidirectional else 1
    left = degree
    taken: dict[int, int] = {}
    for group in sorted((g for g in traffic_bytes if traffic_bytes[g] > 0), key=lambda g: (-traffic_bytes[g], -g)):
        n_links = min(max(int(total * degree / traffic_bytes[group]), 1) * step, left)
        if n_links > 0:
            taken[group] = n_links
            left -= n_links
    if n not in taken:
        if left < step and taken:
            last = list(taken)[-1]
            taken[last] -= step
            if taken[last] <= 0:
                del taken[last]
        taken[n] = min(step, degree)
    jumps: dict[int, tuple[int, ...]] = {}
    paths: dict[int, Paths] = {}
    for group, n_links in taken.items():
        chosen = geometric(candidates(n, group), n_links // step, bidirectional=bidirectional)
        jumps[group] = chosen
        both = [(way,) for jump in chosen for way in ((jump, n - jump) if bidirectional else (jump,))]
        paths[group] = tuple(both)
    coins = {jump for chosen in jumps.values() for jump in chosen}
    if bidirectional:
        coins |= {n - jump for jump in coins}
    _, last_coin = last_coins(n, sorted(coins))
    for group in (g for g in range(2, n) if n % g == 0 and g not in paths):
        found = [path for jump in candidates(n, group) if (path := shortest_sum(n, jump, last_coin))]
        if found:
            best = min(found, key=len)
            back = tuple(n - jump for jump in best)
            paths[group] = (best, back) if bidirectional else (best,)
    return Rings(n, tuple(jumps.items()), tuple(paths.items()), bidirectional)


def links(rings: Rings) -> dict[tuple[int, int], float]:
    """Return the directed links and how many lie side by side."""
    count: dict[tuple[int, int], float] = {}
    n = rings.n_servers
    for _, chosen in rings.jumps:
        for jump in chosen:
            for i in range(n):
                other = (i + jump) % n
                count[i, other] = count.get((i, other), 0.0) + 1.0
                if rings.bidirectional:
                    count[other, i] = count.get((other, i), 0.0) + 1.0
    return count


def fabric(rings: Rings, bytes_per_second: float, latency_seconds: float, name: str = "topoopt") -> Fabric:
    """Return the network of these rings, with the published paths for all-reduces."""
    return Fabric(
        name, rings.n_servers, links(rings), bytes_per_second, latency_seconds, paths=dict(rings.paths),
    )  # fmt: skip
