"""Plays one training step of placed operators on a network: compute, point-to-point transfers, ring all-reduces in segments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

_BITS = 28
_ENTITY = (1 << _BITS) - 1

__all__ = ["Model", "Network", "Played", "Split", "Tasks", "loads", "play", "tasks"]


class Model(NamedTuple):
    """Operators and tensors, whatever the plan.

    Attributes
    ----------
    batch : ndarray, shape (n_ops,), int64
        Samples of one step; operators of several jobs may differ.
    input_first, input_op : ndarray, int64
        Producers of operator i are ``input_op[input_first[i] : input_first[i + 1]]``; one transfer for each.
    sample_bytes : ndarray, shape (n_ops,), int64
        Output of one sample.
    weight_first, weight_bytes : ndarray, int64
        Weight tensors of operator i, whole.
    """

    batch: np.ndarray
    input_first: np.ndarray
    input_op: np.ndarray
    sample_bytes: np.ndarray
    weight_first: np.ndarray
    weight_bytes: np.ndarray


class Split(NamedTuple):
    """How every operator is split and where its parts are; part = sample index * (columns * rows) + inner index.

    Attributes
    ----------
    samples, columns, rows : ndarray, shape (n_ops,), int64
        Parts along samples, output features, and rows of a table (partial sums).
    server : ndarray, shape (n_ops, n_parts_most), int64
        Server of each part.
    group : ndarray, shape (n_ops, n_inner_most), int64
        Which set of servers all-reduces the weights of each inner index; -1 for none.
    seconds : ndarray, shape (2, n_ops), float64
        Forward and backward of one part.
    """

    samples: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    server: np.ndarray
    group: np.ndarray
    seconds: np.ndarray


class Network(NamedTuple):
    """Links, the route of every pair of servers, and the flows of every all-reduce group.

    Attributes
    ----------
    seconds_per_byte, latency_seconds : ndarray, shape (n_links,), float64
        Of each directed link.
    pair_ways : ndarray, shape (n_servers ** 2,), int64
        Routes of each pair of servers, at least 1.
    pair_first, pair_link : ndarray, int64
        Links of route w from server a to b are ``pair_link[pair_first[(a * n + b) * most_ways + w] : ...]``.
    flow_first : ndarray, shape (n_groups + 1,), int64
        Flows of each group.
    route_first, route_link : ndarray, int64
        Links of each flow.
    share_ratio : ndarray, shape (n_flows,), float64
        Part of one rank's traffic that the flow carries.
    group_size : ndarray, shape (n_groups,), int64
        Members of each group.
    """

    seconds_per_byte: np.ndarray
    latency_seconds: np.ndarray
    pair_ways: np.ndarray
    pair_first: np.ndarray
    pair_link: np.ndarray
    flow_first: np.ndarray
    route_first: np.ndarray
    route_link: np.ndarray
    share_ratio: np.ndarray
    group_size: np.ndarray


class Tasks(NamedTuple):
    """The task graph: forward task of part p of operator i is ``2 * (part_first[i] + p)``, its backward task the next number.

    Attributes
    ----------
    part_first : ndarray, shape (n_ops + 1,), int64
        Parts of each operator.
    edge_first, edge_order : ndarray, int64
        Edges out of task t are ``edge_order[edge_first[t] : edge_first[t + 1]]``.
    edge_source, edge_target, edge_bytes, edge_way : ndarray, shape (n_edges,), int64
        Tasks at the ends; bytes to move, 0 on one server; which route of the pair.
    n_before : ndarray, shape (n_tasks,), int64
        Edges into each task.
    reduce_first : ndarray, shape (n_ops + 1,), int64
        All-reduces of each operator.
    reduce_group, reduce_bytes : ndarray, shape (n_reduces,), int64
        Who takes part, and the size of the tensor.
    """

    part_first: np.ndarray
    edge_first: np.ndarray
    edge_order: np.ndarray
    edge_source: np.ndarray
    edge_target: np.ndarray
    edge_bytes: np.ndarray
    edge_way: np.ndarray
    n_before: np.ndarray
    reduce_first: np.ndarray
    reduce_group: np.ndarray
    reduce_bytes: np.ndarray


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


@njit(cache=True)
def tasks(model, split, pair_ways, pair_share, segment_bytes):
    """Return the task graph of a plan; edges in the order: own backward, then operator by operator, input by input, part by part.

    A transfer of a segment or more for every route of its pair is split in the pair's shares (running sums; evenly where the
    first is negative), a smaller one evenly over as many routes as it has segments.
    """
    n, most_ways = int(np.sqrt(len(pair_ways)) + 0.5), pair_ways.max()
    n_ops = len(model.sample_bytes)
    part_first = np.zeros(n_ops + 1, np.int64)
    n_edges, n_reduces = 0, 0
    reduce_first = np.zeros(n_ops + 1, np.int64)
    for i in range(n_ops):
        inner = split.columns[i] * split.rows[i]
        part_first[i + 1] = part_first[i] + split.samples[i] * inner
        n_edges += split.samples[i] * inner
        for x in range(model.input_first[i], model.input_first[i + 1]):
            j = model.input_op[x]
            inner_j = split.columns[j] * split.rows[j]
            n_edges += 2 * (split.samples[i] + split.samples[j]) * inner * inner_j * most_ways
        for c in range(inner):
            if split.group[i, c] >= 0:
                n_reduces += model.weight_first[i + 1] - model.weight_first[i]
        reduce_first[i + 1] = n_reduces
    n_tasks = 2 * part_first[n_ops]
    source = np.empty(n_edges, np.int64)
    target = np.empty(n_edges, np.int64)
    n_bytes = np.zeros(n_edges, np.int64)
    way = np.zeros(n_edges, np.int64)
    e = 0
    for i in range(n_ops):
        for p in range(part_first[i + 1] - part_first[i]):
            source[e], target[e] = 2 * (part_first[i] + p), 2 * (part_first[i] + p) + 1
            e += 1
    for i in range(n_ops):
        inner = split.columns[i] * split.rows[i]
        step = model.batch[i] // split.samples[i]
        for x in range(model.input_first[i], model.input_first[i + 1]):
            j = model.input_op[x]
            inner_j = split.columns[j] * split.rows[j]
            step_j = model.batch[j] // split.samples[j]
            for p in range(part_first[i + 1] - part_first[i]):
                low = (p // inner) * step
                for a in range(low // step_j, (low + step - 1) // step_j + 1):
                    overlap = min(low + step, (a + 1) * step_j) - max(low, a * step_j)
                    moved = overlap * model.sample_bytes[j] // split.columns[j]
                    for b in range(inner_j):
                        q = a * inner_j + b
                        to, at = split.server[i, p], split.server[j, q]
                        for back in range(2):  # forward from producer to consumer, then the gradient the other way
                            pair = to * n + at if back else at * n + to
                            n_ways = max(min(pair_ways[pair], moved // segment_bytes), 1) if to != at else 1
                            even = n_ways < pair_ways[pair] or pair_share[pair * most_ways] < 0.0
                            begin = 0
                            for w in range(n_ways):
                                until = moved * (w + 1) // n_ways
                                if not even:
                                    until = np.int64(np.rint(moved * pair_share[pair * most_ways + w]))
                                mine, theirs = 2 * (part_first[i] + p) + back, 2 * (part_first[j] + q) + back
                                source[e], target[e] = (mine, theirs) if back else (theirs, mine)
                                n_bytes[e] = until - begin if to != at else 0
                                way[e], begin = w, until
                                e += 1
    n_edges = e
    edge_first = np.zeros(n_tasks + 1, np.int64)
    n_before = np.zeros(n_tasks, np.int64)
    for e in range(n_edges):
        edge_first[source[e] + 1] += 1
        n_before[target[e]] += 1
    for t in range(n_tasks):
        edge_first[t + 1] += edge_first[t]
    place = edge_first[:-1].copy()
    order = np.empty(n_edges, np.int64)
    for e in range(n_edges):
        order[place[source[e]]] = e
        place[source[e]] += 1
    reduce_group = np.empty(n_reduces, np.int64)
    reduce_bytes = np.empty(n_reduces, np.int64)
    r = 0
    for i in range(n_ops):
        inner = split.columns[i] * split.rows[i]
        for w in range(model.weight_first[i], model.weight_first[i + 1]):
            for c in range(inner):
                if split.group[i, c] >= 0:
                    reduce_group[r], reduce_bytes[r] = split.group[i, c], model.weight_bytes[w] // inner
                    r += 1
    return Tasks(
        part_first, edge_first, order, source[:n_edges], target[:n_edges], n_bytes[:n_edges], way[:n_edges], n_before, reduce_first,
        reduce_group, reduce_bytes,
    )  # fmt: skip


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def loads(tasks, split, network):
    """Return how long the busiest server computes, and how long the busiest link carries transfers, all-reduces, and both."""
    n = int(np.sqrt(len(network.pair_ways)) + 0.5)
    most_ways = (len(network.pair_first) - 1) // len(network.pair_ways)
    n_ops, n_links = len(tasks.part_first) - 1, len(network.seconds_per_byte)
    server, sent, reduced = np.zeros(n), np.zeros(n_links), np.zeros(n_links)
    owner = np.empty(tasks.part_first[n_ops], np.int64)
    for i in range(n_ops):
        for p in range(tasks.part_first[i + 1] - tasks.part_first[i]):
            owner[tasks.part_first[i] + p] = split.server[i, p]
            server[split.server[i, p]] += split.seconds[0, i] + split.seconds[1, i]
    for e in range(len(tasks.edge_bytes)):
        if tasks.edge_bytes[e] > 0:
            pair = owner[tasks.edge_source[e] >> 1] * n + owner[tasks.edge_target[e] >> 1]
            pair = pair * most_ways + tasks.edge_way[e]
            for x in range(network.pair_first[pair], network.pair_first[pair + 1]):
                sent[network.pair_link[x]] += tasks.edge_bytes[e]
    per_group = np.zeros(len(network.group_size))
    for r in range(len(tasks.reduce_group)):
        per_group[tasks.reduce_group[r]] += tasks.reduce_bytes[r]
    for g in range(len(per_group)):
        if per_group[g] > 0.0:
            size = network.group_size[g]
            amount = 2.0 * (size - 1) / size * per_group[g]
            for f in range(network.flow_first[g], network.flow_first[g + 1]):
                for x in range(network.route_first[f], network.route_first[f + 1]):
                    reduced[network.route_link[x]] += amount * network.share_ratio[f]
    both = 0.0
    for link in range(n_links):
        sent[link] *= network.seconds_per_byte[link]
        reduced[link] *= network.seconds_per_byte[link]
        both = max(both, sent[link] + reduced[link])
    return server.max(), sent.max() if n_links else 0.0, reduced.max() if n_links else 0.0, both


@njit(cache=True)
def play(tasks, split, network, segment_bytes, n_gpus, gpu_seconds_per_byte, limit_seconds):
    """Return when everything happens; first come, first served, ties in the order in which events were made.

    Parameters
    ----------
    tasks, split, network
        The task graph of a plan, the plan, the network.
    segment_bytes : int
        Transfers are sent in segments of this size; links serve segments, not transfers.
    n_gpus : int
        Devices of a server; more than one add up among themselves first, which takes ``floor(2 * size / n_gpus)`` bytes.
    gpu_seconds_per_byte : float
        Of the network inside a server.
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
    op_of = np.empty(tasks.part_first[n_ops], np.int64)
    server_of = np.empty(tasks.part_first[n_ops], np.int64)
    for i in range(n_ops):
        for p in range(tasks.part_first[i], tasks.part_first[i + 1]):
            op_of[p], server_of[p] = i, split.server[i, p - tasks.part_first[i]]
    reduce_of = np.empty(n_flows, np.int64)
    start, end = np.zeros(n_all), np.zeros(n_all)
    ready = np.zeros(n_tasks)
    n_before = tasks.n_before.copy()
    op_left = tasks.part_first[1:] - tasks.part_first[:-1]
    op_ready = np.zeros(n_ops)
    link_free, server_free = np.zeros(len(network.seconds_per_byte)), np.zeros(n)
    times, keys = np.empty(n_all + 4), np.empty(n_all + 4, np.int64)  # a key is the number of the push, then the entity
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
        if entity >= first_flow or (n_tasks <= entity < first_reduce):
            size = min(segment_bytes, left[entity])
            free_at, over = now, now
            for x in range(low[entity], high[entity]):
                link = network.route_link[x] if entity >= first_flow else network.pair_link[x]
                begin = max(link_free[link], free_at)
                free_at = begin + network.latency_seconds[link]
                link_free[link] = free_at + size * network.seconds_per_byte[link]
                over = max(over, link_free[link])
                if x == low[entity]:
                    again = link_free[link]
            end[entity] = max(end[entity], over)
            left[entity] -= size
            last = max(last, end[entity])
            if left[entity] > 0:
                _sink(times, keys, n_heap, again, number << _BITS | entity)
                number += 1
                continue
        n_heap -= 1
        if n_heap > 0:
            _sink(times, keys, n_heap, times[n_heap], keys[n_heap])
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
            wait = (2 * tasks.reduce_bytes[r] // n_gpus) * gpu_seconds_per_byte if n_gpus > 1 else 0.0
            for k in range(reduce_flow[r + 1] - reduce_flow[r]):
                f, flow = network.flow_first[group] + k, first_flow + reduce_flow[r] + k
                amount = 2.0 * (members - 1) / members * tasks.reduce_bytes[r] * network.share_ratio[f]
                left[flow] = np.int64(np.ceil(amount))
                low[flow], high[flow] = network.route_first[f], network.route_first[f + 1]
                reduce_of[reduce_flow[r] + k] = r
                _push(times, keys, n_heap, now + wait, number << _BITS | flow)
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
