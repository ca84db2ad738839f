"""GPipe: all micro-batches forward, then all backward in reverse.

References
----------
.. [1] Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, 2019, section 2.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD, FORWARD, Actions, Durations, one_chunk
from meshwright.schedules import looped as placement

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds: all of them; shape (n_ranks,), int64."""
    return np.full(n_ranks, n_microbatches, dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return all forward tasks, then all backward tasks, last micro-batch first.

    `n_chunks` must be 1; `times` are not used.

    Notes
    -----
    The paper leaves the order of the backward tasks open; the last micro-batch first frees the newest activation first, as its
    implementations do.
    """
    one_chunk("gpipe", n_chunks)
    count = np.arange(n_microbatches)
    n_tasks = 2 * n_microbatches
    return Actions(
        first=np.arange(n_ranks + 1) * n_tasks,
        stage=np.repeat(np.arange(n_ranks), n_tasks),
        microbatch=np.tile(np.concatenate((count, count[::-1])), n_ranks),
        phase=np.tile(np.repeat([FORWARD, BACKWARD], n_microbatches), n_ranks),
        rank_of_stage=placement(n_ranks, 1),
    )
