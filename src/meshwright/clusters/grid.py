"""Meshes and tori of any number of dimensions, twisted ones included."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshwright.clusters.wires import Wires

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Shift", "lay", "lines_of", "no_shift"]

Shift = Callable[[int], tuple[int, ...]]


def no_shift(n_dims: int) -> Shift:
    """Return the shift of a plain torus: none."""
    return lambda dim: (0,) * n_dims


def lines_of(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the grouping of a grid: every device its own node, lines along the last dimension, then planes, ..."""
    import numpy as np

    ids = np.arange(int(np.prod(shape)), dtype=np.int64)
    together = [int(np.prod(shape[len(shape) - k :])) for k in range(len(shape))]
    return np.stack([ids // size for size in together])


def lay(
    shape: tuple[int, ...], wraps: tuple[bool, ...], shift: Shift, bytes_per_second: float, latency_seconds: float
) -> Wires:
    """Lay the wires of a grid; device ids run with the last dimension fastest.

    `wraps`: which dimensions are closed to rings. Two devices in a row have one wire, closed or not.
    `shift`: by how much the wire that closes a dimension moves along every dimension (a twisted torus).
    `bytes_per_second`, `latency_seconds`: figures of every wire.
    """
    import numpy as np

    ids: NDArray[np.int64] = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    wires = Wires()
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        near, far = np.take(ids, range(size - 1), dim), np.take(ids, range(1, size), dim)
        wires.join(near.ravel(), far.ravel(), bytes_per_second, latency_seconds)
        moved = shift(dim)
        if wraps[dim] and (size > 2 or any(moved)):
            others = [move for d, move in enumerate(moved) if d != dim]
            first = np.roll(np.take(ids, 0, dim), [-move for move in others], axis=tuple(range(len(shape) - 1)))
            wires.join(np.take(ids, size - 1, dim).ravel(), first.ravel(), bytes_per_second, latency_seconds)
    return wires
