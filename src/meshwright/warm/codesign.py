"""Kernels of the co-design of network and plan."""

from __future__ import annotations

from meshwright import api
from meshwright.codesign.step import TRAFFIC

__all__ = ["run"]


def run() -> object:
    """Design the network of a small mixture of experts, and play its step under every model of traffic."""
    design = api.codesign(
        "topoopt:moe", servers=4, degree=2, link_bandwidth="10 Gbit/s", topologies=("topoopt", "switch"), budget=5
    )
    found = design.entry.found
    return [design.step.seconds(found.placement, found.fabric, traffic=traffic) for traffic in TRAFFIC]
