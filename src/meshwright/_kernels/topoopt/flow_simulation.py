"""Plays one training step of placed operators on a network: compute, point-to-point transfers, ring all-reduces in segments.

A link serves one segment at a time, first come, first served, and the segments of a transfer follow each other over the links
of its route. In the released simulator of TopoOpt (Wang et al., NSDI 2023) a segment takes its place on all links of its route
when it sets out: links wait for it while others that are there could pass. In queues it takes its place on a link when it
arrives there. What happens in a step happens to an entity: compute tasks come first, then edges between tasks, of which those
that carry bytes are transfers, then all-reduces, then their flows, one for each member and ring, then segments under way. An
event is a time and an entity; its key counts up, so that events of one moment are taken in the order in which they were made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import inlined, kernel, part
from meshwright._kernels.topoopt.step_tasks import added_up, owners

_BITS = 28
_ENTITY = (1 << _BITS) - 1

_SEGMENTS = 1024
"""Segments under way for which there is room at first."""

_OWNER, _PLACE, _SIZE, _SPARE = range(4)
"""Columns of segments under way, which are entities behind all others: whose it is, where on the route, its bytes; and numbers
that no segment has, as many as the loop counts.
"""

__all__ = ["Played", "play"]


class Played(NamedTuple):
    """What happened; times of edges that move nothing are those of their task.

    Attributes
    ----------
    seconds : float
        End of the last task or transfer; infinite where the limit was passed.
    start, end : ndarray, shape (n_tasks,), float64
        Of each compute task.
    edge_start, edge_end : ndarray, shape (n_edges,), float64
        Of each transfer.
    reduce_start, reduce_end : ndarray, shape (n_reduces,), float64
        Of each all-reduce.
    """

    seconds: float
    start: np.ndarray
    end: np.ndarray
    edge_start: np.ndarray
    edge_end: np.ndarray
    reduce_start: np.ndarray
    reduce_end: np.ndarray


class Sending(NamedTuple):
    """What every entity still sends, over which links; by entity, and nothing for compute tasks.

    Attributes
    ----------
    left, low, high, n_under_way : ndarray, int64
        Bytes that have not set out, where the links of the route begin and end, and segments under way.
    end : ndarray, float64
        When the last byte so far arrives.
    first_flow : int
        Entities from here on are flows of all-reduces.
    """

    left: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n_under_way: np.ndarray
    end: np.ndarray
    first_flow: int


@part
def _push(times, keys, n, time, key):
    """Add an event to the heap of `n`, four below each; order is (time, key), and keys count up with every push."""
    at = n
    while at > 0:
        above = (at - 1) >> 2
        if times[above] <= time:
            break  # at equal times the older one, whose key is smaller, stays in front
        times[at], keys[at] = times[above], keys[above]
        at = above
    times[at], keys[at] = time, key


@part
def _sink(times, keys, n, time, key):
    """Put an event in place of the first of the heap of `n`."""
    at = 0
    while True:
        below = 4 * at + 1
        if below >= n:
            break
        least = below
        for other in range(below + 1, min(below + 4, n)):
            if times[other] < times[least] or (times[other] == times[least] and keys[other] < keys[least]):
                least = other
        if time < times[least] or (time == times[least] and key < keys[least]):
            break
        times[at], keys[at] = times[least], keys[least]
        at = least
    times[at], keys[at] = time, key


@part
def _pop(times, keys, n):
    """Take the first event from the heap of `n`; return how many are left."""
    if n > 1:
        _sink(times, keys, n - 1, times[n - 1], keys[n - 1])
    return n - 1


@part(allocates=True)
def _more_room(moving, arrival, times, keys):
    """Return twice the room for segments under way, and the heap with as much more."""
    n = len(arrival)
    twice = np.concatenate((moving, moving))
    twice[:n, _SPARE] = np.arange(n, 2 * n)
    return (twice, np.concatenate((arrival, arrival)), np.concatenate((times, np.zeros(n))),
            np.concatenate((keys, np.zeros(n, np.int64))))  # fmt: skip


@inlined
def _join_queue(times, keys, n_heap, number, moving, arrival, n_spare, entity, sending, network, link_free, segment_bytes):
    """Let the next segment of a transfer set out, or one under way join the queue of its next link.

    Returns events in the heap, pushes, spare numbers, and the transfer or flow of which all has arrived, -1 where none has.
    """
    now, n_all = times[0], len(sending.left)
    slot = entity - n_all
    if entity < n_all:
        n_spare -= 1
        slot = moving[n_spare, _SPARE]
        moving[slot, _OWNER], moving[slot, _PLACE], arrival[slot] = entity, sending.low[entity], 0.0
        moving[slot, _SIZE] = min(segment_bytes, sending.left[entity])
        sending.left[entity] -= moving[slot, _SIZE]
        sending.n_under_way[entity] += 1
    of, x = moving[slot, _OWNER], moving[slot, _PLACE]
    link = network.route_link[x] if of >= sending.first_flow else network.pair_link[x]
    head = max(link_free[link], now) + network.latency_seconds[link]
    link_free[link] = max(link_free[link], now) + moving[slot, _SIZE] * network.seconds_per_byte[link]
    arrival[slot] = max(arrival[slot], link_free[link]) + network.latency_seconds[link]
    follows = entity < n_all and sending.left[of] > 0
    if follows:  # the next one, when the first link is free again, takes the place of this event
        _sink(times, keys, n_heap, link_free[link], number << _BITS | of)
        number += 1
    if x + 1 < sending.high[of]:
        moving[slot, _PLACE] = x + 1
        if follows:
            _push(times, keys, n_heap, head, number << _BITS | (n_all + slot))
            return n_heap + 1, number + 1, n_spare, -1
        _sink(times, keys, n_heap, head, number << _BITS | (n_all + slot))
        return n_heap, number + 1, n_spare, -1
    sending.end[of] = max(sending.end[of], arrival[slot])
    moving[n_spare, _SPARE] = slot
    n_spare += 1
    sending.n_under_way[of] -= 1
    if follows:
        return n_heap, number, n_spare, -1
    n_heap = _pop(times, keys, n_heap)
    return n_heap, number, n_spare, of if sending.left[of] == 0 and sending.n_under_way[of] == 0 else -1


@part
def _take_route(entity, sending, network, link_free, segment_bytes, now):
    """Let a segment take its place on all links of its route, each free when it has left it; return when the next follows."""
    size = min(segment_bytes, sending.left[entity])
    free_at, over, again = now, now, now
    for x in range(sending.low[entity], sending.high[entity]):
        link = network.route_link[x] if entity >= sending.first_flow else network.pair_link[x]
        begin = max(link_free[link], free_at)
        free_at = begin + network.latency_seconds[link]
        link_free[link] = free_at + size * network.seconds_per_byte[link]
        over = max(over, link_free[link])
        if x == sending.low[entity]:
            again = link_free[link]
    sending.end[entity] = max(sending.end[entity], over)
    sending.left[entity] -= size
    return again


@kernel(allocates=True)
def play(tasks, split, network, segment_bytes, queues, inside, limit_seconds):
    """Return when everything happens; first come, first served, ties in the order in which events were made.

    Parameters
    ----------
    tasks, split, network
        The task graph of a plan, the plan, the network.
    segment_bytes : int
        Transfers are sent in segments of this size; links serve segments, not transfers.
    queues : bool
        Whether a segment takes its place on a link when it arrives there; otherwise, as published, on all links of its route
        when it sets out, each of which its latency keeps busy too.
    inside : Inside
        The network between the devices of a server.
    limit_seconds : float
        Later ends are of no interest: the step is then infinitely long.
    """
    n_tasks, n_edges, n_reduces = len(tasks.n_before), len(tasks.edge_target), len(tasks.reduce_group)
    n = int(np.sqrt(len(network.pair_ways)) + 0.5)
    most_ways = (len(network.pair_first) - 1) // len(network.pair_ways)
    n_ops = len(tasks.part_first) - 1
    reduce_flow = np.zeros(n_reduces + 1, np.int64)
    for r in range(n_reduces):
        group = tasks.reduce_group[r]
        reduce_flow[r + 1] = reduce_flow[r] + network.flow_first[group + 1] - network.flow_first[group]
    n_flows = reduce_flow[n_reduces]
    first_reduce, first_flow = n_tasks + n_edges, n_tasks + n_edges + n_reduces
    n_all = first_flow + n_flows
    # what every entity still sends, over which links; compute tasks have none
    left = np.zeros(n_all, np.int64)
    low = np.zeros(n_all, np.int64)
    high = np.zeros(n_all, np.int64)
    op_of, server_of = owners(tasks, split)
    reduce_of = np.empty(n_flows, np.int64)
    start, end = np.zeros(n_all), np.zeros(n_all)
    ready = np.zeros(n_tasks)
    n_before = tasks.n_before.copy()
    op_left = tasks.part_first[1:] - tasks.part_first[:-1]
    op_ready = np.zeros(n_ops)
    link_free, server_free, inside_free = np.zeros(len(network.seconds_per_byte)), np.zeros(n), np.zeros(n)
    member_first = np.cumsum(network.group_size) - network.group_size
    n_under_way = np.zeros(n_all, np.int64)
    sending = Sending(left, low, high, n_under_way, end, first_flow)
    moving, arrival, n_spare = np.zeros((_SEGMENTS, 4), np.int64), np.zeros(_SEGMENTS), _SEGMENTS
    moving[:, _SPARE] = np.arange(_SEGMENTS)
    room = n_all + _SEGMENTS + 4
    times, keys = np.empty(room), np.empty(room, np.int64)  # a key is the number of the push, then the entity
    n_heap, number = 0, 0
    for t in range(n_tasks):
        if n_before[t] == 0:
            _push(times, keys, n_heap, 0.0, number << _BITS | t)
            n_heap, number = n_heap + 1, number + 1
    last = 0.0
    while n_heap > 0:
        now, entity = times[0], keys[0] & _ENTITY
        if now > limit_seconds or last > limit_seconds:
            return Played(np.inf, start[:n_tasks], end[:n_tasks], start[n_tasks:first_reduce], end[n_tasks:first_reduce],
                          start[first_reduce:first_flow], end[first_reduce:first_flow])  # fmt: skip
        sends = entity >= first_flow or (n_tasks <= entity < first_reduce)
        if queues and sends and (entity >= n_all or low[entity] < high[entity]):
            if n_spare == 0:
                n_spare = len(arrival)
                moving, arrival, times, keys = _more_room(moving, arrival, times, keys)
            n_heap, number, n_spare, entity = _join_queue(
                times, keys, n_heap, number, moving, arrival, n_spare, entity, sending, network, link_free, segment_bytes
            )
            if entity < 0:
                continue
            last = max(last, end[entity])
        elif sends:
            again = _take_route(entity, sending, network, link_free, segment_bytes, now)
            last = max(last, end[entity])
            if left[entity] > 0:
                _sink(times, keys, n_heap, again, number << _BITS | entity)
                number += 1
                continue
            n_heap = _pop(times, keys, n_heap)
        else:
            n_heap = _pop(times, keys, n_heap)
        done_low, done_high = 0, 0
        if entity < n_tasks:
            server = server_of[entity >> 1]
            start[entity] = max(now, server_free[server])
            end[entity] = start[entity] + split.seconds[entity & 1, op_of[entity >> 1]]
            server_free[server] = end[entity]
            last = max(last, end[entity])
            done_low, done_high = tasks.edge_first[entity], tasks.edge_first[entity + 1]
        elif entity < first_reduce:
            done_low, done_high = entity - n_tasks, entity - n_tasks + 1
        elif entity < first_flow:
            r = entity - first_reduce
            group = tasks.reduce_group[r]
            members = network.group_size[group]
            start[entity] = now
            own = network.group_member[member_first[group] : member_first[group] + members]
            begin = added_up(inside, own, tasks.reduce_bytes[r], now, inside_free)
            for k in range(reduce_flow[r + 1] - reduce_flow[r]):
                f, flow = network.flow_first[group] + k, first_flow + reduce_flow[r] + k
                amount = 2.0 * (members - 1) / members * tasks.reduce_bytes[r] * network.share_ratio[f]
                left[flow] = np.int64(np.ceil(amount))
                low[flow], high[flow] = network.route_first[f], network.route_first[f + 1]
                reduce_of[reduce_flow[r] + k] = r
                _push(times, keys, n_heap, begin, number << _BITS | flow)
                n_heap, number = n_heap + 1, number + 1
        else:
            r = first_reduce + reduce_of[entity - first_flow]
            end[r] = max(end[r], end[entity])
        for x in range(done_low, done_high):
            e = tasks.edge_order[x] if entity < n_tasks else x
            if entity < n_tasks and tasks.edge_bytes[e] > 0:
                transfer = n_tasks + e
                pair = (server * n + server_of[tasks.edge_target[e] >> 1]) * most_ways + tasks.edge_way[e]
                left[transfer] = tasks.edge_bytes[e]
                low[transfer], high[transfer] = network.pair_first[pair], network.pair_first[pair + 1]
                start[transfer] = end[entity]
                _push(times, keys, n_heap, end[entity], number << _BITS | transfer)
                n_heap, number = n_heap + 1, number + 1
                continue
            other = tasks.edge_target[e]
            ready[other] = max(ready[other], end[entity])
            n_before[other] -= 1
            if n_before[other] == 0:
                _push(times, keys, n_heap, ready[other], number << _BITS | other)
                n_heap, number = n_heap + 1, number + 1
        if entity < n_tasks and entity & 1:
            i = op_of[entity >> 1]
            op_left[i] -= 1
            op_ready[i] = max(op_ready[i], end[entity])
            if op_left[i] == 0:
                for r in range(tasks.reduce_first[i], tasks.reduce_first[i + 1]):
                    _push(times, keys, n_heap, op_ready[i], number << _BITS | first_reduce + r)
                    n_heap, number = n_heap + 1, number + 1
    return Played(last, start[:n_tasks], end[:n_tasks], start[n_tasks:first_reduce], end[n_tasks:first_reduce],
                  start[first_reduce:first_flow], end[first_reduce:first_flow])  # fmt: skip
