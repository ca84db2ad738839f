"""DualPipe-V: two stages per rank, laid out as the letter V; forward tasks run beside backward tasks of other micro-batches.

References
----------
.. [1] DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (arXiv 2412.19437), section 3.2.1 and table 2: DualPipe.
.. [2] Qi et al., DualPipe could be better without the Dual, 2025 (sail.sea.com/blog/articles/63): cut in half, it needs every
   weight once.
.. [3] github.com/deepseek-ai/DualPipe, README of 2025: bubbles and memory of DualPipe and DualPipeV.
.. [4] PyTorch 2.9 and later, torch/distributed/pipelining/schedules.py: ScheduleDualPipeV, whose eight steps are these.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions, Durations, slots
from meshwright.schedules import v_shaped as placement
from meshwright.schedules._building_block import two_chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["in_flight", "order", "placement"]


def in_flight(n_ranks: int, n_chunks: int, n_microbatches: int) -> NDArray[np.int64]:
    """Return the most activations, of half the size, that each rank holds; shape (n_ranks,), int64.

    ``2 n_ranks + 1``, one more than stages; with fewer micro-batches than stages those of its warm-up, and one more where it
    has forward tasks left after it.
    """
    ahead = 2 * n_ranks - 1 - np.arange(n_ranks, dtype=np.int64)
    returned = np.arange(1, n_ranks + 1, dtype=np.int64)
    return np.minimum(ahead, n_microbatches) + np.minimum(returned, n_microbatches) + (n_microbatches > ahead)


def order(n_ranks: int, n_chunks: int, n_microbatches: int, times: Durations | None = None) -> Actions:
    """Return the order of DualPipe-V.

    Rank r has stage r on the way there and stage ``2 n_ranks - 1 - r`` on the way back. After its warm-up it runs in turn a
    forward task there with a backward task back, and a forward task back with a backward task there: the pairs that a
    framework may overlap. Backward passes are whole in the pairs; before the first pair and in the last part the input
    gradients go first and the weight gradients fill the ranks.

    `n_chunks` must be 2; `times` are not used.

    Notes
    -----
    A pair is two tasks here, one after the other, as PyTorch itself runs it: nothing of it is hidden. What a framework of one's
    own hides of the communication between devices in a pair shortens a real step, and none of that is priced.

    The published schedule asks for as many micro-batches as stages. With fewer, this is the order of so many without the tasks
    of the micro-batches that are not there: micro-batches do not wait for each other, so that nothing deadlocks and no rank
    holds more.
    """
    two_chunks("dualpipe_v", n_ranks, n_chunks)
    whole = max(n_microbatches, 2 * n_ranks)
    rows = [[task for task in _row(rank, n_ranks, whole) if task[1] < n_microbatches] for rank in range(n_ranks)]
    return slots(rows, placement(n_ranks, 2))


class _Row:
    """The tasks of one rank as they are put down: stages take micro-batches in order, weight gradients wait in a queue."""

    def __init__(self) -> None:
        self.tasks: list[tuple[int, int, int]] = []
        self._n_done: dict[tuple[int, bool], int] = {}
        self._waiting: deque[tuple[int, int]] = deque()

    def run(self, stage: int, phase: int) -> None:
        """Put down the next micro-batch of a stage."""
        key = (stage, phase == FORWARD)
        i = self._n_done.get(key, 0)
        self._n_done[key] = i + 1
        self.tasks.append((stage, i, phase))
        if phase == BACKWARD_INPUT:
            self._waiting.append((stage, i))

    def weight(self) -> None:
        """Put down the weight gradient that has waited longest."""
        self.tasks.append((*self._waiting.popleft(), BACKWARD_WEIGHT))


def _row(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[int, int, int]]:
    """Return the tasks of one rank: the eight steps of the published schedule."""
    there, back = rank, 2 * n_ranks - 1 - rank
    behind, row = n_ranks - 1 - rank, _Row()
    for _ in range(2 * behind):
        row.run(there, FORWARD)
    for _ in range(rank + 1):
        row.run(there, FORWARD)
        row.run(back, FORWARD)
    for _ in range(behind):
        row.run(back, BACKWARD_INPUT)
        row.weight()
        row.run(back, FORWARD)
    for _ in range(n_microbatches - 2 * n_ranks + rank + 1):
        row.run(there, FORWARD)
        row.run(back, BACKWARD)
        row.run(back, FORWARD)
        row.run(there, BACKWARD)
    for _ in range(behind):
        row.run(back, BACKWARD)
        row.run(back, FORWARD)
        row.run(there, BACKWARD)
    # half of the last backward tasks are whole: from the middle on only what other ranks wait for goes first
    for task in range(2 * (rank + 1)):
        row.run(back if task % 2 == 0 else there, BACKWARD if task < rank + 1 else BACKWARD_INPUT)
    for _ in range(behind):
        row.weight()
        row.run(there, BACKWARD_INPUT)
    for _ in range(rank + 1):
        row.weight()
    return row.tasks
