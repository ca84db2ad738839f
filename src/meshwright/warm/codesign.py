"""Kernels of the co-design of network and plan."""

from __future__ import annotations

from meshwright import api
from meshwright.codesign.step import TRAFFIC

__all__ = ["run"]


def run() -> object:
    """Design the network of a small mixture of experts, with one route a pair and two, and play its step under every model of traffic."""
    design = api.codesign(
        "topoopt:moe", servers=4, degree=2, link_bandwidth="10 Gbit/s", topologies=("topoopt", "switch"), budget=5
    )
    found = design.entry.found
    traffic = design.step.traffic(found.placement)
    found.fabric.refitted(traffic.pair_bytes, traffic.group_bytes, 2)
    return [design.step.seconds(found.placement, found.fabric, traffic=traffic) for traffic in TRAFFIC]
