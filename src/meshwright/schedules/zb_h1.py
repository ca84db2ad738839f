"""ZB-H1: 1F1B with the weight gradients taken out of the backward pass and run where the rank would wait.

References
----------
.. [1] Qi et al., Zero Bubble Pipeline Parallelism, 2023 (arXiv 2401.10241), section 2.2 and figure 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import Actions, Durations, one_chunk
from meshwright.schedules import looped as placement
from meshwright.schedules._fitted import shortest
from meshwright.schedules._split_backward import delayed

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds, ``min(n_ranks, n_microbatches)``: the peak of 1F1B, on every rank."""
    return np.full(n_ranks, min(n_ranks, n_microbatches), dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of ZB-H1.

    Forward tasks and input gradients run as in 1F1B. Rank r runs its weight gradients r micro-batches later than their input
    gradients, and what is left of them between and after the last input gradients, where 1F1B waits.

    `n_chunks` must be 1. The places of the weight gradients are fitted to `times`, under the same memory; None for the paper's
    hand-made order, which suits tasks of equal length.
    """
    one_chunk("zb_h1", n_chunks)
    rank = np.arange(n_ranks, dtype=np.int64)
    hand_made = delayed(n_ranks - 1 - rank, rank, n_microbatches)
    return shortest(hand_made, times, in_flight(n_ranks, n_chunks, n_microbatches))
