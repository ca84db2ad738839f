"""Rail-optimised: device i of every node on leaf switch i of its pod, leaves joined by spines."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.clusters import shared_options
from meshwright.clusters.rails import lay
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64,per_node=8,oversubscription=2"


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    per_node : int
        Devices of a node; as many rails.
    node_bytes_per_second : float
        Bandwidth between a device and the switch of its node (``node_bandwidth=``).
    nodes_per_pod : int
        Nodes under one leaf switch of every rail.
    bytes_per_second : float
        Bandwidth of a network adapter, one direction (``bandwidth=``).
    oversubscription_ratio : float
        Bandwidth into a leaf over its bandwidth to the spine (``oversubscription=``).
    """

    per_node: int = shared_options.whole(8)
    node_bytes_per_second: float = shared_options.bandwidth(450e9, "node_bandwidth")
    nodes_per_pod: int = shared_options.whole(32)
    oversubscription_ratio: float = shared_options.ratio("oversubscription")


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = check_count(params.n_devices, f"cluster {name}")
    wires, n_switches, groups = lay(
        n, (params.per_node, params.nodes_per_pod), params.node_bytes_per_second, params.bytes_per_second,
        params.bytes_per_second * params.nodes_per_pod / params.oversubscription_ratio, params.latency_seconds,
    )  # fmt: skip
    return generated(name, wires, n, n_switches, params, groups, forwards=False)
