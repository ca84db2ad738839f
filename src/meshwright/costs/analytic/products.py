"""Seconds of one matrix product on one device: tiles dealt in waves to multiprocessors, or the memory, whichever is slower."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.core.cluster import Device

__all__ = ["ALIGNED_SHARES", "Product", "aligned_share", "product_seconds"]

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (128, 64, 0.75), (64, 64, 0.5))
"""Output tiles (rows, columns) that libraries choose from, and the share of the full rate that each sustains: the ratio of
multiply-adds to operand bytes falls with the tile (CUTLASS, "efficient GEMM"; the shares are ours, fitted to none of the
sets).
"""

PROLOGUE = 64
"""Elements of the inner dimension that filling and draining the pipeline of one tile costs (two stages of 32)."""


ALIGNED_SHARES = ((8, 1.0), (4, 0.75), (2, 0.5), (1, 0.3))
"""Share of the rate by the largest power of two, up to 8, that divides the sizes along which operands lie in memory: 16 bytes
are what one load moves and what the asynchronous copies of tensor core kernels ask for (NVIDIA, "Matrix Multiplication
Background", sec. 2: most efficient where sizes are multiples of 16 bytes; CUTLASS has kernels for alignments of 8, 4, 2 and 1
elements, the last without asynchronous copies); the shares are ours, fitted to none of the sets.
"""


@dataclass(frozen=True, slots=True)
class Product:
    """`n_products` independent products of (rows x inner) by (inner x columns), and the bytes they move.

    Parameters
    ----------
    rows, columns, inner : int
        Sizes of each product; averages (tokens per expert) rounded up.
    n_products : int
        How many run together in one kernel.
    moved_bytes : float
        Bytes read and written by all of them.
    n_aligned : int
        What divides the sizes along which the operands lie in memory.
    """

    rows: int
    columns: int
    inner: int
    n_products: int
    moved_bytes: float
    n_aligned: int = 8

    @property
    def flops(self) -> float:
        """Floating point operations of all products."""
        return 2.0 * self.rows * self.columns * self.inner * self.n_products


def product_seconds(product: Product, device: Device, precision: str) -> float:
    """Return the seconds of one kernel that computes `product`.

    `device`: where; its `matmul_ratio` (`fp8_ratio`, `fp4_ratio`) scales the peak, its `n_multiprocessors` deal out the
    tiles.
    Returns: seconds, its launch not counted: launches run ahead of the device.

    Notes
    -----
    Tile quantisation pads rows and columns to whole tiles, wave quantisation pads the number of tiles to whole waves over the
    multiprocessors; the library is assumed to pick the best of `TILES`. The last wave counts half of its idle part, because
    libraries split the inner dimension when a wave is nearly empty.
    """
    rate = device.peak(precision) * device.achieved(precision)
    n_units = device.n_multiprocessors
    inner = product.inner + PROLOGUE
    best = math.inf
    for rows, columns, share in TILES:
        n_tiles = float(-(-product.rows // rows) * -(-product.columns // columns) * product.n_products)
        if n_units:
            waves = n_tiles / n_units
            n_tiles = n_units * 0.5 * (max(1.0, waves) + math.ceil(waves))
        best = min(best, n_tiles * rows * columns * inner / share)
    compute = 2.0 * best / rate / (aligned_share(product.n_aligned) if n_units else 1.0)
    memory = product.moved_bytes / (device.memory_bytes_per_second * device.memory_ratio)
    return max(compute, memory)


def aligned_share(n_aligned: int) -> float:
    """Return the share of the rate that a product reaches where its operands are aligned to `n_aligned` elements; see
    `ALIGNED_SHARES`.
    """
    return next(share for size, share in ALIGNED_SHARES if n_aligned % size == 0)
