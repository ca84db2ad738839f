"""Mesh: a grid of devices with open ends, in two or three dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.clusters import shared_options
from meshwright.clusters.grid import lay, lines_of, no_shift
from meshwright.clusters.shared_options import generated, sizes
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "4x4"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters.

    Parameters
    ----------
    shape : tuple of int
        Two or three sizes: ``4x4x4``.
    device : str
        Kind of device.
    bytes_per_second : float
        Bandwidth of one direction of a link (``bandwidth=``).
    latency_seconds : float
        Latency of a link (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    shape: tuple[int, ...]
    device: str = shared_options.kind()
    bytes_per_second: float = shared_options.bandwidth(50e9)
    latency_seconds: float = shared_options.latency(1e-6)
    launch_seconds: float = shared_options.launch()


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = sizes(params.shape, (2, 3), name)
    n_dims = len(params.shape)
    wires = lay(params.shape, (False,) * n_dims, no_shift(n_dims), params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 0, params, lines_of(params.shape), forwards=True)
