"""Which device takes which place of a mesh: orders of the devices worth comparing, and coordinates of the devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster

__all__ = ["coordinates", "orders"]


def orders(cluster: Cluster, n_devices: int = 0) -> tuple[tuple[str, NDArray[np.int64]], ...]:
    """Return orders of the devices in which a mesh may be filled, the tensor axis running fastest.

    `n_devices`: how many devices are used; 0 for all.
    Returns (tuple of (str, ndarray of shape (n_devices,), int64)): distinct orders by name: ``node_by_node`` (pods, nodes and
    devices in turn), ``boxes`` (a torus in boxes of two to the power of k), ``across_nodes`` (neighbouring ranks on different
    nodes), ``fast_first`` (nodes of quick devices first, heterogeneous clusters only).
    Raises `InputError` when the cluster has not so many devices.
    """
    n = n_devices or cluster.n_devices
    if not 1 <= n <= cluster.n_devices:
        raise InputError(f"a mesh of {n} devices does not fit cluster {cluster.name} with its {cluster.n_devices}")
    ids = np.arange(cluster.n_devices)
    by_node = np.lexsort((ids, *cluster.groups))
    found = [("node_by_node", by_node)]
    if not cluster.homogeneous:
        peak = np.array([max(flops for _, flops in kind.flops_per_second) for kind in cluster.kinds])[cluster.kind_of_device]
        of_node = np.bincount(cluster.node_of_device, peak) / np.bincount(cluster.node_of_device)
        found.append(("fast_first", by_node[np.argsort(-of_node[cluster.node_of_device[by_node]], kind="stable")]))
    boxes = _boxes(cluster)
    if boxes is not None:
        found.append(("boxes", boxes))
    used = by_node[:n]
    place = _place_in(cluster.node_of_device[used])
    found.append(("across_nodes", used[np.lexsort((used, place))]))
    return _distinct([(name, order[:n]) for name, order in found])


def _place_in(node: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the how-manieth of its node each device is; devices of a node follow each other."""
    first = np.flatnonzero(np.diff(node, prepend=node[0] - 1))
    return np.arange(len(node)) - np.repeat(first, np.diff(np.append(first, len(node))))


def coordinates(cluster: Cluster) -> NDArray[np.int64] | None:
    """Return where each device of a torus or mesh sits, innermost dimension first; None for clusters that are none.

    Returns (ndarray, shape (n_dimensions, n_devices), int64, or None): coordinates.
    """
    levels = cluster.groups
    if not cluster.forwards or len(levels) < 2 or len(np.unique(levels[0])) < cluster.n_devices:
        return None
    sizes = [len(np.unique(level)) for level in levels]
    n_coordinates = [sizes[i] // sizes[i + 1] for i in range(len(sizes) - 1)] + [sizes[-1]]
    return np.stack([level % size for level, size in zip(levels, n_coordinates, strict=True)])


def _boxes(cluster: Cluster) -> NDArray[np.int64] | None:
    """Return the devices of a torus or mesh along a Morton curve: every 2^k neighbours in it are a box; None for others."""
    found = coordinates(cluster)
    if found is None:
        return None
    key = np.zeros(cluster.n_devices, dtype=np.int64)
    for bit in range(int(found.max() + 1).bit_length()):
        for dim, coordinate in enumerate(found):
            key |= ((coordinate >> bit) & 1) << (bit * len(found) + dim)
    return np.argsort(key, kind="stable")


def _distinct(named: list[tuple[str, NDArray[np.int64]]]) -> tuple[tuple[str, NDArray[np.int64]], ...]:
    """Return the named arrays without those that equal an earlier one; read-only."""
    found: dict[bytes, tuple[str, NDArray[np.int64]]] = {}
    for name, array in named:
        kept = np.ascontiguousarray(array, dtype=np.int64)
        kept.setflags(write=False)
        found.setdefault(kept.tobytes(), (name, kept))
    return tuple(found.values())
