"""The task graph of one step of placed operators, and what it asks of servers and links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.arrays import largest
from meshwright._kernels.compiling import kernel, part

__all__ = ["Inside", "RoutedLinks", "Split", "Tasks", "WorkloadArrays", "added_up", "loads", "owners", "tasks"]


class WorkloadArrays(NamedTuple):
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
    last : ndarray, shape (n_ops,), bool
        Operators without producers whose backward parts wait for those of the others without producers on their server.
    """

    samples: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    server: np.ndarray
    group: np.ndarray
    seconds: np.ndarray
    last: np.ndarray


class RoutedLinks(NamedTuple):
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
    group_member : ndarray, int64
        Servers of the first group, of the second, ...
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
    group_member: np.ndarray


class Inside(NamedTuple):
    """The network between the devices of a server.

    Attributes
    ----------
    n_gpus : int
        Devices of a server; more than one add up gradients among themselves before servers do.
    seconds_per_byte, latency_seconds : float
        Of that all-reduce, for ``floor(2 * size / n_gpus)`` bytes, and whatever the size.
    shared : bool
        Whether all-reduces of one server take turns on it; otherwise each has it to itself, as published.
    """

    n_gpus: int
    seconds_per_byte: float
    latency_seconds: float
    shared: bool


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


@part(allocates=True)
def _waits(model, split, part_first, source, target, e):
    """Return how many backward parts wait for another to be the last on their server; write them from edge `e` on,
    where there is room.
    """
    n_waits = 0
    for i in np.flatnonzero(split.last):
        for j in range(len(split.last)):
            if split.last[j] or model.input_first[j] < model.input_first[j + 1]:
                continue
            for p in range(part_first[i + 1] - part_first[i]):
                for q in range(part_first[j + 1] - part_first[j]):
                    if split.server[i, p] == split.server[j, q]:
                        if len(source) > 0:
                            source[e + n_waits] = 2 * (part_first[j] + q) + 1
                            target[e + n_waits] = 2 * (part_first[i] + p) + 1
                        n_waits += 1
    return n_waits


@kernel(allocates=True)
def tasks(model, split, pair_ways, pair_share, segment_bytes):
    """Return the task graph of a plan; edges: own backward, then operator by operator, input by input, part by part, then who
    is last.

    A transfer of a segment or more for every route of its pair is split in the pair's shares (running sums; evenly where the
    first is negative), a smaller one evenly over as many routes as it has segments.
    """
    n, most_ways = int(np.sqrt(len(pair_ways)) + 0.5), largest(pair_ways)
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
    n_edges += _waits(model, split, part_first, np.empty(0, np.int64), np.empty(0, np.int64), 0)
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
    n_edges = e + _waits(model, split, part_first, source, target, e)
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
        part_first, edge_first, order, source[:n_edges], target[:n_edges], n_bytes[:n_edges], way[:n_edges], n_before,
        reduce_first,
        reduce_group, reduce_bytes,
    )  # fmt: skip


@part(allocates=True)
def owners(tasks, split):
    """Return operator and server of every part."""
    n_ops = len(tasks.part_first) - 1
    op_of = np.empty(tasks.part_first[n_ops], np.int64)
    server_of = np.empty(tasks.part_first[n_ops], np.int64)
    for i in range(n_ops):
        for p in range(tasks.part_first[i], tasks.part_first[i + 1]):
            op_of[p], server_of[p] = i, split.server[i, p - tasks.part_first[i]]
    return op_of, server_of


@part
def added_up(inside, members, n_bytes, now, free):
    """Return when the devices of all members have added up a tensor that is ready now;
    `free` says when each server's network is.
    """
    if inside.n_gpus == 1:
        return now
    seconds = inside.latency_seconds + (2 * n_bytes // inside.n_gpus) * inside.seconds_per_byte
    if not inside.shared:
        return now + seconds
    done = now
    for server in members:
        free[server] = max(now, free[server]) + seconds
        done = max(done, free[server])
    return done


@kernel(allocates=True)
def loads(tasks, split, network):
    """Return how long the busiest server computes, how long the busiest link carries transfers, all-reduces, and both, and the
    bytes on all links together.
    """
    n = int(np.sqrt(len(network.pair_ways)) + 0.5)
    most_ways = (len(network.pair_first) - 1) // len(network.pair_ways)
    n_links = len(network.seconds_per_byte)
    server, sent, reduced = np.zeros(n), np.zeros(n_links), np.zeros(n_links)
    op_of, owner = owners(tasks, split)
    for p in range(len(owner)):
        server[owner[p]] += split.seconds[0, op_of[p]] + split.seconds[1, op_of[p]]
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
    both, n_bytes = 0.0, 0.0
    for link in range(n_links):
        n_bytes += sent[link] + reduced[link]
        sent[link] *= network.seconds_per_byte[link]
        reduced[link] *= network.seconds_per_byte[link]
        both = max(both, sent[link] + reduced[link])
    return largest(server), largest(sent) if n_links else 0.0, largest(reduced) if n_links else 0.0, both, n_bytes
