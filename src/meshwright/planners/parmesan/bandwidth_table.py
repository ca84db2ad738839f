"""Clusters told as a table of bandwidths between all devices, as the topologies of Parmesan's tables are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import InputError
from meshwright.clusters import shared_options
from meshwright.clusters.wires import Wires, check_count
from meshwright.core.cluster import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GIGABYTES", "MEGABYTES_PER_MICROSECOND", "Drawn", "Grid", "Paired", "by_hops", "check", "hop_table", "pairwise"]

GIGABYTES = 1e9
MEGABYTES_PER_MICROSECOND = 1e6 / 1024 * GIGABYTES  # the paper's generators: 1 GB/s is 1024 / 1e6 of their MB/us
LARGEST = 1024


@dataclass(frozen=True, slots=True)
class Paired:
    """Parameters of clusters of so many devices.

    Parameters
    ----------
    n_devices : int
        Number of devices.
    device : str
        Kind of device.
    latency_seconds : float
        Latency between two devices (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    n_devices: int
    device: str = shared_options.kind()
    latency_seconds: float = shared_options.latency(0.0)
    launch_seconds: float = shared_options.launch()


@dataclass(frozen=True, slots=True)
class Drawn(Paired):
    """Parameters of clusters whose figures are drawn.

    Parameters
    ----------
    seed : int
        Of the random figures (``seed=``).
    """

    seed: int = shared_options.whole(0, 0)


@dataclass(frozen=True, slots=True)
class Grid:
    """Parameters of meshes and tori.

    Parameters
    ----------
    shape : tuple of int
        Sizes of one to three dimensions.
    device : str
        Kind of device.
    latency_seconds : float
        Latency between two devices (``latency=``).
    launch_seconds : float
        Time before a collective begins (``launch=``).
    """

    shape: tuple[int, ...]
    device: str = shared_options.kind()
    latency_seconds: float = shared_options.latency(0.0)
    launch_seconds: float = shared_options.launch()


def check(n_devices: int, name: str) -> int:
    """Return the number of devices if a table of all pairs may be that large (InputError otherwise)."""
    n = check_count(n_devices, f"cluster {name}")
    if n > LARGEST:
        raise InputError(f"cluster {name}: {n} devices; a table of all pairs is built for at most {LARGEST}")
    return n


def hop_table(hops: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the bandwidth over so many hops, in bytes per second.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, Table IX.
    """
    import numpy as np

    first = (
        78.1, 39.0, 24.4, 14.6, 9.77, 7.81, 5.86, 4.4, 2.93, 1.46, 0.88, 0.78, 0.68, 0.59, 0.49, 0.39, 0.29, 0.19, 0.098, 0.098,
    )  # fmt: skip
    far = np.where(hops <= 30, 0.088, np.where(hops <= 51, 0.078, 0.068))
    near = np.array(first)[np.clip(hops, 1, len(first)) - 1]
    result: NDArray[np.float64] = np.where(hops <= len(first), near, far) * GIGABYTES
    return result


def by_hops(params: Grid, name: str, *, around: bool) -> Cluster:
    """Return a mesh, or a torus whose ends are joined, with the bandwidth of any two devices by their hops."""
    import numpy as np

    n = check(shared_options.sizes(params.shape, (1, 2, 3), name), name)
    place = np.stack(np.unravel_index(np.arange(n), params.shape))
    apart = np.abs(place[:, :, None] - place[:, None, :])
    if around:
        apart = np.minimum(apart, np.array(params.shape)[:, None, None] - apart)
    table = hop_table(apart.sum(axis=0))
    return pairwise(name, table, params, None, "Parmesan (TCAD 2024), Table IX: bandwidth by hops")


def pairwise(
    name: str, bytes_per_second: NDArray[np.float64], params: Any, node: NDArray[np.int64] | None, source: str
) -> Cluster:
    """Return a cluster with a wire of its own between any two devices.

    `bytes_per_second`, shape (n, n), float64: bandwidth of each pair; the upper triangle counts.
    `params`: has ``device``, ``latency_seconds`` and ``launch_seconds``.
    `node`, shape (n,), int64, or None: node of each device; None where each is its own.
    `source`: where the figures are from.
    """
    import numpy as np

    n = len(bytes_per_second)
    wires = Wires()
    upper = np.triu_indices(n, 1)
    wires.join(*upper, bytes_per_second[upper], params.latency_seconds)
    cluster = shared_options.generated(name, wires, n, 0, params, None if node is None else node[None, :], forwards=False)
    return dataclasses.replace(cluster, source=source)
