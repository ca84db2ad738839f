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
from meshwright.network.collectives import CollectiveAlgorithm
from meshwright.network.fold import Fold, fold
from meshwright.network.remembered import Remembered

__all__ = ["Network"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Place = tuple[tuple[int, ...], bytes]


REMEMBERED_LINKS = 1 << 21
"""How many links with what they carry, and how many with what they are copies of, a network remembers, 16 bytes each."""


class Network:
    """Axes, transfers and loads of one cluster, each worked out when it is first asked for.

    `cluster`: devices, switches and links.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._axes: dict[bytes, Axis] = {}
        self._asked: dict[_Place, Axis] = {}
        self._folded: dict[_Place, Axis] = {}  # by what stands for all groups that were asked for
        self._transfers: dict[bytes, tuple[float, float]] = {}
        self._algorithms: dict[tuple[str, float, _Place], str] = {}
        self._folds = Remembered[Fold](REMEMBERED_LINKS)
        self._flows = Remembered[tuple[float, Floats]](REMEMBERED_LINKS)
        self._ways = Remembered[tuple[CollectiveAlgorithm, ...]](REMEMBERED_LINKS)
        self._sends = Remembered[tuple[float, Ints, Floats]](REMEMBERED_LINKS)
        self._loads = Remembered[tuple[Ints, Floats]](REMEMBERED_LINKS)

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
        asked = _place(table)
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
        place = _place(table)
        if place not in self._folded:
            folded = fold(cluster, table)
            if folded.key not in self._axes:
                self._axes[folded.key] = Axis(cluster, table[folded.rows], self._folds)
            self._folded[place] = self._axes[folded.key]
        self._asked[asked] = self._folded[place]
        return self._asked[asked]

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
        key = _place(table)[1]
        if key not in self._transfers:
            apart = bool((table[:, 0] != table[:, 1]).any())
            seconds = (0.0, 0.0)
            if apart:
                folded = fold(cluster, canonical.representative(cluster, table))
                latency, load = self._flow(folded, np.ones(len(folded.rows)))
                seconds = cluster.launch_seconds + latency, collectives.slowest(folded.part, load)
            self._transfers[key] = seconds
        return self._transfers[key]

    def sends(self, source: Ints, target: Ints, share: Floats) -> tuple[float, Ints, Floats]:
        """Return what links carry when all pairs send at once, each its share.

        `source`, `target`, shape (n_pairs,), int64: devices.
        `share`, shape (n_pairs,), float64: what each pair sends.
        Returns `latency_seconds`: before the first byte of the slowest pair arrives, launch included; `links`, shape (n_used,),
        int64: the links used, rising; read-only; `load`, shape (n_used,), float64: what each of them carries, in the unit of
        `share`; read-only.
        """

        def make() -> tuple[tuple[float, Ints, Floats], int]:
            pairs = np.stack((source, target), axis=1)
            if not len(pairs):
                return (self.cluster.launch_seconds, *_nothing()), 0
            folded = fold(self.cluster, pairs, share)
            latency, load = self._flow(folded, share[folded.rows])
            links, amount = folded.spread(load)
            return (self.cluster.launch_seconds + latency, links, amount), len(links)

        return self._sends.get((_place(source), _place(target), _place(share)), make)

    def _flow(self, folded: Fold, share: Floats) -> tuple[float, Floats]:
        """Return the largest latency of folded pairs, and what the links of their part carry."""

        def make() -> tuple[tuple[float, Floats], int]:
            load, latency = routes.load(folded.part, folded.groups[:, 0], folded.groups[:, 1], share)
            return (float(latency.max(initial=0.0)), load), len(load)

        return self._flows.get((folded.key, _place(share)), make)

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
            return _nothing()
        place = _place(groups)
        algorithm = self._algorithms.get((kind, n_bytes, place))
        if algorithm is None:
            algorithm = self._algorithms[kind, n_bytes, place] = self.axis(groups).algorithm(kind, n_bytes)
        folded = self._folds.get(place, lambda: fold(self.cluster, groups).sized())
        ways = self._ways_of(folded, kind, algorithm)
        which = min(range(len(ways)), key=lambda i: ways[i].line.latency_seconds + ways[i].line.seconds_per_byte * n_bytes)

        def make() -> tuple[tuple[Ints, Floats], int]:
            found = folded.spread(ways[which].load)
            return found, len(found[0])

        return self._loads.get((kind, algorithm, which, place), make)

    def _ways_of(self, folded: Fold, kind: str, algorithm: str) -> tuple[CollectiveAlgorithm, ...]:
        """Return the ways of one name of folded groups."""

        def make() -> tuple[tuple[CollectiveAlgorithm, ...], int]:
            found = collectives.ways(folded.part, folded.groups, kind, algorithm)
            named = tuple(way for way in found if way.line.algorithm == algorithm)
            return named, sum(len(way.load) for way in named)

        return self._ways.get((folded.key, kind, algorithm), make)


@lru_cache(maxsize=routes.REMEMBERED_CLUSTERS)
def _network(cluster: Cluster) -> Network:
    """Return a network that has not been asked anything.

    A cluster is told apart by identity and never changes (frozen, its arrays read-only), so what is remembered cannot be stale;
    the memo keeps it alive, so its identity is not given to another.
    """
    return Network(cluster)


def _place(array: Ints | Floats) -> _Place:
    """Return the shape of an array and a digest of what it holds."""
    return array.shape, hashlib.sha256(array.tobytes()).digest()


def _nothing() -> tuple[Ints, Floats]:
    return np.empty(0, dtype=np.int64), np.empty(0)
