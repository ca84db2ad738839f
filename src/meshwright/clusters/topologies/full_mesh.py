"""Full mesh: a wire between any two devices."""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.clusters.shared_options import DeviceOptions as Params
from meshwright.clusters.shared_options import generated
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "LARGEST", "Params", "build"]

EXAMPLE = "8"
LARGEST = 4096


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    import numpy as np

    n = check_count(params.n_devices, f"cluster {name}")
    if n > LARGEST:
        raise InputError(f"cluster {name}: a full mesh of {n} devices has {n * (n - 1) // 2} wires; at most {LARGEST} devices")
    wires = Wires()
    wires.join(*np.triu_indices(n, 1), params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 0, params, forwards=False)
