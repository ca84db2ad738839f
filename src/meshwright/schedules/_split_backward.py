"""1F1B with the weight gradients as tasks of their own, run later: what the hand-made zero-bubble schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, looped

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["delayed"]


def delayed(warm_up: NDArray[np.int64], delay: NDArray[np.int64], n_microbatches: int) -> Actions:
    """Return `warm_up[r]` forward tasks, then forward, input gradient, and the weight gradient of `delay[r]` micro-batches ago.

    `warm_up`, shape (n_ranks,), int64: forward tasks of each rank before its first turn.
    `delay`, shape (n_ranks,), int64: by how many micro-batches each rank runs its weight gradients later than its input
    gradients. A rank holds at most ``warm_up + delay + 1`` activations.
    `n_microbatches`: micro-batches of one step.
    Returns: one stage per rank.
    """
    n_ranks = len(warm_up)
    ahead, late = np.minimum(warm_up, n_microbatches)[:, None], np.asarray(delay)[:, None]
    i = np.arange(n_microbatches)
    # A turn is a forward task, an input gradient and a weight gradient; what a rank runs early or late has turns before or
    # after.
    turn = np.concatenate((3 * (i - ahead), np.broadcast_to(3 * i + 1, (n_ranks, n_microbatches)), 3 * (i + late) + 2), axis=1)
    order = np.argsort(turn, axis=1, kind="stable")
    return Actions(
        np.arange(n_ranks + 1) * 3 * n_microbatches,
        np.repeat(np.arange(n_ranks), 3 * n_microbatches),
        (order % n_microbatches).ravel(),
        np.array([FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT])[order // n_microbatches].ravel(),
        looped(n_ranks, 1),
    )
