"""Plays one training step of placed operators on a network whose flows share links max-min fairly, rates changing at every start and end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from meshwright._kernels.heap import pop, push
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


class Filling(NamedTuple):
    """Workspace of one filling; links are counted by how many open flows cross them.

    Attributes
    ----------
    n_open, at, left : ndarray, shape (n_links,)
        Open flows of a link, where its flows begin in `flow`, and the bandwidth that is not given away.
    used, heap_link : ndarray, int64
        Links that carry something; links in the heap.
    heap_level : ndarray, float64
        The rate at which each of those is full.
    flow : ndarray, shape (as many as all routes have links,), int64
        Flows of each link in turn.
    """

    n_open: np.ndarray
    at: np.ndarray
    left: np.ndarray
    used: np.ndarray
    heap_link: np.ndarray
    heap_level: np.ndarray
    flow: np.ndarray


@njit(cache=True)
def _fill(active, links, low, high, seconds_per_byte, rate, work):
    """Give the active flows their max-min fair rates (bytes per second); ``work.n_open`` is zero on entry and exit."""
    n_used = 0
    for f in active:
        rate[f] = -1.0
        for x in range(low[f], high[f]):
            link = links[x]
            if work.n_open[link] == 0:
                work.used[n_used] = link
                n_used += 1
            work.n_open[link] += 1
    place, n_heap = 0, 0
    for k in range(n_used):
        link = work.used[k]
        work.at[link] = place
        place += work.n_open[link]
        work.left[link] = 1.0 / seconds_per_byte[link]
        n_heap = push(work.heap_level, work.heap_link, n_heap, work.left[link] / work.n_open[link], link)
        work.n_open[link] = 0
    for f in active:
        for x in range(low[f], high[f]):
            link = links[x]
            work.flow[work.at[link] + work.n_open[link]] = f
            work.n_open[link] += 1
    # a link's level only rises while flows stop elsewhere: it is looked at again when its old level has come
    level = 0.0
    while n_heap > 0:
        before, link = work.heap_level[0], work.heap_link[0]
        n_heap = pop(work.heap_level, work.heap_link, n_heap)
        if work.n_open[link] == 0:
            continue
        full = max(level, work.left[link] / work.n_open[link])
        if full > before * (1.0 + 1e-12):
            n_heap = push(work.heap_level, work.heap_link, n_heap, full, link)
            continue
        level = full
        j = work.at[link]
        while work.n_open[link] > 0:
            f = work.flow[j]
            j += 1
            if rate[f] >= 0.0:
                continue
            rate[f] = level
            for x in range(low[f], high[f]):
                work.n_open[links[x]] -= 1
                work.left[links[x]] -= level


@njit(cache=True)
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


@njit(cache=True)
def _change(active, n_active, window, table, pair_of, links_first, left, size, low, high):
    """Give the active transfers and all-reduces the routes of a window; what an all-reduce has left goes over its new rings."""
    first_flow, reduce_flow, flowing, pair_first, n_pairs, route_first, number = table
    n_reduces = len(flowing)
    kept = 0
    for k in range(n_active):
        f = active[k]
        if f < first_flow:
            at = window * n_pairs + pair_of[f]
            low[f], high[f] = pair_first[at], pair_first[at + 1]
            active[kept] = f
            kept += 1
    for r in range(n_reduces):
        if not flowing[r]:
            continue
        whole, rest = 0.0, 0.0
        for f in range(reduce_flow[(window - 1) * n_reduces + r], reduce_flow[(window - 1) * n_reduces + r + 1]):
            whole += size[first_flow + f]
            rest += left[first_flow + f]
        for f in range(reduce_flow[window * n_reduces + r], reduce_flow[window * n_reduces + r + 1]):
            flow = first_flow + f
            left[flow] = size[flow] * rest / whole if whole > 0.0 else 0.0
            if left[flow] > 0.0:
                low[flow], high[flow] = links_first + route_first[number[f]], links_first + route_first[number[f] + 1]
                active[kept] = flow
                kept += 1
    return kept


@njit(cache=True)
def play(tasks, split, network, windows, inside, limit_seconds):
    """Return when everything happens; servers first come, first served, all flows on a link share it at once.

    Parameters
    ----------
    tasks, split, network
        As for `meshwright._kernels.topoopt.flow_simulation.play`; a transfer arrives the latency of its links after its last byte left.
    windows : Windows
        When circuits change; one window for circuits that stay.
    inside : Inside
        The network between the devices of a server.
    limit_seconds : float
        Later ends are of no interest: the step is then infinitely long.
    """
    n_tasks, n_edges, n_reduces = len(tasks.n_before), len(tasks.edge_target), len(tasks.reduce_group)
    n_windows, n = len(windows.from_seconds), int(np.sqrt(len(network.pair_ways)) + 0.5)
    n_pairs = (len(network.pair_first) - 1) // n_windows
    most_ways = n_pairs // len(network.pair_ways)
    n_ops, n_links = len(tasks.part_first) - 1, len(network.seconds_per_byte)
    reduce_flow, flow_size, flow_number = _sizes(tasks, network, n_windows)
    first_reduce, first_flow = n_tasks + n_edges, n_tasks + n_edges + n_reduces
    n_all = first_flow + len(flow_size)
    links = np.concatenate((network.pair_link, network.route_link))
    links_first = len(network.pair_link)
    left, rate, size = np.zeros(n_all), np.zeros(n_all), np.zeros(n_all)
    size[first_flow:] = flow_size
    low, high, pair_of = np.zeros(n_all, np.int64), np.zeros(n_all, np.int64), np.zeros(n_all, np.int64)
    op_of, server_of = owners(tasks, split)
    n_crossed = 0
    for e in range(n_edges):
        if tasks.edge_bytes[e] > 0:
            pair = server_of[tasks.edge_source[e] >> 1] * n + server_of[tasks.edge_target[e] >> 1]
            pair_of[n_tasks + e], size[n_tasks + e] = pair * most_ways + tasks.edge_way[e], tasks.edge_bytes[e]
            most = 0
            for at in range(pair_of[n_tasks + e], n_windows * n_pairs, n_pairs):
                most = max(most, network.pair_first[at + 1] - network.pair_first[at])
            n_crossed += most
    reduce_of = np.empty(len(flow_size), np.int64)
    for x in range(n_windows * n_reduces):
        for f in range(reduce_flow[x], reduce_flow[x + 1]):
            reduce_of[f] = x % n_reduces
            n_crossed += network.route_first[flow_number[f] + 1] - network.route_first[flow_number[f]]
    work = Filling(np.zeros(n_links, np.int64), np.zeros(n_links, np.int64), np.zeros(n_links), np.empty(n_links, np.int64),
                   np.empty(n_links + 1, np.int64), np.empty(n_links + 1), np.empty(n_crossed + 1, np.int64))  # fmt: skip
    start, end, ready = np.zeros(n_all), np.zeros(n_all), np.zeros(n_tasks)
    n_before = tasks.n_before.copy()
    op_left = tasks.part_first[1:] - tasks.part_first[:-1]
    op_ready, server_free, inside_free = np.zeros(n_ops), np.zeros(n), np.zeros(n)
    members = np.stack((np.cumsum(network.group_size) - network.group_size, np.cumsum(network.group_size)), axis=1)
    waiting, flowing = np.zeros(n_reduces, np.bool_), np.zeros(n_reduces, np.bool_)
    table = (first_flow, reduce_flow, flowing, network.pair_first, n_pairs, network.route_first, flow_number)
    times, keys = np.empty(n_all + 4), np.empty(n_all + 4, np.int64)  # a key is the number of the push, then the entity
    n_heap, number, n_active, dirty, now, last = 0, 0, 0, False, 0.0, 0.0
    window, dark_until = 0, windows.dark_seconds if n_windows > 1 else 0.0
    active = np.empty(n_all, np.int64)
    for t in range(n_tasks):
        if n_before[t] == 0:
            n_heap, number = push(times, keys, n_heap, 0.0, number << _BITS | t), number + 1
    while n_heap > 0 or n_active > 0:
        lit = now >= dark_until
        if dirty and lit:
            _fill(active[:n_active], links, low, high, network.seconds_per_byte, rate, work)
            dirty = False
        soonest, passed = np.inf, np.inf if lit else dark_until - now
        for k in range(n_active if lit else 0):
            soonest = min(soonest, left[active[k]] / rate[active[k]])
        if n_heap > 0:
            passed = min(passed, times[0] - now)
        if window + 1 < n_windows:
            passed = min(passed, windows.from_seconds[window + 1] - now)
        passed = min(passed, soonest)
        kept = 0
        for k in range(n_active):
            f = active[k]
            if lit:
                left[f] -= rate[f] * passed
            if passed == soonest and left[f] <= 1e-9 * size[f]:  # the last byte leaves; it arrives later
                arrives, left[f] = now + passed, 0.0
                for x in range(low[f], high[f]):
                    arrives += network.latency_seconds[links[x]]
                n_heap, number = push(times, keys, n_heap, arrives, number << _BITS | f), number + 1
                dirty = True
            else:
                active[kept] = f
                kept += 1
        n_active = kept
        now += passed
        if now > limit_seconds or last > limit_seconds:
            last = np.inf
            break
        if window + 1 < n_windows and now >= windows.from_seconds[window + 1]:
            window, dark_until, dirty = window + 1, now + windows.dark_seconds, True
            n_active = _change(active, n_active, window, table, pair_of, links_first, left, size, low, high)
        while n_heap > 0 and times[0] <= now:
            entity = keys[0] & _ENTITY
            n_heap = pop(times, keys, n_heap)
            low_edge, high_edge = 0, 0
            if entity < n_tasks:
                server = server_of[entity >> 1]
                start[entity] = max(now, server_free[server])
                end[entity] = start[entity] + split.seconds[entity & 1, op_of[entity >> 1]]
                server_free[server] = end[entity]
                low_edge, high_edge = tasks.edge_first[entity], tasks.edge_first[entity + 1]
            elif first_reduce <= entity < first_flow:
                r = entity - first_reduce
                if not waiting[r]:  # devices of a server add up first
                    start[entity], waiting[r] = now, True
                    own = members[tasks.reduce_group[r]]
                    begin = added_up(inside, network.group_member[own[0] : own[1]], tasks.reduce_bytes[r], now, inside_free)
                    n_heap, number = push(times, keys, n_heap, begin, number << _BITS | entity), number + 1
                    continue
                flowing[r], end[entity], last = True, now, max(last, now)
                for f in range(reduce_flow[window * n_reduces + r], reduce_flow[window * n_reduces + r + 1]):
                    at = links_first + network.route_first[flow_number[f]]
                    until = links_first + network.route_first[flow_number[f] + 1]
                    if flow_size[f] > 0.0 and until > at:
                        flow = first_flow + f
                        low[flow], high[flow], left[flow], dirty = at, until, size[flow], True
                        active[n_active] = flow
                        n_active += 1
                continue
            elif entity < first_reduce and end[entity] == 0.0 and size[entity] > 0.0:  # begins to flow
                at = window * n_pairs + pair_of[entity]
                low[entity], high[entity] = network.pair_first[at], network.pair_first[at + 1]
                start[entity], left[entity], end[entity], dirty = now, size[entity], -1.0, True
                active[n_active] = entity
                n_active += 1
                continue
            elif entity >= first_flow:
                r = first_reduce + reduce_of[entity - first_flow]
                end[entity], end[r] = now, max(end[r], now)
            else:  # has arrived
                end[entity], low_edge, high_edge = now, entity - n_tasks, entity - n_tasks + 1
            last = max(last, end[entity])
            for x in range(low_edge, high_edge):
                e = tasks.edge_order[x] if entity < n_tasks else x
                if entity < n_tasks and tasks.edge_bytes[e] > 0:
                    n_heap, number = push(times, keys, n_heap, end[entity], number << _BITS | (n_tasks + e)), number + 1
                    continue
                other = tasks.edge_target[e]
                ready[other] = max(ready[other], end[entity])
                n_before[other] -= 1
                if n_before[other] == 0:
                    n_heap, number = push(times, keys, n_heap, ready[other], number << _BITS | other), number + 1
            if entity < n_tasks and entity & 1:
                i = op_of[entity >> 1]
                op_left[i] -= 1
                op_ready[i] = max(op_ready[i], end[entity])
                if op_left[i] == 0:
                    for r in range(tasks.reduce_first[i], tasks.reduce_first[i + 1]):
                        n_heap, number = (
                            push(times, keys, n_heap, op_ready[i], number << _BITS | (first_reduce + r)),
                            number + 1,
                        )
    return Played(last, start[:n_tasks], end[:n_tasks], start[n_tasks:first_reduce], end[n_tasks:first_reduce],
                  start[first_reduce:first_flow], end[first_reduce:first_flow])  # fmt: skip
