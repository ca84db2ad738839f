"""The machines of DAPPLE's experiments as a cluster, and its constants for an all-reduce on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.base.errors import InputError
from meshwright.base.identity import distinct
from meshwright.clusters.wires import Wires
from meshwright.core.cluster import Cluster, Device

__all__ = ["all_reduce_seconds", "machines_cluster", "send_seconds_per_byte", "sizes_of"]

NVLINK_BYTES_PER_SECOND = 25e9
"""Between devices of one machine (published constant)."""

ETHERNET_BYTES_PER_SECOND = 1e9
"""Between machines, point to point (published constant)."""

COLLECTIVE_BYTES_PER_SECOND = 3e9
"""Between machines, in collectives (published constant)."""

DEVICE_BYTES = 16e9
"""Memory of one V100 (published constant)."""


def sizes_of(ends: Sequence[int], place: str) -> tuple[int, ...]:
    """Return the devices of each machine from their exclusive ends.

    Raises `InputError` when the ends do not ascend from 1 on.
    """
    if not ends:
        raise InputError(f"{place}: no machine; give the end of each, for example machines=8,16 for two machines of 8 devices")
    sizes = []
    for before, end in zip((0, *ends[:-1]), ends, strict=True):
        if end <= before:
            raise InputError(
                f"{place}: {','.join(map(str, ends))}: end {end} comes after {before}; ends must ascend: "
                "8,16 is two machines of 8 devices, 8,12 one of 8 and one of 4"
            )
        sizes.append(end - before)
    return tuple(sizes)


def machines_cluster(sizes: tuple[int, ...]) -> Cluster:
    """Return machines of the given sizes with the published bandwidths between devices and between machines.

    `sizes`: devices of each machine.
    Returns: every device on its machine's switch, machines on one switch; no latency, as published.
    """
    node = np.repeat(np.arange(len(sizes)), sizes)
    n = len(node)
    wires = Wires()
    wires.join(np.arange(n), n + node, NVLINK_BYTES_PER_SECOND, 0.0)
    n_switches = len(sizes)
    if len(sizes) > 1:
        wires.join(n + np.arange(len(sizes)), n + len(sizes), ETHERNET_BYTES_PER_SECOND, 0.0)
        n_switches += 1
    ends = ",".join(str(end) for end in np.cumsum(sizes)) if len(sizes) <= 8 else f"{len(sizes)} machines"
    return Cluster(
        name=f"machines:{ends}",
        kinds=(Device("V100-16GB", (), DEVICE_BYTES, 900e9, source="DAPPLE's published constants"),),
        kind_of_device=np.zeros(n, dtype=np.int64),
        n_switches=n_switches,
        links=wires.links(),
        groups=node[None, :],
        forwards=False,
        source="DAPPLE's published constants: 25 GB/s inside a machine, 1 GB/s between machines, 3 GB/s for collectives",
    )


def all_reduce_seconds(cluster: Cluster, devices: Sequence[int], n_bytes: float) -> float:
    """Return the published time of an all-reduce: a ring through Ethernet,
    or through NVLinks whose number grows with the ring.
    """
    n = len(devices)
    if n == 1:
        return 0.0
    volume_bytes = 2.0 * n_bytes * ((n - 1) / n)
    nodes = cluster.node_of_device[list(devices)]
    if np.any(nodes != nodes[0]):
        return volume_bytes / COLLECTIVE_BYTES_PER_SECOND
    return volume_bytes / NVLINK_BYTES_PER_SECOND / (n // 2)


def send_seconds_per_byte(cluster: Cluster, sources: Sequence[int], targets: Sequence[int]) -> float:
    """Return the time per byte of a micro-batch that all `sources` hold equal parts of and all `targets` want equal parts of.

    `cluster`: from `machines_cluster`: what general routing would find on it, from its two kinds of links alone.
    `sources`, `targets`: devices in mesh order; none in both.
    Returns: seconds per byte of the slowest link.
    """
    a, b = len(sources), len(targets)
    slowest = max(1.0 / a, 1.0 / b) / NVLINK_BYTES_PER_SECOND
    node = cluster.node_of_device
    ends = distinct(np.concatenate((np.arange(a + 1) * b, np.arange(b + 1) * a)))
    here, there = node[list(sources)][ends[:-1] // b], node[list(targets)][ends[:-1] // a]
    crossing = np.where(here != there, np.diff(ends) / (a * b), 0.0)
    through = max(float(np.bincount(here, crossing).max()), float(np.bincount(there, crossing).max()))
    return max(slowest, through / ETHERNET_BYTES_PER_SECOND)
