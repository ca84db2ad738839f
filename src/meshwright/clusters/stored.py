"""A cluster inside another file of ours: by its name where the name says it all, else by its whole content."""

from __future__ import annotations

from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster

__all__ = ["content", "from_content", "is_named"]


def is_named(cluster: Cluster) -> bool:
    """Return whether `meshwright.clusters.cluster` builds this very cluster from its name alone, without any file.

    Returns: False for a cluster that was read from a file, whatever name the file gives it.
    """
    import numpy as np

    from meshwright import clusters

    if cluster.name.partition(":")[0].strip().lower().replace("_", "-") not in clusters.names():
        return False
    try:
        other = clusters.cluster(cluster.name)
    except InputError:
        return False
    arrays = [
        (
            one.kind_of_device,
            one.groups,
            one.links.source,
            one.links.target,
            one.links.bytes_per_second,
            one.links.latency_seconds,
        )
        for one in (cluster, other)
    ]
    scalars = [
        (one.kinds, one.n_switches, one.forwards, one.reconfiguration_seconds, one.launch_seconds, one.reduces_in_switch)
        for one in (cluster, other)
    ]
    same = scalars[0] == scalars[1] and cluster.algorithms == other.algorithms
    same = same and cluster.devices_per_host == other.devices_per_host
    return same and all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


def content(cluster: Cluster) -> dict[str, Any] | None:
    """Return a cluster as the content of a cluster file, JSON-ready; None where that format cannot hold it.

    Returns: what `from_content` reads.
    """
    from meshwright.clusters import assemble, file_fields

    # a kind of device without any peak (of a measured profile) is nothing that a user may write
    if any(not kind.flops_per_second or kind.memory_bytes_per_second <= 0.0 for kind in cluster.kinds):
        return None
    try:
        return {"format": file_fields.FORMAT, **assemble.disassemble(cluster)}
    except InputError:
        return None


def from_content(entry: object, place: str) -> Cluster:
    """Return the cluster of `content`.

    Returns: equal to what was stored.
    Raises `InputError` when anything in it is wrong.
    """
    from meshwright.clusters import cluster_yaml

    return cluster_yaml.from_data(entry, place)
