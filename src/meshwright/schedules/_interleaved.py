"""One forward and one backward task in turn over stages that go round the ranks, after a warm-up: what two schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD, FORWARD, Actions, looped

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["interleaved", "warm_up"]


def warm_up(n_ranks: int, n_chunks: int) -> NDArray[np.int64]:
    """Return the forward tasks of each rank before its steady phase, however many there are; shape (n_ranks,)."""
    behind = n_ranks - 1 - np.arange(n_ranks, dtype=np.int64)
    return behind if n_chunks == 1 else 2 * behind + (n_chunks - 1) * n_ranks


def interleaved(
    n_ranks: int, n_chunks: int, n_microbatches: int, before: NDArray[np.int64], *, in_pairs: bool = False
) -> Actions:
    """Return the order in which ranks run so many forward tasks, then a forward and a backward task in turn, then what is left.

    `before`, shape (n_ranks,), int64: forward tasks of each rank before its first backward task and the one that comes with it.
    `in_pairs`: whether the two that come in turn run beside each other.
    `n_microbatches`: no multiple of `n_ranks` has the order of the next one, without the tasks that are not there.
    """
    chunk, microbatch = _sequence(n_ranks, n_chunks, n_microbatches)
    n_forward = len(chunk)
    ahead = np.minimum(before, n_forward)
    count = np.arange(n_forward)
    shape = (n_ranks, 2 * n_forward)
    paired = np.zeros(shape, dtype=np.bool_)
    stage, kind, phase = np.empty(shape, np.int64), np.empty(shape, np.int64), np.full(shape, BACKWARD, np.int64)
    for rank in range(n_ranks):
        # In turn, the forward task comes first: task k of the steady phase is preceded by k - ahead backward tasks.
        forward = count + np.maximum(count - ahead[rank], 0)
        backward = np.minimum(ahead[rank] + 2 * count + 1, n_forward + count)
        stage[rank, forward] = chunk * n_ranks + rank
        stage[rank, backward] = (n_chunks - 1 - chunk) * n_ranks + rank
        kind[rank, forward] = microbatch
        kind[rank, backward] = microbatch
        phase[rank, forward] = FORWARD
        paired[rank, forward[ahead[rank] :]] = in_pairs
    there = kind < n_microbatches
    paired[:, :-1] &= there[:, 1:]
    return Actions(
        first=np.concatenate(([0], np.cumsum(there.sum(axis=1)))),
        stage=stage[there],
        microbatch=kind[there],
        phase=phase[there],
        rank_of_stage=looped(n_ranks, n_chunks),
        pairs=np.flatnonzero(paired[there]),
    )


def _sequence(n_ranks: int, n_chunks: int, n_microbatches: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunk and micro-batch of every forward task of a rank, in order, for the next multiple of `n_ranks`."""
    n_groups = -(-n_microbatches // n_ranks)
    chunk = np.tile(np.repeat(np.arange(n_chunks), n_ranks), n_groups)
    within = np.tile(np.arange(n_ranks), n_groups * n_chunks)
    return chunk, within + np.repeat(np.arange(n_groups) * n_ranks, n_chunks * n_ranks)
