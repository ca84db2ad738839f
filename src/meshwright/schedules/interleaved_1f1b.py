"""Interleaved 1F1B: several stages per rank, so that the pipeline fills with shorter tasks.

References
----------
.. [1] Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import Actions, Durations
from meshwright.schedules import looped as placement
from meshwright.schedules._interleaved import interleaved, warm_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds; shape (n_ranks,), int64.

    ``2 (n_ranks - r - 1) + (n_chunks - 1) n_ranks + 1``, at most all of them; ``n_ranks - r`` with one stage per rank.
    """
    return np.minimum(warm_up(n_ranks, n_chunks) + 1, n_chunks * n_microbatches)


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
    return interleaved(n_ranks, n_chunks, n_microbatches, warm_up(n_ranks, n_chunks))
