"""Routes: which links the traffic of pairs of devices loads, on shortest paths with even multipath sharing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import ById
from meshwright.network.wired import ClusterPart, Wired

if TYPE_CHECKING:
    from meshwright._kernels.network.paths import ForwardingNodes
    from meshwright._kernels.network.trees import ForwardingTree

__all__ = ["REFERENCE_BYTES", "REMEMBERED_CLUSTERS", "RoutingTables", "load", "ranges", "tables"]

REFERENCE_BYTES = 65536.0
"""A path is as short as a message of this size is quick on it, store and forward: prefers fast links to few hops."""

REMEMBERED_CLUSTERS = 16
"""Of how many clusters, the last ones asked for, a process remembers what it worked out: a search looks at one or a
few, a file of measured runs at about fifteen."""

MOST_PAIRS = 1 << 18
"""Of how many pairs all ways are laid out at once; those that are not shortest are dropped before the next ones."""

REMEMBERED_PARTS = 8
"""Of how many parts of clusters routing tables are kept: a part is asked for a few collectives, one after the other."""


@dataclass(frozen=True, slots=True, eq=False)
class RoutingTables:
    """What routing needs of a network, made once: the forwarding core, as trees where it is such, and how devices are plugged
    into it.

    Where devices forward, the core is everything and no device is plugged in anywhere.
    """

    net: ForwardingNodes
    trees: ForwardingTree | None
    link_of_core: NDArray[np.int64]  # cluster link of each core link
    core_of_node: NDArray[np.int64]  # -1 for devices outside the core
    part: NDArray[np.int64]  # connected part of each core node
    cost: NDArray[np.int64]  # of every cluster link, in picoseconds
    out_first: NDArray[np.int64]  # links of each device into the core
    out_link: NDArray[np.int64]
    in_first: NDArray[np.int64]  # links out of the core to each device
    in_link: NDArray[np.int64]
    direct_key: NDArray[np.int64]  # source * n_devices + target of direct links, sorted
    direct_link: NDArray[np.int64]


def ranges(key: NDArray[np.int64], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions sorted by key, and where each key's begin."""
    order = np.argsort(key, kind="stable").astype(np.int64)
    return np.concatenate([[0], np.cumsum(np.bincount(key, minlength=n))]).astype(np.int64), order


def tables(cluster: Wired) -> RoutingTables:
    """Return the routing tables of a network, remembered by its identity: it never changes, so they cannot be stale."""
    return _of_part(cluster) if isinstance(cluster, ClusterPart) else _of_cluster(ById(cluster))


@lru_cache(maxsize=REMEMBERED_CLUSTERS)
def _of_cluster(cluster: ById[Wired]) -> RoutingTables:
    return _made(cluster.of)


@lru_cache(maxsize=REMEMBERED_PARTS)
def _of_part(part: ClusterPart) -> RoutingTables:
    return _made(part)


def _made(cluster: Wired) -> RoutingTables:
    """Return the routing tables of a network."""
    from meshwright._kernels.network.paths import ForwardingNodes
    from meshwright._kernels.network.trees import rooted

    links, n = cluster.links, cluster.n_devices
    n_nodes = n + cluster.n_switches
    cost = np.maximum(1, np.rint(1e12 * (links.latency_seconds + REFERENCE_BYTES / links.bytes_per_second))).astype(np.int64)
    outside = 0 if cluster.forwards else n
    core_of_node = np.where(np.arange(n_nodes) >= outside, np.arange(n_nodes) - outside, -1)
    source, target = core_of_node[links.source], core_of_node[links.target]
    link_of_core = np.flatnonzero((source >= 0) & (target >= 0))
    source, target = source[link_of_core], target[link_of_core]
    n_core = n_nodes - outside
    core_cost = cost[link_of_core]
    even = np.array([cluster.even if isinstance(cluster, ClusterPart) else bool(np.all(core_cost == core_cost[:1]))])
    net = ForwardingNodes(
        *ranges(target, n_core), *ranges(source, n_core), source, target, core_cost, links.latency_seconds[link_of_core], even
    )
    plugged_out = np.flatnonzero((links.source < outside) & (links.target >= outside))
    plugged_in = np.flatnonzero((links.source >= outside) & (links.target < outside))
    out_first, order = ranges(links.source[plugged_out], outside)
    out_link = plugged_out[order]
    in_first, order = ranges(links.target[plugged_in], outside)
    direct = np.flatnonzero((links.source < outside) & (links.target < outside))
    key = links.source[direct] * n + links.target[direct]
    order_direct = np.argsort(key, kind="stable")
    trees, are_trees = rooted(net)
    return RoutingTables(
        net, trees if are_trees else None, link_of_core, core_of_node, _parts(source, target, n_core), cost, out_first,
        out_link, in_first, plugged_in[order], key[order_direct], direct[order_direct],
    )  # fmt: skip


def _parts(source: NDArray[np.int64], target: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the smallest node of the connected part of each node."""
    label = np.arange(n, dtype=np.int64)
    while True:
        smaller = label.copy()
        np.minimum.at(smaller, target, label[source])
        np.minimum.at(smaller, source, label[target])
        smaller = smaller[smaller]
        if np.array_equal(smaller, label):
            return label
        label = smaller


def load(
    cluster: Wired, source: NDArray[np.int64], target: NDArray[np.int64], amount: NDArray[np.float64] | float = 1.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what every link carries when all pairs send at once, and how long the first byte of each pair is on its way.

    `source`, `target`, shape (n_pairs,), int64: devices; a pair of a device with itself loads nothing.
    `amount` (ndarray, shape (n_pairs,), float64, or float): what each pair sends.
    Returns `load`, shape (n_links,), float64: sum over the pairs, in the unit of `amount`; `latency_seconds`, shape (n_pairs,),
    float64: latency of the slowest of the shortest paths of each pair.

    Notes
    -----
    Links and switches split evenly over the next hops of shortest paths (equal-cost multipath). A device that does not forward
    and is plugged in several times splits evenly over the pairs of its and the other end's links that are equally near.
    """
    own = tables(cluster)
    source, target = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    amounts = np.broadcast_to(np.asarray(amount, dtype=np.float64), source.shape)
    total = np.zeros(len(cluster.links))
    latency = np.zeros(len(source))
    apart = np.flatnonzero(source != target)
    if cluster.forwards:
        core_load, latency[apart] = _core(own, source[apart], target[apart], amounts[apart])
        total[own.link_of_core] += core_load
    else:
        _plugged(cluster, own, (source[apart], target[apart], amounts[apart]), total, latency, apart)
    return total, latency


def _core(
    tables: RoutingTables, a: NDArray[np.int64], b: NDArray[np.int64], amount: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the load of core links and the latency of each pair of core nodes; equal pairs are joined first."""
    from meshwright._kernels.network import paths
    from meshwright._kernels.network import trees as in_trees

    n = len(tables.net.in_first) - 1
    latency, apart = np.zeros(len(a)), np.flatnonzero(a != b)
    if not len(apart):
        return np.zeros(len(tables.link_of_core)), latency
    key, which = np.unique(b[apart] * n + a[apart], return_inverse=True)
    joined = np.bincount(which, weights=amount[apart], minlength=len(key))
    if tables.trees is not None:
        core_load, core_latency = in_trees.spread(tables.trees, tables.net.latency, key % n, key // n, joined)
    else:
        targets, first = np.unique(key // n, return_index=True)
        core_load, core_latency = paths.spread(tables.net, targets, np.append(first, len(key)), key % n, joined)
    latency[apart] = core_latency[which]
    return core_load, latency


def _near(tables: RoutingTables, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distance of each pair of core nodes of the same part, in picoseconds."""
    from meshwright._kernels.network import paths
    from meshwright._kernels.network import trees as in_trees

    if tables.trees is not None:
        return np.asarray(in_trees.distances(tables.trees, tables.net.cost, a, b))
    n = len(tables.net.in_first) - 1
    found, apart = np.zeros(len(a), dtype=np.int64), np.flatnonzero(a != b)
    if len(apart):
        key, which = np.unique(b[apart] * n + a[apart], return_inverse=True)
        targets, first = np.unique(key // n, return_index=True)
        found[apart] = paths.distances(tables.net, targets, np.append(first, len(key)), key % n)[which]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """The equally short ways of pairs of devices that do not forward: out link, core and in link, or one direct link.

    Each of the `n_ways` of a pair carries the same share.
    """

    pair: NDArray[np.int64]
    out_link: NDArray[np.int64]
    in_link: NDArray[np.int64]
    a: NDArray[np.int64]  # core node at the end of the out link
    b: NDArray[np.int64]  # core node at the start of the in link
    direct_pair: NDArray[np.int64]
    direct_link: NDArray[np.int64]
    n_ways: NDArray[np.int64]


def _ways(cluster: Wired, tables: RoutingTables, source: NDArray[np.int64], target: NDArray[np.int64]) -> _Ways:
    """Return the equally short ways of pairs of different devices that do not forward."""
    starts = range(0, max(1, len(source)), MOST_PAIRS)
    found = [_some_ways(cluster, tables, source[i : i + MOST_PAIRS], target[i : i + MOST_PAIRS]) for i in starts]
    if len(found) == 1:
        return found[0]
    columns = [
        np.concatenate(
            [getattr(ways, name) + (i if name in ("pair", "direct_pair") else 0) for ways, i in zip(found, starts, strict=True)]
        )
        for name in _Ways.__dataclass_fields__
    ]
    return _Ways(*columns)


def _some_ways(cluster: Wired, tables: RoutingTables, source: NDArray[np.int64], target: NDArray[np.int64]) -> _Ways:
    """Return the equally short ways of pairs of different devices that do not forward."""
    links, n_pairs = cluster.links, len(source)
    n_out = np.diff(tables.out_first)[source]
    n_in = np.diff(tables.in_first)[target]
    pair = np.repeat(np.arange(n_pairs), n_out * n_in)
    position = np.arange(len(pair)) - np.repeat(np.cumsum(n_out * n_in) - n_out * n_in, n_out * n_in)
    out_link = tables.out_link[tables.out_first[source[pair]] + position // n_in[pair]]
    in_link = tables.in_link[tables.in_first[target[pair]] + position % n_in[pair]]
    a, b = tables.core_of_node[links.target[out_link]], tables.core_of_node[links.source[in_link]]
    key = source * cluster.n_devices + target
    left, right = (np.searchsorted(tables.direct_key, key, side) for side in ("left", "right"))
    direct_pair = np.repeat(np.arange(n_pairs), right - left)
    begin = np.cumsum(right - left) - (right - left)
    direct = tables.direct_link[np.arange(len(direct_pair)) - begin[direct_pair] + left[direct_pair]]
    nearest = np.full(n_pairs, np.iinfo(np.int64).max)
    np.minimum.at(nearest, direct_pair, tables.cost[direct])
    ends = tables.cost[out_link] + tables.cost[in_link]
    here = a == b
    np.minimum.at(nearest, pair[here], ends[here])
    # a way over several switches is looked at only where its ends alone are not longer than one that is known
    joined = np.flatnonzero((tables.part[a] == tables.part[b]) & (ends <= nearest[pair]))
    pair, out_link, in_link, a, b = pair[joined], out_link[joined], in_link[joined], a[joined], b[joined]
    cost = ends[joined] + _near(tables, a, b)
    np.minimum.at(nearest, pair, cost)
    over, straight = cost == nearest[pair], tables.cost[direct] == nearest[direct_pair]
    n_ways = np.bincount(pair[over], minlength=n_pairs) + np.bincount(direct_pair[straight], minlength=n_pairs)
    return _Ways(pair[over], out_link[over], in_link[over], a[over], b[over], direct_pair[straight], direct[straight], n_ways)


def _plugged(
    cluster: Wired,
    tables: RoutingTables,
    pairs: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]],
    total: NDArray[np.float64],
    latency: NDArray[np.float64],
    place: NDArray[np.int64],
) -> None:
    """Add the load and latency of pairs of devices that do not forward."""
    source, target, amount = pairs
    links = cluster.links
    ways = _ways(cluster, tables, source, target)
    share = (amount / np.maximum(1, ways.n_ways))[ways.pair]
    core_load, core_latency = _core(tables, ways.a, ways.b, share)
    total[tables.link_of_core] += core_load
    total += np.bincount(ways.out_link, weights=share, minlength=len(links))
    total += np.bincount(ways.in_link, weights=share, minlength=len(links))
    ends = links.latency_seconds[ways.out_link] + links.latency_seconds[ways.in_link]
    np.maximum.at(latency, place[ways.pair], ends + core_latency)
    straight = (amount / np.maximum(1, ways.n_ways))[ways.direct_pair]
    total += np.bincount(ways.direct_link, weights=straight, minlength=len(links))
    np.maximum.at(latency, place[ways.direct_pair], links.latency_seconds[ways.direct_link])
