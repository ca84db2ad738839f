"""Parmesan's two-level cluster: nodes of four devices on PCIe, joined by Ethernet."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.cluster import Cluster
from meshwright.planners.parmesan import bandwidth_table

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "16"


@dataclass(frozen=True, slots=True)
class Params(bandwidth_table.Paired):
    """Parameters.

    Parameters
    ----------
    device : str
        Kind of device.
    """

    device: str = "titan-rtx-24gb"


def build(params: Params, name: str) -> Cluster:
    """Return the cluster.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section VIII, Table I.
    """
    import numpy as np

    n = bandwidth_table.check(params.n_devices, name)
    node = np.arange(n) // 4
    table = np.where(node[:, None] == node[None, :], 11.0, 1.1) * bandwidth_table.GIGABYTES
    source = "Parmesan (TCAD 2024): 11 GB/s inside a node, 1.1 GB/s between nodes"
    return bandwidth_table.pairwise(name, table, params, node, source)
