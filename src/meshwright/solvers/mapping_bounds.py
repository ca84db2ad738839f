"""Lower bounds of the largest cost of mapping stages onto devices: the fastest links of each device, and groups too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from meshwright._kernels.mapping import MapArrays
    from meshwright.solvers.mapping import StageGraph

__all__ = ["lower_bound"]


def lower_bound(graph: StageGraph, slow: NDArray[np.float64]) -> float:
    """Return a proven lower bound of the largest cost over all mappings and ring orders, in seconds.

    Parameters
    ----------
    graph : StageGraph
        What to map.
    slow : ndarray, shape (n_devices, n_devices), float64
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
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n, n_stages, n_replicas = len(slow), graph.n_stages, graph.n_replicas
    packed = graph.arrays(slow)
    most = int(np.diff(packed.first).max(initial=0))
    n_links = max(most, 2)
    apart = slow + np.diag(np.full(n, np.inf))
    links = np.partition(apart, range(min(n_links, n)), axis=1)[:, :n_links]
    table = np.zeros((n_stages, n))
    for s in range(n_stages):
        volumes = np.sort(packed.volume[packed.first[s] : packed.first[s + 1]])[::-1]
        table[s] = packed.compute[s] + links[:, : len(volumes)] @ volumes
        if n_replicas > 1 and packed.ring[s] > 0:
            table[s] += packed.ring[s] * links[:, 0 if n_replicas == 2 else 1]
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
    return max(float(values[low]), _apart_bound(packed, slow, n_replicas))


def _apart_bound(packed: MapArrays, slow: NDArray[np.float64], n_replicas: int) -> float:
    """Return a bound from groups of devices that are near each other: what does not fit into one must cross a slower link.

    For a threshold, devices joined by faster links form groups. A group of g devices holds the whole rings of at most g / R stages
    and at most g / S whole replicas of the stage graph; all others use a link above the threshold.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n_stages = len(packed.compute)
    levels = np.unique(slow[np.triu_indices(len(slow), 1)])
    if len(levels) < 2:
        return 0.0
    least = np.array(
        [packed.compute[s] + packed.volume[packed.first[s] : packed.first[s + 1]].sum() * levels[0] for s in range(n_stages)]
    )
    chosen = np.unique(np.linspace(0, len(levels) - 2, 64).astype(int))
    best = 0.0
    for k in chosen:
        above = float(levels[k + 1])
        _, label = connected_components(csr_array(slow <= levels[k]), directed=False)
        sizes = np.bincount(label)
        crossing = n_stages - int((sizes // n_replicas).sum())
        if n_replicas > 1 and crossing > 0:
            best = max(best, float(np.sort(least + packed.ring * above)[crossing - 1]))
        if n_stages > 1 and int((sizes // n_stages).sum()) < n_replicas and _connected(packed):
            # at least one replica has a transfer over a slower link; the cheapest one it could be
            ends = [
                max(least[s], least[packed.stage[e]]) + packed.volume[e] * (above - levels[0])
                for s in range(n_stages)
                for e in range(packed.first[s], packed.first[s + 1])
            ]
            best = max(best, float(min(ends)))
    return best


def _connected(packed: MapArrays) -> bool:
    """Whether the stage graph hangs together, so that stages in two groups have a transfer between the groups."""
    seen, todo = {0}, [0]
    while todo:
        s = todo.pop()
        for e in range(packed.first[s], packed.first[s + 1]):
            if packed.volume[e] > 0 and int(packed.stage[e]) not in seen:
                seen.add(int(packed.stage[e]))
                todo.append(int(packed.stage[e]))
    return len(seen) == len(packed.compute)
