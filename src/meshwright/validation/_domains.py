"""Clusters that rows name, and how runs that take fewer devices than there are lie on racks and nodes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from meshwright import clusters as topologies
from meshwright.core.cluster import Cluster

__all__ = ["Clusters", "clusters", "rack", "racks", "spread"]


def racks(gpus: int) -> int:
    """Return the devices of the NVL72 racks that a run of `gpus` devices uses: 64 of each rack where it needs more than one."""
    return gpus if gpus <= 72 else -(-gpus // 64) * 72


def rack(cluster: Cluster) -> tuple[int, int]:
    """Return `Run.used_of_domain` of a run on `racks` devices."""
    return (64, 72) if "nvl72" in cluster.name and cluster.n_devices > 72 else (1, 1)


def spread(cluster: Cluster, n_devices: int) -> tuple[int, int]:
    """Return `Run.used_of_domain` of a run on fewer devices than there are: equally many of each of the fewest nodes or NVLink
    domains that hold them, as launchers place ranks, where the number allows it.

    Parameters
    ----------
    cluster : Cluster
        Where it ran.
    n_devices : int
        Devices that its plan takes.
    """
    sizes = np.unique(cluster.node_of_device, return_counts=True)[1]
    size = int(sizes[0])
    n_domains = -(-n_devices // size)
    alike = bool((sizes == size).all()) and n_domains <= len(sizes)
    return (n_devices // n_domains, size) if alike and n_devices % n_domains == 0 else (1, 1)


class Clusters:
    """Clusters by name, built once while a set is read."""

    def __init__(self) -> None:
        self._built: dict[str, Cluster] = {}

    def __call__(self, spec: str) -> Cluster:
        """Return the cluster that `spec` names on the command line.

        Parameters
        ----------
        spec : str
            ``"dgx-a100:64"``.
        """
        if spec not in self._built:
            is_file = "/" in spec or spec.endswith((".yaml", ".yml")) or Path(spec).exists()
            self._built[spec] = topologies.cluster(spec) if is_file else _named(spec)
        return self._built[spec]


@lru_cache(maxsize=64)
def _named(spec: str) -> Cluster:
    """Return a built-in cluster: sets share them, and so what the network of each has been asked."""
    return topologies.cluster(spec)


def clusters() -> Clusters:
    """Return an empty store of clusters."""
    return Clusters()
