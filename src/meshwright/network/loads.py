"""What a collective puts on links: the bytes on each, for the algorithm that its time stands on."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from meshwright.cluster import Cluster
from meshwright.network import collectives
from meshwright.network.axes import axis

__all__ = ["load"]


def load(
    cluster: Cluster, groups: NDArray[np.int64], kind: str, n_bytes: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the links that a collective of all groups uses and what it puts on each; remembered on the cluster.

    Parameters
    ----------
    cluster : Cluster
        The network.
    groups : ndarray, shape (n_groups, size), int64
        Devices of each group, in rank order; all groups communicate at once.
    kind : str
        As for `meshwright.network.Axis.seconds`.
    n_bytes : float
        The tensor; it decides the algorithm, as it does for the time.

    Returns
    -------
    links : ndarray, shape (n_used,), int64
        Rising.
    bytes_per_byte : ndarray, shape (n_used,), float64
        Bytes that cross each of them for every byte of the tensor.

    Notes
    -----
    The time stands on one block of groups where blocks are alike; links are those of all groups, where they really are.
    """
    if groups.shape[1] < 2 or n_bytes <= 0.0:
        return np.empty(0, dtype=np.int64), np.empty(0)
    algorithm = axis(cluster, groups).algorithm(kind, n_bytes)
    key = ("collective load", kind, algorithm, groups.shape, hashlib.sha256(groups.tobytes()).digest())
    found = cluster._cache.get(key)
    if isinstance(found, tuple):
        return found
    named = [way for way in collectives.ways(cluster, groups, kind, algorithm) if way.line.algorithm == algorithm]
    way = min(named, key=lambda way: way.line.latency_seconds + way.line.seconds_per_byte * n_bytes)
    links = np.flatnonzero(way.load > 0.0)
    made = (links, way.load[links])
    cluster._cache[key] = made
    return made
