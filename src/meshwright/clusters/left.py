"""A cluster after some of its devices are gone, or of which only the first are used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Links

__all__ = ["first", "without"]


def without(cluster: Cluster, lost: Collection[int]) -> Cluster:
    """Return what is left of a cluster; the devices left keep their order and are numbered from 0 on.

    Parameters
    ----------
    cluster : Cluster
        As it was.
    lost : collection of int
        Devices that are gone, with all links that end there.

    Returns
    -------
    Cluster
        Named after the devices that it has left; nothing is known to repeat in it.

    Raises
    ------
    InputError
        When nothing is lost, an id is unknown, no device is left, or those left cannot all reach each other.
    """
    gone = sorted(set(lost))
    unknown = [device for device in gone if not 0 <= device < cluster.n_devices]
    if unknown or not gone:
        raise InputError(f"cluster {cluster.name}: has no device {unknown or 'to lose'}; it has 0 to {cluster.n_devices - 1}")
    kept = np.setdiff1d(np.arange(cluster.n_devices), gone)
    if not len(kept):
        raise InputError(f"cluster {cluster.name}: all of its {cluster.n_devices} devices are lost")
    number = np.full(cluster.n_devices + cluster.n_switches, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    number[cluster.n_devices :] = np.arange(len(kept), len(kept) + cluster.n_switches)
    links = cluster.links
    stays = (number[links.source] >= 0) & (number[links.target] >= 0)
    return replace(
        cluster,
        name=f"{cluster.name} without {', '.join(map(str, gone))}",
        kind_of_device=cluster.kind_of_device[kept],
        links=Links(
            number[links.source[stays]],
            number[links.target[stays]],
            links.bytes_per_second[stays],
            links.latency_seconds[stays],
        ),
        groups=cluster.groups[:, kept],
        periods=(),
    )


def first(cluster: Cluster, spec: str, n_devices: int) -> Cluster:
    """Return the first devices of a cluster: all of it, a smaller one of the same kind, or what is left without the others.

    Parameters
    ----------
    cluster : Cluster
        The whole.
    spec : str
        What it was named by: of ``dgx-h100:16`` the first 8 are ``dgx-h100:8``.
    n_devices : int
        How many, at most all.

    Returns
    -------
    Cluster
        Named after both where no kind makes it.

    Raises
    ------
    InputError
        When those devices cannot all reach each other.
    """
    from meshwright import clusters

    if n_devices >= cluster.n_devices:
        return cluster
    word, _, count = spec.partition(":")
    if count.strip().isdecimal():
        try:
            return clusters.cluster(f"{word}:{n_devices}")
        except InputError:  # of hosts that are whole only
            pass
    left = without(cluster, range(n_devices, cluster.n_devices))
    return replace(left, name=f"{cluster.name}, its first {n_devices} devices")
