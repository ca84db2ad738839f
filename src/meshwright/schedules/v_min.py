"""V-Min: two stages per rank, laid out as the letter V; a third of the activations of 1F1B and two thirds of its bubble.

References
----------
.. [1] Qi et al., Pipeline Parallelism with Controllable Memory, 2024 (arXiv 2405.15362), section 4: V-Min.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import Actions, Durations
from meshwright.schedules import v_shaped as placement
from meshwright.schedules._building_block import repeated, two_chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations, of half the size, that each rank holds; shape (n_ranks,), int64.

    ``2 (n_ranks + k) / 3`` with k of 2, 3 or 4 so that it is whole, at most all of them.
    """
    most = 2 * (n_ranks + 4 - (n_ranks + 1) % 3) // 3
    return np.full(n_ranks, min(most, 2 * n_microbatches), dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of V-Min.

    `n_chunks` must be 2. The places of the weight gradients are fitted to `times`, under the same memory; None for tasks of
    equal length.

    Notes
    -----
    The shifts are the smallest there are, 1 each; the turns were found by trying all up to six units for 2 to 10 ranks.
    """
    two_chunks("v_min", n_ranks, n_chunks)
    turns = ((3, 1, 3), (1, 1, 1), (5, 1, 5))[n_ranks % 3]
    return repeated((1, 1, 1, 1), turns, in_flight(n_ranks, n_chunks, n_microbatches), n_microbatches, times)
