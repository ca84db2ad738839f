"""Lower bounds and good labels of a pairwise problem by sequential tree-reweighted message passing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pairwise.problem import Pairwise, total_cost

__all__ = ["Relaxation", "tighten"]


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A reparametrisation of a pairwise problem, the bound it proves, and labels found on the way.

    Parameters
    ----------
    to_row, to_column : tuple of ndarray, length n_edges, each float64
        Cost moved from each edge to its rows and columns, that is to the labels of its source and target; any values prove
        some bound.
    bound_value : float
        Sum of the smallest reparametrised entry of every node and every edge: no labels cost less.
    forced_cost : ndarray, shape (n_labels,), float64
        No labels that include this one cost less.
    labels : ndarray, shape (n_nodes,), int64
        Best labels met.
    value : float
        Their cost.
    n_sweeps : int
        Sweeps made (up and down count as one).
    """

    to_row: tuple[NDArray[np.float64], ...]
    to_column: tuple[NDArray[np.float64], ...]
    bound_value: float
    forced_cost: NDArray[np.float64]
    labels: NDArray[np.int64]
    value: float
    n_sweeps: int


def tighten(problem: Pairwise, *, n_sweeps: int = 300, gap_ratio: float = 1e-12, patience: int = 12) -> Relaxation:
    """Raise the lower bound of a pairwise problem until it meets the best labels found, or stalls.

    `n_sweeps`: most sweeps.
    `gap_ratio`: stop when value / bound - 1 is at most this.
    `patience`: stop after this many sweeps that together raise the bound by less than a hundred-thousandth of the gap.
    Returns: the bound in the form of messages that anyone can add up, and the labels.

    References
    ----------
    .. [1] V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization", PAMI 28(10), 2006, section 4.

    Notes
    -----
    Messages are kept per layout of the tensor on an edge, not per label: labels alike to the edge receive alike, so nothing
    is lost. After the last sweep each node's share moves into its edges, so that plain minima add up to the tree bound.
    """
    from meshwright._kernels.pairwise import message_passing as kernel

    arrays, width = flatten(problem)
    messages = _no_messages(problem)
    slack = np.empty(len(problem.node_cost))
    forced = np.full(len(slack), -np.inf)
    labels = np.zeros(problem.n_nodes, dtype=np.int64)
    best, best_labels, done = np.inf, labels, 0
    history: list[float] = []
    for _ in range(n_sweeps):
        done += 1
        middle = kernel.sweep(arrays, messages, True, width, slack)
        if history:
            np.maximum(forced, history[-1] + slack, out=forced)
        history.append(kernel.sweep(arrays, messages, False, width, slack))
        np.maximum(forced, middle + slack, out=forced)
        kernel.decode(arrays, messages, width, labels, 10)
        value = total_cost(problem, labels)
        if value < best:
            best, best_labels = value, labels.copy()
        gap = best - history[-1]
        if gap <= gap_ratio * abs(best):
            break
        if done > patience and history[-1] - history[-1 - patience] < 1e-5 * gap:
            break
    kernel.push(arrays, messages, width)
    bound = kernel.slacks(arrays, messages, width, slack)
    np.maximum(forced, bound + slack, out=forced)
    parts = ((messages.to_row, messages.row_first), (messages.to_column, messages.column_first))
    to_row, to_column = (tuple(np.split(sent, starts[1:])) if len(starts) else () for sent, starts in parts)
    return Relaxation(to_row, to_column, float(bound), forced, best_labels, float(best), done)


def flatten(problem: Pairwise) -> tuple[Any, int]:
    """Return the problem as the flat arrays of the kernels, and the largest number of labels or layouts of any node or edge."""
    from meshwright._kernels.pairwise.message_passing import PairwiseArrays

    pool: dict[int, int] = {}
    maps: list[NDArray[np.int64]] = []

    def offset(array: NDArray[np.int64]) -> int:
        if id(array) not in pool:
            pool[id(array)] = sum(len(other) for other in maps[-1:]) + (ends[-1] if ends else 0)
            ends.append(pool[id(array)])
            maps.append(array)
        return pool[id(array)]

    ends: list[int] = []
    row_map = np.array([offset(rows) for rows in problem.rows], dtype=np.int64)
    column_map = np.array([offset(columns) for columns in problem.columns], dtype=np.int64)
    sizes = np.array([table.size for table in problem.tables], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))[:-1]
    parts = [table.ravel() for table in problem.tables] + [table.T.ravel() for table in problem.tables]
    shapes = np.array([table.shape for table in problem.tables], dtype=np.int64).reshape(-1, 2)[problem.table_of_edge]
    ends_of_edges = np.concatenate((problem.source, problem.target))
    incident = np.argsort(ends_of_edges, kind="stable") % max(problem.n_edges, 1)
    counts = np.bincount(ends_of_edges, minlength=problem.n_nodes)
    arrays = PairwiseArrays(
        problem.first, problem.node_cost, problem.source, problem.target, row_map, column_map,
        np.concatenate(maps) if maps else np.zeros(0, dtype=np.int64),
        np.ascontiguousarray(shapes[:, 0]), np.ascontiguousarray(shapes[:, 1]),
        starts[problem.table_of_edge], starts[problem.table_of_edge] + sizes.sum(),
        np.concatenate(parts) if parts else np.zeros(0),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64), incident.astype(np.int64),
    )  # fmt: skip
    width = max(int(np.diff(problem.first).max()), int(shapes.max()) if len(shapes) else 1)
    return arrays, width


def _no_messages(problem: Pairwise) -> Any:
    """Return messages of zero."""
    from meshwright._kernels.pairwise.message_passing import Messages

    n_rows = np.array([problem.table(e).shape[0] for e in range(problem.n_edges)], dtype=np.int64)
    n_columns = np.array([problem.table(e).shape[1] for e in range(problem.n_edges)], dtype=np.int64)
    row_first, column_first = (np.concatenate(([0], np.cumsum(n)))[:-1].astype(np.int64) for n in (n_rows, n_columns))
    return Messages(row_first, column_first, np.zeros(int(n_rows.sum())), np.zeros(int(n_columns.sum())))
