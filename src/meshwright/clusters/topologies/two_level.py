"""Two levels: devices on a switch per node, nodes on one core switch by a single link each."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.clusters import shared_options
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "16,per_node=8,bandwidth=25 GB/s"


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    per_node : int
        Devices of a node.
    node_bytes_per_second : float
        Bandwidth between a device and the switch of its node (``node_bandwidth=``).
    bytes_per_second : float
        Bandwidth between a node and the core switch, one direction (``bandwidth=``).
    """

    per_node: int = shared_options.whole(8)
    node_bytes_per_second: float = shared_options.bandwidth(300e9, "node_bandwidth")
    bytes_per_second: float = shared_options.bandwidth(25e9)


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    import numpy as np

    n = check_count(params.n_devices, f"cluster {name}")
    node = np.arange(n) // params.per_node
    n_nodes = int(node[-1]) + 1
    wires = Wires()
    wires.join(np.arange(n), n + node, params.node_bytes_per_second, params.latency_seconds)
    if n_nodes > 1:
        wires.join(n + np.arange(n_nodes), n + n_nodes, params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, n_nodes + (n_nodes > 1), params, node[None], forwards=False)
