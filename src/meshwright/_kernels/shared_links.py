"""Max-min fair rates of flows on shared links while flows come and go: what the event loop asks when one starts or ends."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit

__all__ = ["Flows", "Lanes", "begin", "enter", "expect", "idle", "retime"]


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
    free, rising, n_rising, full, link_seen : ndarray, shape (n_links,)
        Workspace: what is left of a link, weight and number of flows still rising on it, whether it can be full, a mark.
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
    n_rising: np.ndarray
    full: np.ndarray
    link_seen: np.ndarray
    stamp: np.ndarray


@njit(cache=True)
def idle(n_lanes, n_tasks, n_links, n_entries):
    """Return lanes that do nothing."""
    return Lanes(
        np.full(n_lanes, -1), np.full(n_lanes, -1), np.full(n_lanes, -1), np.full(n_tasks, -1), np.full(n_lanes, -1),
        np.zeros(n_lanes), np.ones(n_lanes), np.zeros(n_lanes), np.zeros(n_lanes, dtype=np.int64),
        np.zeros(n_entries, dtype=np.int64), np.zeros(n_links, dtype=np.int64), np.zeros(n_entries, dtype=np.int64),
        np.zeros(n_lanes, dtype=np.int64), np.zeros(n_lanes, dtype=np.int64), np.zeros(n_lanes),
        np.zeros(n_links, dtype=np.int64), np.zeros(n_links), np.zeros(n_links), np.zeros(n_links, dtype=np.int64), np.zeros(n_links, dtype=np.bool_),
        np.zeros(n_links, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip


@njit(cache=True)
def enter(flows, lanes, lane, flow):
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
def _level(lanes, link):
    """Return the level at which the flows still rising on a link fill it."""
    return max(lanes.free[link], 0.0) / max(lanes.rising[link], 1e-12)


@njit(cache=True)
def _share(flows, lanes, first, n_members, n_tight):
    """Write the max-min fair rate over the rate alone of members `first` to `n_members` into `lanes.fair`, in their order.

    All rates rise together; where a link is full, or a flow is as fast as alone, it keeps its rate and the others go on. A full
    link's level only rises when flows stop below it, so all that are as fast as alone before any link is full stop at once.
    """
    for n in range(n_tight):
        lanes.free[lanes.tight[n]] = 1.0
        lanes.rising[lanes.tight[n]] = 0.0
        lanes.n_rising[lanes.tight[n]] = 0
    for n in range(first, n_members):
        lanes.fair[n] = 0.0
        flow = lanes.flow[lanes.member[n]]
        for k in range(flows.first[flow], flows.first[flow + 1]):
            lanes.rising[flows.link[k]] += flows.weight[k]
            lanes.n_rising[flows.link[k]] += 1
    n_left = n_members - first
    while n_left > 0:
        lowest = np.inf
        for n in range(n_tight):
            link = lanes.tight[n]
            if lanes.n_rising[link] > 0:
                lowest = min(lowest, _level(lanes, link))
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
                    if lanes.full[link] and _level(lanes, link) <= lowest * (1.0 + 1e-12):
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
                    lanes.n_rising[flows.link[k]] -= 1


@njit(cache=True)
def expect(lanes, lane, kind, moment, heap):
    """Put the next event of a lane on the heap; those before it are void."""
    lanes.pending[lane] = moment
    lanes.version[lane] += 1
    heapq.heappush(heap, (moment, kind, lane, lanes.version[lane]))


@njit(cache=True)
def retime(flows, lanes, lane, leaves, now, heap):
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
            expect(lanes, other, 0, lanes.finish[other], heap)


@njit(cache=True)
def begin(flows, lanes, lane, flow, load, seconds, now, heap):
    """Put something on a lane: a flow, or work of the device (-1)."""
    lanes.load[lane] = load
    lanes.finish[lane] = now + seconds
    lanes.ratio[lane] = 1.0
    if flow < 0 or flows.first[flow] == flows.first[flow + 1]:
        expect(lanes, lane, 0, lanes.finish[lane], heap)
    elif flows.latency_seconds[flow] > 0.0:
        expect(lanes, lane, 1, now + flows.latency_seconds[flow], heap)
    else:
        lanes.pending[lane] = np.inf
        enter(flows, lanes, lane, flow)
        retime(flows, lanes, lane, False, now, heap)
