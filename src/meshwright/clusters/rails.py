"""Nodes with one network adapter per device, each on the leaf switch of its rail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.clusters.wires import Wires

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["lay"]


def lay(
    n_devices: int,
    sizes: tuple[int, int],
    node_bytes_per_second: float,
    rail_bytes_per_second: float,
    spine_bytes_per_second: float,
    latency_seconds: float,
) -> tuple[Wires, int, NDArray[np.int64]]:
    """Lay the wires of rails.

    `sizes`: devices per node, and nodes per pod: those under one leaf of every rail.
    `node_bytes_per_second`, `rail_bytes_per_second`: between a device and its node's switch, and its leaf.
    `spine_bytes_per_second`: between a leaf and the spine (one logical switch, as many of equal cost carry the same); 0 for
    no spine.
    `latency_seconds`: of every wire.

    Returns `wires`: the wires; `n_switches`: switches used; `groups`, shape (n_levels, n_devices), int64: node of each device,
    and pod where there are several.
    """
    import numpy as np

    per_node, nodes_per_pod = sizes
    ids = np.arange(n_devices)
    node = ids // per_node
    n_nodes = int(node[-1]) + 1
    wires = Wires()
    wires.join(ids, n_devices + node, node_bytes_per_second, latency_seconds)
    if n_nodes == 1:
        return wires, 1, node[None]
    pod = node // nodes_per_pod
    leaves, leaf = np.unique(pod * per_node + ids % per_node, return_inverse=True)
    next_id = n_devices + n_nodes
    wires.join(ids, next_id + leaf, rail_bytes_per_second, latency_seconds)
    n_switches = n_nodes + len(leaves)
    if spine_bytes_per_second > 0 and len(leaves) > 1:
        wires.join(next_id + np.arange(len(leaves)), n_devices + n_switches, spine_bytes_per_second, latency_seconds)
        n_switches += 1
    return wires, n_switches, np.stack([node, pod]) if pod[-1] > 0 else node[None]
