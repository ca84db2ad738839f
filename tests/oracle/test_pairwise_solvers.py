"""Solvers of pairwise problems against brute force and plain-Python twins."""

from __future__ import annotations

import numpy as np
import pairwise as oracle  # tests/oracle/pairwise.py
import pytest

from meshwright.solvers.pairwise import integer_program, labelling
from meshwright.solvers.pairwise.budget import solve_within
from meshwright.solvers.pairwise.certificate import check
from meshwright.solvers.pairwise.elimination import eliminate
from meshwright.solvers.pairwise.labelling import solve
from meshwright.solvers.pairwise.message_passing import flatten, tighten
from meshwright.solvers.pairwise.problem import restrict, total_cost


def _problem(seed: int):
    return oracle.random_problem(seed, n_nodes=1 + seed % 6, n_edges=2 * (seed % 5), frustrated=seed % 2 == 0)


@pytest.mark.parametrize("seed", range(60))
def test_the_value_is_that_of_brute_force_and_the_bound_never_above(seed: int) -> None:
    problem = _problem(seed)
    least = oracle.least_cost(problem)
    found = solve(problem)
    assert found.value == least == total_cost(problem, found.labels)
    assert found.bound_value <= least
    assert found.value - found.bound_value <= 1e-9 * abs(least)
    assert found.relaxation.bound_value <= least + 1e-9 * abs(least)


@pytest.mark.parametrize("seed", range(40))
def test_no_label_is_excluded_that_a_better_solution_needs(seed: int) -> None:
    problem = _problem(seed)
    for n_sweeps in (1, 2, 300):
        forced = tighten(problem, n_sweeps=n_sweeps).forced_cost
        assert (forced <= oracle.forced_cost(problem) + 1e-7).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_reaches_the_bounds_of_its_plain_twin(seed: int) -> None:
    from meshwright._kernels.pairwise import message_passing as kernel
    from meshwright.solvers.pairwise.message_passing import _no_messages

    problem = _problem(seed)
    arrays, width = flatten(problem)
    messages, slack = _no_messages(problem), np.empty(len(problem.node_cost))
    for expected in oracle.message_bounds(problem, 4):
        kernel.sweep(arrays, messages, True, width, slack)
        assert kernel.sweep(arrays, messages, False, width, slack) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_elimination_alone_and_highs_alone_find_the_least_cost(seed: int) -> None:
    problem = _problem(seed)
    least = oracle.least_cost(problem)
    labels = eliminate(problem)
    assert labels is not None and total_cost(problem, labels) == least
    if seed % 5 == 0:
        framework = integer_program.solve(problem)
        assert framework.labels is not None and total_cost(problem, framework.labels) == least
        assert framework.bound_value == pytest.approx(least, rel=1e-6, abs=1e-6)


def test_elimination_gives_up_where_a_table_would_grow_too_large() -> None:
    assert eliminate(oracle.random_problem(4, n_nodes=6, n_edges=14, n_labels=6, frustrated=True), n_entries=4) is None


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("n_branches", [0, 64])
def test_under_a_budget_the_value_is_that_of_brute_force(seed: int, n_branches: int) -> None:
    problem = _problem(seed)
    rng = np.random.default_rng(1000 + seed)
    weights = rng.integers(0, 50, len(problem.node_cost)).astype(float)
    lightest = np.minimum.reduceat(weights, problem.first[:-1]).sum()
    assert solve_within(problem, weights, lightest - 1) is None
    budget = lightest + float(rng.integers(0, 60))
    found = solve_within(problem, weights, budget, n_branches=n_branches)
    least = oracle.least_cost(problem, weights, budget)
    assert found is not None
    assert found.value == least == total_cost(problem, found.labels)
    assert found.used_bytes <= budget
    assert found.value * (1 - 1e-6) - 1e-6 <= found.bound_value <= least


@pytest.mark.parametrize("seed", range(20))
def test_restricting_labels_changes_no_cost_of_what_is_left(seed: int) -> None:
    problem = _problem(seed)
    kept = np.random.default_rng(seed).random(len(problem.node_cost)) < 0.5
    kept[problem.first[:-1]] = True
    smaller, old = restrict(problem, kept)
    for labels in oracle.labellings(smaller):
        assert total_cost(smaller, labels) == total_cost(problem, old[smaller.first[:-1] + labels])


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_the_checker_accepts_proofs_and_refuses_every_better_claim(seed: int) -> None:
    problem = _problem(seed)
    found = solve(problem)
    proof = found.relaxation.to_row, found.relaxation.to_column
    labels = found.labels.tolist()
    good = check(problem, labels, *proof, claimed_value=found.value, claimed_bound_value=found.value)
    assert good.valid, good.reason
    better = found.value - max(1.0, abs(found.value) * 1e-6)
    assert not check(problem, labels, *proof, claimed_value=better, claimed_bound_value=better).valid
    for other in oracle.labellings(problem):
        cost = total_cost(problem, other)
        if cost > found.value:
            claim = check(problem, other.tolist(), *proof, claimed_value=cost, claimed_bound_value=cost)
            assert not claim.valid
            break


@pytest.mark.parametrize("seed", [1, 4, 5, 6, 7, 8, 10, 11])
@pytest.mark.parametrize("how", ["elimination", "highs"])
def test_where_the_relaxation_is_loose_the_rest_is_settled_exactly_and_the_checker_agrees(
    seed: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frustrated cycles: the bound of the messages stays below the optimum."""
    if how == "highs":
        monkeypatch.setattr(labelling, "eliminate", lambda problem: None)
    problem = oracle.random_problem(seed, n_nodes=6, n_edges=12, n_labels=3, frustrated=True)
    found = solve(problem)
    least = oracle.least_cost(problem)
    assert found.method == how
    assert found.relaxation.bound_value < least - 1.0
    assert found.value == least
    assert found.bound_value == pytest.approx(least, rel=1e-6)
    proof = found.relaxation.to_row, found.relaxation.to_column
    labels = found.labels.tolist()
    assert check(problem, labels, *proof, claimed_value=least, claimed_bound_value=least).valid
    assert check(problem, labels, *proof, claimed_value=least, claimed_bound_value=least - 1.0).valid
    assert not check(problem, labels, *proof, claimed_value=least, claimed_bound_value=least, n_entries=1).valid
