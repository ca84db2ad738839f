"""Flat: every device on one switch."""

from __future__ import annotations

from meshwright.clusters.shared_options import DeviceOptions as Params
from meshwright.clusters.shared_options import generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "16"


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    import numpy as np

    n = check_count(params.n_devices, f"cluster {name}")
    wires = Wires()
    wires.join(np.arange(n), n, params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 1, params, forwards=False)
