"""DualPipe-V whose pairs of a forward and a backward task run beside each other, as DeepSeek-V3 was trained.

References
----------
.. [1] DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (arXiv 2412.19437), section 3.2.1 and figure 4: dispatch and combine of
   either task beside attention and experts of the other.
.. [2] github.com/deepseek-ai/DualPipe, dualpipe/dualpipev.py.
.. [3] torchtitan, torchtitan/distributed/dual_pipe_v.py: ``pipeline_parallel_expert_parallel_overlap``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.schedules import BACKWARD, FORWARD, Actions, Durations
from meshwright.schedules._building_block import two_chunks
from meshwright.schedules.dualpipe_v import in_flight, placement
from meshwright.schedules.dualpipe_v import order as one_after_the_other

__all__ = ["in_flight", "order", "placement"]


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of DualPipe-V with its pairs; `times` are not used.

    With fewer micro-batches than stages, for which there is no published order, no tasks are paired.
    """
    two_chunks("combined_dualpipe_v", n_ranks, n_chunks)
    order = one_after_the_other(n_ranks, n_chunks, n_microbatches, times)
    if n_microbatches < 2 * n_ranks:
        return order
    pairs = (order.phase[:-1] == FORWARD) & (order.phase[1:] == BACKWARD)
    pairs &= (order.stage[:-1] != order.stage[1:]) | (order.microbatch[:-1] != order.microbatch[1:])
    pairs[order.first[1:-1] - 1] = False  # what comes next is another rank's
    return replace(order, pairs=np.flatnonzero(pairs))
