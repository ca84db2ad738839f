"""Slow twin of `meshwright.network.routes`: shortest paths by Bellman-Ford, traffic split evenly hop by hop, in fractions."""

from __future__ import annotations

from fractions import Fraction

from meshwright.core.cluster import Cluster
from meshwright.network.routes import REFERENCE_BYTES


def load(cluster: Cluster, source: int, target: int) -> tuple[dict[int, Fraction], float]:
    """Return the share of each link, and the latency of the slowest shortest path, for one pair.

    Where devices do not forward, the pair's traffic is split evenly over all (first link, last link) that lie on shortest
    paths, and evenly at every switch between.
    """
    if source == target:
        return {}, 0.0
    links = cluster.links
    n = cluster.n_devices
    cost = [
        max(1, round(1e12 * (latency + REFERENCE_BYTES / rate)))
        for latency, rate in zip(links.latency_seconds, links.bytes_per_second, strict=True)
    ]
    ends = list(zip(links.source.tolist(), links.target.tolist(), strict=True))
    core = [i for i, (a, b) in enumerate(ends) if cluster.forwards or (a >= n and b >= n)]
    if cluster.forwards:
        return _walk(core, ends, cost, links.latency_seconds.tolist(), source, target)[1:]
    ways: list[tuple[int, dict[int, Fraction], float]] = []
    for i, (a, b) in enumerate(ends):
        if (a, b) == (source, target):
            ways.append((cost[i], {i: Fraction(1)}, float(links.latency_seconds[i])))
        if a != source or b < n:
            continue
        for j, (c, d) in enumerate(ends):
            if d != target or c < n:
                continue
            distance, share, latency = _walk(core, ends, cost, links.latency_seconds.tolist(), b, c)
            if distance is not None:
                share = dict(share)
                for end in (i, j):
                    share[end] = share.get(end, Fraction(0)) + 1
                both = float(links.latency_seconds[i] + links.latency_seconds[j])
                ways.append((cost[i] + distance + cost[j], share, latency + both))
    best = min(way[0] for way in ways)
    kept = [way for way in ways if way[0] == best]
    total: dict[int, Fraction] = {}
    for _, share, _ in kept:
        for link, part in share.items():
            total[link] = total.get(link, Fraction(0)) + part / len(kept)
    return total, max(way[2] for way in kept)


def _walk(
    core: list[int], ends: list[tuple[int, int]], cost: list[int], latency: list[float], source: int, target: int
) -> tuple[int | None, dict[int, Fraction], float]:
    """Return distance, share of links and latency between two nodes over the given links."""
    far = 10**18
    best = {target: 0}
    for _ in range(len(core) + 1):
        for i in core:
            a, b = ends[i]
            best[a] = min(best.get(a, far), cost[i] + best.get(b, far))
    if best.get(source, far) >= far:
        return None, {}, 0.0
    share: dict[int, Fraction] = {}
    amount = {source: Fraction(1)}
    slowest = {source: 0.0}
    for node in sorted((v for v in best if best[v] < far), key=lambda v: -best[v]):
        if node not in amount or node == target:
            continue
        hops = [i for i in core if ends[i][0] == node and best.get(ends[i][1], far) + cost[i] == best[node]]
        for i in hops:
            after = ends[i][1]
            share[i] = share.get(i, Fraction(0)) + amount[node] / len(hops)
            amount[after] = amount.get(after, Fraction(0)) + amount[node] / len(hops)
            slowest[after] = max(slowest.get(after, 0.0), slowest[node] + latency[i])
    return best[source], share, slowest[target]
