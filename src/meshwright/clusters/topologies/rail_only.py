"""Rail-only: rails are not joined; traffic between rails passes through the devices of a node."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.clusters import shared_options
from meshwright.clusters.rails import lay
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64,per_node=8"


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    per_node : int
        Devices of a node; as many rails.
    node_bytes_per_second : float
        Bandwidth between a device and the switch of its node (``node_bandwidth=``).
    bytes_per_second : float
        Bandwidth of a network adapter, one direction (``bandwidth=``).
    """

    per_node: int = shared_options.whole(8)
    node_bytes_per_second: float = shared_options.bandwidth(450e9, "node_bandwidth")


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = check_count(params.n_devices, f"cluster {name}")
    wires, n_switches, groups = lay(
        n, (params.per_node, n), params.node_bytes_per_second, params.bytes_per_second, 0.0, params.latency_seconds
    )
    return generated(name, wires, n, n_switches, params, groups, forwards=True)
