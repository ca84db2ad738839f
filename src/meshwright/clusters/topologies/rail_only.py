"""Rail-only: rails are not joined; traffic between rails passes through the devices of a node."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.clusters import shared_options
from meshwright.clusters.rails import lay
from meshwright.clusters.shared_options import generated
from meshwright.clusters.wires import check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64,per_node=8"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters.

    Parameters
    ----------
    n_devices : int
        Number of devices.
    per_node : int
        Devices of a node; as many rails.
    node_bytes_per_second : float
        Bandwidth between a device and the switch of its node (``node_bandwidth=``).
    device : str
        Kind of device.
    bytes_per_second : float
        Bandwidth of a network adapter, one direction (``bandwidth=``).
    latency_seconds : float
        Latency of a link (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    n_devices: int
    per_node: int = shared_options.whole(8)
    node_bytes_per_second: float = shared_options.bandwidth(450e9, "node_bandwidth")
    device: str = shared_options.kind()
    bytes_per_second: float = shared_options.bandwidth(50e9)
    latency_seconds: float = shared_options.latency(1e-6)
    launch_seconds: float = shared_options.launch()


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = check_count(params.n_devices, f"cluster {name}")
    wires, n_switches, groups = lay(
        n, (params.per_node, n), params.node_bytes_per_second, params.bytes_per_second, 0.0, params.latency_seconds
    )
    return generated(name, wires, n, n_switches, params, groups, forwards=True)
