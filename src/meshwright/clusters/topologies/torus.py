"""Torus: a grid of devices closed in every dimension, two or three of them, twisted on demand."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.clusters.grid import Shift, lay, lines_of, no_shift
from meshwright.clusters.shared_options import GridOptions, generated, sizes
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "4x4x4"


@dataclass(frozen=True, slots=True)
class Params(GridOptions):
    """Parameters.

    Parameters
    ----------
    twisted : bool
        Whether wires that close the shortest dimensions move half way along the dimensions twice as long.
    """

    twisted: bool = False


def build(params: Params, name: str) -> Cluster:
    """Return the cluster."""
    n = sizes(params.shape, (2, 3), name)
    n_dims = len(params.shape)
    shift = _twist(params.shape, name) if params.twisted else no_shift(n_dims)
    wires = lay(params.shape, (True,) * n_dims, shift, params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 0, params, lines_of(params.shape), forwards=True)


def _twist(shape: tuple[int, ...], name: str) -> Shift:
    """Return by how much closing wires move: k along every dimension of size 2k, where k is the smallest size.

    References
    ----------
    .. [1] Camara et al., "Twisted torus topologies for enhanced interconnection networks", IEEE TPDS 2010.
    """
    short = min(shape)
    if short < 2 or 2 * short not in shape:
        given = "x".join(str(size) for size in shape)
        raise InputError(f"cluster {name}: shape {given} cannot be twisted; sizes must be k and 2k, for example 4x4x8")
    long = tuple(short if size == 2 * short else 0 for size in shape)
    return lambda dim: long if shape[dim] == short else (0,) * len(shape)
