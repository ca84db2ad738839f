"""1F1B with the weight gradients as tasks of their own, run later: what the hand-made zero-bubble schedules share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Slots, looped, slots

__all__ = ["delayed"]


def delayed(warm_up: NDArray[np.int64], delay: NDArray[np.int64], n_microbatches: int) -> Slots:
    """Return `warm_up[r]` forward tasks, then forward, input gradient, and the weight gradient of `delay[r]` micro-batches ago.

    Parameters
    ----------
    warm_up : ndarray, shape (n_ranks,), int64
        Forward tasks of each rank before its first turn.
    delay : ndarray, shape (n_ranks,), int64
        By how many micro-batches each rank runs its weight gradients later than its input gradients. A rank holds at most
        ``warm_up + delay + 1`` activations.
    n_microbatches : int
        Micro-batches of one step.

    Returns
    -------
    Slots
        One stage per rank.
    """
    rows = []
    for rank in range(len(warm_up)):
        ahead = min(int(warm_up[rank]), n_microbatches)
        row = [(rank, i, FORWARD) for i in range(ahead)]
        n_weights = 0
        for i in range(n_microbatches):
            if ahead + i < n_microbatches:
                row.append((rank, ahead + i, FORWARD))
            row.append((rank, i, BACKWARD_INPUT))
            if i >= delay[rank]:
                row.append((rank, n_weights, BACKWARD_WEIGHT))
                n_weights += 1
        row.extend((rank, i, BACKWARD_WEIGHT) for i in range(n_weights, n_microbatches))
        rows.append(row)
    return slots(rows, looped(len(warm_up), 1))
