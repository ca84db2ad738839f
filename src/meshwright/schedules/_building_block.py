"""Pipeline schedules made by repeating one micro-batch's tasks: when each rank runs them decides how much it holds.

References
----------
.. [1] Qi et al., Pipeline Parallelism with Controllable Memory, 2024 (arXiv 2405.15362), sections 3 and 4: building blocks,
   lifespans, V-shaped placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.base.errors import InputError
from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, Durations, slots, v_shaped
from meshwright.schedules._fitted import shortest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["repeated", "two_chunks"]

_INTERVAL = 6
"""Tasks of a micro-batch on a rank: forward, input gradient and weight gradient of two stages, each one unit long."""


def two_chunks(schedule: str, n_ranks: int, n_chunks: int) -> None:
    """Refuse other than two stages per rank.

    Raises `InputError` when there are not two.
    """
    if n_chunks != 2:
        raise InputError(
            f"schedule {schedule}: {n_chunks} stages per rank, but it runs two; cut the model into {2 * n_ranks} stages"
        )


def repeated(
    shifts: tuple[int, int, int, int],
    turns: tuple[int, int, int],
    limit: NDArray[np.int64],
    n_microbatches: int,
    times: Durations | None,
) -> Actions:
    """Return the order in which ranks run a building block that repeats every six units, squeezed together.

    A micro-batch goes forward there (rank 0 to the last), forward back, backward there and backward back. A rank holds the
    activations of its two stages for about ``(n_ranks - 1) * sum(shifts)`` units together, one sixth of them micro-batches.

    `shifts`: units from a rank to the next on each of the four ways.
    `turns`: units from the last task of a way to the first of the next; chosen so that no two tasks fall on the same
    moment.
    `limit`, shape (n_ranks,), int64: activations that each rank may hold.
    `n_microbatches`: micro-batches of one step.
    `times`: durations that the places of the weight gradients are fitted to; None for tasks of equal length.
    """
    n_ranks = len(limit)
    rank = np.arange(n_ranks)
    there, back = rank, 2 * n_ranks - 1 - rank
    behind = n_ranks - 1 - rank
    begin = np.cumsum([0] + [(n_ranks - 1) * shift + turn for shift, turn in zip(shifts[:3], turns, strict=True)])
    # Task by task: when the rank runs it for micro-batch 0, its stage and its phase; on equal moments the first comes first.
    block = (
        (begin[2] + rank * shifts[2], back, BACKWARD_INPUT),
        (begin[3] + behind * shifts[3], there, BACKWARD_INPUT),
        (begin[1] + behind * shifts[1], back, FORWARD),
        (begin[0] + rank * shifts[0], there, FORWARD),
    )
    rows = []
    for r in range(n_ranks):
        tasks = sorted(
            (int(moment[r]) + _INTERVAL * i, kind, int(stage[r]), i, phase)
            for kind, (moment, stage, phase) in enumerate(block)
            for i in range(n_microbatches)
        )
        rows.append([task for _, _, stage, i, phase in tasks for task in _with_weight_gradient(stage, i, phase)])
    plain = slots(rows, v_shaped(n_ranks, 2))
    ones = np.ones(2 * n_ranks)
    even = shortest(plain, Durations(ones, ones, ones, np.zeros(2 * n_ranks - 1)), limit)
    return shortest(even, times, limit)


def _with_weight_gradient(stage: int, microbatch: int, phase: int) -> list[tuple[int, int, int]]:
    """Return a task, and the weight gradient right after an input gradient."""
    weight = [(stage, microbatch, BACKWARD_WEIGHT)] if phase == BACKWARD_INPUT else []
    return [(stage, microbatch, phase), *weight]
