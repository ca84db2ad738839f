"""The least-cost labels of a pairwise problem with a proof: bound, then fixing, then elimination, then integer programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pairwise import integer_program
from meshwright.solvers.pairwise.elimination import eliminate
from meshwright.solvers.pairwise.message_passing import Relaxation, tighten
from meshwright.solvers.pairwise.problem import Pairwise, restrict, total_cost

__all__ = ["Labelling", "solve"]


@dataclass(frozen=True, slots=True, eq=False)
class Labelling:
    """Labels and the proof that none cost less.

    Parameters
    ----------
    labels : ndarray, shape (n_nodes,), int64
        Label of each node, counted from 0 within the node.
    value : float
        Their cost.
    bound_value : float
        No labels cost less.
    method : str
        What proves it: ``relaxation`` (the messages alone), ``elimination`` (of the labels the messages leave), ``highs``.
    relaxation : Relaxation
        The messages.
    n_left : int
        Labels that the messages could not exclude.
    """

    labels: NDArray[np.int64]
    value: float
    bound_value: float
    method: str
    relaxation: Relaxation
    n_left: int


def solve(problem: Pairwise, *, gap_ratio: float = 1e-9, seconds: float = 600.0) -> Labelling:
    """Return labels of least cost.

    Parameters
    ----------
    problem : Pairwise
        The problem.
    gap_ratio : float
        Two sums of costs that differ by less than this share of the value are taken for equal (float rounding).
    seconds : float
        Time for integer programming, where it is needed at all; when it ends early the bound says how far.

    Returns
    -------
    Labelling
        Labels, value and bound.

    Notes
    -----
    1. Message passing gives a bound and labels; on operator graphs of real models the two meet and we are done.
    2. A label whose forcing lifts the bound above the value is in no better solution: it is dropped (reduced-cost fixing).
    3. Nodes are eliminated exactly over what is left. 4. Where that would not fit in memory, HiGHS.
    """
    relaxation = tighten(problem)
    tolerance = gap_ratio * abs(relaxation.value)
    kept = relaxation.forced_cost <= relaxation.value + tolerance
    kept[problem.first[:-1] + relaxation.labels] = True
    found = relaxation.labels, relaxation.value
    n_left = int(kept.sum())
    if relaxation.value - relaxation.bound_value <= 1e-12 * abs(relaxation.value) + 1e-300:
        return Labelling(*found, min(relaxation.bound_value, relaxation.value), "relaxation", relaxation, n_left)
    smaller, old = restrict(problem, kept)
    local = eliminate(smaller)
    if local is not None:
        labels = old[smaller.first[:-1] + local]
        value = min(total_cost(problem, labels), relaxation.value)
        if value < relaxation.value:
            found = labels, value
        return Labelling(*found, found[1], "elimination", relaxation, n_left)
    program = integer_program.solve(smaller, seconds=seconds)
    if program.labels is not None:
        labels = old[smaller.first[:-1] + program.labels]
        value = total_cost(problem, labels)
        if value < found[1]:
            found = labels, value
    bound = min(max(program.bound_value, relaxation.bound_value), found[1])
    return Labelling(*found, bound, "highs", relaxation, n_left)
