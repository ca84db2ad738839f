"""The network of one cluster (`Network`): what has been asked of its links, so that nothing is routed twice."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.network import canonical, collectives, routes
from meshwright.network.axes import Axis

__all__ = ["Network"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Network:
    """Axes, transfers and loads of one cluster, each worked out when it is first asked for.

    `cluster`: devices, switches and links.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._axes: dict[tuple[tuple[int, ...], bytes], Axis] = {}
        self._asked: dict[tuple[tuple[int, ...], bytes], Axis] = {}
        self._transfers: dict[bytes, tuple[float, float]] = {}
        self._sends: dict[tuple[bytes, bytes, bytes], tuple[float, Ints, Floats]] = {}
        self._loads: dict[tuple[str, str, tuple[int, ...], bytes], tuple[Ints, Floats]] = {}
        self._algorithms: dict[tuple[str, float, tuple[int, ...], bytes], str] = {}

    @staticmethod
    def of(cluster: Cluster) -> Network:
        """Return the network of a cluster: the same one as long as it is among those asked for last."""
        return _network(cluster)

    def axis(self, groups: ArrayLike) -> Axis:
        """Return an axis of a device mesh, ready to be asked for the time of collectives.

        `groups`, shape (n_groups, size): devices of every group, in rank order; all groups communicate at once.
        Returns: the axis.
        Raises `InputError` when the groups are not a table of devices of the cluster, or a group names a device twice.
        """
        cluster = self.cluster
        table = np.ascontiguousarray(groups, dtype=np.int64)
        asked = (table.shape, hashlib.sha256(table.tobytes()).digest())
        if asked in self._asked:
            return self._asked[asked]
        if table.ndim != 2 or table.size == 0:
            raise InputError(f"groups of an axis have shape {table.shape}; must be (n_groups, size), both at least 1")
        if table.min() < 0 or table.max() >= cluster.n_devices:
            raise InputError(
                f"groups of an axis name device {table.min() if table.min() < 0 else table.max()}; "
                f"cluster {cluster.name} has devices 0..{cluster.n_devices - 1}"
            )
        if table.shape[1] > 1 and (np.diff(np.sort(table, axis=1), axis=1) == 0).any():
            raise InputError("a group of an axis names a device twice")
        table = canonical.representative(cluster, table)
        key = (table.shape, table.tobytes())
        if key not in self._axes:
            self._axes[key] = Axis(cluster, table)
        self._asked[asked] = self._axes[key]
        return self._axes[key]

    def transfer(self, pairs: ArrayLike) -> tuple[float, float]:
        """Return latency and seconds per byte when all pairs send at once and as much each.

        `pairs`, shape (n_pairs, 2): source and target devices: all peers of two pipeline stages, for example.
        Returns `latency_seconds`: before the first byte of the slowest pair arrives, launch included; 0 where no pair has two
        devices; `seconds_per_byte`: for each byte that every pair sends.
        Raises `InputError` when a pair names a device that is not there.
        """
        cluster = self.cluster
        table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        if table.size and (table.min() < 0 or table.max() >= cluster.n_devices):
            raise InputError(f"a pair names a device outside 0..{cluster.n_devices - 1} of cluster {cluster.name}")
        table = canonical.representative(cluster, table) if len(table) else table
        key = table.tobytes()
        if key not in self._transfers:
            load, latency = routes.load(cluster, table[:, 0], table[:, 1])
            apart = bool((table[:, 0] != table[:, 1]).any())
            self._transfers[key] = (
                (cluster.launch_seconds if apart else 0.0) + float(latency.max(initial=0.0)),
                float((load / cluster.links.bytes_per_second).max(initial=0.0)),
            )
        return self._transfers[key]

    def sends(self, source: Ints, target: Ints, share: Floats) -> tuple[float, Ints, Floats]:
        """Return what links carry when all pairs send at once, each its share.

        `source`, `target`, shape (n_pairs,), int64: devices.
        `share`, shape (n_pairs,), float64: what each pair sends.
        Returns `latency_seconds`: before the first byte of the slowest pair arrives, launch included; `links`, shape (n_used,),
        int64: the links used, rising; read-only; `load`, shape (n_used,), float64: what each of them carries, in the unit of
        `share`; read-only.
        """
        key = (source.tobytes(), target.tobytes(), share.tobytes())
        if key not in self._sends:
            load, latency_seconds = routes.load(self.cluster, source, target, share)
            latency = self.cluster.launch_seconds + float(latency_seconds.max(initial=0.0))
            self._sends[key] = (latency, *_used(load))
        return self._sends[key]

    def load(self, groups: Ints, kind: str, n_bytes: float) -> tuple[Ints, Floats]:
        """Return the links that a collective of all groups uses and what it puts on each, for the algorithm its time stands on.

        `groups`, shape (n_groups, size), int64: devices of each group, in rank order; all groups communicate at once.
        `kind`: as for `Axis.seconds`.
        `n_bytes`: the tensor; it decides the algorithm, as it does for the time.
        Returns `links`, shape (n_used,), int64: rising; read-only; `bytes_per_byte`, shape (n_used,), float64: bytes that cross
        each of them for every byte of the tensor; read-only.

        Notes
        -----
        The time stands on one block of groups where blocks are alike; links are those of all groups, where they really are.
        """
        if groups.shape[1] < 2 or n_bytes <= 0.0:
            return np.empty(0, dtype=np.int64), np.empty(0)
        place = (groups.shape, hashlib.sha256(groups.tobytes()).digest())
        algorithm = self._algorithms.get((kind, n_bytes, *place))
        if algorithm is None:
            algorithm = self._algorithms[kind, n_bytes, *place] = self.axis(groups).algorithm(kind, n_bytes)
        key = (kind, algorithm, *place)
        if key not in self._loads:
            named = [way for way in collectives.ways(self.cluster, groups, kind, algorithm) if way.line.algorithm == algorithm]
            way = min(named, key=lambda way: way.line.latency_seconds + way.line.seconds_per_byte * n_bytes)
            self._loads[key] = _used(way.load)
        return self._loads[key]


@lru_cache(maxsize=routes.REMEMBERED_CLUSTERS)
def _network(cluster: Cluster) -> Network:
    """Return a network that has not been asked anything.

    A cluster is told apart by identity and never changes (frozen, its arrays read-only), so what is remembered cannot be stale;
    the memo keeps it alive, so its identity is not given to another.
    """
    return Network(cluster)


def _used(load: Floats) -> tuple[Ints, Floats]:
    """Return the links that carry something, and what; both read-only, since they are handed out again."""
    links = np.flatnonzero(load > 0.0)
    amount = load[links]
    for array in (links, amount):
        array.setflags(write=False)
    return links, amount
