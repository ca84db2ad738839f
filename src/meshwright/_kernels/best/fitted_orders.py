"""Earliest starts of forward tasks and input gradients, and the earliest end, wherever a schedule puts its weight gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel

__all__ = ["Skeleton", "earliest", "last_way", "least_end"]


class Skeleton(NamedTuple):
    """The tasks of every rank in order without weight gradients, and how long they take.

    Attributes
    ----------
    first : ndarray, shape (n_ranks + 1,), int64
        Tasks of rank r are ``first[r] : first[r + 1]``.
    stage, microbatch, phase : ndarray, shape (n_tasks,), int64
        Phase 0 is forward, 1 input gradient, 3 both gradients.
    channel : ndarray, shape (2, n_stages), int64
        What carries what a stage sends forward (row 0) and backward (row 1); -1 where nothing crosses a rank.
    seconds : ndarray, shape (4, n_stages), float64
        Of a task, by phase and stage; row 2 is of weight gradients.
    send_seconds : ndarray, shape (2, n_stages), float64
        What a stage sends forward and backward, alone on its links.
    """

    first: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    phase: np.ndarray
    channel: np.ndarray
    seconds: np.ndarray
    send_seconds: np.ndarray


@kernel
def earliest(orders, limit, n_microbatches):
    """Return when each task of an order starts at the earliest, where weight gradients are left out of the order.

    Parameters
    ----------
    orders : Skeleton
        Tasks in order, and how long they take.
    limit : ndarray, shape (n_ranks,), int64
        Activations that each rank may hold.
    n_microbatches : int
        Of the step.

    Returns
    -------
    start : ndarray, shape (n_tasks,), float64
        Seconds; -1 where the order deadlocks.
    since : ndarray, shape (n_tasks,), int64
        The task whose start decides it, -1 for none: one of the rank itself from which on all run, or one of another rank whose
        end it waits for.

    Notes
    -----
    Lemma: weight gradients run in the order of their input gradients (once all forward tasks are over, in any order), so a
    forward task that would exceed the limit waits for the first ones of them. Those whose input gradient does not lie before
    some task i run between the start of i and that of the forward task, besides all tasks from i on.
    """
    n_ranks, n_stages, n_tasks = len(orders.first) - 1, orders.channel.shape[1], len(orders.stage)
    start, origin = np.full(n_tasks, -1.0), np.full(n_tasks, -1)
    activation = np.full((n_stages, n_microbatches), -1.0)
    activation[0, :] = 0.0
    gradient = np.full((n_stages, n_microbatches), -1.0)
    gradient[n_stages - 1, :] = 0.0
    channel_free = np.zeros(2 * n_stages)
    # of what is sent, and of what left each channel last: the task whose end it waited for
    sender, channel_sender = np.full((2, n_stages, n_microbatches), -1), np.full(2 * n_stages, -1)
    # of every rank: its next task, the end of the last one, forward tasks begun less whole backward passes, input gradients
    # begun, weight gradients that must be over, the next task to be taken for i, and what follows the best i so far
    position, clock = orders.first[:-1].copy(), np.zeros(n_ranks)
    n_held, n_inputs, n_over = np.zeros(n_ranks, np.int64), np.zeros(n_ranks, np.int64), np.zeros(n_ranks, np.int64)
    pointer, since, since_task = orders.first[:-1].copy(), np.full(n_ranks, -np.inf), np.full(n_ranks, -1)
    before = np.zeros(n_tasks)  # seconds of the rank's tasks before each
    inputs_before = np.zeros(n_tasks, np.int64)
    weights = np.zeros((n_ranks, n_tasks + 1))  # of the first weight gradients of each rank, in order
    n_left = n_tasks
    while n_left > 0:
        was = n_left
        for rank in range(n_ranks):
            while position[rank] < orders.first[rank + 1]:
                task = position[rank]
                stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
                ready = activation[stage, microbatch] if phase == 0 else gradient[stage, microbatch]
                if ready < 0.0:
                    break
                begin, from_task = clock[rank], task - 1 if task > orders.first[rank] else -1
                if ready > begin:
                    begin, from_task = ready, sender[0 if phase == 0 else 1, stage, microbatch]
                if task > orders.first[rank]:
                    last = task - 1
                    before[task] = before[last] + orders.seconds[orders.phase[last], orders.stage[last]]
                inputs_before[task] = n_inputs[rank]
                if phase == 0:
                    n_held[rank] += 1
                    n_over[rank] = max(n_over[rank], n_held[rank] - limit[rank])
                    while pointer[rank] < task and inputs_before[pointer[rank]] <= n_over[rank]:
                        i = pointer[rank]
                        latest = start[i] - before[i] - weights[rank, inputs_before[i]]
                        if latest > since[rank]:
                            since[rank], since_task[rank] = latest, i
                        pointer[rank] += 1
                    held_up = since[rank] + before[task] + weights[rank, n_over[rank]] if n_over[rank] > 0 else 0.0
                    if held_up > begin:
                        begin, from_task = held_up, since_task[rank]
                end = begin + orders.seconds[phase, stage]
                start[task], clock[rank], origin[task] = begin, end, from_task
                if phase == 1:
                    weights[rank, n_inputs[rank] + 1] = weights[rank, n_inputs[rank]] + orders.seconds[2, stage]
                    n_inputs[rank] += 1
                elif phase == 3:
                    n_held[rank] -= 1
                way, target = (0, stage + 1) if phase == 0 else (1, stage - 1)
                if 0 <= target < n_stages:
                    channel, sent_by = orders.channel[way, stage], task
                    if channel >= 0:
                        if channel_free[channel] > end:
                            end, sent_by = channel_free[channel], channel_sender[channel]
                        end += orders.send_seconds[way, stage]
                        channel_free[channel], channel_sender[channel] = end, sent_by
                    sender[way, target, microbatch] = sent_by
                    if way == 0:
                        activation[target, microbatch] = end
                    else:
                        gradient[target, microbatch] = end
                position[rank] += 1
                n_left -= 1
        if n_left == was:
            return start, origin
    return start, origin


@kernel
def least_end(orders, start, rank_of_stage, more, end):
    """Return when a step ends at least: on every rank, after each task's start, what still runs.

    Parameters
    ----------
    orders : Skeleton
        As in `earliest`.
    start : ndarray, shape (n_tasks,), float64
        As `earliest` returns it.
    rank_of_stage : ndarray, shape (n_stages,), int64
        Where the stages are.
    more : ndarray, shape (n_ranks,), float64
        What is recomputed of a micro-batch beyond what the tasks have, over all stages of a rank.
    end : ndarray, shape (n_ranks,), float64
        What follows the last task of each rank.

    Returns
    -------
    float
        Seconds.

    Notes
    -----
    Lemma: from the start of a task on its rank runs that task and all later ones, and the weight gradients of their input
    gradients. Of `more`, as much falls to the backward passes that are left as are left of the stage of which fewest are.
    """
    n_stages, most = orders.channel.shape[1], 0.0
    for rank in range(len(orders.first) - 1):
        left, latest, n_left = 0.0, 0.0, np.zeros(n_stages)
        for task in range(orders.first[rank + 1] - 1, orders.first[rank] - 1, -1):
            stage, phase = orders.stage[task], orders.phase[task]
            left += orders.seconds[phase, stage]
            if phase == 1:
                left += orders.seconds[2, stage]
            if phase != 0:
                n_left[stage] += 1.0
            least = 0.0
            if more[rank] > 0.0:
                least = np.inf
                for other in range(n_stages):
                    if rank_of_stage[other] == rank:
                        least = min(least, n_left[other])
            latest = max(latest, start[task] + left + more[rank] * least)
        most = max(most, latest + end[rank])
    return most


@kernel
def last_way(orders, start, origin, end):
    """Return how often a backward pass of each stage lies on the way that decides when a step ends, and when that is.

    Parameters
    ----------
    orders : Skeleton
        As in `earliest`.
    start, origin : ndarray, shape (n_tasks,)
        As `earliest` returns them.
    end : ndarray, shape (n_ranks,), float64
        What follows the last task of each rank.

    Returns
    -------
    n_times : ndarray, shape (n_stages,), float64
        Whole backward passes and input gradients of each stage.
    seconds : float
        As `least_end` returns it where nothing more is recomputed.
    """
    n_times, most, at = np.zeros(orders.channel.shape[1]), -1.0, 0
    for rank in range(len(orders.first) - 1):
        left = 0.0
        for task in range(orders.first[rank + 1] - 1, orders.first[rank] - 1, -1):
            stage, phase = orders.stage[task], orders.phase[task]
            left += orders.seconds[phase, stage]
            if phase == 1:
                left += orders.seconds[2, stage]
            if start[task] + left + end[rank] > most:
                most, at, last = start[task] + left + end[rank], task, orders.first[rank + 1]
    # from `at` on all tasks of its rank; from what that waits for on all of that rank up to it, or that alone
    while at >= 0:
        for task in range(at, last):
            if orders.phase[task] != 0:
                n_times[orders.stage[task]] += 1.0
        waits = origin[at]
        first = 0
        while orders.first[first + 1] <= at:
            first += 1
        last = at if waits >= orders.first[first] and waits < at else waits + 1
        at = waits
    return n_times, most
