"""Least-cost labels of a pairwise problem whose weights may add up to a budget at most: multipliers, then branching."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pairwise import integer_program
from meshwright.solvers.pairwise.labelling import Labelling, solve
from meshwright.solvers.pairwise.problem import Pairwise, restrict, total_cost

__all__ = ["Budgeted", "solve_within"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Budgeted:
    """Labels within a budget and the proof that none within it cost less.

    Parameters
    ----------
    labels : ndarray, shape (n_nodes,), int64
        The labels.
    value : float
        Their cost.
    used_bytes : float
        The sum of their weights.
    bound_value : float
        No labels within the budget cost less.
    method : str
        What proves it: ``relaxation`` or ``elimination`` (the budget does not bind), ``lagrangian`` (one multiplier),
        ``branch and bound`` or ``highs``.
    multiplier_ratio : float
        Cost per byte in `relaxed`; 0 where the budget does not bind.
    relaxed : Labelling
        The problem without budget whose node costs are raised by the multiplier times the weights.
    n_branches : int
        Subproblems looked at.
    """

    labels: Ints
    value: float
    used_bytes: float
    bound_value: float
    method: str
    multiplier_ratio: float
    relaxed: Labelling
    n_branches: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """A subproblem: some labels of the whole problem, and what its best multiplier shows."""

    problem: Pairwise
    weights: Floats
    old: Ints  # label of the whole problem, counted within its node, of each label here
    bound_value: float
    multiplier_ratio: float
    relaxed: Labelling
    inside: Ints | None  # labels within the budget at the best multiplier
    outside: Ints | None  # labels beyond it; None when the budget does not bind
    best: Ints  # cheapest labels within the budget met


def solve_within(
    problem: Pairwise,
    weights: Floats,
    budget_bytes: float,
    *,
    seconds: float = 600.0,
    n_branches: int = 64,
    gap_ratio: float = 0.0,
    cutoff_value: float = np.inf,
    asked: Callable[[], bool] = lambda: False,
) -> Budgeted | None:
    """Return labels of least cost of those within a budget; None when none are.

    Parameters
    ----------
    problem : Pairwise
        The problem.
    weights : ndarray, shape (n_labels,), float64
        What each label uses of the budget, not negative.
    budget_bytes : float
        The budget.
    seconds : float
        When to stop; the bound then says how far from proven the labels are.
    n_branches : int
        After how many subproblems HiGHS takes over: it handles many alike operators of middling weight better.
    gap_ratio : float
        Stop when value / bound - 1 is at most this; 0 to close it.
    cutoff_value : float
        Stop as soon as no labels are proven to cost less than this.
    asked : callable
        Whether to stop now, asked between subproblems and before HiGHS: the best labels so far are the answer then.

    Returns
    -------
    Budgeted or None
        Labels, value and bound.

    References
    ----------
    .. [1] M. Held, R. Karp, "The traveling-salesman problem and minimum spanning trees: part II", Math. Programming 1, 1971
       (bounds from multipliers inside branch and bound).

    Notes
    -----
    A budget makes the relaxation loose: a single multiplier left a gap of up to a third on real graphs, because a few
    operators hold most of the memory. Those are what is branched on: the node whose weight differs most between the two
    solutions at the best multiplier takes the lighter labels in one branch and the heavier in the other. A subproblem costs
    milliseconds, and labels that its bound excludes are gone from all branches below.
    """
    ends = time.monotonic() + seconds
    n_labels = len(problem.node_cost)
    everything = np.arange(n_labels) - np.repeat(problem.first[:-1], np.diff(problem.first))
    root = _explore(problem, weights, everything, budget_bytes)
    if root is None:
        return None
    labels, value = root.best, total_cost(problem, root.best)
    if root.outside is None:
        if np.isfinite(budget_bytes):
            labels = _lightest_of_equals(problem, weights, root.relaxed)
            value = total_cost(problem, labels)
        return Budgeted(
            labels, value, _used(problem, weights, labels), root.bound_value, root.relaxed.method, 0.0, root.relaxed
        )
    queue = [(root.bound_value, 0, root)]
    n_looked, bound, tolerance, stopped = 1, root.bound_value, max(1e-11, gap_ratio), False
    while queue:
        bound, _, branch = queue[0]
        stopped = stopped or asked()
        if (
            bound >= min(value - tolerance * abs(value), cutoff_value)
            or n_looked > n_branches
            or stopped
            or time.monotonic() > ends
        ):
            break
        heapq.heappop(queue)
        for child in _children(branch, budget_bytes, value):
            n_looked += 1
            candidate = child.old[child.problem.first[:-1] + child.best]
            cost = total_cost(problem, candidate)
            if cost < value:
                labels, value = candidate, cost
            if child.outside is not None and child.bound_value < value - tolerance * abs(value):
                heapq.heappush(queue, (max(bound, child.bound_value), n_looked, child))
    else:
        bound = value
    method = "lagrangian" if n_looked == 1 else "branch and bound"
    if not stopped and bound < min(value - tolerance * abs(value), cutoff_value):
        method = "highs"
        labels, bound = _programmed(root, budget_bytes, labels, bound, (max(1.0, ends - time.monotonic()), gap_ratio))
        value = total_cost(problem, labels)
    used = _used(problem, weights, labels)
    return Budgeted(labels, value, used, min(bound, value), method, root.multiplier_ratio, root.relaxed, n_looked)


def _programmed(
    root: _Branch, budget_bytes: float, labels: Ints, bound_value: float, limits: tuple[float, float]
) -> tuple[Ints, float]:
    """Settle by integer programming what the bound at the root and the best labels leave open, within (seconds, gap)."""
    problem, value = root.problem, total_cost(root.problem, labels)
    kept = root.relaxed.relaxation.forced_cost - root.multiplier_ratio * budget_bytes <= value * (1 + 1e-9)
    kept[problem.first[:-1] + labels] = True
    smaller, old = restrict(problem, kept)
    program = integer_program.solve(
        smaller, weights=root.weights[kept], budget_bytes=budget_bytes, seconds=limits[0], gap_ratio=limits[1]
    )
    if program.labels is not None:
        found = old[smaller.first[:-1] + program.labels]
        if _used(problem, root.weights, found) <= budget_bytes and total_cost(problem, found) < value:
            labels = found
    return labels, max(bound_value, program.bound_value)


def _lightest_of_equals(problem: Pairwise, weights: Floats, found: Labelling) -> Ints:
    """Return labels of the same cost (to a trillionth) that use less of the budget, where a small price on it finds some."""
    kept = found.relaxation.forced_cost <= found.value * (1 + 1e-11)
    kept[problem.first[:-1] + found.labels] = True
    smaller, old = restrict(problem, kept)
    light = weights[kept]
    whole = _used(problem, weights, found.labels)
    if whole <= 0.0:
        return found.labels
    priced = replace(smaller, node_cost=smaller.node_cost + 1e-7 * abs(found.value) / whole * light)
    labels = old[smaller.first[:-1] + solve(priced, seconds=60.0).labels]
    equal = total_cost(problem, labels) <= found.value + 1e-12 * abs(found.value)
    return labels if equal and _used(problem, weights, labels) < whole else found.labels


def _used(problem: Pairwise, weights: Floats, labels: Ints) -> float:
    return float(weights[problem.first[:-1] + labels].sum())


def _children(branch: _Branch, budget_bytes: float, value: float) -> list[_Branch]:
    """Split a subproblem at the node whose weight differs most between its two solutions; drop labels the bound excludes."""
    problem = branch.problem
    assert branch.inside is not None and branch.outside is not None
    light, heavy = (branch.weights[problem.first[:-1] + labels] for labels in (branch.inside, branch.outside))
    node = int(np.argmax(np.abs(light - heavy)))
    middle = (light[node] + heavy[node]) / 2
    excluded = branch.relaxed.relaxation.forced_cost - branch.multiplier_ratio * budget_bytes > value * (1 + 1e-9)
    here = slice(problem.first[node], problem.first[node + 1])
    found = []
    for lighter in (True, False):
        kept = ~excluded
        kept[here] &= (branch.weights[here] <= middle) == lighter
        if np.logical_or.reduceat(kept, problem.first[:-1]).all():
            smaller, _ = restrict(problem, kept)
            index = np.flatnonzero(kept)
            child = _explore(smaller, branch.weights[index], branch.old[index], budget_bytes)
            found += [child] if child is not None else []
    return found


def _explore(problem: Pairwise, weights: Floats, old: Ints, budget_bytes: float) -> _Branch | None:
    """Return the best multiplier's bound of a subproblem; None when nothing in it is within the budget.

    Every solution is a line, cost + multiplier x (weight - budget), and the bound their lower envelope: the next multiplier is
    where the last two lines on either side cross, until nothing lies below the crossing.
    """
    lightest = [int(np.argmin(weights[a:b])) for a, b in zip(problem.first[:-1], problem.first[1:], strict=True)]
    inside = best = np.array(lightest, dtype=np.int64)
    if _used(problem, weights, inside) > budget_bytes:
        return None
    relaxed, multiplier = solve(problem, seconds=60.0), 0.0
    outside = relaxed.labels
    if _used(problem, weights, outside) <= budget_bytes:
        return _Branch(problem, weights, old, relaxed.bound_value, 0.0, relaxed, None, None, outside)
    for _ in range(60):
        cost_in, cost_out = total_cost(problem, inside), total_cost(problem, outside)
        lighter = _used(problem, weights, inside)
        multiplier = max(0.0, (cost_in - cost_out) / (_used(problem, weights, outside) - lighter))
        crossing = cost_in + multiplier * lighter
        relaxed = solve(replace(problem, node_cost=problem.node_cost + multiplier * weights), seconds=60.0)
        if relaxed.value >= crossing - 1e-12 * abs(crossing):
            break
        if _used(problem, weights, relaxed.labels) <= budget_bytes:
            inside = relaxed.labels
            best = inside if total_cost(problem, inside) < total_cost(problem, best) else best
        else:
            outside = relaxed.labels
    bound = relaxed.bound_value - multiplier * budget_bytes
    best = min((best, *_mixed(problem, weights, budget_bytes, inside, outside)), key=lambda labels: total_cost(problem, labels))
    return _Branch(problem, weights, old, bound, multiplier, relaxed, inside, outside, best)


def _mixed(problem: Pairwise, weights: Floats, budget_bytes: float, inside: Ints, outside: Ints) -> list[Ints]:
    """Return labels within the budget that are the lighter solution up to some node and the heavier from there, or the reverse.

    Both solutions are best at the best multiplier, so a mixture costs little more than what it saves of the budget is worth:
    the re-sharding where they meet. Those that use most of the budget are returned.
    """
    here = problem.first[:-1]
    light, heavy = weights[here + inside], weights[here + outside]
    position = np.arange(problem.n_nodes)
    found = []
    for first, second, a, b in ((inside, outside, light, heavy), (outside, inside, heavy, light)):
        used = np.concatenate(([0.0], np.cumsum(a))) + np.concatenate((np.cumsum(b[::-1])[::-1], [0.0]))
        cuts = np.flatnonzero(used <= budget_bytes * (1 - 1e-12))
        for cut in cuts[np.argsort(-used[cuts], kind="stable")[:6]].tolist():
            found.append(np.where(position < cut, first, second))
    return found
