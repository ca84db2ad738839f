"""How runs that take fewer devices than there are lie on racks and nodes."""

from __future__ import annotations

import numpy as np

from meshwright.core.cluster import Cluster

__all__ = ["rack", "racks", "spread"]


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
