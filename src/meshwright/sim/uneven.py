"""A pipeline whose micro-batches take unlike time: the order of tasks of `engine`, played for many draws at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.schedules import BACKWARD_WEIGHT, FORWARD, Actions
from meshwright.sim.transfers import Transfers

__all__ = ["LinearSeconds", "compute_ends"]


@dataclass(frozen=True, slots=True, eq=False)
class LinearSeconds:
    """Seconds of tasks as a line: by the tokens of a micro-batch and by the pairs of tokens that attention computes.

    Parameters
    ----------
    token_seconds, pair_seconds : ndarray, shape (4, n_stages), float64
        By phase and stage, of a full micro-batch: what goes with its tokens, and what with its pairs.
    """

    token_seconds: NDArray[np.float64]
    pair_seconds: NDArray[np.float64]


def compute_ends(
    slots: Actions, seconds: LinearSeconds, sends: Transfers, tokens: NDArray[np.float64], pairs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return when the last task of a replica ends, for many replicas at once.

    Each is the longest path of the kernel that plays plans whose transfers share no links: a rank runs its tasks in the given
    order, a channel carries one transfer at a time. Only the seconds of a task differ: those of micro-batch m of replica i are
    ``token_seconds * tokens[i, m] + pair_seconds * pairs[i, m]``, its transfers are ``tokens[i, m]`` of a full one's.

    Parameters
    ----------
    slots : Actions
        The order of tasks.
    seconds : LinearSeconds
        Of a full micro-batch.
    sends : Transfers
        Of a full micro-batch.
    tokens, pairs : ndarray, shape (n_replicas, n_microbatches), float64
        Shares of a full micro-batch.

    Returns
    -------
    ndarray, shape (n_replicas,), float64
        Seconds from the start of the step.

    Raises
    ------
    InputError
        When the order deadlocks.
    """
    path = _Path(slots, seconds, sends, tokens, pairs)
    position, n_left = [int(first) for first in slots.first[:-1]], len(slots.stage)
    while n_left:
        before = n_left
        for rank in range(slots.n_ranks):
            while position[rank] < slots.first[rank + 1] and path.run(position[rank], rank):
                position[rank] += 1
                n_left -= 1
        if n_left == before:
            raise InputError("the schedule's order of work deadlocks: some task waits for one that never runs")
    return np.asarray(np.max(path.clock, axis=0))


class _Path:
    """The longest path so far: when results arrive, ranks and channels are free; every time of shape (n_replicas,)."""

    def __init__(
        self, slots: Actions, seconds: LinearSeconds, sends: Transfers, tokens: NDArray[np.float64], pairs: NDArray[np.float64]
    ) -> None:
        self._slots, self._seconds, self._sends = slots, seconds, sends
        self._tokens, self._pairs = np.ascontiguousarray(tokens.T), np.ascontiguousarray(pairs.T)
        self.clock = np.zeros((slots.n_ranks, len(tokens)))
        self._free: dict[int, NDArray[np.float64]] = {}
        self._forward: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._input: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._activation: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._gradient: dict[tuple[int, int], NDArray[np.float64]] = {}

    def run(self, task: int, rank: int) -> bool:
        """Run a task if what it needs is there; return whether it ran."""
        slots = self._slots
        stage, microbatch, phase = int(slots.stage[task]), int(slots.microbatch[task]), int(slots.phase[task])
        ready = self._ready(stage, microbatch, phase)
        if ready is None:
            return False
        took = self._seconds.token_seconds[phase, stage] * self._tokens[microbatch]
        took = took + self._seconds.pair_seconds[phase, stage] * self._pairs[microbatch]
        end = np.maximum(ready, self.clock[rank]) + took
        self.clock[rank] = end
        if phase == FORWARD:
            self._forward[stage, microbatch] = end
            self._activation[stage + 1, microbatch] = self._sent(0, stage, microbatch, end)
        elif phase != BACKWARD_WEIGHT:
            self._input[stage, microbatch] = end
            self._gradient[stage - 1, microbatch] = self._sent(1, stage, microbatch, end)
        return True

    def _ready(self, stage: int, microbatch: int, phase: int) -> NDArray[np.float64] | None:
        """Return when the inputs of a task are there; None while that is not known."""
        if phase == FORWARD:
            return np.zeros(self.clock.shape[1]) if stage == 0 else self._activation.get((stage, microbatch))
        if phase == BACKWARD_WEIGHT:
            return self._input.get((stage, microbatch))
        own = self._forward.get((stage, microbatch))
        if own is None or stage == self._slots.n_stages - 1:
            return own
        arrived = self._gradient.get((stage, microbatch))
        return None if arrived is None else np.maximum(own, arrived)

    def _sent(self, way: int, stage: int, microbatch: int, end: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return when what a task puts out arrives at the next stage."""
        channel = int(self._sends.channel[way, stage])
        if channel < 0:
            return end
        start = np.maximum(end, self._free.get(channel, 0.0))
        arrives: NDArray[np.float64] = start + self._sends.seconds[way, stage] * self._tokens[microbatch]
        self._free[channel] = arrives
        return arrives
