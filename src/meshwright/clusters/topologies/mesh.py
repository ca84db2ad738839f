"""Mesh: a grid of devices with open ends, in two or three dimensions."""

from __future__ import annotations

from meshwright.clusters.grid import lay, lines_of, no_shift
from meshwright.clusters.shared_options import GridOptions as Params
from meshwright.clusters.shared_options import generated, sizes
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "4x4"


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = sizes(params.shape, (2, 3), name)
    n_dims = len(params.shape)
    wires = lay(params.shape, (False,) * n_dims, no_shift(n_dims), params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 0, params, lines_of(params.shape), forwards=True)
