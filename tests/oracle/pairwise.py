"""Brute force and plain-Python twins for pairwise problems: every labelling, and message passing on whole labels."""

from __future__ import annotations

import itertools
import math

import numpy as np

from meshwright.solvers.pairwise.problem import Pairwise, total_cost


def random_problem(seed: int, n_nodes: int = 5, n_edges: int = 7, n_labels: int = 4, *, frustrated: bool = False) -> Pairwise:
    """A random problem with whole costs, parallel edges, and labels that share layouts."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2 if frustrated else 1, n_labels + 1, n_nodes)
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    source, target, rows, columns, tables = [], [], [], [], []
    for _ in range(n_edges if n_nodes > 1 else 0):
        u, v = rng.choice(n_nodes, 2, replace=False)
        n_rows, n_columns = (int(c) if frustrated else int(rng.integers(1, c + 1)) for c in (counts[u], counts[v]))
        rows.append(rng.permutation(np.concatenate((np.arange(n_rows), rng.integers(0, n_rows, counts[u] - n_rows)))))
        columns.append(
            rng.permutation(np.concatenate((np.arange(n_columns), rng.integers(0, n_columns, counts[v] - n_columns))))
        )
        tables.append(rng.integers(0, 100, (n_rows, n_columns)).astype(float))
        source.append(u)
        target.append(v)
    node_cost = rng.integers(0, 5 if frustrated else 60, first[-1]).astype(float)
    ends = np.array(source, dtype=np.int64), np.array(target, dtype=np.int64)
    return Pairwise(first, node_cost, *ends, tuple(rows), tuple(columns), np.arange(len(tables)), tuple(tables))


def labellings(problem: Pairwise):
    """Every choice of one label per node."""
    for labels in itertools.product(*(range(n) for n in np.diff(problem.first))):
        yield np.array(labels, dtype=np.int64)


def least_cost(problem: Pairwise, weights: np.ndarray | None = None, budget_bytes: float = math.inf) -> float:
    """The least cost within a budget, by looking at all labellings."""
    best = math.inf
    for labels in labellings(problem):
        if weights is None or weights[problem.first[:-1] + labels].sum() <= budget_bytes:
            best = min(best, total_cost(problem, labels))
    return best


def forced_cost(problem: Pairwise) -> np.ndarray:
    """For each label the least cost of all labellings that include it."""
    least = np.full(len(problem.node_cost), math.inf)
    for labels in labellings(problem):
        index = problem.first[:-1] + labels
        least[index] = np.minimum(least[index], total_cost(problem, labels))
    return least


def message_bounds(problem: Pairwise, n_sweeps: int) -> list[float]:
    """The bound after each descending sweep of tree-reweighted message passing, with messages per label, in plain loops."""
    n = problem.n_nodes
    edges = list(zip(problem.source.tolist(), problem.target.tolist(), strict=True))
    full = [problem.table(e)[np.ix_(problem.rows[e], problem.columns[e])] for e in range(len(edges))]
    received = {(e, end): [0.0] * len(problem.costs_of(end)) for e, ends in enumerate(edges) for end in ends}
    bounds = []
    for _ in range(n_sweeps):
        for order in (range(n), range(n - 1, -1, -1)):
            forward = order[0] <= order[-1] and (n == 1 or order[0] == 0)
            bound = 0.0
            for v in order:
                here = [(e, ends[0] if ends[1] == v else ends[1]) for e, ends in enumerate(edges) if v in ends]
                total = problem.costs_of(v).tolist()
                for e, _ in here:
                    total = [a + b for a, b in zip(total, received[e, v], strict=True)]
                ahead = [(e, w) for e, w in here if (w > v) == forward]
                share = 1.0 / max(len(ahead), len(here) - len(ahead), 1)
                bound += (1.0 - share * len(ahead)) * min(total)
                for e, w in ahead:
                    own = received[e, v]
                    table = full[e] if edges[e][0] == v else full[e].T
                    sent = [
                        min(share * total[x] - own[x] + table[x][y] for x in range(len(total))) for y in range(table.shape[1])
                    ]
                    bound += min(sent)
                    received[e, w] = [value - min(sent) for value in sent]
        bounds.append(bound)
    return bounds
