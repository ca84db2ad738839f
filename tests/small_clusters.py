"""Clusters of a few devices with round figures of their own: what is recorded on them does not change with a data sheet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.core.cluster import Cluster, Device, Links

__all__ = ["boxes", "device", "mesh"]


def device(name: str = "round", **figures: float) -> Device:
    """Return a device of 100 TFLOP/s, 80 GB and 1 TB/s that reaches round shares of these."""
    peaks = (("bf16", 100e12), ("fp16", 100e12), ("fp8", 200e12), ("fp32", 50e12))
    shares = {"matmul_ratio": 0.75, "attention_ratio": 0.5, "memory_ratio": 0.8, "launch_seconds": 4e-6}
    return Device(name, peaks, **{"memory_bytes": 80e9, "memory_bytes_per_second": 1e12, **shares, **figures})  # type: ignore[arg-type]


def boxes(
    sizes: Sequence[int],
    *,
    kinds: Sequence[Device] = (),
    inside: float = 3e11,
    across: float = 5e10,
    rails: bool = False,
    **figures: object,
) -> Cluster:
    """Return boxes of devices: each device on its box's switch, boxes (or with `rails` every device) on one switch above.

    Kinds of devices go from box to box in turn. Latencies: 2 us inside, 5 us across.
    """
    node = np.repeat(np.arange(len(sizes)), sizes)
    n, top = len(node), len(node) + len(sizes)
    ends = [(i, n + box, inside, 2e-6) for i, box in enumerate(node)]
    ends += [(i, top, across, 5e-6) for i in range(n)] if rails else [(n + box, top, across, 5e-6) for box in range(len(sizes))]
    return _wired("boxes", ends, n, len(sizes) + 1, node, kinds, forwards=False, **figures)


def mesh(rows: int, columns: int, *, rate: float = 1e11, **figures: object) -> Cluster:
    """Return a torus of devices that pass on what others send; a row is a node."""
    ids = np.arange(rows * columns).reshape(rows, columns)
    ends = [(int(a), int(b), rate, 1e-6) for a, b in zip(ids.ravel(), np.roll(ids, -1, 1).ravel()) if a != b]
    ends += [(int(a), int(b), rate / 2, 3e-6) for a, b in zip(ids.ravel(), np.roll(ids, -1, 0).ravel()) if a != b]
    single = sorted({(min(a, b), max(a, b), rate, late) for a, b, rate, late in ends})
    return _wired("mesh", single, rows * columns, 0, ids.ravel() // columns, (), forwards=True, **figures)


def _wired(
    name: str,
    ends: list[tuple[int, int, float, float]],
    n_devices: int,
    n_switches: int,
    node: np.ndarray,
    kinds: Sequence[Device],
    **figures: object,
) -> Cluster:
    source, target, rates, late = (np.array(column) for column in zip(*ends, strict=True))
    links = Links(np.r_[source, target], np.r_[target, source], np.r_[rates, rates], np.r_[late, late])
    kinds = tuple(kinds) or (device(),)
    return Cluster(name, kinds, node % len(kinds), n_switches, links, node[None, :].astype(np.int64), **figures)  # type: ignore[arg-type]
