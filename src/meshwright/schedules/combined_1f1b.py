"""Interleaved 1F1B whose forward and backward tasks run as pairs, so that each hides the other's all-to-alls of experts.

References
----------
.. [1] NVIDIA, Megatron-Core 0.14 and later, megatron/core/pipeline_parallel/combined_1f1b.py and schedules.py
   (get_pp_rank_microbatches: one more micro-batch in the warm-up): ``--overlap-moe-expert-parallel-comm``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.base.errors import InputError
from meshwright.schedules import Actions, Durations
from meshwright.schedules import looped as placement
from meshwright.schedules._interleaved import interleaved, warm_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds; shape (n_ranks,), int64: one more than under interleaved 1F1B."""
    return np.minimum(warm_up(n_ranks, n_chunks) + 2, n_chunks * n_microbatches)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of interleaved 1F1B with one more forward task in every warm-up, so that a pair is of two micro-batches.

    On one rank with one stage it is the forward task of each micro-batch beside the backward task of the one before.

    Raises
    ------
    InputError
        When a pipeline has one stage per rank: both tasks of a pair end together, so that a micro-batch would take twice as
        long from rank to rank as the warm-up of 1F1B allows.
    """
    if n_ranks > 1 and n_chunks == 1:
        raise InputError("schedule combined_1f1b: one stage per rank; a pipeline needs several (virtual stages) to run it")
    return interleaved(n_ranks, n_chunks, n_microbatches, warm_up(n_ranks, n_chunks) + 1, in_pairs=True)
