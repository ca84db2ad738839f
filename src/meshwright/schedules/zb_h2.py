"""ZB-H2: ZB-H1 with a longer warm-up: no rank waits between its tasks, at twice the activations.

References
----------
.. [1] Qi et al., Zero Bubble Pipeline Parallelism, 2023 (arXiv 2401.10241), section 2.3 and figure 3.
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
    """Return the most activations each rank holds, ``min(2 n_ranks - 1, n_microbatches)``; shape (n_ranks,), int64."""
    return np.full(n_ranks, min(2 * n_ranks - 1, n_microbatches), dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of ZB-H2.

    Forward tasks and input gradients run as in 1F1B. Rank r runs its weight gradients r micro-batches later than their input
    gradients, and what is left of them between and after the last input gradients, where 1F1B waits.

    `n_chunks` must be 1. The places of the weight gradients are fitted to `times`, under the same memory; None for the paper's
    hand-made order, which suits tasks of equal length.

    Notes
    -----
    Ranks start one forward task after each other and end so too: one step alone still lasts ``n_ranks - 1`` forward tasks
    longer than the work of a rank. The paper starts the next step in that time, which needs its optimizer without a global
    wait.
    """
    one_chunk("zb_h2", n_chunks)
    rank = np.arange(n_ranks, dtype=np.int64)
    hand_made = delayed(2 * (n_ranks - 1 - rank), 2 * rank, n_microbatches)
    return shortest(hand_made, times, in_flight(n_ranks, n_chunks, n_microbatches))
