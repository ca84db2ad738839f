"""Strict one-forward-one-backward after a warm-up of a given depth: what several schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD, FORWARD, Actions, looped

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["alternate"]


def alternate(depths: NDArray[np.int64], n_microbatches: int) -> Actions:
    """Return `depths[r]` forward tasks on rank r, then one backward and one forward in turn, then the remaining backward tasks.

    `depths`, shape (n_ranks,), int64: forward tasks before the first backward task, at least 1, never growing from a rank
    to the next; the most activations that the rank holds.
    `n_microbatches`: micro-batches of one step.
    Returns: one stage per rank.
    """
    n_ranks = len(depths)
    warm_up = np.minimum(depths, n_microbatches)
    count = np.arange(n_microbatches)
    n_tasks = 2 * n_microbatches
    microbatch = np.empty((n_ranks, n_tasks), dtype=np.int64)
    phase = np.full((n_ranks, n_tasks), BACKWARD, dtype=np.int64)
    for rank in range(n_ranks):
        # Forward j runs in position j during the warm-up; after it, every forward is preceded by one more backward.
        forward = count + np.maximum(count - warm_up[rank] + 1, 0)
        backward = np.minimum(warm_up[rank] + 2 * count, n_microbatches + count)
        microbatch[rank, forward] = count
        phase[rank, forward] = FORWARD
        microbatch[rank, backward] = count
    return Actions(
        first=np.arange(n_ranks + 1) * n_tasks,
        stage=np.repeat(np.arange(n_ranks), n_tasks),
        microbatch=microbatch.ravel(),
        phase=phase.ravel(),
        rank_of_stage=looped(n_ranks, 1),
    )
