"""Lower bounds of the largest cost of mapping stages onto devices: the fastest links of each device, and groups too small."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.mapping.cost import MapArrays
from meshwright.solvers.mapping.problem import StageGraph

__all__ = ["lower_bound"]


def lower_bound(graph: StageGraph, seconds_per_byte: NDArray[np.float64]) -> float:
    """Return a proven lower bound of the largest cost over all mappings and ring orders, in seconds.

    Parameters
    ----------
    graph : StageGraph
        What to map.
    seconds_per_byte : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte.

    Returns
    -------
    float
        The least t such that every replica can be given a device of its own on which it costs at most t when it gets that
        device's fastest links, its largest transfers on the fastest.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, equations (10) and (11): the same per stage, on its best device alone. Here
       all replicas need devices at once, so slow devices count as well.

    Notes
    -----
    A ring through a device also pays the least threshold at which the links below join that device to enough others. Where
    devices form groups, cutting the chain of stages into pieces that fit into them gives another bound; the larger one counts.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n, n_stages, n_replicas = len(seconds_per_byte), graph.n_stages, graph.n_replicas
    packed = graph.arrays(seconds_per_byte)
    most = int(np.diff(packed.first).max(initial=0))
    n_links = max(most, 2)
    apart = seconds_per_byte + np.diag(np.full(n, np.inf))
    links = np.partition(apart, range(min(n_links, n)), axis=1)[:, :n_links]
    groups = _groups(seconds_per_byte)
    reach = _ring_reach(groups, n_replicas)
    table = np.zeros((n_stages, n))
    for s in range(n_stages):
        volumes = np.sort(packed.volume[packed.first[s] : packed.first[s + 1]])[::-1]
        table[s] = packed.compute[s] + links[:, : len(volumes)] @ volumes
        if n_replicas > 1 and packed.ring[s] > 0:
            table[s] += packed.ring[s] * np.maximum(reach, links[:, 0 if n_replicas == 2 else 1])
    values = np.unique(table)
    low, high = 0, len(values) - 1
    supply = np.full(n_stages, n_replicas)
    while low < high:
        middle = (low + high) // 2
        rows, columns = np.nonzero(table <= values[middle])
        source, sink = n_stages + n, n_stages + n + 1
        heads = np.concatenate([np.full(n_stages, source), rows, n_stages + np.arange(n)])
        tails = np.concatenate([np.arange(n_stages), n_stages + columns, np.full(n, sink)])
        capacity = np.concatenate([supply, np.ones(len(rows) + n)]).astype(np.int32)
        network = csr_array((capacity, (heads, tails)), shape=(sink + 1, sink + 1))
        if maximum_flow(network, source, sink).flow_value >= n_stages * n_replicas:
            high = middle
        else:
            low = middle + 1
    return max(float(values[low]), _apart_bound(packed, groups, reach, n_replicas))


def _groups(seconds_per_byte: NDArray[np.float64], most: int = 64) -> list[tuple[float, NDArray[np.int64]]]:
    """Return at most so many thresholds, each with the groups of devices that are joined by links below it: a label per device.

    Groups change only at the links of a minimum spanning tree.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

    if len(seconds_per_byte) < 2:
        return [(0.0, np.zeros(len(seconds_per_byte), dtype=np.int64))]
    tree = minimum_spanning_tree(csr_array(seconds_per_byte))
    levels = np.unique(tree.data)
    chosen = levels[np.unique(np.linspace(0, len(levels) - 1, most).astype(int))]
    found = []
    for level in chosen.tolist():
        below = tree.copy()
        below.data = np.where(tree.data < level, tree.data, 0.0)
        below.eliminate_zeros()
        found.append((level, connected_components(below, directed=False)[1].astype(np.int64)))
    return found


def _ring_reach(groups: list[tuple[float, NDArray[np.int64]]], n_replicas: int) -> NDArray[np.float64]:
    """Return for each device a bound of the slowest link of any ring of so many devices through it, in seconds per byte.

    A ring lies in one group of every threshold above its slowest link, so a group that is too small makes it pay the threshold.
    """
    reach = np.zeros(len(groups[0][1]))
    for level, label in groups:
        reach = np.where(np.bincount(label)[label] < n_replicas, level, reach)
    return reach


def _rules(sizes: NDArray[np.int64], n_stages: int, n_replicas: int) -> list[tuple[int, int, int]]:
    """Return what one replica at least keeps: its longest piece, its longest with a whole ring, and for how many such rings.

    At most the sum of g // (x + 1) replicas have a piece longer than x, because it fills x + 1 places of a group of g. Where
    this and those that break the other rule are fewer than all replicas, one keeps both.
    """
    largest = int(sizes.max())
    mean = largest // n_replicas
    found: set[tuple[int, int, int]] = set()
    longest, most = 1, min(largest, n_stages)
    while longest <= most:
        n_longer = int((sizes // (longest + 1)).sum()) if longest < n_stages else 0
        n_free = n_replicas - 1 - n_longer
        if n_free < 0:
            longest += 1
            continue
        found.add((longest, n_stages, 0))
        for p in {1, 2, mean, mean + 1, 2 * mean} if mean else ():
            n_beyond = (largest - n_replicas) // p
            n_short = n_stages if n_beyond == 0 else min(n_free // n_beyond, n_stages)
            if n_short > 0 and p < longest:
                found.add((longest, p, n_short))
        longest = most if longest < most < 2 * longest else 2 * longest
    return sorted(found)


def _apart_bound(
    packed: MapArrays, groups: list[tuple[float, NDArray[np.int64]]], reach: NDArray[np.float64], n_replicas: int
) -> float:
    """Return a bound from groups of devices that are near each other: what does not fit into one must cross a slower link.

    Between two groups every link costs the threshold or more. So a replica of the chain of stages falls into pieces that fit
    into groups, and a ring is whole (in one group) or pays the threshold. Groups of g devices hold g // R whole rings; the
    largest has G. A piece that contains a stage with a whole ring is in the group of that ring for each of the R replicas, so
    these pieces have at most G stages together: those of at most (G - R) // p replicas are longer than p. With m such stages
    and m ((G - R) // p) < R, one replica has none of the m in a piece longer than p. Any such replica costs at least what the
    best way to cut costs.
    """
    from meshwright._kernels.mapping.bounds import chain_in_pieces

    n_stages = len(packed.compute)
    fastest = groups[0][0]  # no link is faster: below the least threshold no devices are joined
    volume = np.zeros(max(n_stages - 1, 0))
    base = packed.compute.copy()
    for s in range(n_stages):
        for e in range(packed.first[s], packed.first[s + 1]):
            base[s] += packed.volume[e] * fastest
            if packed.stage[e] == s + 1:
                volume[s] += packed.volume[e]
    best = 0.0
    for level, label in groups:
        sizes = np.bincount(label)
        largest = int(sizes.max())
        if largest >= n_stages * n_replicas:
            break  # all fits into one group, here and beyond
        n_whole = int((sizes // n_replicas).sum())
        inside = reach[sizes[label] >= n_replicas]
        whole = packed.ring * (inside.min() if len(inside) else level)
        for longest, short, n_short in _rules(sizes, n_stages, n_replicas):
            value = chain_in_pieces(
                base, volume * (level - fastest), whole, packed.ring * level, longest, short, n_short, n_whole
            )
            best = max(best, float(value))
    return best
