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


_TASK = np.dtype([("start", np.float64), ("origin", np.int64), ("before", np.float64), ("inputs_before", np.int64)])
"""When a task starts and the task whose start decides it; seconds of the rank's tasks before it, and input gradients begun."""

_RANK = np.dtype(
    [("position", np.int64), ("clock", np.float64), ("n_held", np.int64), ("n_inputs", np.int64), ("n_over", np.int64),
     ("pointer", np.int64), ("since", np.float64), ("since_task", np.int64)]
)  # fmt: skip
"""A rank: its next task, the end of the last one, forward tasks begun less whole backward passes, input gradients begun, weight
gradients that must be over, the next task to be taken for i, and what follows the best i so far and which that is."""

_SENT = np.dtype([("end", np.float64), ("sender", np.int64)])
"""When something is there, or a channel is free again (below 0 where that is not known yet), and the task whose end it waited
for."""


def earliest(orders: Skeleton, limit: np.ndarray, n_microbatches: int) -> tuple[np.ndarray, np.ndarray]:
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
    tasks, ranks = np.zeros(n_tasks, _TASK), np.zeros(n_ranks, _RANK)
    tasks["start"], tasks["origin"] = -1.0, -1
    ranks["position"], ranks["pointer"], ranks["since"], ranks["since_task"] = orders.first[:-1], orders.first[:-1], -np.inf, -1
    arrived, channels = np.zeros((2, n_stages, n_microbatches), _SENT), np.zeros(2 * n_stages, _SENT)
    arrived["end"], arrived["sender"], channels["sender"] = -1.0, -1, -1
    arrived["end"][0, 0], arrived["end"][1, -1] = 0.0, 0.0
    _start(orders, limit, tasks, ranks, arrived, channels, np.zeros((n_ranks, n_tasks + 1)))
    return np.ascontiguousarray(tasks["start"]), np.ascontiguousarray(tasks["origin"])


@kernel
def _start(orders, limit, tasks, ranks, arrived, channels, weights):
    """Fill the starts of tasks and what decides them, `earliest`.

    `arrived`, shape (2, n_stages, n_microbatches): a stage's input and its output's gradient; `weights`: seconds of the first
    weight gradients of each rank, in order.
    """
    first, stages, phases, seconds = orders.first, orders.stage, orders.phase, orders.seconds
    n_stages, n_left = arrived.shape[1], len(tasks)
    while n_left > 0:
        was = n_left
        for r in range(len(ranks)):
            rank = ranks[r]
            while rank["position"] < first[r + 1]:
                task = rank["position"]
                stage, microbatch, phase = stages[task], orders.microbatch[task], phases[task]
                way, target = (0, stage + 1) if phase == 0 else (1, stage - 1)
                needed, own = arrived[way, stage, microbatch], tasks[task]
                if needed["end"] < 0.0:
                    break
                begin, from_task = rank["clock"], -1
                if task > first[r]:
                    from_task = task - 1
                    own["before"] = tasks[from_task]["before"] + seconds[phases[from_task], stages[from_task]]
                if needed["end"] > begin:
                    begin, from_task = needed["end"], needed["sender"]
                own["inputs_before"] = rank["n_inputs"]
                if phase == 0:
                    rank["n_held"] += 1
                    rank["n_over"] = max(rank["n_over"], rank["n_held"] - limit[r])
                    while rank["pointer"] < task and tasks[rank["pointer"]]["inputs_before"] <= rank["n_over"]:
                        i = tasks[rank["pointer"]]
                        latest = i["start"] - i["before"] - weights[r, i["inputs_before"]]
                        if latest > rank["since"]:
                            rank["since"], rank["since_task"] = latest, rank["pointer"]
                        rank["pointer"] += 1
                    held_up = rank["since"] + own["before"] + weights[r, rank["n_over"]] if rank["n_over"] > 0 else 0.0
                    if held_up > begin:
                        begin, from_task = held_up, rank["since_task"]
                end = begin + seconds[phase, stage]
                own["start"], rank["clock"], own["origin"] = begin, end, from_task
                if phase == 1:
                    weights[r, rank["n_inputs"] + 1] = weights[r, rank["n_inputs"]] + seconds[2, stage]
                    rank["n_inputs"] += 1
                elif phase == 3:
                    rank["n_held"] -= 1
                if 0 <= target < n_stages:
                    channel, sent_by = orders.channel[way, stage], task
                    if channel >= 0:
                        free = channels[channel]
                        if free["end"] > end:
                            end, sent_by = free["end"], free["sender"]
                        end += orders.send_seconds[way, stage]
                        free["end"], free["sender"] = end, sent_by
                    sent = arrived[way, target, microbatch]
                    sent["end"], sent["sender"] = end, sent_by
                rank["position"] += 1
                n_left -= 1
        if n_left == was:
            return


def least_end(orders: Skeleton, start: np.ndarray, rank_of_stage: np.ndarray, more: np.ndarray, end: np.ndarray) -> float:
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
    n_left = np.zeros((len(orders.first) - 1, orders.channel.shape[1]))
    found: float = _least_end(orders, start, rank_of_stage, more, end, n_left)
    return found


@kernel
def _least_end(orders, start, rank_of_stage, more, end, n_left):
    """Return `least_end`; `n_left`, zeros: backward passes of every stage, by rank."""
    first, stages, phases, seconds, most = orders.first, orders.stage, orders.phase, orders.seconds, 0.0
    for rank in range(len(first) - 1):
        left = latest = 0.0
        for task in range(first[rank + 1] - 1, first[rank] - 1, -1):
            stage, phase = stages[task], phases[task]
            left += seconds[phase, stage]
            if phase == 1:
                left += seconds[2, stage]
            if phase != 0:
                n_left[rank, stage] += 1.0
            least = 0.0
            if more[rank] > 0.0:
                least = np.inf
                for other in range(n_left.shape[1]):
                    if rank_of_stage[other] == rank:
                        least = min(least, n_left[rank, other])
            latest = max(latest, start[task] + left + more[rank] * least)
        most = max(most, latest + end[rank])
    return most


def last_way(orders: Skeleton, start: np.ndarray, origin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, float]:
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
    n_times = np.zeros(orders.channel.shape[1])
    seconds: float = _last_way(orders, start, origin, end, n_times)
    return n_times, seconds


@kernel
def _last_way(orders, start, origin, end, n_times):
    """Add to `n_times`, and return the seconds, `last_way`."""
    first, stages, phases, seconds = orders.first, orders.stage, orders.phase, orders.seconds
    most, at, last = -1.0, 0, 0
    for rank in range(len(first) - 1):
        left = 0.0
        for task in range(first[rank + 1] - 1, first[rank] - 1, -1):
            stage, phase = stages[task], phases[task]
            left += seconds[phase, stage]
            if phase == 1:
                left += seconds[2, stage]
            if start[task] + left + end[rank] > most:
                most, at, last = start[task] + left + end[rank], task, first[rank + 1]
    # from `at` on all tasks of its rank; from what that waits for on all of that rank up to it, or that alone
    while at >= 0:
        for task in range(at, last):
            if phases[task] != 0:
                n_times[stages[task]] += 1.0
        waits = origin[at]
        rank = 0
        while first[rank + 1] <= at:
            rank += 1
        last = at if waits >= first[rank] and waits < at else waits + 1
        at = waits
    return most
