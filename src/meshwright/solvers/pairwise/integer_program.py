"""A pairwise problem, with or without a budget, as an integer program for HiGHS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pairwise.problem import Pairwise

__all__ = ["IntegerProgram", "solve"]


@dataclass(frozen=True, slots=True, eq=False)
class IntegerProgram:
    """What HiGHS found.

    Parameters
    ----------
    labels : ndarray, shape (n_nodes,), int64, or None
        The best labels; None when none was found.
    bound_value : float
        No labels within the budget cost less; infinite when there are none, -infinite where time ran out before any were found.
    infeasible : bool
        Whether it is proven that no labels fit the budget.
    """

    labels: NDArray[np.int64] | None
    bound_value: float
    infeasible: bool


def solve(
    problem: Pairwise,
    *,
    weights: NDArray[np.float64] | None = None,
    budget_bytes: float = 0.0,
    seconds: float = 600.0,
    gap_ratio: float = 0.0,
) -> IntegerProgram:
    """Return labels of least cost, of those within a budget.

    `weights`, shape (n_labels,), float64, or None: what each label uses of the budget; None for no budget.
    `budget_bytes`: the sum of the weights of the labels chosen is at most this.
    `seconds`: time limit.
    `gap_ratio`: stop when the labels are proven to cost at most this share more than any.

    Notes
    -----
    One binary variable per label; per edge one continuous variable for each pair of layouts, whose sums over rows and columns
    equal the labels with that layout (the local polytope over layouts).
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    (starts, indices, values), lower, upper, cost = _local_polytope(problem)
    if weights is not None:
        (starts, indices, values), lower, upper = _with_budget((starts, indices, values), lower, upper, weights, budget_bytes)
    n_labels = len(problem.node_cost)
    scale = float(np.abs(cost).max()) or 1.0
    table = csr_array((values, indices, starts), shape=(len(lower), len(cost)))
    found = milp(
        cost / scale * 1e6,  # HiGHS stops at an absolute gap of a millionth too: a trillionth of the largest cost
        integrality=np.arange(len(cost)) < n_labels,
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(table, lower, upper),
        options={"time_limit": float(seconds), "mip_rel_gap": gap_ratio},
    )
    if found.status == 2:
        return IntegerProgram(None, np.inf, True)
    bound = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale / 1e6
    if found.x is None:
        return IntegerProgram(None, bound, False)
    chosen = found.x[:n_labels]
    labels = [int(np.argmax(chosen[problem.first[v] : problem.first[v + 1]])) for v in range(problem.n_nodes)]
    return IntegerProgram(np.array(labels, dtype=np.int64), bound, False)


_Matrix = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _local_polytope(
    problem: Pairwise,
) -> tuple[_Matrix, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the constraint matrix by rows, the rows' limits, and the costs of all variables."""
    starts = [0]
    indices: list[NDArray[np.int64]] = []
    values: list[NDArray[np.float64]] = []
    limits: list[float] = []
    costs = [problem.node_cost]
    n_variables = len(problem.node_cost)

    def add(columns: NDArray[np.int64], coefficients: NDArray[np.float64], limit: float) -> None:
        indices.append(columns)
        values.append(coefficients)
        starts.append(starts[-1] + len(columns))
        limits.append(limit)

    for v in range(problem.n_nodes):
        members = np.arange(problem.first[v], problem.first[v + 1])
        add(members, np.ones(len(members)), 1.0)
    for e in range(problem.n_edges):
        table = problem.table(e)
        grid: NDArray[np.int64] = n_variables + np.arange(table.size).reshape(table.shape)
        for end, layouts, lines in (
            (problem.source[e], problem.rows[e], grid),
            (problem.target[e], problem.columns[e], grid.T),
        ):
            for layout in range(len(lines)):
                members = problem.first[end] + np.flatnonzero(layouts == layout)
                columns = np.concatenate((lines[layout], members))
                add(columns, np.concatenate((np.ones(lines.shape[1]), -np.ones(len(members)))), 0.0)
        n_variables += table.size
        costs.append(table.ravel())
    matrix = np.array(starts), np.concatenate(indices), np.concatenate(values)
    return matrix, np.array(limits), np.array(limits), np.concatenate(costs)


def _with_budget(
    matrix: _Matrix, lower: NDArray[np.float64], upper: NDArray[np.float64], weights: NDArray[np.float64], budget_bytes: float
) -> tuple[_Matrix, NDArray[np.float64], NDArray[np.float64]]:
    """Add the budget as one more row, scaled to 1."""
    scale = budget_bytes if budget_bytes > 0 else 1.0
    starts, indices, values = matrix
    used = np.flatnonzero(weights)
    starts = np.append(starts, starts[-1] + len(used))
    grown = starts, np.concatenate((indices, used)), np.concatenate((values, weights[used] / scale))
    return grown, np.append(lower, -np.inf), np.append(upper, budget_bytes / scale)
