"""ZB-V: two stages per rank, laid out as the letter V; no rank waits between its tasks, with the memory of 1F1B.

References
----------
.. [1] Qi et al., Pipeline Parallelism with Controllable Memory, 2024 (arXiv 2405.15362), section 4 and the ZB-V figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, Durations, slots
from meshwright.schedules import v_shaped as placement
from meshwright.schedules._building_block import two_chunks
from meshwright.schedules._fitted import shortest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds, ``2 min(n_ranks, n_microbatches)`` of half the size;
    shape (n_ranks,), int64.
    """
    return np.full(n_ranks, 2 * min(n_ranks, n_microbatches), dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of ZB-V.

    Rank r has stage r on the way there and stage ``2 n_ranks - 1 - r`` on the way back. It runs ``2 (n_ranks - r) - 1`` forward
    tasks there; then back and there in turn until the first micro-batch has come back to rank 0; then each stage's forward
    task, input and weight gradient in turn. In the end the input gradients go first, so that the other ranks can go on, and
    weight gradients fill the rest.

    `n_chunks` must be 2. From ``2 n_ranks - 1`` micro-batches on no rank waits if all tasks are equally long. The places of the
    weight gradients are fitted to `times`, under the same memory; None for the hand-made order, which suits tasks of equal
    length.
    """
    two_chunks("zb_v", n_ranks, n_chunks)
    hand_made = slots([_row(rank, n_ranks, n_microbatches) for rank in range(n_ranks)], placement(n_ranks, 2))
    return shortest(hand_made, times, in_flight(n_ranks, n_chunks, n_microbatches))


def _row(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[int, int, int]]:
    """Return the tasks of one rank."""
    there, back = rank, 2 * n_ranks - 1 - rank
    row: list[tuple[int, int, int]] = []
    n_done = {there: [0, 0, 0], back: [0, 0, 0]}  # by FORWARD, BACKWARD_INPUT and BACKWARD_WEIGHT

    def run(stage: int, *phases: int) -> None:
        own = n_done[stage]
        for phase in phases:
            i = own[phase]
            if i < n_microbatches and (phase != BACKWARD_WEIGHT or i < own[BACKWARD_INPUT]):
                row.append((stage, i, phase))
                own[phase] = i + 1

    for _ in range(2 * (n_ranks - rank) - 1):
        run(there, FORWARD)
    for _ in range(rank):
        run(back, FORWARD)
        run(there, FORWARD)
    for _ in range(n_ranks - rank):
        run(back, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    while n_done[there][FORWARD] < n_microbatches or n_done[back][FORWARD] < n_microbatches:
        run(there, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
        run(back, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    while n_done[there][BACKWARD_INPUT] < n_microbatches or n_done[back][BACKWARD_INPUT] < n_microbatches:
        run(there, BACKWARD_INPUT)
        if n_done[back][BACKWARD_INPUT] < n_microbatches:
            run(back, BACKWARD_INPUT)
        else:
            run(there, BACKWARD_WEIGHT)
    for stage in (back, there):
        while n_done[stage][BACKWARD_WEIGHT] < n_microbatches:
            run(stage, BACKWARD_WEIGHT)
    return row
