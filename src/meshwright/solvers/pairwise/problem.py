"""A pairwise problem: choose one label per node so that the sum of node costs and edge costs is smallest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError

__all__ = ["Pairwise", "restrict", "total_cost"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pairwise:
    """Nodes with labels, and edges whose cost depends on a row of the source's label and a column of the target's.

    Many labels of a node look alike to one edge (they lay out the tensor on it alike), and many edges have the same table; so
    tables are kept per pair of layouts, and shared.

    Parameters
    ----------
    first : ndarray, shape (n_nodes + 1,), int64
        Labels of node v are ``first[v] : first[v + 1]``.
    node_cost : ndarray, shape (n_labels,), float64
        Cost of each label.
    source, target : ndarray, shape (n_edges,), int64
        Ends of each edge; two nodes may share several edges, no edge is a loop.
    rows, columns : tuple of ndarray, length n_edges, each int64
        For each label of the source (target) the row (column) of the edge's table.
    table_of_edge : ndarray, shape (n_edges,), int64
        Which table each edge has.
    tables : tuple of ndarray, each two-dimensional, float64
        Edge costs.

    Raises
    ------
    InputError
        When an edge is a loop or names no node, a cost is not finite, or shapes disagree.
    """

    first: Ints
    node_cost: Floats
    source: Ints
    target: Ints
    rows: tuple[Ints, ...]
    columns: tuple[Ints, ...]
    table_of_edge: Ints
    tables: tuple[Floats, ...]

    def __post_init__(self) -> None:
        counts = np.diff(self.first)
        if len(counts) == 0 or counts.min() < 1 or len(self.node_cost) != self.first[-1]:
            raise InputError("pairwise problem: every node needs at least one label, and every label a cost")
        if not np.isfinite(self.node_cost).all() or not all(np.isfinite(table).all() for table in self.tables):
            raise InputError("pairwise problem: a cost is not finite; leave impossible labels out")
        for e, (u, v) in enumerate(zip(self.source.tolist(), self.target.tolist(), strict=True)):
            if u == v or not (0 <= u < len(counts) and 0 <= v < len(counts)):
                raise InputError(f"pairwise problem: edge {e} joins {u} and {v}; ends must be two of 0..{len(counts) - 1}")
            if len(self.rows[e]) != counts[u] or len(self.columns[e]) != counts[v]:
                raise InputError(f"pairwise problem: edge {e}: its rows and columns must name one entry per label")

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.first) - 1

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return len(self.source)

    def costs_of(self, node: int) -> Floats:
        """Return the label costs of one node."""
        return self.node_cost[self.first[node] : self.first[node + 1]]

    def table(self, edge: int) -> Floats:
        """Return the table of one edge, by layouts."""
        return np.asarray(self.tables[self.table_of_edge[edge]])


def total_cost(problem: Pairwise, labels: Ints) -> float:
    """Return the cost of one label per node, summed without rounding error.

    Parameters
    ----------
    problem : Pairwise
        The problem.
    labels : ndarray, shape (n_nodes,), int64
        Label of each node, counted from 0 within the node.

    Returns
    -------
    float
        Sum of its node and edge costs.
    """
    terms = problem.node_cost[problem.first[:-1] + labels].tolist()
    for e, (u, v) in enumerate(zip(problem.source.tolist(), problem.target.tolist(), strict=True)):
        terms.append(float(problem.table(e)[problem.rows[e][labels[u]], problem.columns[e][labels[v]]]))
    return math.fsum(terms)


def restrict(problem: Pairwise, kept: NDArray[np.bool_]) -> tuple[Pairwise, Ints]:
    """Return the problem with only some labels, and the old label of each new one.

    Parameters
    ----------
    problem : Pairwise
        The problem.
    kept : ndarray, shape (n_labels,), bool
        Which labels stay; at least one per node.

    Returns
    -------
    smaller : Pairwise
        Tables cut to the rows and columns still in use.
    old : ndarray, shape (n_kept,), int64
        Old label, counted within its node, of each label kept.
    """
    index = np.flatnonzero(kept)
    node = np.searchsorted(problem.first, index, side="right") - 1
    counts = np.bincount(node, minlength=problem.n_nodes)
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    old = index - problem.first[node]
    rows: list[Ints] = []
    columns: list[Ints] = []
    tables: list[Floats] = []
    table_of_edge: list[int] = []
    shared: dict[tuple[int, bytes, bytes], int] = {}
    for e, (u, v) in enumerate(zip(problem.source.tolist(), problem.target.tolist(), strict=True)):
        used_rows, row = np.unique(problem.rows[e][old[first[u] : first[u + 1]]], return_inverse=True)
        used_columns, column = np.unique(problem.columns[e][old[first[v] : first[v + 1]]], return_inverse=True)
        key = (int(problem.table_of_edge[e]), used_rows.tobytes(), used_columns.tobytes())
        if key not in shared:
            shared[key] = len(tables)
            tables.append(np.ascontiguousarray(problem.table(e)[np.ix_(used_rows, used_columns)]))
        rows.append(row.astype(np.int64))
        columns.append(column.astype(np.int64))
        table_of_edge.append(shared[key])
    smaller = Pairwise(
        first, problem.node_cost[index], problem.source, problem.target, tuple(rows), tuple(columns),
        np.array(table_of_edge, dtype=np.int64), tuple(tables),
    )  # fmt: skip
    return smaller, old
