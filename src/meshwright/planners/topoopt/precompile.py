"""Kernels of the co-design of network and plan."""

from __future__ import annotations

from collections.abc import Callable

from meshwright import models
from meshwright.planners.topoopt import design as room
from meshwright.planners.topoopt.alternate import NetworkParts
from meshwright.planners.topoopt.step import TRAFFIC

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Design the network of a small mixture of experts, with one route a pair and two,
    and play its step under every model of traffic.
    """
    wires = NetworkParts(4, 2, 1.25e9, 1e-6)
    design = room.design(models.read("topoopt:moe"), wires, room.parse({}), names=("topoopt", "switch"), budget=5)
    found = design.entry.found
    traffic = design.step.traffic(found.placement)
    found.fabric.refitted(traffic.pair_bytes, traffic.group_bytes, 2)
    return [design.step.seconds(found.placement, found.fabric, traffic=traffic) for traffic in TRAFFIC]
