"""Two levels: devices on a switch per node, nodes on one core switch by a single link each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.clusters import shared_options
from meshwright.clusters.shared_options import generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "16,per_node=8,bandwidth=25 GB/s"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters.

    Parameters
    ----------
    n_devices : int
        Number of devices.
    per_node : int
        Devices of a node.
    node_bytes_per_second : float
        Bandwidth between a device and the switch of its node (``node_bandwidth=``).
    device : str
        Kind of device.
    bytes_per_second : float
        Bandwidth between a node and the core switch, one direction (``bandwidth=``).
    latency_seconds : float
        Latency of a link (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    n_devices: int
    per_node: int = shared_options.whole(8)
    node_bytes_per_second: float = shared_options.bandwidth(300e9, "node_bandwidth")
    device: str = shared_options.kind()
    bytes_per_second: float = shared_options.bandwidth(25e9)
    latency_seconds: float = shared_options.latency(1e-6)
    launch_seconds: float = shared_options.launch()


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = check_count(params.n_devices, f"cluster {name}")
    node = np.arange(n) // params.per_node
    n_nodes = int(node[-1]) + 1
    wires = Wires()
    wires.join(np.arange(n), n + node, params.node_bytes_per_second, params.latency_seconds)
    if n_nodes > 1:
        wires.join(n + np.arange(n_nodes), n + n_nodes, params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, n_nodes + (n_nodes > 1), params, node[None], forwards=False)
