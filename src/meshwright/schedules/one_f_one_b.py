"""1F1B: as few forward tasks as fill the pipeline, then one forward and one backward in turn.

References
----------
.. [1] Narayanan et al., PipeDream, 2019, section 3.2; with a flush each step: PipeDream-2BW, 2021, section 3, and
   Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2.
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


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations each rank holds, ``min(n_ranks - r, n_microbatches)``; shape (n_ranks,), int64."""
    return np.minimum(n_ranks - np.arange(n_ranks, dtype=np.int64), n_microbatches)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of 1F1B.

    `n_chunks` must be 1; `times` are not used.
    """
    one_chunk("1f1b", n_chunks)
    return alternate(n_ranks - np.arange(n_ranks, dtype=np.int64), n_microbatches)
