"""Labels within a budget against every labelling: the lightest of equally cheap ones; bounds only rise while it searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pairwise as oracle  # tests/oracle/pairwise.py
import pytest

from meshwright.solvers.pairwise.budget import solve_within
from meshwright.solvers.pairwise.problem import total_cost


@pytest.mark.parametrize("seed", range(12))
def test_where_the_budget_does_not_bind_the_lightest_of_the_cheapest_labels_are_found(seed: int) -> None:
    """Few different costs, so that many labellings are cheapest; all of them are listed."""
    problem = oracle.random_problem(seed, n_nodes=4, n_edges=seed % 5, n_labels=3)
    tables = tuple(np.floor(table / 60.0) for table in problem.tables)
    problem = replace(problem, node_cost=1.0 + np.floor(problem.node_cost / 30.0), tables=tables)
    weights = np.random.default_rng(seed).integers(0, 40, len(problem.node_cost)).astype(float)
    every = [(total_cost(problem, one), float(weights[problem.first[:-1] + one].sum())) for one in oracle.labellings(problem)]
    least = min(every)
    found = solve_within(problem, weights, 1e6)
    assert found is not None and (found.value, found.used_bytes) == least
    assert found.used_bytes == weights[problem.first[:-1] + found.labels].sum() and found.bound_value <= found.value
    free = solve_within(problem, weights, np.inf)
    assert free is not None and free.value == least[0] and free.used_bytes >= least[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_search_that_is_stopped_has_bounds_that_rise_with_what_it_looked_at(seed: int) -> None:
    problem = oracle.random_problem(seed, n_nodes=6, n_edges=8, n_labels=4, frustrated=True)
    weights = np.random.default_rng(seed + 50).integers(1, 50, len(problem.node_cost)).astype(float)
    lightest = np.minimum.reduceat(weights, problem.first[:-1]).sum()
    budget = lightest + 0.2 * weights.sum() / 4
    least, before = oracle.least_cost(problem, weights, budget), None
    for n_asked in range(12):
        left = iter([False] * n_asked)
        found = solve_within(problem, weights, budget, asked=lambda left=left: next(left, True))
        assert found is not None and found.used_bytes <= budget and found.bound_value <= least <= found.value
        if before is not None:
            assert (
                found.bound_value >= before.bound_value
                and found.value <= before.value
                and found.n_branches >= before.n_branches
            )
        before = found
