"""Small clusters of unlike machines that measured sets ran on: devices behind one switch in each machine,
machines behind one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.clusters import nodes as _nodes
from meshwright.core.cluster import Cluster, Device, Links

__all__ = ["Machine", "machines"]

INSIDE_SECONDS = 4e-6
NETWORK_SECONDS = 2e-5
"""Latencies of one link inside a machine and between machines: a step over PCI Express or NVLink,
and over the kernel's TCP; estimates.
"""

LAUNCH_SECONDS = 25e-6
"""As the built-in kinds of cluster: intercept of collectives measured on A100 and V100 nodes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine.

    Parameters
    ----------
    device : Device
        Kind of all its devices.
    n_devices : int
        How many.
    bytes_per_second : float
        What one of its devices sends to, and receives from, the others of the machine.
    """

    device: Device
    n_devices: int
    bytes_per_second: float


def machines(name: str, nodes: Sequence[Machine], network_bytes_per_second: float) -> Cluster:
    """Return the cluster of some machines, devices numbered machine by machine.

    `network_bytes_per_second`: what each machine sends to, and receives from, the others.
    """
    kinds = tuple(dict.fromkeys(node.device for node in nodes))
    counts = [node.n_devices for node in nodes]
    n_devices, n_nodes = sum(counts), len(nodes)
    node_of_device = np.repeat(np.arange(n_nodes), counts)
    inside = n_devices + node_of_device
    uplink, spine = n_devices + np.arange(n_nodes), np.full(n_nodes, n_devices + n_nodes)
    devices = np.arange(n_devices)
    rate = np.repeat([node.bytes_per_second for node in nodes], counts)
    wide = np.full(2 * n_nodes, network_bytes_per_second)
    links = Links(
        np.concatenate([devices, inside, uplink, spine]),
        np.concatenate([inside, devices, spine, uplink]),
        np.concatenate([rate, rate, wide]),
        np.repeat([INSIDE_SECONDS, NETWORK_SECONDS], [2 * n_devices, 2 * n_nodes]),
    )
    return Cluster(
        name, kinds, np.repeat([kinds.index(node.device) for node in nodes], counts), n_nodes + 1, links,
        node_of_device.reshape(1, -1), forwards=False, launch_seconds=LAUNCH_SECONDS, algorithms=_nodes.LIBRARY,
    )  # fmt: skip
