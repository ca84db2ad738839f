"""Interleaved 1F1B: several stages per rank, so that the pipeline fills with shorter tasks.

References
----------
.. [1] Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules import BACKWARD, FORWARD, Actions, Durations
from meshwright.schedules import looped as placement

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds; shape (n_ranks,), int64.

    ``2 (n_ranks - r - 1) + (n_chunks - 1) n_ranks + 1``, at most all of them; ``n_ranks - r`` with one stage per rank.
    """
    return np.minimum(_warm_up(n_ranks, n_chunks) + 1, n_chunks * n_microbatches)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of interleaved 1F1B.

    Micro-batches go in groups of `n_ranks`: a group passes through the first stage of a rank, then the second, and so on. After
    its warm-up a rank runs one forward and one backward task in turn.

    With one stage per rank, the order is that of 1F1B; `times` are not used.

    Notes
    -----
    The paper asks for a multiple of `n_ranks`. Otherwise this is the order of the next multiple without the tasks of the
    micro-batches that are not there: micro-batches do not wait for each other, so that nothing deadlocks and no rank holds
    more.
    """
    chunk, microbatch = _sequence(n_ranks, n_chunks, n_microbatches)
    n_forward = len(chunk)
    warm_up = np.minimum(_warm_up(n_ranks, n_chunks), n_forward)
    count = np.arange(n_forward)
    shape = (n_ranks, 2 * n_forward)
    stage, kind, phase = np.empty(shape, np.int64), np.empty(shape, np.int64), np.full(shape, BACKWARD, np.int64)
    for rank in range(n_ranks):
        # In turn, the forward task comes first: task k of the steady phase is preceded by k - warm_up backward tasks.
        forward = count + np.maximum(count - warm_up[rank], 0)
        backward = np.minimum(warm_up[rank] + 2 * count + 1, n_forward + count)
        stage[rank, forward] = chunk * n_ranks + rank
        stage[rank, backward] = (n_chunks - 1 - chunk) * n_ranks + rank
        kind[rank, forward] = microbatch
        kind[rank, backward] = microbatch
        phase[rank, forward] = FORWARD
    there = kind < n_microbatches
    return Actions(
        first=np.concatenate(([0], np.cumsum(there.sum(axis=1)))),
        stage=stage[there],
        microbatch=kind[there],
        phase=phase[there],
        rank_of_stage=placement(n_ranks, n_chunks),
    )


def _warm_up(n_ranks: int, n_chunks: int) -> NDArray[np.int64]:
    """Return the forward tasks of each rank before its steady phase, not limited to those there are."""
    behind = n_ranks - 1 - np.arange(n_ranks, dtype=np.int64)
    return behind if n_chunks == 1 else 2 * behind + (n_chunks - 1) * n_ranks


def _sequence(n_ranks: int, n_chunks: int, n_microbatches: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunk and micro-batch of every forward task of a rank, in order, for the next multiple of `n_ranks`."""
    n_groups = -(-n_microbatches // n_ranks)
    chunk = np.tile(np.repeat(np.arange(n_chunks), n_ranks), n_groups)
    within = np.tile(np.arange(n_ranks), n_groups * n_chunks)
    return chunk, within + np.repeat(np.arange(n_groups) * n_ranks, n_chunks * n_ranks)
