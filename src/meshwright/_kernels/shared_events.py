"""Plays an order of tasks whose traffic shares links, event by event: tasks, transfers, collectives, the end of the step."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from meshwright._kernels.events import Moments
from meshwright._kernels.shared_links import begin, enter, expect, idle, retime

__all__ = ["Ends", "play"]


class Ends(NamedTuple):
    """What follows the last tasks of every rank, one item after the other.

    Attributes
    ----------
    first : ndarray, shape (n_ranks + 1,), int64
        Items of rank r are ``first[r] : first[r + 1]``.
    seconds : ndarray, shape (n_items,), float64
        Alone.
    flow : ndarray, shape (n_items,), int64
        What it puts on links; -1 for work of the device.
    trigger : ndarray, shape (n_items,), int64
        The task with whose start it may begin; -1 for the end of the rank's last task.
    """

    first: np.ndarray
    seconds: np.ndarray
    flow: np.ndarray
    trigger: np.ndarray


class Ranks(NamedTuple):
    """What every rank is doing; arrays that the event loop changes.

    Attributes
    ----------
    position, item : ndarray, shape (n_ranks,), int64
        The next task and the next item.
    task : ndarray, shape (n_ranks,), int64
        The running task; -1 for none.
    parts : ndarray, shape (n_ranks,), int64
        What the running task still waits for: its compute with what blocks, and the flow beside it.
    arrived : ndarray, shape (4, n_stages, n_microbatches), bool
        What is there: 0 the stage's input, 1 the gradient of its output, 2 its forward pass is done, 3 its input gradient is.
    """

    position: np.ndarray
    item: np.ndarray
    task: np.ndarray
    parts: np.ndarray
    arrived: np.ndarray


@njit(cache=True)
def _next_item(ends, flows, lanes, moments, ranks, item_start, first_lane, rank, finished, now, heap):
    """Begin the next item of a rank if the one before has ended and what it waits for has happened."""
    n_ranks = len(ranks.item)
    lane = first_lane + 2 * n_ranks + rank
    item = ranks.item[rank]
    if item >= ends.first[rank + 1] or lanes.load[lane] >= 0:
        return
    trigger = ends.trigger[item]
    if (trigger < 0 and finished) or (trigger >= 0 and moments.start[trigger] >= 0.0):
        ranks.item[rank] += 1
        item_start[item] = now
        begin(flows, lanes, lane, ends.flow[item], item, ends.seconds[item], now, heap)


@njit(cache=True)
def _start(orders, seconds, flows, lanes, moments, ranks, first_lane, rank, now, heap):
    """Start the next task of a rank if the rank is free and what the task needs is there; return whether it did."""
    if ranks.task[rank] >= 0 or ranks.position[rank] >= orders.first[rank + 1]:
        return False
    task = ranks.position[rank]
    stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
    if phase == 0:
        ready = ranks.arrived[0, stage, microbatch]
    elif phase == 2:
        ready = ranks.arrived[3, stage, microbatch]
    else:
        ready = ranks.arrived[2, stage, microbatch] and ranks.arrived[1, stage, microbatch]
    if not ready:
        return False
    compute_seconds = seconds.task[phase, stage]
    ranks.task[rank] = task
    ranks.parts[rank] = 1
    ranks.position[rank] += 1
    moments.start[task] = now
    if phase != 2:
        n_stages = orders.channel.shape[1]
        blocking = (2 if phase == 0 else 3) * n_stages + stage
        if flows.first[blocking] < flows.first[blocking + 1]:
            compute_seconds = max(compute_seconds - flows.seconds[blocking], 0.0)
        beside = blocking + 2 * n_stages
        if flows.first[beside] < flows.first[beside + 1]:
            ranks.parts[rank] = 2
            lane = first_lane + len(ranks.task) + rank
            begin(flows, lanes, lane, beside, task, flows.seconds[beside], now, heap)
    heapq.heappush(heap, (now + compute_seconds, 2, task, 0))
    return True


@njit(cache=True)
def _send(orders, seconds, flows, lanes, moments, task, now, heap):
    """Put the result of a task on its channel."""
    way = 0 if orders.phase[task] == 0 else 1
    stage = orders.stage[task]
    moments.send_start[task] = now
    flow = way * orders.channel.shape[1] + stage
    begin(flows, lanes, orders.channel[way, stage], flow, task, seconds.send[way, stage], now, heap)


@njit(cache=True)
def _finish(orders, seconds, flows, lanes, moments, ranks, rank, now, heap):
    """End the running task of a rank: what it made is there, or on its way."""
    task = ranks.task[rank]
    ranks.task[rank] = -1
    stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
    n_stages = orders.channel.shape[1]
    moments.end[task], moments.send_start[task], moments.send_end[task] = now, now, now
    if phase == 2:
        return
    way = 0 if phase == 0 else 1
    ranks.arrived[2 + way, stage, microbatch] = True
    channel = orders.channel[way, stage]
    if channel < 0:
        if way == 0 and stage < n_stages - 1:
            ranks.arrived[0, stage + 1, microbatch] = True
        elif way == 1 and stage > 0:
            ranks.arrived[1, stage - 1, microbatch] = True
    elif lanes.load[channel] < 0:
        _send(orders, seconds, flows, lanes, moments, task, now, heap)
    elif lanes.head[channel] < 0:
        lanes.head[channel], lanes.tail[channel] = task, task
    else:
        lanes.following[lanes.tail[channel]] = task
        lanes.tail[channel] = task


@njit(cache=True)
def play(orders, seconds, flows, ends, rank_of_stage, n_microbatches):
    """Return when every task, transfer and end of step runs where traffic shares links max-min fairly, event by event.

    Events are taken by time, then ends of flows before their first bytes before ends of compute, then id.

    Returns
    -------
    status : int
        0, or 1 when the order deadlocks.
    moments : Moments
        When each task and transfer starts and ends.
    item_start, item_end : ndarray, shape (n_items,), float64
        The same for the end of the step.
    """
    n_ranks, n_stages, n_tasks = len(orders.first) - 1, orders.channel.shape[1], len(orders.stage)
    first_lane = orders.channel.max() + 1
    moments = Moments(np.full(n_tasks, -1.0), np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks))
    lanes = idle(first_lane + 3 * n_ranks, n_tasks, len(flows.room) - 1, len(flows.link))
    ranks = Ranks(
        orders.first[:-1].copy(), ends.first[:-1].copy(), np.full(n_ranks, -1), np.zeros(n_ranks, dtype=np.int64),
        np.zeros((4, n_stages, n_microbatches), dtype=np.bool_),
    )  # fmt: skip
    ranks.arrived[0, 0, :] = True
    ranks.arrived[1, n_stages - 1, :] = True
    item_start, item_end = np.zeros(len(ends.seconds)), np.zeros(len(ends.seconds))
    n_left = n_tasks + len(ends.seconds)
    heap = [(0.0, 3, 0, 0)]
    heapq.heappop(heap)
    for rank in range(n_ranks):
        if _start(orders, seconds, flows, lanes, moments, ranks, first_lane, rank, 0.0, heap):
            _next_item(ends, flows, lanes, moments, ranks, item_start, first_lane, rank, False, 0.0, heap)
    while len(heap) > 0:
        now, kind, number, version = heapq.heappop(heap)
        rank = -1
        if kind == 2:
            stage, phase = orders.stage[number], orders.phase[number]
            rank = rank_of_stage[stage]
            blocking = (2 if phase == 0 else 3) * n_stages + stage
            if phase != 2 and flows.first[blocking] < flows.first[blocking + 1]:
                begin(flows, lanes, first_lane + rank, blocking, number, flows.seconds[blocking], now, heap)
                continue
            ranks.parts[rank] -= 1
        elif version != lanes.version[number]:
            continue
        elif kind == 1:
            task = lanes.load[number]
            lanes.pending[number] = np.inf
            enter(flows, lanes, number, (0 if orders.phase[task] == 0 else 1) * n_stages + orders.stage[task])
            retime(flows, lanes, number, False, now, heap)
            continue
        elif lanes.finish[number] > now:
            expect(lanes, number, 0, lanes.finish[number], heap)
            continue
        else:
            load = lanes.load[number]
            lanes.load[number] = -1
            if lanes.flow[number] >= 0:
                retime(flows, lanes, number, True, now, heap)
            if number >= first_lane + 2 * n_ranks:
                rank = number - first_lane - 2 * n_ranks
                item_end[load] = now
                n_left -= 1
            elif number >= first_lane:
                rank = (number - first_lane) % n_ranks
                ranks.parts[rank] -= 1
            else:
                moments.send_end[load] = now
                waiting = lanes.head[number]
                if waiting >= 0:
                    lanes.head[number] = lanes.following[waiting]
                    _send(orders, seconds, flows, lanes, moments, waiting, now, heap)
                way = 0 if orders.phase[load] == 0 else 1
                target = orders.stage[load] + 1 - 2 * way
                ranks.arrived[way, target, orders.microbatch[load]] = True
                rank = rank_of_stage[target]
        if ranks.task[rank] >= 0 and ranks.parts[rank] == 0:
            _finish(orders, seconds, flows, lanes, moments, ranks, rank, now, heap)
            n_left -= 1
        _start(orders, seconds, flows, lanes, moments, ranks, first_lane, rank, now, heap)
        finished = ranks.task[rank] < 0 and ranks.position[rank] == orders.first[rank + 1]
        _next_item(ends, flows, lanes, moments, ranks, item_start, first_lane, rank, finished, now, heap)
    return (0 if n_left == 0 else 1), moments, item_start, item_end
