"""Looped breadth-first: several stages per rank, all micro-batches through one stage before the next.

References
----------
.. [1] Lamy-Poirier, Breadth-First Pipeline Parallelism, 2022 (arXiv 2211.05953), section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD, FORWARD, Actions, Durations
from meshwright.schedules import looped as placement

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds: all of them; shape (n_ranks,), int64."""
    return np.full(n_ranks, n_chunks * n_microbatches, dtype=np.int64)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return all forward tasks, stage by stage, then all backward tasks, last stage first.

    `times` are not used.

    Notes
    -----
    The weights of a stage are gathered and its gradients reduced once a step even when sharded, which is what the order is for.
    """
    n_forward = n_chunks * n_microbatches
    chunk = np.repeat(np.arange(n_chunks), n_microbatches)
    count = np.tile(np.arange(n_microbatches), n_chunks)
    both = np.concatenate((chunk, chunk[::-1]))
    return Actions(
        first=np.arange(n_ranks + 1) * 2 * n_forward,
        stage=(both * n_ranks + np.arange(n_ranks)[:, None]).ravel(),
        microbatch=np.tile(count, 2 * n_ranks),
        phase=np.tile(np.repeat([FORWARD, BACKWARD], n_forward), n_ranks),
        rank_of_stage=placement(n_ranks, n_chunks),
    )
