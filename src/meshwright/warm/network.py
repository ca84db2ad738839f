"""Kernels of routes and fair shares."""

from __future__ import annotations

import numpy as np

__all__ = ["run"]


def run() -> object:
    """Price a collective and share links on two small clusters."""
    from meshwright import topologies
    from meshwright.network import Network, fair_share, routes

    for spec in ("dgx-h100:16", "torus:2x2"):
        cluster = topologies.cluster(spec)
        ids = np.arange(cluster.n_devices)
        Network.of(cluster).axis(ids[None]).seconds("all_reduce", 1.0)
        route_first, links, shares = routes.shares(cluster, ids, ids[::-1])
        rate = cluster.links.bytes_per_second
        fair_share.rates(route_first, links, rate, shares)
        fair_share.finish_seconds(route_first, links, rate, np.ones(len(ids)), None, shares)
    return None
