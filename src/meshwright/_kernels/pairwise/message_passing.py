"""Loops of sequential tree-reweighted message passing on a pairwise problem given as flat arrays.

TRW-S of Kolmogorov (PAMI 28(10), 2006, section 4). At node s, in order: ``hat_s = theta_s + sum of M_ts`` over its edges; then
for every edge to a later node t, ``M_st(x_t) = min over x_s of gamma_s hat_s(x_s) - M_ts(x_s) + theta_st(x_s, x_t)``, less its
own minimum, which goes to the bound; ``gamma_s = 1 / max(edges to later nodes, edges to earlier nodes)``.

Here theta_s is `node_cost`, theta_st `tables`, hat_s `hat`, gamma_s `share`, M_st and M_ts `sent` and `own`. Not in the paper:
labels of a node that look alike to an edge share a row of its table (a layout; `maps` says which), so that messages are per
layout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part

__all__ = ["Messages", "PairwiseArrays", "decode", "push", "slacks", "sweep"]


class PairwiseArrays(NamedTuple):
    """A pairwise problem: see `meshwright.solvers.pairwise.message_passing.flatten`."""

    first: np.ndarray
    node_cost: np.ndarray
    source: np.ndarray
    target: np.ndarray
    row_map: np.ndarray
    column_map: np.ndarray
    maps: np.ndarray
    n_rows: np.ndarray
    n_columns: np.ndarray
    by_row: np.ndarray
    by_column: np.ndarray
    tables: np.ndarray
    incident_first: np.ndarray
    incident: np.ndarray


class Messages(NamedTuple):
    """Per edge what its rows and its columns receive, and where each edge's part starts."""

    row_first: np.ndarray
    column_first: np.ndarray
    to_row: np.ndarray
    to_column: np.ndarray


@part
def _gather(arrays, messages, node, hat):
    """Write node costs plus all messages received into `hat`; return the smallest."""
    begin, end = arrays.first[node], arrays.first[node + 1]
    for x in range(end - begin):
        hat[x] = arrays.node_cost[begin + x]
    for at in range(arrays.incident_first[node], arrays.incident_first[node + 1]):
        e = arrays.incident[at]
        if arrays.source[e] == node:
            offset, received = arrays.row_map[e], messages.to_row[messages.row_first[e] :]
        else:
            offset, received = arrays.column_map[e], messages.to_column[messages.column_first[e] :]
        for x in range(end - begin):
            hat[x] += received[arrays.maps[offset + x]]
    smallest = np.inf
    for x in range(end - begin):
        smallest = min(smallest, hat[x])
    return smallest


@part
def _least_by_layout(arrays, e, is_source, hat, n_labels, share, least):
    """Write the smallest ``share * hat`` of each layout of edge e into `least`; return the number of layouts."""
    n = arrays.n_rows[e] if is_source else arrays.n_columns[e]
    offset = arrays.row_map[e] if is_source else arrays.column_map[e]
    for layout in range(n):
        least[layout] = np.inf
    for x in range(n_labels):
        layout = arrays.maps[offset + x]
        least[layout] = min(least[layout], share * hat[x])
    return n


@part
def _n_towards(arrays, node, forward):
    """Count the edges of a node to later (`forward`) or earlier nodes."""
    count = 0
    for at in range(arrays.incident_first[node], arrays.incident_first[node + 1]):
        e = arrays.incident[at]
        other = arrays.target[e] if arrays.source[e] == node else arrays.source[e]
        if (other > node) == forward:
            count += 1
    return count


@kernel(allocates=True)
def sweep(arrays, messages, forward, width, slack):
    """Update all messages in ascending (`forward`) or descending order; return the bound.

    `slack` receives by how much each label exceeds the best of its node when its node is reached: the bound reached before
    rises by that much when the label is forced.
    """
    hat, least, best = np.empty(width), np.empty(width), np.empty(width)
    n_nodes = len(arrays.first) - 1
    bound = 0.0
    for step in range(n_nodes):
        node = step if forward else n_nodes - 1 - step
        n_labels = arrays.first[node + 1] - arrays.first[node]
        smallest = _gather(arrays, messages, node, hat)
        n_ahead, n_behind = _n_towards(arrays, node, forward), _n_towards(arrays, node, not forward)
        share = 1.0 / max(n_ahead, n_behind, 1)
        bound += (1.0 - share * n_ahead) * smallest  # what the edges ahead do not take along stays here
        for x in range(n_labels):
            slack[arrays.first[node] + x] = hat[x] - smallest
        for at in range(arrays.incident_first[node], arrays.incident_first[node + 1]):
            e = arrays.incident[at]
            is_source = arrays.source[e] == node
            other = arrays.target[e] if is_source else arrays.source[e]
            if (other > node) != forward:
                continue
            n = _least_by_layout(arrays, e, is_source, hat, n_labels, share, least)
            if is_source:
                own, sent = messages.to_row[messages.row_first[e] :], messages.to_column[messages.column_first[e] :]
                base, m = arrays.by_row[e], arrays.n_columns[e]
            else:
                own, sent = messages.to_column[messages.column_first[e] :], messages.to_row[messages.row_first[e] :]
                base, m = arrays.by_column[e], arrays.n_rows[e]
            best[:m] = np.inf
            for i in range(n):
                value = least[i] - own[i]
                line = arrays.tables[base + i * m : base + (i + 1) * m]
                for j in range(m):
                    candidate = value + line[j]
                    best[j] = candidate if candidate < best[j] else best[j]
            lowest = best[0]  # taken out of the message, or messages would grow from sweep to sweep
            for j in range(m):
                lowest = min(lowest, best[j])
            for j in range(m):
                sent[j] = best[j] - lowest
            bound += lowest
    return bound


@kernel(allocates=True)
def push(arrays, messages, width):
    """After a descending sweep, move each node's share into its edges, so that plain minima add up to the bound."""
    hat, least = np.empty(width), np.empty(width)
    for node in range(len(arrays.first) - 1):
        n_labels = arrays.first[node + 1] - arrays.first[node]
        _gather(arrays, messages, node, hat)
        n_ahead, n_behind = _n_towards(arrays, node, False), _n_towards(arrays, node, True)
        share = 1.0 / max(n_ahead, n_behind, 1)
        for at in range(arrays.incident_first[node], arrays.incident_first[node + 1]):
            e = arrays.incident[at]
            is_source = arrays.source[e] == node
            if (arrays.target[e] if is_source else arrays.source[e]) > node:
                continue
            n = _least_by_layout(arrays, e, is_source, hat, n_labels, share, least)
            own = messages.to_row[messages.row_first[e] :] if is_source else messages.to_column[messages.column_first[e] :]
            for layout in range(n):
                own[layout] -= least[layout]


@kernel(allocates=True)
def slacks(arrays, messages, width, slack):
    """Write how much the bound rises when each label is forced into `slack`; return the bound: the sum of all minima."""
    hat, rows, columns = np.empty(width), np.empty(width), np.empty(width)
    bound = 0.0
    for node in range(len(arrays.first) - 1):
        smallest = _gather(arrays, messages, node, hat)
        bound += smallest
        for x in range(arrays.first[node + 1] - arrays.first[node]):
            slack[arrays.first[node] + x] = hat[x] - smallest
    for e in range(len(arrays.source)):
        n, m = arrays.n_rows[e], arrays.n_columns[e]
        to_row, to_column = messages.to_row[messages.row_first[e] :], messages.to_column[messages.column_first[e] :]
        rows[:n] = np.inf
        columns[:m] = np.inf
        for i in range(n):
            line = arrays.tables[arrays.by_row[e] + i * m : arrays.by_row[e] + (i + 1) * m]
            for j in range(m):
                value = line[j] - to_row[i] - to_column[j]
                columns[j] = value if value < columns[j] else columns[j]
                rows[i] = value if value < rows[i] else rows[i]
        smallest = rows[0]
        for i in range(n):
            smallest = min(smallest, rows[i])
        bound += smallest
        u, v = arrays.source[e], arrays.target[e]
        for x in range(arrays.first[u + 1] - arrays.first[u]):
            slack[arrays.first[u] + x] += rows[arrays.maps[arrays.row_map[e] + x]] - smallest
        for x in range(arrays.first[v + 1] - arrays.first[v]):
            slack[arrays.first[v] + x] += columns[arrays.maps[arrays.column_map[e] + x]] - smallest
    return bound


@part
def _add_edge(arrays, e, node, labels, score):
    """Add to `score` what each label of `node` costs on edge e with the other end as labelled."""
    m = arrays.n_columns[e]
    if arrays.source[e] == node:
        j = arrays.maps[arrays.column_map[e] + labels[arrays.target[e]]]
        for x in range(arrays.first[node + 1] - arrays.first[node]):
            score[x] += arrays.tables[arrays.by_row[e] + arrays.maps[arrays.row_map[e] + x] * m + j]
    else:
        base = arrays.by_row[e] + arrays.maps[arrays.row_map[e] + labels[arrays.source[e]]] * m
        for x in range(arrays.first[node + 1] - arrays.first[node]):
            score[x] += arrays.tables[base + arrays.maps[arrays.column_map[e] + x]]


@kernel(allocates=True)
def decode(arrays, messages, width, labels, n_rounds):
    """Choose labels in ascending order from earlier choices and later messages, then improve one node at a time."""
    score = np.empty(width)
    n_nodes = len(arrays.first) - 1
    for done in range(n_rounds + 1):
        changed = False
        for node in range(n_nodes):
            n_labels = arrays.first[node + 1] - arrays.first[node]
            for x in range(n_labels):
                score[x] = arrays.node_cost[arrays.first[node] + x]
            for at in range(arrays.incident_first[node], arrays.incident_first[node + 1]):
                e = arrays.incident[at]
                is_source = arrays.source[e] == node
                other = arrays.target[e] if is_source else arrays.source[e]
                if done > 0 or other < node:
                    _add_edge(arrays, e, node, labels, score)
                elif is_source:
                    for x in range(n_labels):
                        score[x] += messages.to_row[messages.row_first[e] + arrays.maps[arrays.row_map[e] + x]]
                else:
                    for x in range(n_labels):
                        score[x] += messages.to_column[messages.column_first[e] + arrays.maps[arrays.column_map[e] + x]]
            chosen = 0 if done == 0 else labels[node]
            for x in range(n_labels):
                if score[x] < score[chosen]:
                    chosen = x
            changed = changed or chosen != labels[node]
            labels[node] = chosen
        if done > 0 and not changed:
            break
