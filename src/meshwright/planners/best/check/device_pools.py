"""The orders in which ranks take devices, by the definition of the space, listed for the check of answers."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster
from meshwright.core.problem import Problem

__all__ = ["CheckedPool", "host_fillings", "pools"]

_MOST_SORTS = 4


class CheckedPool(NamedTuple):
    """Devices in the order in which ranks take them, by kind."""

    devices: tuple[NDArray[np.int64], ...]

    @property
    def n_devices(self) -> int:
        """How many there are."""
        return sum(len(own) for own in self.devices)

    def n_ranks(self, size: int) -> int:
        """How many ranks of so many like devices there are."""
        return sum(len(own) // size for own in self.devices)


def pools(problem: Problem) -> list[CheckedPool]:
    """Return the orders of devices that ranks may be taken from, as the space defines them and the framework takes them.

    One kind of device: node by node; on a torus its boxes too; where nodes have unlike links, each sort of node first. Several:
    all in either order, and each kind alone.
    """
    every = _pools(problem.required_cluster)
    if problem.framework.limits.any_order:
        return every
    in_order = [np.concatenate(pool.devices) for pool in every]
    return [pool for pool, devices in zip(every, in_order, strict=True) if devices.tolist() == list(range(len(devices)))]


def host_fillings(problem: Problem) -> set[int] | None:
    """Return how many devices ranks may take from the first on to have equally many of every host; None for any number."""
    limits = problem.framework.limits
    if limits.any_order or limits.uneven_hosts:
        return None
    cluster = problem.required_cluster
    first: dict[int, int] = {}
    of_host: Counter[tuple[int, int]] = Counter()
    most, found = 0, {0}
    for device, node in enumerate(cluster.node_of_device.tolist()):
        place = device - first.setdefault(node, device)
        host = (node, place // cluster.devices_per_host if cluster.devices_per_host else 0)
        of_host[host] += 1
        most = max(most, of_host[host])
        if most * len(of_host) == device + 1:  # as many of each as of the fullest
            found.add(device + 1)
    return found


def _pools(cluster: Cluster) -> list[CheckedPool]:
    """Return the orders of devices, whatever the framework takes."""
    of_kind = [np.flatnonzero(cluster.kind_of_device == kind) for kind in range(len(cluster.kinds))]
    of_kind = [own for own in of_kind if len(own)]
    if len(of_kind) > 1:
        return [CheckedPool(tuple(of_kind)), CheckedPool(tuple(of_kind[::-1])), *(CheckedPool((own,)) for own in of_kind)]
    levels = [level.tolist() for level in cluster.groups[::-1]]
    by_node = np.array(sorted(range(cluster.n_devices), key=lambda i: (*(level[i] for level in levels), i)), dtype=np.int64)
    orders = [by_node]
    boxes = _boxes(cluster)
    if boxes is not None and not np.array_equal(boxes, by_node):
        orders.append(boxes)
    return [CheckedPool((order,)) for order in (*orders, *_sorts_first(cluster, by_node))]


def _boxes(cluster: Cluster) -> NDArray[np.int64] | None:
    """Return the devices of a torus box by box: coordinates' bits interleaved; None where devices have no coordinates."""
    levels = cluster.groups
    if not cluster.forwards or len(levels) < 2 or len(set(levels[0].tolist())) < cluster.n_devices:
        return None
    sizes = [len(set(level.tolist())) for level in levels] + [1]
    places = [(level % (sizes[i] // sizes[i + 1])).tolist() for i, level in enumerate(levels)]

    def code(device: int) -> int:
        return sum(
            ((place[device] >> bit) & 1) << (bit * len(places) + dim) for bit in range(32) for dim, place in enumerate(places)
        )

    return np.array(sorted(range(cluster.n_devices), key=lambda i: (code(i), i)), dtype=np.int64)


def _sorts_first(cluster: Cluster, by_node: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the orders in which nodes of one sort come first; sorts differ by the rates of the links out of their devices."""
    if cluster.periods or cluster.forwards:
        return []
    rates: dict[int, list[float]] = {}
    for source, rate in zip(cluster.links.source.tolist(), cluster.links.bytes_per_second.tolist(), strict=True):
        rates.setdefault(source, []).append(rate)
    of_node: dict[int, list[tuple[float, ...]]] = {}
    node = cluster.node_of_device.tolist()
    for i in by_node.tolist():
        of_node.setdefault(node[i], []).append(tuple(sorted(rates.get(i, []))))
    sort = {own: tuple(sorted(members)) for own, members in of_node.items()}
    sorts = list(dict.fromkeys(sort.values()))
    if len(sorts) > _MOST_SORTS:
        return []
    devices = by_node.tolist()
    return [
        np.array([i for i in devices if sort[node[i]] == own] + [i for i in devices if sort[node[i]] != own], dtype=np.int64)
        for own in sorts[1:]
    ]
