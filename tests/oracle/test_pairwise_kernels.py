"""What the messages of a pairwise problem say, computed from the definition: reduced costs of labels, the bound, its slacks."""

from __future__ import annotations

import numpy as np
import pairwise as oracle  # tests/oracle/pairwise.py
import pytest

from meshwright._kernels.pairwise import message_passing as kernel
from meshwright.solvers.pairwise.message_passing import _no_messages, flatten
from meshwright.solvers.pairwise.problem import Pairwise, total_cost


def reduced(problem: Pairwise, messages: object) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return costs of labels and tables of edges with what the messages move from the tables to the labels."""
    nodes = [problem.costs_of(v).copy() for v in range(problem.n_nodes)]
    tables = []
    for e in range(len(problem.source)):
        u, v, table = int(problem.source[e]), int(problem.target[e]), problem.table(e)
        n, m = table.shape
        to_row = messages.to_row[messages.row_first[e] :][:n]
        to_column = messages.to_column[messages.column_first[e] :][:m]
        nodes[u] += to_row[problem.rows[e]]
        nodes[v] += to_column[problem.columns[e]]
        tables.append(table - to_row[:, None] - to_column[None, :])
    return nodes, tables


@pytest.mark.parametrize("seed", range(24))
def test_messages_change_no_cost_and_slacks_are_what_forcing_a_label_adds_to_the_minima(seed: int) -> None:
    problem = oracle.random_problem(seed, n_nodes=2 + seed % 4, n_edges=1 + 2 * (seed % 4), frustrated=seed % 2 == 0)
    arrays, width = flatten(problem)
    messages, slack = _no_messages(problem), np.empty(len(problem.node_cost))
    tree_bound = 0.0
    for _ in range(seed % 3):
        kernel.sweep(arrays, messages, True, width, slack)
        tree_bound = kernel.sweep(arrays, messages, False, width, slack)
    if seed % 3:
        kernel.push(arrays, messages, width)
    nodes, tables = reduced(problem, messages)
    for labels in oracle.labellings(problem):
        moved = sum(float(nodes[v][label]) for v, label in enumerate(labels)) + sum(
            float(table[problem.rows[e][labels[problem.source[e]]], problem.columns[e][labels[problem.target[e]]]])
            for e, table in enumerate(tables)
        )
        assert moved == pytest.approx(total_cost(problem, labels), abs=1e-8)
    bound = kernel.slacks(arrays, messages, width, slack)
    assert bound == pytest.approx(sum(own.min() for own in nodes) + sum(table.min() for table in tables), abs=1e-8)
    if seed % 3:
        assert bound >= tree_bound - 1e-8, "after the push plain minima add up to the bound of the trees"
    for v, own in enumerate(nodes):
        expected = own - own.min()
        for e, table in enumerate(tables):
            if problem.source[e] == v:
                expected = expected + (table.min(axis=1) - table.min())[problem.rows[e]]
            if problem.target[e] == v:
                expected = expected + (table.min(axis=0) - table.min())[problem.columns[e]]
        assert slack[problem.first[v] : problem.first[v + 1]] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("seed", range(24))
def test_decoded_labels_cannot_be_bettered_one_at_a_time_and_are_the_greedy_ones_before(seed: int) -> None:
    problem = oracle.random_problem(seed, n_nodes=2 + seed % 4, n_edges=1 + 2 * (seed % 4), frustrated=seed % 2 == 0)
    arrays, width = flatten(problem)
    messages, slack = _no_messages(problem), np.empty(len(problem.node_cost))
    kernel.sweep(arrays, messages, True, width, slack)
    kernel.sweep(arrays, messages, False, width, slack)
    labels = np.zeros(problem.n_nodes, dtype=np.int64)
    kernel.decode(arrays, messages, width, labels, 0)
    greedy: list[int] = []
    for v in range(problem.n_nodes):
        score = problem.costs_of(v).copy()
        for e in range(len(problem.source)):
            u, w, table = int(problem.source[e]), int(problem.target[e]), problem.table(e)
            if u == v:
                received = messages.to_row[messages.row_first[e] :][: table.shape[0]]
                score += table[problem.rows[e], problem.columns[e][greedy[w]]] if w < v else received[problem.rows[e]]
            elif w == v:
                received = messages.to_column[messages.column_first[e] :][: table.shape[1]]
                score += table[problem.rows[e][greedy[u]], problem.columns[e]] if u < v else received[problem.columns[e]]
        greedy.append(int(np.argmin(np.round(score, 9))))
        assert score[labels[v]] == pytest.approx(score.min(), abs=1e-8)
        greedy[-1] = int(labels[v])
    kernel.decode(arrays, messages, width, labels, 100)
    cost = total_cost(problem, labels)
    for v in range(problem.n_nodes):
        for label in range(len(problem.costs_of(v))):
            other = labels.copy()
            other[v] = label
            assert total_cost(problem, other) >= cost - 1e-9
