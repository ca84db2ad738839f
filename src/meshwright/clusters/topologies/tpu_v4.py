"""TPU v4: a three-dimensional torus of chips, open where a dimension is shorter than a cube of four."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.clusters import shared_options
from meshwright.clusters.grid import lay, lines_of, no_shift
from meshwright.clusters.shared_options import DeviceOptions, generated
from meshwright.clusters.wires import check_count
from meshwright.core.cluster import Cluster

__all__ = ["EXAMPLE", "Params", "build"]

EXAMPLE = "64"


@dataclass(frozen=True, slots=True)
class Params(DeviceOptions):
    """Parameters.

    Parameters
    ----------
    n_devices : int
        Number of chips.

    References
    ----------
    .. [1] Jouppi et al., "TPU v4", ISCA 2023: six links of 50 GB/s per chip, cubes of 4x4x4 joined by optical switches.
    """

    device: str = "tpu-v4-32gb"
    launch_seconds: float = shared_options.latency(10e-6, "launch")


def shape_of(n: int) -> tuple[int, int, int]:
    """Return the three sizes whose product is `n` and that are nearest to a cube, smallest first."""
    best = (1, 1, n)
    for x in range(1, round(n ** (1 / 3)) + 1):
        if n % x == 0:
            for y in range(x, int((n // x) ** 0.5) + 1):
                if (n // x) % y == 0 and x + y + n // x // y < sum(best):
                    best = (x, y, n // x // y)
    return best


def build(params: Params, name: str) -> Cluster:
    """Return the cluster.

    Chips lie in the shape nearest to a cube; a dimension is closed where its size is a multiple of four.
    """
    n = check_count(params.n_devices, f"cluster {name}")
    shape = shape_of(n)
    wraps = (shape[0] % 4 == 0, shape[1] % 4 == 0, shape[2] % 4 == 0)
    wires = lay(shape, wraps, no_shift(3), params.bytes_per_second, params.latency_seconds)
    return generated(name, wires, n, 0, params, lines_of(shape), forwards=True)
