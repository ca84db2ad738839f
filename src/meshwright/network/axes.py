"""One axis of a device mesh on a cluster (`Axis`), and transfers from stage to stage (`transfer`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.cluster import Cluster
from meshwright.errors import InputError, UnknownNameError
from meshwright.network import canonical, collectives, routes
from meshwright.network.lines import Line

__all__ = ["Axis", "axis", "transfer"]


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """All groups of one mesh axis, communicating at once and sharing links.

    Parameters
    ----------
    cluster : Cluster
        The network.
    groups : ndarray, shape (n_groups, size), int64
        Devices of each group, in rank order; of one block only where all blocks of a periodic cluster are alike.
    """

    cluster: Cluster
    groups: NDArray[np.int64]
    _found: dict[str, tuple[Line, ...]] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Number of devices of one group."""
        return int(self.groups.shape[1])

    def lines(self, kind: str) -> tuple[Line, ...]:
        """Return the algorithms for a collective, launch included, without those that are never the quickest.

        Parameters
        ----------
        kind : str
            ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``broadcast``.

        Returns
        -------
        tuple of Line
            Latency rising, seconds per byte falling; a single line of zeros for groups of one device.

        Raises
        ------
        UnknownNameError
            When there is no such collective.
        """
        found = self._found.get(kind)
        if found is None:
            if kind not in collectives.KINDS:
                raise UnknownNameError("collective", kind, collectives.KINDS)
            found = (Line("none", 0.0, 0.0),)
            if self.size > 1:
                launch = self.cluster.launch_seconds
                found = tuple(
                    Line(line.algorithm, launch + line.latency_seconds, line.seconds_per_byte)
                    for line in _envelope(collectives.lines(self.cluster, self.groups, kind))
                )
            self._found[kind] = found
        return found

    def seconds(self, kind: str, n_bytes: float) -> float:
        """Return the time of a collective with the algorithm that is quickest for its size.

        Parameters
        ----------
        kind : str
            As for `lines`.
        n_bytes : float
            The full tensor: of every rank for an all-reduce and a broadcast, the gathered result of an all-gather, the input of
            one rank of a reduce-scatter, what one rank holds before an all-to-all.

        Returns
        -------
        float
            Seconds; 0 for a group of one device or no bytes.
        """
        if n_bytes <= 0:
            return 0.0
        return min(line.latency_seconds + line.seconds_per_byte * n_bytes for line in self.lines(kind))

    def algorithm(self, kind: str, n_bytes: float) -> str:
        """Return the name of the algorithm that `seconds` picks."""
        return min(self.lines(kind), key=lambda line: line.latency_seconds + line.seconds_per_byte * n_bytes).algorithm


def _envelope(lines: tuple[Line, ...]) -> list[Line]:
    """Return the lines that are the lowest somewhere: sorted by latency, each cheaper per byte than all before it."""
    kept: list[Line] = []
    for line in sorted(lines, key=lambda line: (line.latency_seconds, line.seconds_per_byte, line.algorithm)):
        if not kept or line.seconds_per_byte < kept[-1].seconds_per_byte:
            kept.append(line)
    return kept


def axis(cluster: Cluster, groups: ArrayLike) -> Axis:
    """Return an axis of a device mesh, ready to be asked for the time of collectives; remembered on the cluster.

    Parameters
    ----------
    cluster : Cluster
        The network.
    groups : array_like of int, shape (n_groups, size)
        Devices of every group, in rank order; all groups communicate at once.

    Returns
    -------
    Axis
        The axis.

    Raises
    ------
    InputError
        When the groups are not a table of devices of the cluster, or a group names a device twice.
    """
    table = np.ascontiguousarray(groups, dtype=np.int64)
    if table.ndim != 2 or table.size == 0:
        raise InputError(f"groups of an axis have shape {table.shape}; must be (n_groups, size), both at least 1")
    if table.min() < 0 or table.max() >= cluster.n_devices:
        raise InputError(
            f"groups of an axis name device {table.min() if table.min() < 0 else table.max()}; "
            f"cluster {cluster.name} has devices 0..{cluster.n_devices - 1}"
        )
    if table.shape[1] > 1 and (np.diff(np.sort(table, axis=1), axis=1) == 0).any():
        raise InputError("a group of an axis names a device twice")
    table = canonical.representative(cluster, table).copy()
    table.setflags(write=False)
    key = f"axis {table.shape} {table.tobytes().hex()}"
    found = cluster._cache.get(key)
    if isinstance(found, Axis):
        return found
    made = Axis(cluster, table)
    cluster._cache[key] = made
    return made


def transfer(cluster: Cluster, pairs: ArrayLike) -> tuple[float, float]:
    """Return latency and seconds per byte when all pairs send at once and as much each.

    Parameters
    ----------
    cluster : Cluster
        The network.
    pairs : array_like of int, shape (n_pairs, 2)
        Source and target devices: all peers of two pipeline stages, for example.

    Returns
    -------
    latency_seconds : float
        Before the first byte of the slowest pair arrives, launch included; 0 where no pair has two devices.
    seconds_per_byte : float
        For each byte that every pair sends.

    Raises
    ------
    InputError
        When a pair names a device that is not there.
    """
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if table.size and (table.min() < 0 or table.max() >= cluster.n_devices):
        raise InputError(f"a pair names a device outside 0..{cluster.n_devices - 1} of cluster {cluster.name}")
    table = canonical.representative(cluster, table) if len(table) else table
    key = f"transfer {table.tobytes().hex()}"
    found = cluster._cache.get(key)
    if isinstance(found, tuple):
        return found
    load, latency = routes.load(cluster, table[:, 0], table[:, 1])
    apart = bool((table[:, 0] != table[:, 1]).any())
    made = (
        (cluster.launch_seconds if apart else 0.0) + float(latency.max(initial=0.0)),
        float((load / cluster.links.bytes_per_second).max(initial=0.0)),
    )
    cluster._cache[key] = made
    return made
