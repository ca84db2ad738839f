"""Parmesan's cluster of DGX-1 nodes: eight devices with double, single or no NVLink between them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.cluster import Cluster
from meshwright.planners.parmesan import bandwidth_table

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "32"


@dataclass(frozen=True, slots=True)
class Params(bandwidth_table.Paired):
    """Parameters.

    Parameters
    ----------
    device : str
        Kind of device.
    """

    device: str = "v100-sxm2-32gb"


def build(params: Params, name: str) -> Cluster:
    """Return the cluster.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII, Table II.
    """
    import numpy as np

    n = bandwidth_table.check(params.n_devices, name)
    node, place = np.arange(n) // 8, np.arange(n) % 8
    # the hybrid cube mesh of a DGX-1 with V100: six links a device
    double = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
    single = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
    inside = np.full((8, 8), 10.1)
    for rate, pairs in ((43.2, double), (21.4, single)):
        for a, b in pairs:
            inside[a, b] = inside[b, a] = rate
    table = np.where(node[:, None] == node[None, :], inside[place[:, None], place[None, :]], 1.4) * bandwidth_table.GIGABYTES
    source = "Parmesan (TCAD 2024): 43.2 GB/s double NVLink, 21.4 single, 10.1 PCIe, 1.4 between nodes"
    return bandwidth_table.pairwise(name, table, params, node, source)
