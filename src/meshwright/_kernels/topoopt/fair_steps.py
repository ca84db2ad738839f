"""Plays one training step of placed operators on a network whose flows share links max-min fairly.

Rates (`fair_rates`) are found anew whenever a flow starts or ends. The other model of traffic, packets in turn as TopoOpt's
simulator (Wang et al., NSDI 2023) has them, is `flow_simulation`.

What happens in a step happens to an entity, and entities are numbered: compute tasks (forward and backward of part p are 2 p
and 2 p + 1), then edges between tasks, of which those that carry bytes are transfers, then all-reduces, then their flows, one
for each member and ring, window by window. An event is a time and an entity; which kind of entity says what happens:

* a task: all its inputs are there; it runs when its server is free, and tells the tasks behind it.
* a transfer: the task before it has ended, and it begins to flow; the second time, its last byte has arrived.
* an all-reduce: all gradients are there, and devices of a server add up first; the second time, its flows begin.
* a flow: its last byte has arrived.

TopoOpt's optical circuits are set up once; changing them during a step (`Windows`) is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import inlined, kernel, part
from meshwright._kernels.heap import pop, push
from meshwright._kernels.topoopt.fair_rates import Filling, fill
from meshwright._kernels.topoopt.flow_simulation import Played
from meshwright._kernels.topoopt.step_tasks import added_up, owners

_BITS = 28
_ENTITY = (1 << _BITS) - 1

__all__ = ["Windows", "play"]


class Windows(NamedTuple):
    """When circuits change; in window w pairs and groups are those of the network numbered from w times as many.

    Attributes
    ----------
    from_seconds : ndarray, shape (n_windows,), float64
        When each begins; the first at 0.
    dark_seconds : float
        How long nothing is sent at the beginning of each, the first too where there are several.
    """

    from_seconds: np.ndarray
    dark_seconds: float


class Fixed(NamedTuple):
    """What does not change while a step is played.

    Attributes
    ----------
    n_tasks, first_reduce, first_flow : int
        Numbers of entities; edges follow the tasks.
    n_pairs, n_reduces : int
        Routes (pairs of servers times the ways between them) and all-reduces of one window.
    op_of, server_of : ndarray, int64
        Of each part.
    pair_of : ndarray, shape (n_entities,), int64
        Route of each transfer, in the first window.
    reduce_flow : ndarray, shape (n_windows * n_reduces + 1,), int64
        First flow of each all-reduce in each window.
    flow_number, reduce_of : ndarray, int64
        The network's number of each flow; its all-reduce.
    members : ndarray, shape (n_groups, 2), int64
        Where the servers of each group are in ``Network.group_member``.
    links : ndarray, int64
        Links of all routes of pairs, then, from `links_first` on, of all routes of rings.
    links_first : int
        See there.
    """

    n_tasks: int
    first_reduce: int
    first_flow: int
    n_pairs: int
    n_reduces: int
    op_of: np.ndarray
    server_of: np.ndarray
    pair_of: np.ndarray
    reduce_flow: np.ndarray
    flow_number: np.ndarray
    reduce_of: np.ndarray
    members: np.ndarray
    links: np.ndarray
    links_first: int


class TransferFlows(NamedTuple):
    """Transfers and flows of all-reduces; all but `active` by entity.

    Attributes
    ----------
    size, left, rate : ndarray, float64
        Bytes in all, bytes not sent, and bytes per second.
    low, high : ndarray, int64
        The route in ``Fixed.links``.
    active : ndarray, int64
        Those under way, as many as the loop counts.
    """

    size: np.ndarray
    left: np.ndarray
    rate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    active: np.ndarray


class Events(NamedTuple):
    """Heap of events; a key is the number of the push, then the entity, so that ties go by who was pushed first."""

    times: np.ndarray
    keys: np.ndarray


class Inputs(NamedTuple):
    """When the last input of each task was there so far, and how many are missing."""

    ready: np.ndarray
    n_before: np.ndarray


@part(allocates=True)
def _sizes(tasks, network, n_windows):
    """Return where the flows of every reduce begin, window by window, the bytes of each, and the longest route of each edge."""
    n_reduces, n_groups = len(tasks.reduce_group), len(network.group_size) // n_windows
    first = np.zeros(n_windows * n_reduces + 1, np.int64)
    for w in range(n_windows):
        for r in range(n_reduces):
            group = w * n_groups + tasks.reduce_group[r]
            first[w * n_reduces + r + 1] = first[w * n_reduces + r] + network.flow_first[group + 1] - network.flow_first[group]
    size = np.zeros(first[-1])
    number = np.zeros(first[-1], np.int64)
    for w in range(n_windows):
        for r in range(n_reduces):
            group = w * n_groups + tasks.reduce_group[r]
            members = network.group_size[group]
            for k in range(network.flow_first[group + 1] - network.flow_first[group]):
                flow, f = first[w * n_reduces + r] + k, network.flow_first[group] + k
                number[flow] = f
                size[flow] = np.ceil(2.0 * (members - 1) / members * tasks.reduce_bytes[r] * network.share_ratio[f])
    return first, size, number


@inlined
def _fixed(tasks, split, network, n_windows):
    """Return the numbers of entities and their routes, and the bytes of each."""
    n_tasks, n_edges, n_reduces = len(tasks.n_before), len(tasks.edge_target), len(tasks.reduce_group)
    n_servers = int(np.sqrt(len(network.pair_ways)) + 0.5)
    n_pairs = (len(network.pair_first) - 1) // n_windows
    most_ways = n_pairs // len(network.pair_ways)
    reduce_flow, flow_size, flow_number = _sizes(tasks, network, n_windows)
    first_reduce, first_flow = n_tasks + n_edges, n_tasks + n_edges + n_reduces
    pair_of, size = np.zeros(first_flow + len(flow_size), np.int64), np.zeros(first_flow + len(flow_size))
    size[first_flow:] = flow_size
    op_of, server_of = owners(tasks, split)
    for e in range(n_edges):
        if tasks.edge_bytes[e] > 0:
            pair = server_of[tasks.edge_source[e] >> 1] * n_servers + server_of[tasks.edge_target[e] >> 1]
            pair_of[n_tasks + e], size[n_tasks + e] = pair * most_ways + tasks.edge_way[e], tasks.edge_bytes[e]
    reduce_of = np.empty(len(flow_size), np.int64)
    for x in range(n_windows * n_reduces):
        reduce_of[reduce_flow[x] : reduce_flow[x + 1]] = x % n_reduces
    members = np.stack((np.cumsum(network.group_size) - network.group_size, np.cumsum(network.group_size)), axis=1)
    links = np.concatenate((network.pair_link, network.route_link))
    return Fixed(n_tasks, first_reduce, first_flow, n_pairs, n_reduces, op_of, server_of, pair_of, reduce_flow, flow_number,
                 reduce_of, members, links, len(network.pair_link)), size  # fmt: skip


@inlined
def _filling(fixed, tasks, network, n_windows):
    """Return workspace for as many links as all transfers and flows cross, were they under way at once."""
    n_crossed = 0
    for e in range(len(tasks.edge_target)):
        if tasks.edge_bytes[e] > 0:
            most = 0  # a transfer may be sent in any window
            for at in range(fixed.pair_of[fixed.n_tasks + e], n_windows * fixed.n_pairs, fixed.n_pairs):
                most = max(most, network.pair_first[at + 1] - network.pair_first[at])
            n_crossed += most
    for number in fixed.flow_number:
        n_crossed += network.route_first[number + 1] - network.route_first[number]
    n_links = len(network.seconds_per_byte)
    return Filling(np.zeros(n_links, np.int64), np.zeros(n_links, np.int64), np.zeros(n_links), np.empty(n_links, np.int64),
                   np.empty(n_links + 1, np.int64), np.empty(n_links + 1), np.empty(n_crossed + 1, np.int64))  # fmt: skip


@inlined
def _add(events, queue, time, entity):
    """Add an event; `queue` counts those in the heap and those ever added."""
    return push(events.times, events.keys, queue[0], time, queue[1] << _BITS | entity), queue[1] + 1


@inlined
def _release(inputs, events, queue, task, seconds):
    """Note that one input of a task is there; with the last one the task may run."""
    inputs.ready[task] = max(inputs.ready[task], seconds)
    inputs.n_before[task] -= 1
    if inputs.n_before[task] == 0:
        queue = _add(events, queue, inputs.ready[task], task)
    return queue


@inlined
def _flow(flows, f, first, route_first, at, n_active):
    """Let a transfer or flow use route `at`, whose links begin at `first` of all links; return how many are under way."""
    flows.low[f], flows.high[f] = first + route_first[at], first + route_first[at + 1]
    flows.active[n_active] = f
    return n_active + 1


@part
def _change(flows, flowing, fixed, network, window, n_active):
    """Give the active transfers and all-reduces the routes of a window; what an all-reduce has left goes over its new rings."""
    reduce_flow, first_flow = fixed.reduce_flow, fixed.first_flow
    kept = 0
    for k in range(n_active):
        f = flows.active[k]
        if f < first_flow:
            kept = _flow(flows, f, 0, network.pair_first, window * fixed.n_pairs + fixed.pair_of[f], kept)
    for r in range(fixed.n_reduces):
        if not flowing[r]:
            continue
        whole, rest = 0.0, 0.0
        before, now = (window - 1) * fixed.n_reduces + r, window * fixed.n_reduces + r
        for f in range(reduce_flow[before], reduce_flow[before + 1]):
            whole += flows.size[first_flow + f]
            rest += flows.left[first_flow + f]
        for f in range(reduce_flow[now], reduce_flow[now + 1]):
            flow = first_flow + f
            flows.left[flow] = flows.size[flow] * rest / whole if whole > 0.0 else 0.0
            if flows.left[flow] > 0.0:
                kept = _flow(flows, flow, fixed.links_first, network.route_first, fixed.flow_number[f], kept)
    return kept


@inlined
def _send(flows, events, links, latency_seconds, queue, n_active, now, lit, other_seconds):
    """Let time pass until a flow has sent its last byte, or for `other_seconds`; return the time, the queue,
    how many still flow.
    """
    soonest = np.inf
    for k in range(n_active if lit else 0):
        soonest = min(soonest, flows.left[flows.active[k]] / flows.rate[flows.active[k]])
    passed = min(other_seconds, soonest)
    kept = 0
    for k in range(n_active):
        f = flows.active[k]
        if lit:
            flows.left[f] -= flows.rate[f] * passed
        if passed == soonest and flows.left[f] <= 1e-9 * flows.size[f]:  # the last byte leaves; it arrives later
            arrives, flows.left[f] = now + passed, 0.0
            for x in range(flows.low[f], flows.high[f]):
                arrives += latency_seconds[links[x]]
            queue = _add(events, queue, arrives, f)
        else:
            flows.active[kept] = f
            kept += 1
    return now + passed, queue, kept


@kernel(allocates=True)
def play(tasks, split, network, windows, inside, limit_seconds):
    """Return when everything happens; servers first come, first served, all flows on a link share it at once.

    Parameters
    ----------
    tasks, split, network
        As for `meshwright._kernels.topoopt.flow_simulation.play`; a transfer arrives the latency of its links after its last
        byte left.
    windows : Windows
        When circuits change; one window for circuits that stay.
    inside : Inside
        The network between the devices of a server.
    limit_seconds : float
        Later ends are of no interest: the step is then infinitely long.
    """
    n_windows, n = len(windows.from_seconds), int(np.sqrt(len(network.pair_ways)) + 0.5)
    fixed, size = _fixed(tasks, split, network, n_windows)
    work = _filling(fixed, tasks, network, n_windows)
    n_tasks, first_reduce, first_flow, n_all = fixed.n_tasks, fixed.first_reduce, fixed.first_flow, len(size)
    flows = TransferFlows(size, np.zeros(n_all), np.zeros(n_all), np.zeros(n_all, np.int64), np.zeros(n_all, np.int64),
                  np.empty(n_all, np.int64))  # fmt: skip
    events, inputs = (
        Events(np.empty(n_all + 4), np.empty(n_all + 4, np.int64)),
        Inputs(np.zeros(n_tasks), tasks.n_before.copy()),
    )
    start, end = np.zeros(n_all), np.zeros(n_all)  # the end of a transfer under way is -1
    op_ready, op_left = np.zeros(len(tasks.part_first) - 1), tasks.part_first[1:] - tasks.part_first[:-1]
    server_free, inside_free = np.zeros(n), np.zeros(n)
    waiting, flowing = np.zeros(fixed.n_reduces, np.bool_), np.zeros(fixed.n_reduces, np.bool_)
    queue, n_active, dirty, now, last = (0, 0), 0, False, 0.0, 0.0
    window, dark_until = 0, windows.dark_seconds if n_windows > 1 else 0.0
    for t in range(n_tasks):
        if inputs.n_before[t] == 0:
            queue = _add(events, queue, 0.0, t)
    while queue[0] > 0 or n_active > 0:
        lit = now >= dark_until
        if dirty and lit:
            fill(flows.active[:n_active], fixed.links, flows.low, flows.high, network.seconds_per_byte, flows.rate, work)
            dirty = False
        n_before, passed = n_active, np.inf if lit else dark_until - now
        if queue[0] > 0:
            passed = min(passed, events.times[0] - now)
        if window + 1 < n_windows:
            passed = min(passed, windows.from_seconds[window + 1] - now)
        now, queue, n_active = _send(flows, events, fixed.links, network.latency_seconds, queue, n_active, now, lit, passed)
        dirty = dirty or n_active < n_before
        if now > limit_seconds or last > limit_seconds:
            last = np.inf
            break
        if window + 1 < n_windows and now >= windows.from_seconds[window + 1]:
            window, dark_until, dirty = window + 1, now + windows.dark_seconds, True
            n_active = _change(flows, flowing, fixed, network, window, n_active)
        while queue[0] > 0 and events.times[0] <= now:
            entity = events.keys[0] & _ENTITY
            queue = (pop(events.times, events.keys, queue[0]), queue[1])
            if entity < n_tasks:  # runs when its server is free
                server, i = fixed.server_of[entity >> 1], fixed.op_of[entity >> 1]
                start[entity] = max(now, server_free[server])
                end[entity] = start[entity] + split.seconds[entity & 1, i]
                server_free[server] = end[entity]
                for x in range(tasks.edge_first[entity], tasks.edge_first[entity + 1]):
                    e = tasks.edge_order[x]
                    if tasks.edge_bytes[e] > 0:
                        queue = _add(events, queue, end[entity], n_tasks + e)
                    else:
                        queue = _release(inputs, events, queue, tasks.edge_target[e], end[entity])
                if entity & 1:  # backward: with the last part of an operator its gradients are there
                    op_left[i] -= 1
                    op_ready[i] = max(op_ready[i], end[entity])
                    for r in range(tasks.reduce_first[i], tasks.reduce_first[i + 1] if op_left[i] == 0 else 0):
                        queue = _add(events, queue, op_ready[i], first_reduce + r)
            elif entity < first_reduce and end[entity] == 0.0 and size[entity] > 0.0:  # begins to flow
                start[entity], flows.left[entity], end[entity], dirty = now, size[entity], -1.0, True
                at = window * fixed.n_pairs + fixed.pair_of[entity]
                n_active = _flow(flows, entity, 0, network.pair_first, at, n_active)
                continue
            elif entity < first_reduce:  # has arrived
                end[entity] = now
                queue = _release(inputs, events, queue, tasks.edge_target[entity - n_tasks], now)
            elif entity < first_flow and not waiting[entity - first_reduce]:  # devices of a server add up first
                r = entity - first_reduce
                start[entity], waiting[r] = now, True
                own = fixed.members[tasks.reduce_group[r]]
                begin = added_up(inside, network.group_member[own[0] : own[1]], tasks.reduce_bytes[r], now, inside_free)
                queue = _add(events, queue, begin, entity)
                continue
            elif entity < first_flow:  # the flows of an all-reduce begin
                r = entity - first_reduce
                flowing[r], end[entity] = True, now
                for f in range(
                    fixed.reduce_flow[window * fixed.n_reduces + r], fixed.reduce_flow[window * fixed.n_reduces + r + 1]
                ):
                    number, flow = fixed.flow_number[f], first_flow + f
                    if size[flow] > 0.0 and network.route_first[number + 1] > network.route_first[number]:
                        flows.left[flow], dirty = size[flow], True
                        n_active = _flow(flows, flow, fixed.links_first, network.route_first, number, n_active)
            else:  # an all-reduce ends with the last of its flows
                r = first_reduce + fixed.reduce_of[entity - first_flow]
                end[entity], end[r] = now, max(end[r], now)
            last = max(last, end[entity])
    return Played(last, start[:n_tasks], end[:n_tasks], start[n_tasks:first_reduce], end[n_tasks:first_reduce],
                  start[first_reduce:first_flow], end[first_reduce:first_flow])  # fmt: skip
