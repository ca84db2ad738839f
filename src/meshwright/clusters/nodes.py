"""Clusters of bought nodes: NVLink, PCIe and network adapters as a data file describes them, on a rail-optimised fabric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.clusters import built_in
from meshwright.clusters.wires import Wires, device, quantity
from meshwright.core.cluster import Cluster, Host

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CUBE_MESH", "LIBRARY", "build"]

CUBE_MESH = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2), (2, 6, 1), (3, 7, 1),
    (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip
"""NVLinks between the eight V100s of a DGX-1 or p3.16xlarge:
ends and number of links (``nvidia-smi topo -m`` of such a node).
"""

LIBRARY = ("ring", "bidirectional_ring", "packed_rings", "tree", "direct")
"""What NCCL uses without in-switch reduction: rings in several channels, double binary trees, all-to-all by sends."""


def build(stem: str, n_devices: int, name: str) -> Cluster:
    """Return `n_devices` of a built-in kind: full nodes, the last one partly filled where the number asks for it.

    Returns: the cluster; group row 0 is the node, row 1 (where there are several) the pod of nodes under one set of leaf
    switches.

    Notes
    -----
    The spine layer is one logical switch: under the even multipath sharing of `meshwright.network.routes` many spines of equal
    cost carry exactly what one spine with the sum of their links carries.
    """
    data = built_in.figures(stem)
    per_node = data["devices_per_node"]
    node = np.arange(n_devices) // per_node
    local = np.arange(n_devices) % per_node
    wires = Wires()
    n_nodes = int(node[-1]) + 1
    next_id = n_devices
    adapters = np.arange(n_devices)  # where the network adapter of each device is plugged in
    if "pcie" in data:
        adapters, next_id = _pcie(wires, data["pcie"], node, local, per_node, next_id)
    elif data["network"]["nics_per_node"] < per_node and node[-1] > 0:
        adapters, next_id = _shared_adapters(wires, data["network"], node, local, per_node, next_id)
    if "nvlink" in data:
        next_id = _nvlink(wires, data["nvlink"], node, local, next_id)
    groups = [node]
    if n_nodes > 1:
        next_id = _fabric(wires, data["network"], node, local, per_node, adapters, next_id)
        pod = node // data["network"]["nodes_per_pod"]
        if pod[-1] > 0:
            groups.append(pod)
    return Cluster(
        name=name,
        kinds=(replace(device(data["device"]), host=_host(data)),),
        kind_of_device=np.zeros(n_devices, dtype=np.int64),
        n_switches=next_id - n_devices,
        links=wires.links(),
        groups=np.stack(groups),
        forwards=False,
        source=data["source"],
        launch_seconds=quantity(data, "launch", "seconds", stem),
        algorithms=LIBRARY,
        periods=_periods(data),
        devices_per_host=data.get("devices_per_host", {}).get("value", 0),
    )


def _host(data: Mapping[str, Any]) -> Host | None:
    """Return what each device has of its host, shared out evenly; None where the file says nothing of hosts."""
    if "host" not in data:
        return None
    table, n_devices = data["host"], data.get("devices_per_host", {}).get("value", data["devices_per_node"])
    names = ("link", "achievable", "memory", "memory_bandwidth")
    return Host(
        quantity(table, "link", "bytes_per_second", "host") * float(table["achievable"]["value"]),
        quantity(table, "memory_bandwidth", "bytes_per_second", "host") / n_devices,
        quantity(table, "memory", "bytes", "host") / n_devices,
        "; ".join(dict.fromkeys(str(table[name]["source"]) for name in names)),
    )


def _periods(data: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the lengths of blocks of ids wired alike.

    Nodes of a pod meet only in the links between leaves and spine. Without oversubscription these are never slower than the
    adapters that feed them, so nodes do not slow each other there.
    """
    pod = data["devices_per_node"] * data["network"]["nodes_per_pod"]
    return (data["devices_per_node"], pod) if data["network"]["oversubscription"] == 1 else (pod,)


def _rate(table: Mapping[str, Any], place: str) -> float:
    """Return what large messages reach of a link's line rate."""
    return quantity(table, "bandwidth", "bytes_per_second", place) * float(table["achievable"]["value"])


def _nvlink(wires: Wires, table: Mapping[str, Any], node: NDArray[np.int64], local: NDArray[np.int64], next_id: int) -> int:
    """Wire the devices inside each node; return the next free id."""
    rate = _rate(table, "nvlink")
    latency_seconds = quantity(table, "latency", "seconds", "nvlink")
    if table["layout"] == "switch":
        wires.join(np.arange(len(node)), next_id + node, rate, latency_seconds / 2)
        return next_id + int(node[-1]) + 1
    size = int(local.max()) + 1
    every_pair = tuple((a, b, 1) for a in range(size) for b in range(a + 1, size))
    for a, b, n_links in every_pair if table["layout"] == "full-mesh" else CUBE_MESH:
        second = np.flatnonzero(local == b)  # where the higher one is there, the lower one is too
        wires.join(second - b + a, second, rate * n_links, latency_seconds)
    return next_id


def _pcie(
    wires: Wires,
    table: Mapping[str, Any],
    node: NDArray[np.int64],
    local: NDArray[np.int64],
    per_node: int,
    next_id: int,
) -> tuple[NDArray[np.int64], int]:
    """Wire devices to PCIe switches and those to each other; return the switch of each device, and the next free id."""
    per_switch = -(-per_node // table["switches_per_node"])
    rate, latency_seconds = _rate(table, "pcie"), quantity(table, "latency", "seconds", "pcie")
    index = node * table["switches_per_node"] + local // per_switch
    used, dense = np.unique(index, return_inverse=True)
    switch = next_id + dense
    wires.join(np.arange(len(node)), switch, rate, latency_seconds / 2)
    socket = quantity(table, "socket_bandwidth", "bytes_per_second", "pcie")
    home = used // table["switches_per_node"]
    for step in range(1, table["switches_per_node"]):  # every pair of switches of a node meets over the host
        pairs = np.flatnonzero(home[:-step] == home[step:]) if step < len(used) else np.zeros(0, dtype=np.int64)
        wires.join(next_id + pairs, next_id + pairs + step, socket, latency_seconds / 4)
    return switch, next_id + len(used)


def _shared_adapters(
    wires: Wires,
    table: Mapping[str, Any],
    node: NDArray[np.int64],
    local: NDArray[np.int64],
    per_node: int,
    next_id: int,
) -> tuple[NDArray[np.int64], int]:
    """Wire several devices to each adapter where the file says nothing of PCIe, each as fast as the adapter is."""
    _, index = np.unique(node * table["nics_per_node"] + local * table["nics_per_node"] // per_node, return_inverse=True)
    wires.join(np.arange(len(node)), next_id + index, _rate(table, "network"), 0.0)
    return next_id + index, next_id + int(index[-1]) + 1


def _fabric(
    wires: Wires,
    table: Mapping[str, Any],
    node: NDArray[np.int64],
    local: NDArray[np.int64],
    per_node: int,
    adapters: NDArray[np.int64],
    next_id: int,
) -> int:
    """Wire adapters to the leaf switch of their rail and pod, and leaves to the spine; return the next free id."""
    n_rails = table["nics_per_node"]
    rate, latency_seconds = _rate(table, "network"), quantity(table, "latency", "seconds", "network")
    between = quantity(table, "switch_latency", "seconds", "network")
    rail = local * n_rails // per_node
    pod = node // table["nodes_per_pod"]
    _, first = np.unique(node * n_rails + rail, return_index=True)  # one adapter per rail and node, at its first device
    leaf_of, dense = np.unique((pod * n_rails + rail)[first], return_inverse=True)
    wires.join(adapters[first], next_id + dense, rate, latency_seconds / 2)
    n_leaves = len(leaf_of)
    if n_leaves == 1:
        return next_id + 1
    n_down = table["nodes_per_pod"]
    uplink = rate * n_down / table["oversubscription"]
    wires.join(next_id + np.arange(n_leaves), next_id + n_leaves, uplink, between)
    return next_id + n_leaves + 1
