"""Plays an order of tasks whose transfers share links: the event loop, and max-min fair rates while flows come and go."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from meshwright._kernels.events import Moments

__all__ = ["Channels", "Flows", "play"]


class Flows(NamedTuple):
    """What transfers do to links that several of them use.

    A flow is what one stage sends one way: flow ``way * n_stages + stage``. All replicas of it count together.

    Attributes
    ----------
    latency_seconds : ndarray, shape (n_flows,), float64
        Before the first byte arrives; links are free meanwhile.
    ceiling : ndarray, shape (n_flows,), float64
        Bytes per second of one device when nothing else uses its links.
    first : ndarray, shape (n_flows + 1,), int64
        Links of flow f are ``link[first[f] : first[f + 1]]``; none where its links are its own.
    link : ndarray, int64
        Links that several channels use.
    weight : ndarray, float64
        Bytes on that link for each byte per device: the replicas whose route it is on.
    capacity : ndarray, shape (n_links,), float64
        Bytes per second of those links.
    group : ndarray, shape (n_channels,), int64
        Channels that share links, directly or through others, have the same group.
    """

    latency_seconds: np.ndarray
    ceiling: np.ndarray
    first: np.ndarray
    link: np.ndarray
    weight: np.ndarray
    capacity: np.ndarray
    group: np.ndarray


class Channels(NamedTuple):
    """What every channel is doing; arrays that the event loop changes.

    Attributes
    ----------
    task : ndarray, shape (n_channels,), int64
        The task whose result is on its way; -1 for none.
    head, tail : ndarray, shape (n_channels,), int64
        Tasks whose results wait; -1 for none.
    following : ndarray, shape (n_tasks,), int64
        The task behind each waiting one.
    flow : ndarray, shape (n_channels,), int64
        The flow whose bytes are on links that others use; -1 for none.
    finish, ratio : ndarray, shape (n_channels,), float64
        When the transfer ends at the present rate, and that rate over the one it has alone.
    version : ndarray, shape (n_channels,), int64
        Counts changes of `finish`: older events are void.
    free, load : ndarray, shape (n_links,), float64
        Workspace of the fair shares.
    """

    task: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    following: np.ndarray
    flow: np.ndarray
    finish: np.ndarray
    ratio: np.ndarray
    version: np.ndarray
    free: np.ndarray
    load: np.ndarray


@njit(cache=True)
def _share(flows, channels, flowing, fair):
    """Write the max-min fair rate over the rate alone of every flowing channel into `fair`, in the order of `flowing`.

    All rates rise together; where a link is full, or a flow is as fast as alone, it keeps its rate and the others go on.
    """
    n_left = len(flowing)
    for n in range(len(flowing)):
        fair[n] = 0.0
        flow = channels.flow[flowing[n]]
        for k in range(flows.first[flow], flows.first[flow + 1]):
            channels.free[flows.link[k]] = flows.capacity[flows.link[k]]
            channels.load[flows.link[k]] = 0.0
    for channel in flowing:
        flow = channels.flow[channel]
        for k in range(flows.first[flow], flows.first[flow + 1]):
            channels.load[flows.link[k]] += flows.weight[k]
    while n_left > 0:
        lowest = np.inf
        for n in range(len(flowing)):
            if fair[n] > 0.0:
                continue
            flow = channels.flow[flowing[n]]
            lowest = min(lowest, flows.ceiling[flow])
            for k in range(flows.first[flow], flows.first[flow + 1]):
                lowest = min(lowest, max(channels.free[flows.link[k]], 0.0) / channels.load[flows.link[k]])
        for n in range(len(flowing)):
            if fair[n] > 0.0:
                continue
            flow = channels.flow[flowing[n]]
            rate = 0.0
            if flows.ceiling[flow] <= lowest * (1.0 + 1e-9):
                rate = 1.0
            else:
                for k in range(flows.first[flow], flows.first[flow + 1]):
                    if max(channels.free[flows.link[k]], 0.0) / channels.load[flows.link[k]] <= lowest * (1.0 + 1e-12):
                        rate = max(lowest / flows.ceiling[flow], 1e-12)
            # Below zero: stops now; its links are taken off when all that stop at this level are known.
            fair[n] = -rate
        for n in range(len(flowing)):
            if fair[n] < 0.0:
                n_left -= 1
                fair[n] = -fair[n]
                flow = channels.flow[flowing[n]]
                for k in range(flows.first[flow], flows.first[flow + 1]):
                    channels.free[flows.link[k]] -= fair[n] * flows.ceiling[flow] * flows.weight[k]
                    channels.load[flows.link[k]] -= flows.weight[k]


@njit(cache=True)
def _retime(flows, channels, group, fair, now, started, heap):
    """Give every flowing channel of a group its fair rate from now on; `started` is a channel to time in any case, or -1."""
    flowing = np.flatnonzero((channels.flow >= 0) & (flows.group == group))
    _share(flows, channels, flowing, fair)
    for n in range(len(flowing)):
        channel = flowing[n]
        if fair[n] != channels.ratio[channel]:
            left = max(channels.finish[channel] - now, 0.0) * channels.ratio[channel]
            channels.finish[channel] = now + left / fair[n]
            channels.ratio[channel] = fair[n]
        elif channel != started:
            continue
        channels.version[channel] += 1
        heapq.heappush(heap, (channels.finish[channel], 0, channel, channels.version[channel]))


@njit(cache=True)
def _begin(orders, seconds, flows, channels, moments, task, now, heap):
    """Put the result of a task on its channel."""
    way = 0 if orders.phase[task] == 0 else 1
    stage = orders.stage[task]
    channel = orders.channel[way, stage]
    flow = way * orders.channel.shape[1] + stage
    channels.task[channel] = task
    channels.finish[channel] = now + seconds.send[way, stage]
    channels.ratio[channel] = 1.0
    channels.version[channel] += 1
    moments.send_start[task] = now
    if flows.first[flow] == flows.first[flow + 1]:
        heapq.heappush(heap, (channels.finish[channel], 0, channel, channels.version[channel]))
    else:
        heapq.heappush(heap, (now + flows.latency_seconds[flow], 1, channel, channels.version[channel]))


@njit(cache=True)
def _start(orders, seconds, moments, arrived, position, busy, rank, now, heap):
    """Start the next task of a rank if the rank is free and what the task needs is there."""
    if busy[rank] or position[rank] >= orders.first[rank + 1]:
        return
    task = position[rank]
    stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
    if phase == 0:
        ready = arrived[0, stage, microbatch]
    elif phase == 2:
        ready = arrived[3, stage, microbatch]
    else:
        ready = arrived[2, stage, microbatch] and arrived[1, stage, microbatch]
    if ready:
        moments.start[task] = now
        moments.end[task] = now + seconds.task[phase, stage]
        busy[rank] = True
        position[rank] += 1
        heapq.heappush(heap, (moments.end[task], 2, task, 0))


@njit(cache=True)
def play(orders, seconds, flows, rank_of_stage, n_microbatches):
    """Return when every task runs where transfers share links max-min fairly, event by event.

    Events are taken by time, then ends of transfers before their first bytes before ends of tasks, then id.

    Returns
    -------
    status : int
        0, or 1 when the order deadlocks.
    moments : Moments
        When each task and transfer starts and ends.
    """
    n_ranks = len(orders.first) - 1
    n_stages = orders.channel.shape[1]
    n_tasks = len(orders.stage)
    n_channels = len(flows.group)
    moments = Moments(np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks), np.zeros(n_tasks))
    channels = Channels(
        np.full(n_channels, -1), np.full(n_channels, -1), np.full(n_channels, -1), np.full(n_tasks, -1), np.full(n_channels, -1),
        np.zeros(n_channels), np.ones(n_channels), np.zeros(n_channels, dtype=np.int64),
        np.zeros(len(flows.capacity)), np.zeros(len(flows.capacity)),
    )  # fmt: skip
    fair = np.zeros(n_channels)
    # What is there: 0 the stage's input, 1 the gradient of its output, 2 its forward pass is done, 3 its input gradient is.
    arrived = np.zeros((4, n_stages, n_microbatches), dtype=np.bool_)
    arrived[0, 0, :] = True
    arrived[1, n_stages - 1, :] = True
    position = orders.first[:-1].copy()
    busy = np.zeros(n_ranks, dtype=np.bool_)
    n_left = n_tasks
    heap = [(0.0, 3, 0, 0)]
    heapq.heappop(heap)
    for rank in range(n_ranks):
        _start(orders, seconds, moments, arrived, position, busy, rank, 0.0, heap)
    while len(heap) > 0:
        now, kind, number, version = heapq.heappop(heap)
        if kind == 2:
            task = number
            stage, microbatch, phase = orders.stage[task], orders.microbatch[task], orders.phase[task]
            rank = rank_of_stage[stage]
            busy[rank] = False
            n_left -= 1
            moments.send_start[task], moments.send_end[task] = now, now
            if phase != 2:
                way = 0 if phase == 0 else 1
                arrived[2 + way, stage, microbatch] = True
                channel = orders.channel[way, stage]
                if channel < 0:
                    if way == 0 and stage < n_stages - 1:
                        arrived[0, stage + 1, microbatch] = True
                    elif way == 1 and stage > 0:
                        arrived[1, stage - 1, microbatch] = True
                elif channels.task[channel] < 0:
                    _begin(orders, seconds, flows, channels, moments, task, now, heap)
                elif channels.head[channel] < 0:
                    channels.head[channel], channels.tail[channel] = task, task
                else:
                    channels.following[channels.tail[channel]] = task
                    channels.tail[channel] = task
            _start(orders, seconds, moments, arrived, position, busy, rank, now, heap)
            continue
        if version != channels.version[number]:
            continue
        task = channels.task[number]
        stage, microbatch = orders.stage[task], orders.microbatch[task]
        way = 0 if orders.phase[task] == 0 else 1
        if kind == 1:
            channels.flow[number] = way * n_stages + stage
            _retime(flows, channels, flows.group[number], fair, now, number, heap)
            continue
        moments.send_end[task] = now
        channels.task[number] = -1
        if channels.flow[number] >= 0:
            channels.flow[number] = -1
            _retime(flows, channels, flows.group[number], fair, now, -1, heap)
        waiting = channels.head[number]
        if waiting >= 0:
            channels.head[number] = channels.following[waiting]
            _begin(orders, seconds, flows, channels, moments, waiting, now, heap)
        target = stage + 1 if way == 0 else stage - 1
        arrived[way, target, microbatch] = True
        _start(orders, seconds, moments, arrived, position, busy, rank_of_stage[target], now, heap)
    return (0 if n_left == 0 else 1), moments
