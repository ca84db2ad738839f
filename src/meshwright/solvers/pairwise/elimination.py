"""Exact minimum of a pairwise problem by eliminating one node after another (bucket elimination)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pairwise.problem import Pairwise

__all__ = ["eliminate"]

Floats = NDArray[np.float64]


def eliminate(problem: Pairwise, *, n_entries: int = 30_000_000) -> NDArray[np.int64] | None:
    """Return labels of least cost, or None when a table would grow beyond a size.

    `n_entries`: most entries of any table, and ten times that of all tables kept for the way back.
    Returns shape (n_nodes,), int64, or None: label of each node; the first of equally good ones in the order of
    elimination.

    References
    ----------
    .. [1] R. Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113, 1999.
    .. [2] V. Elango, "PaSE", IPDPS 2021, section IV: the same recurrence, by least degree.

    Notes
    -----
    The node eliminated next is the one whose joined table is smallest (least weight), ties by id.
    """
    sizes = np.diff(problem.first).tolist()
    factors: dict[int, list[tuple[tuple[int, ...], Floats]]] = {v: [] for v in range(problem.n_nodes)}
    neighbours: dict[int, set[int]] = {v: set() for v in range(problem.n_nodes)}
    for e, (u, v) in enumerate(zip(problem.source.tolist(), problem.target.tolist(), strict=True)):
        table = problem.table(e)[np.ix_(problem.rows[e], problem.columns[e])]
        scope, table = ((u, v), table) if u < v else ((v, u), table.T)
        factors[u].append((scope, table))
        factors[v].append((scope, table))
        neighbours[u].add(v)
        neighbours[v].add(u)

    def weight(node: int) -> float:
        joined = float(sizes[node])
        for other in neighbours[node]:
            joined *= sizes[other]
        return joined

    weights = {v: weight(v) for v in range(problem.n_nodes)}
    back: list[tuple[int, tuple[int, ...], NDArray[np.int64]]] = []
    n_kept = 0.0
    while weights:
        node = min(weights, key=lambda v: (weights[v], v))
        n_kept += weights[node] / sizes[node]
        if weights[node] > n_entries or n_kept > 10 * n_entries:
            return None
        others = tuple(sorted(neighbours[node]))
        joined = _join(problem, node, others, factors[node], sizes)
        back.append((node, others, np.argmin(joined, axis=0)))
        reduced = (others, np.min(joined, axis=0))
        for other in others:
            factors[other] = [factor for factor in factors[other] if node not in factor[0]] + [reduced]
            neighbours[other] = (neighbours[other] | set(others)) - {node, other}
        del weights[node], factors[node]
        weights.update({other: weight(other) for other in others})
    labels = np.zeros(problem.n_nodes, dtype=np.int64)
    for node, others, choice in reversed(back):
        labels[node] = choice[tuple(labels[other] for other in others)]
    return labels


def _join(
    problem: Pairwise, node: int, others: tuple[int, ...], factors: list[tuple[tuple[int, ...], Floats]], sizes: list[int]
) -> Floats:
    """Add up a node's costs and all tables that name it, as one array: axis 0 the node, then the others ascending."""
    scope = (node, *others)
    joined = np.zeros([sizes[v] for v in scope]) + problem.costs_of(node).reshape([-1] + [1] * len(others))
    for names, table in factors:
        order = sorted(range(len(names)), key=lambda axis: scope.index(names[axis]))
        shape = [1] * len(scope)
        for axis in order:
            shape[scope.index(names[axis])] = table.shape[axis]
        joined += table.transpose(order).reshape(shape)
    return joined
