"""What is mapped, and where it lies: a graph of stages in several replicas, and the devices of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.mapping import cost as kernel

__all__ = ["Mapping", "StageGraph"]


@dataclass(frozen=True, slots=True, eq=False)
class StageGraph:
    """Stages that exchange tensors, each in several replicas.

    Parameters
    ----------
    compute_seconds : ndarray, shape (n_stages,), float64
        Time of each stage apart from communication.
    transfers : tuple of (int, int, float)
        Pairs of stages and the bytes a replica of one exchanges with the same replica of the other.
    reduce_bytes : ndarray, shape (n_stages,), float64
        Gradient bytes that the replicas of each stage reduce; a ring moves ``2 (R - 1) / R`` of them over each of its links.
    n_replicas : int
        Copies of the graph.
    """

    compute_seconds: NDArray[np.float64]
    transfers: tuple[tuple[int, int, float], ...]
    reduce_bytes: NDArray[np.float64]
    n_replicas: int

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self.compute_seconds)

    def arrays(self, seconds_per_byte: NDArray[np.float64]) -> kernel.MapArrays:
        """Return the graph packed for the kernels, with the seconds per byte between all devices."""
        rows: list[list[tuple[int, float]]] = [[] for _ in range(self.n_stages)]
        for a, b, volume in self.transfers:
            rows[a].append((b, volume))
            rows[b].append((a, volume))
        first = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        stage = np.array([s for row in rows for s, _ in sorted(row)], dtype=np.int64)
        volumes = np.array([v for row in rows for _, v in sorted(row)], dtype=np.float64)
        ring = self.reduce_bytes * (2.0 * (self.n_replicas - 1) / self.n_replicas)
        packed = kernel.MapArrays(
            np.asarray(self.compute_seconds, dtype=np.float64).copy(), first, stage, volumes, ring, seconds_per_byte
        )
        for array in packed:
            array.setflags(write=False)
        return packed


@dataclass(frozen=True, slots=True, eq=False)
class Mapping:
    """Devices of all replicas of all stages.

    Parameters
    ----------
    devices : ndarray, shape (n_stages, n_replicas), int64
        Device of each replica; replica r of a stage exchanges tensors with replica r of its neighbours.
    rings : ndarray, shape (n_stages, n_replicas), int64
        Order of the replicas along each stage's ring.
    seconds : float
        The largest cost of a device.
    bound_seconds : float
        Proven lower bound of it over all mappings and ring orders.
    exact : bool
        Whether it is proven to be the least.
    start : str
        Which start led to it.
    """

    devices: NDArray[np.int64]
    rings: NDArray[np.int64]
    seconds: float
    bound_seconds: float = 0.0
    exact: bool = False
    start: str = ""
