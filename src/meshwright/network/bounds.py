"""A lower bound on the time of an all-gather on any network: what must leave a part of it, over what can."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.core.cluster import Cluster

__all__ = ["all_gather", "reduce_scatter"]


def all_gather(cluster: Cluster, group: ArrayLike) -> float:
    """Return a lower bound on the seconds per gathered byte of an all-gather by any algorithm.

    Whatever the algorithm, everything that members inside a part of the network hold must leave it if a member is outside. The
    bound is the largest ratio of the two over all parts, found by maximum flows.

    Parameters
    ----------
    cluster : Cluster
        The network. Members pass on what they have received; other devices only where devices forward.
    group : array_like of int, shape (size,)
        Devices.

    Returns
    -------
    float
        Seconds per byte of the gathered result; 0 for one device.

    References
    ----------
    .. [1] Zhao et al., "ForestColl: throughput-optimal collective communications on heterogeneous network fabrics",
       arXiv 2402.06787, section 4: the bound is reached by packing spanning trees.

    Notes
    -----
    The cut is found by Dinkelbach's method: take a ratio, look for a part that beats it, take its ratio, until none does.
    """
    links = cluster.links
    return _bound(cluster, np.asarray(group, dtype=np.int64), links.source, links.target)


def reduce_scatter(cluster: Cluster, group: ArrayLike) -> float:
    """Return a lower bound on the seconds per input byte of a reduce-scatter without reduction in switches.

    It is the all-gather run backwards, so its bound is that of `all_gather` on links turned round.

    Parameters
    ----------
    cluster : Cluster
        The network.
    group : array_like of int, shape (size,)
        Devices.

    Returns
    -------
    float
        Seconds per byte of one rank's input; 0 for one device.
    """
    links = cluster.links
    return _bound(cluster, np.asarray(group, dtype=np.int64), links.target, links.source)


def _bound(cluster: Cluster, group: NDArray[np.int64], source: NDArray[np.int64], target: NDArray[np.int64]) -> float:
    """Return the largest ratio of members inside to bandwidth that leaves, divided by the number of members."""
    import networkx

    if len(group) < 2:
        return 0.0
    scale = float(cluster.links.bytes_per_second.max())
    graph = networkx.DiGraph()
    silent = set(range(0 if cluster.forwards else cluster.n_devices)) - set(group.tolist())
    rates = (cluster.links.bytes_per_second / scale).tolist()
    for a, b, rate in zip(source.tolist(), target.tolist(), rates, strict=True):
        if a not in silent and b not in silent:
            known = graph[a][b]["capacity"] if graph.has_edge(a, b) else 0.0
            graph.add_edge(a, b, capacity=known + rate)
    members = group.tolist()
    ratio = (len(members) - 1) / _into(graph, members[0])  # everybody but one: the simplest part
    while True:
        better = max((_ratio_of_cut(graph, members, sink, ratio) for sink in members), default=0.0)
        if better <= ratio * (1 + 1e-9):
            return ratio / scale / len(members)
        ratio = better


def _into(graph: object, node: int) -> float:
    """Return the bandwidth into a node."""
    return float(sum(data["capacity"] for _, _, data in graph.in_edges(node, data=True)))  # type: ignore[attr-defined]


def _ratio_of_cut(graph: object, members: list[int], sink: int, ratio: float) -> float:
    """Return members over leaving bandwidth of the part without `sink` that is worst at the rate 1 / `ratio`."""
    import networkx

    extended = graph.copy()  # type: ignore[attr-defined]
    for member in members:
        extended.add_edge("all", member, capacity=1.0 / ratio)
    _, (inside, outside) = networkx.minimum_cut(extended, "all", sink)
    n_inside = sum(member in inside for member in members)
    leaving = sum(extended[a][b]["capacity"] for a in inside if a != "all" for b in extended.successors(a) if b in outside)
    return n_inside / leaving if n_inside else 0.0
