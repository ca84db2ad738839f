"""Fat tree: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 places for devices."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.clusters import shared_options
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "LARGEST", "Params", "build"]

EXAMPLE = "128,oversubscription=2"
LARGEST = 128


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    k : int
        Ports of a switch, even; 0 for the smallest that is enough.
    bytes_per_second : float
        Bandwidth of a device's link, one direction (``bandwidth=``).
    oversubscription_ratio : float
        By how much links above the edge switches are slower than those of devices (``oversubscription=``).
    """

    k: int = shared_options.whole(0, 0)
    oversubscription_ratio: float = shared_options.ratio("oversubscription")


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    import numpy as np

    n = check_count(params.n_devices, f"cluster {name}")
    k = params.k
    while params.k == 0 and (k < 2 or k**3 // 4 < n):
        k += 2
    if k % 2 or k > LARGEST or k**3 // 4 < n:
        raise InputError(f"cluster {name}: k is {k}; must be even, at most {LARGEST}, and k^3/4 at least {n} devices")
    half = k // 2
    n_edges = -(-n // half)
    n_pods = -(-n_edges // half)
    edge, aggregation = n + np.arange(n_edges), n + n_edges + np.arange(n_pods * half)
    core = n + n_edges + n_pods * half
    wires = Wires()
    wires.join(np.arange(n), edge[np.arange(n) // half], params.bytes_per_second, params.latency_seconds)
    up_rate = params.bytes_per_second / params.oversubscription_ratio
    n_switches = n_edges
    if n_edges > 1:  # aggregation switch j of a pod is joined to every edge switch of it
        own = (np.arange(n_edges) // half * half)[:, None] + np.arange(half)
        wires.join(edge[:, None], aggregation[own], up_rate, params.latency_seconds)
        n_switches += n_pods * half
    if n_pods > 1:  # and to core switches j k/2 .. (j + 1) k/2 - 1
        above = core + (np.arange(n_pods * half) % half * half)[:, None] + np.arange(half)
        wires.join(aggregation[:, None], above, up_rate, params.latency_seconds)
        n_switches += half * half
    groups = np.stack([np.arange(n), np.arange(n) // half, np.arange(n) // (half * half)])
    return generated(name, wires, n, n_switches, params, groups, forwards=False)
