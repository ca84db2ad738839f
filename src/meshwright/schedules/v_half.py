"""V-Half: two stages per rank, laid out as the letter V; half the activations of 1F1B and half its bubble.

References
----------
.. [1] Qi et al., Pipeline Parallelism with Controllable Memory, 2024 (arXiv 2405.15362), section 4: V-Half.
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

    ``n_ranks + 1`` for an odd number of ranks, ``n_ranks + 2`` for an even one, at most all of them.
    """
    most = n_ranks + 2 - n_ranks % 2
    return np.full(n_ranks, min(most, 2 * n_microbatches), dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of V-Half.

    `n_chunks` must be 2. The places of the weight gradients are fitted to `times`, under the same memory; None for tasks of
    equal length.

    Notes
    -----
    The shifts add up to 6, half of those of ZB-V; the turns were found by trying all up to six units for 2 to 10 ranks.
    """
    two_chunks("v_half", n_ranks, n_chunks)
    turns = (1, 1, 2) if n_ranks % 2 else (4, 1, 5)
    return repeated((1, 2, 1, 2), turns, in_flight(n_ranks, n_chunks, n_microbatches), n_microbatches, times)
