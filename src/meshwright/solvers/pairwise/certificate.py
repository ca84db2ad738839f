"""An independent check that labels of a pairwise problem are optimal: adds up what a certificate claims, runs no solver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pairwise.problem import Pairwise

__all__ = ["Verdict", "check"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check found.

    Parameters
    ----------
    valid : bool
        Whether the labels cost what is claimed, and no labels cost less than the bound claimed.
    value : float
        The cost of the labels, added up here.
    bound_value : float
        The bound that the certificate proves, added up here.
    reason : str
        Why it is refused; empty when valid.
    """

    valid: bool
    value: float
    bound_value: float
    reason: str = ""


def check(
    problem: Pairwise,
    labels: Sequence[int],
    to_row: Sequence[Floats],
    to_column: Sequence[Floats],
    *,
    claimed_value: float,
    claimed_bound_value: float,
    n_entries: int = 30_000_000,
) -> Verdict:
    """Check a claim: these labels cost `claimed_value`, and none cost less than `claimed_bound_value`.

    Parameters
    ----------
    problem : Pairwise
        The problem, built from the question and not taken from the solver.
    labels : sequence of int, length n_nodes
        Label of each node, counted from 0 within the node.
    to_row, to_column : sequence of ndarray, length n_edges, each float64
        Cost moved from each edge to the rows (source labels) and columns (target labels) of its table.
    claimed_value, claimed_bound_value : float
        The claim.
    n_entries : int
        Largest table of the check of what the messages leave open.

    Returns
    -------
    Verdict
        Whether it holds, to a billionth of the value.

    Notes
    -----
    Moving cost between edges and nodes changes no sum, so the sum of all smallest entries bounds every sum from below,
    whatever was moved. Where that bound stays under the claim, labels that it excludes are dropped and the rest is searched
    completely, node by node.
    """
    shape = _shape_error(problem, labels, to_row, to_column)
    if shape:
        return Verdict(False, math.nan, math.nan, shape)
    value = _cost(problem, labels)
    tolerance = 1e-9 * abs(value)
    if not abs(value - claimed_value) <= tolerance:
        return Verdict(False, value, math.nan, f"the labels cost {value!r}, not {claimed_value!r}")
    if not claimed_bound_value <= claimed_value + tolerance:
        return Verdict(False, value, math.nan, f"the bound claimed, {claimed_bound_value!r}, is above the value claimed")
    bound, slack = _bound(problem, to_row, to_column)
    if claimed_bound_value <= bound + tolerance:
        return Verdict(True, value, bound)
    kept = [
        np.flatnonzero(bound + slack[v] <= value + tolerance) if len(slack[v]) > 1 else np.zeros(1, dtype=np.int64)
        for v in range(problem.n_nodes)
    ]
    if min(len(some) for some in kept) == 0:
        return Verdict(False, value, bound, "the messages exclude every label of a node, even the one chosen")
    exact = _search(problem, kept, n_entries)
    if exact is None:
        return Verdict(
            False, value, bound, f"the messages prove {bound!r} only, and what they leave open is too large to search"
        )
    if claimed_bound_value <= min(exact, value) + tolerance:
        return Verdict(True, value, exact)
    return Verdict(False, value, exact, f"labels of cost {exact!r} exist, below the bound claimed, {claimed_bound_value!r}")


def _shape_error(problem: Pairwise, labels: Sequence[int], to_row: Sequence[Floats], to_column: Sequence[Floats]) -> str:
    """Say what does not fit the problem; empty when all does."""
    if len(labels) != problem.n_nodes:
        return f"there are {len(labels)} labels for {problem.n_nodes} nodes"
    for v, label in enumerate(labels):
        if not 0 <= label < problem.first[v + 1] - problem.first[v]:
            return f"node {v} has no label {label}"
    if len(to_row) != problem.n_edges or len(to_column) != problem.n_edges:
        return f"there are messages for {len(to_row)} and {len(to_column)} edges; there are {problem.n_edges} edges"
    for e in range(problem.n_edges):
        if (len(to_row[e]), len(to_column[e])) != problem.table(e).shape:
            return (
                f"edge {e}: messages of {len(to_row[e])} and {len(to_column[e])} entries for a table {problem.table(e).shape}"
            )
        if not (np.isfinite(to_row[e]).all() and np.isfinite(to_column[e]).all()):
            return f"edge {e}: a message is not finite"
    return ""


def _cost(problem: Pairwise, labels: Sequence[int]) -> float:
    """Add up the costs of the labels."""
    terms = [float(problem.costs_of(v)[label]) for v, label in enumerate(labels)]
    for e in range(problem.n_edges):
        row = problem.rows[e][labels[problem.source[e]]]
        column = problem.columns[e][labels[problem.target[e]]]
        terms.append(float(problem.table(e)[row, column]))
    return math.fsum(terms)


def _bound(problem: Pairwise, to_row: Sequence[Floats], to_column: Sequence[Floats]) -> tuple[float, list[Floats]]:
    """Return the sum of all smallest entries, and by how much it rises when each label is forced."""
    moved = [problem.costs_of(v).copy() for v in range(problem.n_nodes)]
    for e in range(problem.n_edges):
        moved[problem.source[e]] += to_row[e][problem.rows[e]]
        moved[problem.target[e]] += to_column[e][problem.columns[e]]
    minima = [float(costs.min()) for costs in moved]
    slack = [costs - costs.min() for costs in moved]
    for e in range(problem.n_edges):
        rest = problem.table(e) - to_row[e][:, None] - to_column[e][None, :]
        smallest = float(rest.min())
        minima.append(smallest)
        slack[problem.source[e]] += (rest.min(axis=1) - smallest)[problem.rows[e]]
        slack[problem.target[e]] += (rest.min(axis=0) - smallest)[problem.columns[e]]
    return math.fsum(minima), slack


def _search(problem: Pairwise, kept: list[NDArray[np.int64]], n_entries: int) -> float | None:
    """Return the least cost over the labels kept, by complete tables; None where one would grow too large."""
    scopes: list[tuple[frozenset[int], Floats]] = []
    for e in range(problem.n_edges):
        u, v = int(problem.source[e]), int(problem.target[e])
        table = problem.table(e)[np.ix_(problem.rows[e][kept[u]], problem.columns[e][kept[v]])]
        scopes.append((frozenset((u, v)), table if u < v else table.T))
    remaining = set(range(problem.n_nodes))
    total = []
    while remaining:
        reach = {v: frozenset((v,)).union(*(scope for scope, _ in scopes if v in scope)) for v in sorted(remaining)}
        node = min(reach, key=lambda v: math.prod(len(kept[w]) for w in reach[v]))
        axes = sorted(reach[node])
        if math.prod(len(kept[w]) for w in axes) > n_entries:
            return None
        joined = np.zeros([len(kept[w]) for w in axes])
        own = [-1 if w == node else 1 for w in axes]
        joined += problem.costs_of(node)[kept[node]].reshape(own)
        for scope, table in scopes:
            if node in scope:
                joined += table.reshape([len(kept[w]) if w in scope else 1 for w in axes])
        scopes = [(scope, table) for scope, table in scopes if node not in scope]
        smallest = joined.min(axis=axes.index(node))
        remaining.discard(node)
        if len(axes) == 1:
            total.append(float(smallest))
        else:
            scopes.append((frozenset(axes) - {node}, smallest))
    return math.fsum(total)
