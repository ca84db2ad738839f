"""How long collectives take and what links carry: every algorithm on the real routes, all groups at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import ById
from meshwright.network import in_switch, packing, routes
from meshwright.network.alpha_beta import AlphaBeta
from meshwright.network.orders import GroupLayout, double_binary_tree, grid, layout, rings
from meshwright.network.wired import Wired

__all__ = ["ALGORITHMS", "KINDS", "CollectiveAlgorithm", "lines", "slowest", "ways"]

ALGORITHMS = (
    "ring", "bidirectional_ring", "packed_rings", "tree", "halving_doubling", "hierarchical", "dimension_rings", "direct",
)  # fmt: skip
"""Every algorithm there is; ``in_switch`` besides, where `Cluster.reduces_in_switch` says so."""

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
"""The collectives."""

LARGEST_FORWARDED = 128
"""Trees and recursive halving are not laid out for larger groups where devices forward:
far partners cross the whole network.
"""

MOST_PAIRS = 1 << 22
"""How many pairs of an all-to-all are routed at once; more are done in rounds of offsets."""

REMEMBERED_WALKS = 32
"""Of how many sets of rings a process remembers what they load: an all-reduce and its two halves ask one after the other."""

LIBRARY_PAIR = 1.0
"""Share of the bytes that a tree of a communication library sends over its edge between two nodes: both halves of the double
tree could halve it, yet NCCL's tuner (tuning.cc) counts two full passes for any number of nodes, and all-reduces over two nodes
of A100 (vTrain, tensor degree 16) ran at the rate of rings, which is less than half of what two such trees would reach."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveAlgorithm:
    """One algorithm for a collective, and what it puts on links.

    `line`: its time.
    `load`, shape (n_links,), float64: bytes that cross each link for every byte of the tensor.
    """

    line: AlphaBeta
    load: NDArray[np.float64]


def lines(cluster: Wired, groups: NDArray[np.int64], kind: str) -> tuple[AlphaBeta, ...]:
    """Return every algorithm for a collective that all groups run at once, as the time it takes; see `ways`."""
    return tuple(way.line for way in ways(cluster, groups, kind))


def ways(cluster: Wired, groups: NDArray[np.int64], kind: str, only: str = "") -> tuple[CollectiveAlgorithm, ...]:
    """Return every algorithm for a collective that all groups run at once.

    `groups`, shape (n_groups, size), int64: devices; size at least 2.
    `kind`: one of `KINDS`.
    `only`: the name of the algorithm that is wanted; empty for all.
    Returns: at least one; launch not included. Rings and the direct all-to-all always, others where the cluster's
    communication library has them. With `only`, those of that family.
    """
    has = ("ring", "direct", "in_switch", *(cluster.algorithms or ALGORITHMS))
    if only:
        has = (only.removeprefix("bidirectional_").partition("(")[0],)
    by_node, shape = layout(cluster, groups, n_levels=1), layout(cluster, groups)
    size = groups.shape[1]
    if kind == "all_to_all":
        found = [_direct(cluster, groups)] if "direct" in has else []
        if "hierarchical" in has and shape.n_nodes > 1 and shape.n_local > 1:
            found.append(_hierarchical_all_to_all(cluster, shape))
        return tuple(found)
    found = _rings(cluster, by_node, kind) if "ring" in has else []
    if "packed_rings" in has:
        found.extend(_packed_rings(cluster, groups, kind))
    near = not cluster.forwards or size <= LARGEST_FORWARDED
    if "tree" in has and near and kind in ("all_reduce", "broadcast"):
        found.append(_tree(cluster, by_node, kind))
    if "halving_doubling" in has and kind != "broadcast" and size & (size - 1) == 0 and near:
        found.append(_halving_doubling(cluster, shape.groups, kind))
    if "in_switch" in has and cluster.reduces_in_switch and kind in ("all_reduce", "broadcast"):
        found.extend(_in_switch(cluster, groups, kind))
    if kind != "broadcast" and shape.n_nodes > 1 and shape.n_local > 1:
        if "hierarchical" in has:
            found.extend(_hierarchical(cluster, shape, kind))
        if "dimension_rings" in has:
            found.extend(_dimension_rings(cluster, shape, kind))
    return tuple(found)


def slowest(cluster: Wired, load: NDArray[np.float64]) -> float:
    """Return the time of the slowest link per unit of what the loads are in."""
    return float((load / cluster.links.bytes_per_second).max(initial=0.0))


def _way(cluster: Wired, algorithm: str, latency_seconds: float, load: NDArray[np.float64]) -> CollectiveAlgorithm:
    """Return an algorithm that takes as long as its slowest link."""
    return CollectiveAlgorithm(AlphaBeta(algorithm, latency_seconds, slowest(cluster, load)), load)


def _rings(cluster: Wired, shape: GroupLayout, kind: str) -> list[CollectiveAlgorithm]:
    """Return the ring algorithm, in one direction and, where that helps, in both at once."""
    walks = rings(shape)
    size = shape.groups.shape[1]
    n_steps = {"all_reduce": 2 * (size - 1), "broadcast": size - 1}.get(kind, size - 1)
    share = 1.0 if kind == "broadcast" else n_steps / size
    n_hops = size - 1 if kind == "broadcast" else size
    ahead, back, slowest_walk = _walked(ById(cluster), walks.reshape(-1, size).tobytes(), size, n_hops)
    load, around = share / len(walks) * ahead, slowest_walk * n_steps / n_hops
    both = 0.5 * load + 0.5 * share / len(walks) * back  # half goes each way
    found = [_way(cluster, "ring", around, load), _way(cluster, "bidirectional_ring", around, both)]
    quicker = found[1].line.seconds_per_byte < found[0].line.seconds_per_byte * (1 - 1e-9)
    return found if quicker else found[:1]


@lru_cache(maxsize=REMEMBERED_WALKS)
def _walked(
    cluster: ById[Wired], walks: bytes, size: int, n_hops: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return what links carry when every member of walks sends 1 to the next, and to the one before; and the longest latency.

    `walks`: bytes of an int64 array of devices, shape (n_walks, size); the first `n_hops` of their hops count.
    """
    source = np.frombuffer(walks, dtype=np.int64).reshape(-1, size)
    target = np.roll(source, -1, axis=1)[:, :n_hops]
    source = source[:, :n_hops]
    ahead, latency = routes.load(cluster.of, source.ravel(), target.ravel())
    back, _ = routes.load(cluster.of, target.ravel(), source.ravel())
    return ahead, back, float(latency.reshape(source.shape).sum(axis=1).max())


def _packed_rings(cluster: Wired, groups: NDArray[np.int64], kind: str) -> list[CollectiveAlgorithm]:
    """Return all rings that fit into the direct links between the members at once; nothing where some group has none.

    They are taken to fill all of these links for the whole time: on the nodes we know they do.
    """
    size = groups.shape[1]
    if cluster.forwards or size > packing.LARGEST:
        return []
    slowest, known = np.inf, dict[bytes, float]()
    latency, direct = 0.0, np.zeros(len(cluster.links), dtype=bool)
    for group in groups:
        table, hop, between = packing.direct_links(cluster, group)
        direct[between] = True
        if not table.any(axis=1).all():
            return []
        if table.tobytes() not in known:
            known[table.tobytes()] = packing.ring_bandwidth(table)
        slowest, latency = min(slowest, known[table.tobytes()]), max(latency, hop)
    if slowest == 0.0:
        return []
    n_steps = 2 * (size - 1) if kind == "all_reduce" else size - 1
    share = 1.0 if kind == "broadcast" else n_steps / size
    line = AlphaBeta("packed_rings", n_steps * latency, share / slowest)
    return [CollectiveAlgorithm(line, np.where(direct, cluster.links.bytes_per_second * line.seconds_per_byte, 0.0))]


def _tree(cluster: Wired, shape: GroupLayout, kind: str) -> CollectiveAlgorithm:
    """Return the double binary tree over nodes with a chain inside each; one pair of trees per member of a node."""
    n_nodes, n_local = shape.n_nodes, shape.n_local
    blocks = shape.groups.reshape(-1, n_nodes, n_local)
    child, parent, depth = double_binary_tree(n_nodes) if n_nodes > 1 else (np.zeros((2, 0), int), np.zeros((2, 0), int), 0)
    source, target = [], []
    for head in range(n_local):  # the chain of a node ends at its head, which takes part in the tree
        chain = np.roll(blocks, -head, axis=2)
        source.append(chain[:, :, 1:].reshape(-1))
        target.append(chain[:, :, :-1].reshape(-1))
        for half in range(2):
            source.append(blocks[:, child[half], head].reshape(-1))
            target.append(blocks[:, parent[half], head].reshape(-1))
    up = [np.concatenate(source[::3]), np.concatenate(target[::3])]
    across = [np.concatenate(source[1::3] + source[2::3]), np.concatenate(target[1::3] + target[2::3])]
    inside_load, inside_latency = _both_ways(cluster, up, 1.0 / n_local, kind)
    share = LIBRARY_PAIR if n_nodes == 2 and cluster.algorithms else 0.5
    across_load, across_latency = _both_ways(cluster, across, share / n_local, kind)
    n_ways = 2 if kind == "all_reduce" else 1
    latency = n_ways * ((n_local - 1) * inside_latency + depth * across_latency)
    return _way(cluster, "tree", latency, inside_load + across_load)


def _both_ways(cluster: Wired, edges: list[NDArray[np.int64]], amount: float, kind: str) -> tuple[NDArray[np.float64], float]:
    """Return the load and largest latency of tree edges: down for a broadcast, up and down for an all-reduce."""
    load, latency = routes.load(cluster, edges[1], edges[0], amount)
    if kind == "all_reduce":
        back, other = routes.load(cluster, edges[0], edges[1], amount)
        return load + back, float(max(latency.max(initial=0.0), other.max(initial=0.0)))
    return load, float(latency.max(initial=0.0))


def _in_switch(cluster: Wired, groups: NDArray[np.int64], kind: str) -> list[CollectiveAlgorithm]:
    """Return reduction (and copying) in one switch that all members of a group are plugged into;
    nothing where there is none.
    """
    links, n = cluster.links, cluster.n_devices
    switch = in_switch.common(cluster, groups)
    if switch is None:
        return []
    group_of = np.full(n + cluster.n_switches, -1)
    group_of[groups] = np.arange(len(groups))[:, None]
    ups, downs = group_of[links.source], group_of[links.target]
    up = np.flatnonzero((ups >= 0) & (links.target == switch[ups]))
    down = np.flatnonzero((downs >= 0) & (links.source == switch[downs]))
    senders = np.bincount(up, minlength=len(links)).astype(np.float64)
    if kind == "broadcast":
        senders[up] = links.source[up] == groups[ups[up], 0]
    receivers = np.bincount(down, minlength=len(links))
    latency = float(links.latency_seconds[up].max() + links.latency_seconds[down].max())
    return [_way(cluster, "in_switch", latency, senders + receivers)]


def _halving_doubling(cluster: Wired, groups: NDArray[np.int64], kind: str) -> CollectiveAlgorithm:
    """Return recursive halving (and doubling back): the largest exchange with the nearest partner."""
    size = groups.shape[1]
    latency, seconds_per_byte, distance, amount = 0.0, 0.0, 1, 0.5
    total = np.zeros(len(cluster.links))
    while distance < size:
        partner = groups[:, np.arange(size) ^ distance]
        load, first = routes.load(cluster, groups.ravel(), partner.ravel(), amount)
        latency += float(first.max())
        seconds_per_byte += slowest(cluster, load)
        total += load
        distance, amount = distance * 2, amount / 2
    n_passes = 2 if kind == "all_reduce" else 1
    return CollectiveAlgorithm(AlphaBeta("halving_doubling", n_passes * latency, n_passes * seconds_per_byte), n_passes * total)


def _hierarchical(cluster: Wired, shape: GroupLayout, kind: str) -> list[CollectiveAlgorithm]:
    """Return reduce-scatter inside the nodes, the collective across them on every rail, all-gather inside."""
    blocks = shape.groups.reshape(-1, shape.n_nodes, shape.n_local)
    inside = blocks.reshape(-1, shape.n_local)
    across = blocks.transpose(0, 2, 1).reshape(-1, shape.n_nodes)
    inner = [CollectiveAlgorithm(AlphaBeta("none", 0.0, 0.0), np.zeros(len(cluster.links)))]
    if kind in ("all_reduce", "reduce_scatter"):
        inner = _sequences(inner, ways(cluster, inside, "reduce_scatter"))
    if kind in ("all_reduce", "all_gather"):
        inner = _sequences(inner, ways(cluster, inside, "all_gather"))
    return _sequences(inner, ways(cluster, across, kind), "hierarchical({})", 1.0 / shape.n_local)


def _sequences(
    left: list[CollectiveAlgorithm], right: tuple[CollectiveAlgorithm, ...], name: str = "{}", share: float = 1.0
) -> list[CollectiveAlgorithm]:
    """Return the sequence of two steps, each with any of its algorithms, the second one on a share of the tensor."""
    return [
        CollectiveAlgorithm(
            AlphaBeta(
                name.format(b.line.algorithm),
                a.line.latency_seconds + b.line.latency_seconds,
                a.line.seconds_per_byte + b.line.seconds_per_byte * share,
            ),
            a.load + b.load * share,
        )
        for a in left
        for b in right
    ]


def _dimension_rings(cluster: Wired, shape: GroupLayout, kind: str) -> list[CollectiveAlgorithm]:
    """Return rings along every dimension of a grid at once: each part of the tensor takes the dimensions in another order.

    References
    ----------
    .. [1] Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010.
    """
    table = grid(cluster, shape)
    if table is None:
        return []
    n_dims = table.ndim - 1
    unit, around = [], []  # load and latency when everybody sends one byte in total to its two neighbours along a dimension
    for dim in range(1, n_dims + 1):
        source, ahead, behind = table.ravel(), np.roll(table, -1, dim).ravel(), np.roll(table, 1, dim).ravel()
        load, latency = routes.load(cluster, source, ahead, 0.5)
        unit.append(load + routes.load(cluster, source, behind, 0.5)[0])
        around.append(float(latency.max()))
    sizes, n_passes = table.shape[1:], 2 if kind == "all_reduce" else 1
    total_latency, seconds_per_byte, total = 0.0, 0.0, np.zeros(len(cluster.links))
    left = [1.0 / n_dims] * n_dims
    for phase in range(n_dims):
        load = np.zeros(len(cluster.links))
        for part in range(n_dims):
            dim = (part + phase) % n_dims
            load += left[part] * (sizes[dim] - 1) / sizes[dim] * unit[dim]
            left[part] /= sizes[dim]
        seconds_per_byte += slowest(cluster, load)
        total += load
        total_latency += max(latency * (size - 1) for latency, size in zip(around, sizes, strict=True))
    return [
        CollectiveAlgorithm(
            AlphaBeta("dimension_rings", n_passes * total_latency, n_passes * seconds_per_byte), n_passes * total
        )
    ]


def _direct(cluster: Wired, groups: NDArray[np.int64]) -> CollectiveAlgorithm:
    """Return the all-to-all in which everybody sends to everybody at once."""
    size = groups.shape[1]
    load = np.zeros(len(cluster.links))
    latency = 0.0
    per_round = max(1, MOST_PAIRS // groups.size)
    for begin in range(1, size, per_round):
        offsets = np.arange(begin, min(size, begin + per_round))
        target = groups[:, (np.arange(size)[None, :] + offsets[:, None]) % size]
        source = np.broadcast_to(groups[:, None, :], target.shape)
        more, first = routes.load(cluster, source.ravel(), target.ravel(), 1.0 / size)
        load += more
        latency = max(latency, float(first.max()))
    return _way(cluster, "direct", latency, load)


def _hierarchical_all_to_all(cluster: Wired, shape: GroupLayout) -> CollectiveAlgorithm:
    """Return the all-to-all that first brings everything to the right rail inside the node, then crosses on the rails."""
    blocks = shape.groups.reshape(-1, shape.n_nodes, shape.n_local)
    inside = _direct(cluster, blocks.reshape(-1, shape.n_local))
    across = _direct(cluster, blocks.transpose(0, 2, 1).reshape(-1, shape.n_nodes))
    return _sequences([inside], (across,), "hierarchical({})")[0]
