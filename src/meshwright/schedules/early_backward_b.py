"""DAPPLE's early-backward schedule with warm-up policy B: twice as many, so that the transfers of a round trip hide behind
compute.

References
----------
.. [1] Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Training Large Models, 2021, section 3.2: policy B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import Actions, Durations, one_chunk
from meshwright.schedules import looped as placement
from meshwright.schedules._warm_up import alternate

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int, limit: int = 0) -> NDArray[np.int64]:
    """Return the most activations each rank holds; shape (n_ranks,), int64.

    ``min(2 (n_ranks - r) - 1, limit)``, at most all of them; `limit` is what fits the memory, 0 for no limit.
    """
    depths = np.minimum(2 * (n_ranks - np.arange(n_ranks, dtype=np.int64)) - 1, n_microbatches)
    return np.minimum(depths, limit) if limit else depths


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None, limit: int = 0) -> Actions:
    """Return a warm-up of the policy's depth, then one backward and one forward task in turn.

    `n_chunks` must be 1; `times` are not used. `limit`: micro-batches whose activations fit the memory; 0 for no limit.
    """
    one_chunk("early_backward_b", n_chunks)
    return alternate(in_flight(n_ranks, n_chunks, n_microbatches, limit), n_microbatches)
