"""Plays an order of tasks on pipeline ranks: when each task and each transfer starts and ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel

__all__ = ["Orders", "Seconds", "TaskTimes", "play"]


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
    """

    first: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    phase: np.ndarray
    channel: np.ndarray


class Seconds(NamedTuple):
    """How long things take.

    Attributes
    ----------
    task : ndarray, shape (4, n_stages), float64
        By phase and stage.
    send : ndarray, shape (2, n_stages), float64
        What a stage sends forward and backward, alone on its links.
    """

    task: np.ndarray
    send: np.ndarray


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


@kernel
def play(orders, seconds, n_microbatches):
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
    n_ranks = len(orders.first) - 1
    n_stages = orders.channel.shape[1]
    n_tasks = len(orders.stage)
    moments = TaskTimes(np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks))
    # Times below zero mean: not yet known.
    activation = np.full((n_stages, n_microbatches), -1.0)
    activation[0, :] = 0.0
    gradient = np.full((n_stages, n_microbatches), -1.0)
    forward_end = np.full((n_stages, n_microbatches), -1.0)
    input_end = np.full((n_stages, n_microbatches), -1.0)
    free = np.zeros(2 * n_stages)
    clock = np.zeros(n_ranks)
    position = orders.first[:-1].copy()
    n_left = n_tasks
    while n_left > 0:
        before = n_left
        for rank in range(n_ranks):
            while position[rank] < orders.first[rank + 1]:
                task = position[rank]
                stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
                if phase == 0:
                    ready = activation[stage, microbatch]
                elif phase == 2:
                    ready = input_end[stage, microbatch]
                else:
                    ready = forward_end[stage, microbatch]
                    if stage < n_stages - 1 and ready >= 0.0:
                        arrived = gradient[stage, microbatch]
                        ready = -1.0 if arrived < 0.0 else max(ready, arrived)
                if ready < 0.0:
                    break
                start = max(ready, clock[rank])
                end = start + seconds.task[phase, stage]
                send_start, send_end = end, end
                if phase != 2:
                    way = 0 if phase == 0 else 1
                    channel = orders.channel[way, stage]
                    if channel >= 0:
                        send_start = max(end, free[channel])
                        send_end = send_start + seconds.send[way, stage]
                        free[channel] = send_end
                    if way == 0:
                        forward_end[stage, microbatch] = end
                        if stage < n_stages - 1:
                            activation[stage + 1, microbatch] = send_end
                    else:
                        input_end[stage, microbatch] = end
                        if stage > 0:
                            gradient[stage - 1, microbatch] = send_end
                moments.start[task], moments.end[task] = start, end
                moments.send_start[task], moments.send_end[task] = send_start, send_end
                clock[rank] = end
                position[rank] += 1
                n_left -= 1
        if n_left == before:
            return 1, moments
    return 0, moments
