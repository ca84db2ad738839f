"""Clusters whose networks differ in kind: switches, rails, tori, links of devices' own, unlike boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from meshwright import clusters
from meshwright.core.cluster import Cluster, Links
from small_clusters import boxes, device, mesh

__all__ = ["CLUSTERS"]

LINKS = "bandwidth=10 GB/s,latency=1 us,launch=2 us"


def joined() -> Cluster:
    """Six devices on two switches, which do not forward; neighbours have two links of their own, one of half the rate."""
    ends = [(i, 6 + i // 3, 2e11, 2e-6) for i in range(6)] + [(6, 7, 1e11, 5e-6)]
    ends += [(a, a + 1, rate, 1e-6) for a in (0, 2, 4) for rate in (4e11, 2e11)] + [(1, 2, 3e11, 1e-6), (0, 5, 3e11, 2e-6)]
    source, target, rates, late = (np.array(column) for column in zip(*ends, strict=True))
    links = Links(np.r_[source, target], np.r_[target, source], np.r_[rates, rates], np.r_[late, late])
    return Cluster("joined", (device(),), np.zeros(6, np.int64), 2, links, np.array([[0, 0, 0, 1, 1, 1]]), forwards=False)


def unlike() -> Cluster:
    """Four boxes of two devices, the second of which has quicker links and the last slower ones."""
    plain = boxes([2, 2, 2, 2])
    rates = plain.links.bytes_per_second.copy()
    ends = np.minimum(plain.links.source, plain.links.target)
    rates[(ends // 2 == 1) & (ends < 8)] *= 2.0
    rates[(ends // 2 == 3) & (ends < 8)] /= 4.0
    return dataclasses.replace(plain, links=dataclasses.replace(plain.links, bytes_per_second=rates))


CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "boxes": lambda: boxes([2, 2, 2], launch_seconds=3e-6),
    "uneven": lambda: boxes([3, 1, 2], kinds=[device("a"), device("b", memory_bytes=40e9)]),
    "rails": lambda: boxes([4, 4], rails=True, reduces_in_switch=True),
    "torus": lambda: mesh(2, 4),
    "line": lambda: mesh(1, 5),
    "square": lambda: mesh(3, 3, launch_seconds=1e-6),
    "fat_tree": lambda: clusters.cluster(f"fat-tree:8,oversubscription=2,{LINKS}"),
    "joined": joined,
    "unlike": unlike,
    "ring": lambda: clusters.cluster(f"ring:6,{LINKS}"),
    "few": lambda: boxes([2, 2], algorithms=("ring", "tree", "hierarchical")),
    "cube": lambda: clusters.cluster(f"torus:2x2x2,{LINKS}"),
}
