"""Kernels of the co-design of network and plan."""

from __future__ import annotations

from meshwright import api

__all__ = ["run"]


def run() -> object:
    """Design the network of a small mixture of experts."""
    return api.codesign(
        "topoopt:moe", servers=4, degree=2, link_bandwidth="10 Gbit/s", topologies=("topoopt", "switch"), budget=5
    )
