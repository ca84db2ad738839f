"""Pipelines of exactly as many stages as were asked for."""

from __future__ import annotations

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.planners.parmesan.pipelines import EvaluatedPlan
from meshwright.solvers.partition.hypergraph import Units

__all__ = ["as_many", "filled"]

Groups = tuple[tuple[int, ...], ...]
"""Units of each stage."""


def filled(units: Units, groups: Groups) -> Groups:
    """Return as many groups as were asked for: the partitioner leaves some empty where a cut transfers more than it saves.

    Each time the group of the most compute that can be cut is cut in two, where the larger part has the least; units are in
    topological order.
    """
    compute = np.array(units.arrays.compute)
    found = [tuple(sorted(group)) for group in groups if group]
    while len(found) < len(groups) and any(len(group) > 1 for group in found):
        k = max(range(len(found)), key=lambda i: (len(found[i]) > 1, compute[list(found[i])].sum(), -i))
        group = found[k]
        sums = np.cumsum(compute[list(group)])
        at = min(range(1, len(group)), key=lambda i: max(sums[i - 1], sums[-1] - sums[i - 1]))
        found[k : k + 1] = [group[:at], group[at:]]
    return (*found, *((),) * (len(groups) - len(found)))


def as_many(problem: Problem, n_stages: int, judged: list[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return the plans of as many stages as were asked for.

    Raises `InputError` when there is none.
    """
    found = [one for one in judged if not n_stages or len(one.plan.stages) == n_stages]
    if judged and not found:
        most = max(len(one.plan.stages) for one in judged)
        raise InputError(
            f"--set n_stages={n_stages}: no pipeline of so many stages was found for {problem.model_spec.name}, at most "
            f"{most}; leave the option out to try every number"
        )
    return found
