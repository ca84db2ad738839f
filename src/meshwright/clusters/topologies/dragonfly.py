"""Dragonfly: groups of fully joined routers, groups fully joined by global links."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.clusters import shared_options
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "72,devices_per_router=2"


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    devices_per_router : int
        Devices of a router; 0 for the smallest balanced dragonfly that is large enough.
    routers_per_group : int
        Routers of a group; 0 for twice the devices of a router (balanced).
    global_links : int
        Links of a router to other groups; 0 for as many as devices (balanced).
    """

    devices_per_router: int = shared_options.whole(0, 0)
    routers_per_group: int = shared_options.whole(0, 0)
    global_links: int = shared_options.whole(0, 0)


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    import numpy as np

    n = check_count(params.n_devices, f"cluster {name}")
    p = params.devices_per_router
    while params.devices_per_router == 0 and (p == 0 or 2 * p * p * (2 * p * p + 1) < n):
        p += 1
    a, h = params.routers_per_group or 2 * p, params.global_links or p
    g = -(-n // (a * p))
    if g > a * h + 1:
        raise InputError(
            f"cluster {name}: {n} devices need {g} groups, but {a} routers with {h} global links each join at most "
            f"{a * h + 1}; "
            "raise routers_per_group, devices_per_router or global_links"
        )
    wires = Wires()
    rate, latency_seconds = params.bytes_per_second, params.latency_seconds
    wires.join(np.arange(n), n + np.arange(n) // p, rate, latency_seconds)
    first, second = np.triu_indices(a, 1)
    base = n + np.arange(g)[:, None] * a
    wires.join(base + first, base + second, rate, latency_seconds)
    i, j = np.triu_indices(g, 1)
    for turn in range(a * h // max(1, g - 1)):  # spare global ports are parallel links
        here, there = turn * (g - 1) + (j - i) - 1, turn * (g - 1) + g - (j - i) - 1
        wires.join(n + i * a + here // h, n + j * a + there // h, rate, latency_seconds)
    groups = np.stack([np.arange(n), np.arange(n) // p, np.arange(n) // (a * p)])
    return generated(name, wires, n, g * a, params, groups, forwards=False)
