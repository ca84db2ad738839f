"""Plays an order of tasks whose traffic shares links: the event loop, and max-min fair rates while flows come and go."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

from meshwright._kernels.events import Moments

__all__ = ["Ends", "Flows", "play"]


class Flows(NamedTuple):
    """What the stages put on links that several of them may fill.

    Flow ``part * n_stages + stage``: parts 0 and 1 are what a stage sends forward and backward, 2 and 3 the collectives that a
    forward and a backward task waits for, 4 and 5 those beside them, 6 the reduction of gradients and 7 the gathering of weights.

    Attributes
    ----------
    seconds, latency_seconds : ndarray, shape (n_flows,), float64
        Alone on the links; the part of it before the first byte, during which links are free.
    ceiling : ndarray, shape (n_flows,), float64
        The share of the link it fills most that a flow takes alone; 1 for flows whose links are their own.
    first : ndarray, shape (n_flows + 1,), int64
        Links of flow f are ``link[first[f] : first[f + 1]]``; none where its links are its own.
    link, owner : ndarray, int64
        Links that several lanes may fill, and the flow f of each entry.
    weight : ndarray, float64
        Share of that link for each share of the link that the flow fills most, at most 1.
    room : ndarray, shape (n_links + 1,), int64
        Where lists of the flows now on each link have room.
    lane : ndarray, shape (n_flows,), int64
        What carries a flow, one at a time: a channel between ranks, or one of three lanes of a rank; -1 for flows that do not
        exist.
    """

    seconds: np.ndarray
    latency_seconds: np.ndarray
    ceiling: np.ndarray
    first: np.ndarray
    link: np.ndarray
    owner: np.ndarray
    weight: np.ndarray
    room: np.ndarray
    lane: np.ndarray


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


class Lanes(NamedTuple):
    """What every lane is doing; arrays that the event loop changes.

    Attributes
    ----------
    load : ndarray, shape (n_lanes,), int64
        The task whose result is on its way, the task that waits, or the item; -1 for none.
    head, tail : ndarray, shape (n_lanes,), int64
        Tasks whose results wait; -1 for none.
    following : ndarray, shape (n_tasks,), int64
        The task behind each waiting one.
    flow : ndarray, shape (n_lanes,), int64
        The flow whose bytes are on links that others use; -1 for none.
    finish, ratio : ndarray, shape (n_lanes,), float64
        When the flow ends at the present rate, and that rate over the one it has alone.
    pending : ndarray, shape (n_lanes,), float64
        When the next event of the lane is due: never after `finish`, before it where the flow was slowed down since.
    version : ndarray, shape (n_lanes,), int64
        Counts events: older ones are void.
    now_on : ndarray, shape (n_entries,), int64
        Entries of the flows now on each link; those of link k begin at ``room[k]``.
    n_on : ndarray, shape (n_links,), int64
        How many.
    where : ndarray, shape (n_entries,), int64
        The position of each entry in `now_on`.
    member, seen, fair : ndarray, shape (n_lanes,)
        Workspace: lanes tied together by full links, a mark of those, their rates.
    tight : ndarray, shape (n_links,), int64
        Workspace: the full links that tie them.
    free, rising, full, link_seen : ndarray, shape (n_links,)
        Workspace: what is left of a link, the weight of flows still rising on it, whether it can be full, a mark.
    stamp : ndarray, shape (1,), int64
        The present mark.
    """

    load: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    following: np.ndarray
    flow: np.ndarray
    finish: np.ndarray
    ratio: np.ndarray
    pending: np.ndarray
    version: np.ndarray
    now_on: np.ndarray
    n_on: np.ndarray
    where: np.ndarray
    member: np.ndarray
    seen: np.ndarray
    fair: np.ndarray
    tight: np.ndarray
    free: np.ndarray
    rising: np.ndarray
    full: np.ndarray
    link_seen: np.ndarray
    stamp: np.ndarray


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
def _enter(flows, lanes, lane, flow):
    """Put a flow on its links."""
    lanes.flow[lane] = flow
    for k in range(flows.first[flow], flows.first[flow + 1]):
        link = flows.link[k]
        place = flows.room[link] + lanes.n_on[link]
        lanes.now_on[place] = k
        lanes.where[k] = place
        lanes.n_on[link] += 1


@njit(cache=True)
def _leave(flows, lanes, lane):
    """Take the flow of a lane off its links."""
    flow = lanes.flow[lane]
    lanes.flow[lane] = -1
    for k in range(flows.first[flow], flows.first[flow + 1]):
        link = flows.link[k]
        lanes.n_on[link] -= 1
        last = lanes.now_on[flows.room[link] + lanes.n_on[link]]
        lanes.now_on[lanes.where[k]] = last
        lanes.where[last] = lanes.where[k]


@njit(cache=True)
def _tied(flows, lanes, lane):
    """Write the lanes tied to one lane by links that can be full now into `lanes.member`, these links into `lanes.tight`.

    Returns
    -------
    n_members, n_tight : int
        How many; the lane itself is the first member.
    """
    lanes.stamp[0] += 1
    stamp = lanes.stamp[0]
    lanes.member[0] = lane
    lanes.seen[lane] = stamp
    n_members, n_tight, i = 1, 0, 0
    while i < n_members:
        flow = lanes.flow[lanes.member[i]]
        i += 1
        for k in range(flows.first[flow], flows.first[flow + 1]):
            link = flows.link[k]
            if lanes.link_seen[link] == stamp:
                continue
            lanes.link_seen[link] = stamp
            asked = 0.0
            for place in range(flows.room[link], flows.room[link] + lanes.n_on[link]):
                entry = lanes.now_on[place]
                asked += flows.ceiling[flows.owner[entry]] * flows.weight[entry]
            lanes.full[link] = asked > 1.0 + 1e-9
            if not lanes.full[link]:
                continue
            lanes.tight[n_tight] = link
            n_tight += 1
            for place in range(flows.room[link], flows.room[link] + lanes.n_on[link]):
                other = flows.lane[flows.owner[lanes.now_on[place]]]
                if lanes.seen[other] != stamp:
                    lanes.seen[other] = stamp
                    lanes.member[n_members] = other
                    n_members += 1
    return n_members, n_tight


@njit(cache=True)
def _share(flows, lanes, first, n_members, n_tight):
    """Write the max-min fair rate over the rate alone of members `first` to `n_members` into `lanes.fair`, in their order.

    All rates rise together; where a link is full, or a flow is as fast as alone, it keeps its rate and the others go on. A full
    link's level only rises when flows stop below it, so all that are as fast as alone before any link is full stop at once.
    """
    for n in range(n_tight):
        lanes.free[lanes.tight[n]] = 1.0
        lanes.rising[lanes.tight[n]] = 0.0
    for n in range(first, n_members):
        lanes.fair[n] = 0.0
        flow = lanes.flow[lanes.member[n]]
        for k in range(flows.first[flow], flows.first[flow + 1]):
            lanes.rising[flows.link[k]] += flows.weight[k]
    n_left = n_members - first
    while n_left > 0:
        lowest = np.inf
        for n in range(n_tight):
            link = lanes.tight[n]
            if lanes.rising[link] > 1e-12:
                lowest = min(lowest, max(lanes.free[link], 0.0) / lanes.rising[link])
        n_before = n_left
        for alone in (True, False):
            if n_left < n_before:
                break
            for n in range(first, n_members):
                if lanes.fair[n] > 0.0:
                    continue
                flow = lanes.flow[lanes.member[n]]
                if alone:
                    if flows.ceiling[flow] <= lowest * (1.0 + 1e-9):
                        lanes.fair[n] = -1.0
                        n_left -= 1
                    continue
                for k in range(flows.first[flow], flows.first[flow + 1]):
                    link = flows.link[k]
                    if lanes.full[link] and max(lanes.free[link], 0.0) <= lowest * lanes.rising[link] * (1.0 + 1e-12):
                        # Below zero: stops now; its links are taken off when all that stop at this level are known.
                        lanes.fair[n] = -max(lowest / flows.ceiling[flow], 1e-12)
                        n_left -= 1
                        break
        for n in range(first, n_members):
            if lanes.fair[n] < 0.0:
                lanes.fair[n] = -lanes.fair[n]
                flow = lanes.flow[lanes.member[n]]
                for k in range(flows.first[flow], flows.first[flow + 1]):
                    lanes.free[flows.link[k]] -= lanes.fair[n] * flows.ceiling[flow] * flows.weight[k]
                    lanes.rising[flows.link[k]] -= flows.weight[k]


@njit(cache=True)
def _expect(lanes, lane, kind, moment, heap):
    """Put the next event of a lane on the heap; those before it are void."""
    lanes.pending[lane] = moment
    lanes.version[lane] += 1
    heapq.heappush(heap, (moment, kind, lane, lanes.version[lane]))


@njit(cache=True)
def _retime(flows, lanes, lane, leaves, now, heap):
    """Give the lanes tied to one whose flow has started, or now leaves, their fair rates from now on."""
    n_members, n_tight = _tied(flows, lanes, lane)
    if leaves:
        _leave(flows, lanes, lane)
    first = 1 if leaves else 0
    if n_members == 1 and n_tight == 0:
        lanes.fair[0] = 1.0
    else:
        _share(flows, lanes, first, n_members, n_tight)
    for n in range(first, n_members):
        other = lanes.member[n]
        if lanes.fair[n] != lanes.ratio[other]:
            left = max(lanes.finish[other] - now, 0.0) * lanes.ratio[other]
            lanes.finish[other] = now + left / lanes.fair[n]
            lanes.ratio[other] = lanes.fair[n]
        # Whoever was slowed down is looked at again when its event is due.
        if lanes.finish[other] < lanes.pending[other]:
            _expect(lanes, other, 0, lanes.finish[other], heap)


@njit(cache=True)
def _begin(flows, lanes, lane, flow, load, seconds, now, heap):
    """Put something on a lane: a flow, or work of the device (-1)."""
    lanes.load[lane] = load
    lanes.finish[lane] = now + seconds
    lanes.ratio[lane] = 1.0
    if flow < 0 or flows.first[flow] == flows.first[flow + 1]:
        _expect(lanes, lane, 0, lanes.finish[lane], heap)
    elif flows.latency_seconds[flow] > 0.0:
        _expect(lanes, lane, 1, now + flows.latency_seconds[flow], heap)
    else:
        lanes.pending[lane] = np.inf
        _enter(flows, lanes, lane, flow)
        _retime(flows, lanes, lane, False, now, heap)


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
        _begin(flows, lanes, lane, ends.flow[item], item, ends.seconds[item], now, heap)


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
            _begin(flows, lanes, lane, beside, task, flows.seconds[beside], now, heap)
    heapq.heappush(heap, (now + compute_seconds, 2, task, 0))
    return True


@njit(cache=True)
def _send(orders, seconds, flows, lanes, moments, task, now, heap):
    """Put the result of a task on its channel."""
    way = 0 if orders.phase[task] == 0 else 1
    stage = orders.stage[task]
    moments.send_start[task] = now
    flow = way * orders.channel.shape[1] + stage
    _begin(flows, lanes, orders.channel[way, stage], flow, task, seconds.send[way, stage], now, heap)


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
def _lanes(n_lanes, n_tasks, n_links, n_entries):
    """Return lanes that do nothing."""
    return Lanes(
        np.full(n_lanes, -1), np.full(n_lanes, -1), np.full(n_lanes, -1), np.full(n_tasks, -1), np.full(n_lanes, -1),
        np.zeros(n_lanes), np.ones(n_lanes), np.zeros(n_lanes), np.zeros(n_lanes, dtype=np.int64),
        np.zeros(n_entries, dtype=np.int64), np.zeros(n_links, dtype=np.int64), np.zeros(n_entries, dtype=np.int64),
        np.zeros(n_lanes, dtype=np.int64), np.zeros(n_lanes, dtype=np.int64), np.zeros(n_lanes),
        np.zeros(n_links, dtype=np.int64), np.zeros(n_links), np.zeros(n_links), np.zeros(n_links, dtype=np.bool_),
        np.zeros(n_links, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip


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
    lanes = _lanes(first_lane + 3 * n_ranks, n_tasks, len(flows.room) - 1, len(flows.link))
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
                _begin(flows, lanes, first_lane + rank, blocking, number, flows.seconds[blocking], now, heap)
                continue
            ranks.parts[rank] -= 1
        elif version != lanes.version[number]:
            continue
        elif kind == 1:
            task = lanes.load[number]
            lanes.pending[number] = np.inf
            _enter(flows, lanes, number, (0 if orders.phase[task] == 0 else 1) * n_stages + orders.stage[task])
            _retime(flows, lanes, number, False, now, heap)
            continue
        elif lanes.finish[number] > now:
            _expect(lanes, number, 0, lanes.finish[number], heap)
            continue
        else:
            load = lanes.load[number]
            lanes.load[number] = -1
            if lanes.flow[number] >= 0:
                _retime(flows, lanes, number, True, now, heap)
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
