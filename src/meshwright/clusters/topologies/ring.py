"""Ring: every device has a wire to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.clusters import shared_options
from meshwright.clusters.shared_options import generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "16"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters.

    Parameters
    ----------
    n_devices : int
        Number of devices.
    device : str
        Kind of device.
    bytes_per_second : float
        Bandwidth of one direction of a link (``bandwidth=``).
    latency_seconds : float
        Latency of a link (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    n_devices: int
    device: str = shared_options.kind()
    bytes_per_second: float = shared_options.bandwidth(50e9)
    latency_seconds: float = shared_options.latency(1e-6)
    launch_seconds: float = shared_options.launch()


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = check_count(params.n_devices, f"cluster {name}")
    wires = Wires()
    ids = np.arange(n - 1 if n <= 2 else n)
    wires.join(ids, (ids + 1) % n, params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 0, params, forwards=True)
