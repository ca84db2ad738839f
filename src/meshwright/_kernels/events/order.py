"""Plays an order of tasks on pipeline ranks: when each task and each transfer starts and ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part

__all__ = ["Orders", "Seconds", "TaskTimes", "play"]

_NO_PAIRS, _NO_SECONDS = np.empty(0, dtype=np.int64), np.empty(0)
_NO_PAIRS.setflags(write=False)
_NO_SECONDS.setflags(write=False)


class Orders(NamedTuple):
    """What runs where and in which order.

    Attributes
    ----------
    first : ndarray, shape (n_ranks + 1,), int64
        Tasks of rank r are ``first[r] : first[r + 1]``.
    stage, microbatch, phase : ndarray, shape (n_tasks,), int64
        Phase 0 is forward, 1 input gradient, 2 weight gradient, 3 both gradients.
    channel : ndarray, shape (2, n_stages), int64
        Which channel carries what a stage sends forward (row 0) and backward (row 1); -1 where nothing crosses a rank.
    paired : ndarray, shape (n_tasks,), int64
        Of the first and the second task of a pair, ``2 k`` and ``2 k + 1`` of its sort k; -1 of all others; empty where there
        are no pairs. Both start once the input of both is there, and what either sends leaves when both are done.
    """

    first: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    phase: np.ndarray
    channel: np.ndarray
    paired: np.ndarray = _NO_PAIRS


class Seconds(NamedTuple):
    """How long things take.

    Attributes
    ----------
    task : ndarray, shape (4, n_stages), float64
        By phase and stage.
    send : ndarray, shape (2, n_stages), float64
        What a stage sends forward and backward, alone on its links.
    paired : ndarray, shape (2 * n_sorts,), float64
        Of the tasks of every sort of pair.
    """

    task: np.ndarray
    send: np.ndarray
    paired: np.ndarray = _NO_SECONDS


class TaskTimes(NamedTuple):
    """When things happen; a send that does not exist starts and ends when its task ends.

    Attributes
    ----------
    start, end, send_start, send_end : ndarray, shape (n_tasks,), float64
        Of each task, and of the transfer of its result to the next stage (forward) or the previous one (input gradient).
    """

    start: np.ndarray
    end: np.ndarray
    send_start: np.ndarray
    send_end: np.ndarray


@part
def _ready(orders, arrivals, task):
    """Return when what a task needs is there; below zero where that is not known yet."""
    stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
    if phase == 0:
        return arrivals[0, stage, microbatch]
    if phase == 2:
        return arrivals[3, stage, microbatch]
    ready = arrivals[2, stage, microbatch]
    if stage < arrivals.shape[1] - 1 and ready >= 0.0:
        arrived = arrivals[1, stage, microbatch]
        ready = -1.0 if arrived < 0.0 else max(ready, arrived)
    return ready


def play(orders: Orders, seconds: Seconds, n_microbatches: int) -> tuple[int, TaskTimes]:
    """Return when every task runs where no two channels share a link: a longest path that respects the order.

    A rank runs one task at a time in the given order; a channel carries one transfer at a time, in the order in which its rank
    produces them, beside compute.

    Returns
    -------
    status : int
        0, or 1 when the order deadlocks.
    moments : TaskTimes
        When each task and transfer starts and ends.
    """
    n_ranks, n_stages, n_tasks = len(orders.first) - 1, orders.channel.shape[1], len(orders.stage)
    moments = TaskTimes(*np.zeros((4, n_tasks)))
    # When a stage's input is there (0), the gradient of its output (1), its forward pass (2), its input gradient (3);
    # below zero means: not yet known.
    arrivals = np.full((4, n_stages, n_microbatches), -1.0)
    arrivals[0, 0, :] = 0.0
    status: int = _fill(orders, seconds, moments, arrivals, np.zeros(2 * n_stages), np.zeros(n_ranks), orders.first[:-1].copy())
    return status, moments


@kernel
def _fill(orders, seconds, moments, arrivals, free, clock, position):
    """Fill `moments`, and return the status, `play`.

    `free`, `clock`: when every channel, and every rank, is free again; `position`: the next task of every rank.
    """
    n_stages, n_left = arrivals.shape[1], len(moments.start)
    first, paired = orders.first, orders.paired
    while n_left > 0:
        before = n_left
        for rank in range(len(clock)):
            while position[rank] < first[rank + 1]:
                task = position[rank]
                pair = paired[task] if len(paired) else -1
                n_together = 2 if pair >= 0 else 1
                start = clock[rank]
                for i in range(n_together):
                    ready = _ready(orders, arrivals, task + i)
                    start = -1.0 if ready < 0.0 or start < 0.0 else max(start, ready)
                if start < 0.0:
                    break
                for i in range(n_together):
                    moments.start[task + i] = start
                    start += seconds.paired[pair + i] if pair >= 0 else seconds.task[orders.phase[task], orders.stage[task]]
                    moments.end[task + i] = start
                for i in range(task, task + n_together):  # what either sends leaves when both are done
                    stage, microbatch, phase = orders.stage[i], orders.microbatch[i], orders.phase[i]
                    send_start, send_end = moments.end[i], moments.end[i]
                    if phase != 2:
                        arrives = start
                        way = 0 if phase == 0 else 1
                        channel = orders.channel[way, stage]
                        if channel >= 0:
                            send_start = max(start, free[channel])
                            send_end = send_start + seconds.send[way, stage]
                            free[channel] = arrives = send_end
                        arrivals[2 + way, stage, microbatch] = start
                        if way == 0 and stage < n_stages - 1:
                            arrivals[0, stage + 1, microbatch] = arrives
                        elif way == 1 and stage > 0:
                            arrivals[1, stage - 1, microbatch] = arrives
                    moments.send_start[i], moments.send_end[i] = send_start, send_end
                clock[rank] = start
                position[rank] += n_together
                n_left -= n_together
        if n_left == before:
            return 1
    return 0
