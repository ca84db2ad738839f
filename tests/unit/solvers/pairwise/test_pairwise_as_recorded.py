"""Solvers of pairwise problems on small random ones: bounds, branches, certificates of every function, as recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pairwise as oracle  # tests/oracle/pairwise.py
import pytest

from meshwright.solvers.pairwise import integer_program, labelling
from meshwright.solvers.pairwise.budget import solve_within
from meshwright.solvers.pairwise.certificate import check
from meshwright.solvers.pairwise.elimination import eliminate
from meshwright.solvers.pairwise.labelling import solve
from meshwright.solvers.pairwise.message_passing import flatten, tighten
from meshwright.solvers.pairwise.problem import Pairwise, restrict, total_cost
from recorded import Recorded
from returned import Returned, refusal

ROOM = "solvers/pairwise/"
SIZES = ((1, 0, 3), (2, 1, 3), (4, 4, 3), (5, 7, 4), (6, 12, 3))


@pytest.mark.parametrize("frustrated", [False, True])
def test_every_step_of_an_answer_is_as_recorded(frustrated: bool, recorded: Recorded) -> None:
    said = []
    with Returned(ROOM) as found:
        for seed, (n_nodes, n_edges, n_labels) in enumerate(SIZES):
            problem = oracle.random_problem(seed, n_nodes, n_edges, n_labels, frustrated=frustrated)
            _, width = flatten(problem)
            answer = solve(problem)
            assert answer.value == pytest.approx(oracle.least_cost(problem))
            said.append([width, answer.value, answer.method, answer.n_left, answer.relaxation.n_sweeps, eliminate(problem)])
            said.append([eliminate(problem, n_entries=most) is None for most in (1, 3, 9, 27)])
            said.append(
                [
                    tighten(problem, n_sweeps=n, patience=p, gap_ratio=g).n_sweeps
                    for n, p, g in ((1, 12, 0), (9, 2, 0), (9, 12, 1))
                ]
            )
            kept = np.random.default_rng(seed).random(len(problem.node_cost)) < 0.6
            kept[problem.first[:-1]] = True
            said.append(total_cost(restrict(problem, kept)[0], np.zeros(n_nodes, np.int64)))
    recorded(said, "said")
    recorded(found.lines(), "functions")


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_every_step_within_a_budget_is_as_recorded(share: float, recorded: Recorded) -> None:
    """The budget lies between what the lightest labels and those of least cost use."""
    said = []
    with Returned(ROOM, without=("solvers/pairwise/integer_program:solve", "solvers/pairwise/budget:_programmed")) as found:
        for seed, (n_nodes, n_edges, n_labels) in enumerate(SIZES[1:]):
            problem = oracle.random_problem(seed + 20, n_nodes, n_edges, n_labels, frustrated=True)
            dice = np.random.default_rng(seed)
            weights = dice.integers(0, 9, len(problem.node_cost)).astype(float)
            # no two labellings cost the same, so that an integer program has one answer
            problem = replace(problem, node_cost=problem.node_cost + dice.random(len(weights)) / 64)
            least = sum(weights[a:b].min() for a, b in zip(problem.first[:-1], problem.first[1:], strict=True))
            most = float(weights[problem.first[:-1] + solve(problem).labels].sum())
            budget = least + share * max(most - least, 0.0)
            for n_branches, gap, cutoff in ((64, 0.0, np.inf), (2, 0.0, np.inf), (64, 0.2, np.inf), (64, 0.0, 5.0)):
                answer = solve_within(problem, weights, budget, n_branches=n_branches, gap_ratio=gap, cutoff_value=cutoff)
                assert answer is not None and answer.used_bytes <= budget
                if not gap and cutoff == np.inf:
                    assert answer.value == pytest.approx(oracle.least_cost(problem, weights, budget))
                exact = answer.method != "highs"
                said.append(
                    [
                        answer.value,
                        answer.used_bytes,
                        answer.method,
                        answer.n_branches,
                        answer.multiplier_ratio,
                        answer.bound_value if exact else 0,
                    ]
                )
            assert solve_within(problem, weights, least - 0.5) is None
            default = solve_within(problem, weights, budget)
            assert default is not None and default.value == pytest.approx(oracle.least_cost(problem, weights, budget))
            free = solve_within(problem, weights, np.inf)
            said.append([free.value, free.used_bytes, free.method])
    recorded(said, "said")
    recorded(found.lines(), "functions")


def test_integer_programs_have_the_recorded_rows_and_values(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed, (n_nodes, n_edges, n_labels) in enumerate(SIZES):
        problem = oracle.random_problem(seed + 40, n_nodes, n_edges, n_labels, frustrated=True)
        weights = np.random.default_rng(seed).integers(1, 9, len(problem.node_cost)).astype(float)
        least = sum(weights[a:b].min() for a, b in zip(problem.first[:-1], problem.first[1:], strict=True))
        free, tight = integer_program.solve(problem), integer_program.solve(problem, weights=weights, budget_bytes=least + 3.0)
        none = integer_program.solve(problem, weights=weights, budget_bytes=least - 1.0)
        assert total_cost(problem, free.labels) == pytest.approx(oracle.least_cost(problem)) == pytest.approx(free.bound_value)
        assert total_cost(problem, tight.labels) == pytest.approx(oracle.least_cost(problem, weights, least + 3.0))
        assert none.infeasible and none.labels is None and none.bound_value == np.inf and not tight.infeasible
        matrix, lower, upper, cost = integer_program._local_polytope(problem)
        found.append([matrix, lower, upper, cost, integer_program._with_budget(matrix, lower, upper, weights, 7.0)])
        with monkeypatch.context() as patch:
            patch.setattr(labelling, "eliminate", lambda problem: None)
            answer = solve(problem)
        assert answer.value == pytest.approx(oracle.least_cost(problem)) and answer.bound_value <= answer.value
        found.append(answer.method)
    recorded(found)


def test_checks_and_refusals_say_what_was_recorded(recorded: Recorded) -> None:
    problem = oracle.random_problem(5, 4, 5, 3, frustrated=True)
    answer = solve(problem)
    rows, columns, labels = list(answer.relaxation.to_row), list(answer.relaxation.to_column), answer.labels.tolist()
    zero = [row * 0 for row in rows], [column * 0 for column in columns]
    value = answer.value

    def checked(
        labels: list[int] = labels,
        rows: list = rows,
        columns: list = columns,
        *,
        claim: float = value,
        bound: float = value,
        n: int = 30,
    ) -> object:
        verdict = check(problem, labels, rows, columns, claimed_value=claim, claimed_bound_value=bound, n_entries=n)
        return [verdict.valid, verdict.bound_value, verdict.reason]

    other = [(label + 1) % int(n) for label, n in zip(labels, np.diff(problem.first), strict=True)]
    wrong = [rows[0] * np.nan, *rows[1:]]
    found = {
        "as it is": checked(n=1000),
        "small": checked(n=2),
        "without messages": checked(rows=zero[0], columns=zero[1], n=1000),
        "no messages, low": checked(rows=zero[0], columns=zero[1], bound=0.0),
        "low": checked(bound=value - 2.0),
        "above": checked(bound=value + 1.0),
        "cheaper": checked(claim=value - 1e-3),
        "nearly": checked(claim=value * (1 + 5e-10)),
        "fewer": checked(labels[:-1]),
        "label": checked([99, *labels[1:]]),
        "negative": checked([-1, *labels[1:]]),
        "edges": checked(rows=rows[1:]),
        "columns": checked(columns=columns[1:]),
        "shape": checked(rows=[rows[0][:-1], *rows[1:]]),
        "not finite": checked(rows=wrong),
        "worse labels": checked(other, claim=total_cost(problem, other), bound=total_cost(problem, other), n=1000),
        "worse labels, low": checked(other, claim=total_cost(problem, other), bound=value, n=1000),
    }
    recorded(found, "checked")
    one = oracle.random_problem(1, 2, 1, 2, frustrated=True)
    changes: dict[str, Callable[[], Pairwise]] = {
        "as it is": lambda: replace(one),
        "no labels": lambda: replace(one, first=np.array([0, 0, len(one.node_cost)])),
        "no nodes": lambda: replace(one, first=np.array([0])),
        "costs": lambda: replace(one, node_cost=one.node_cost[1:]),
        "infinite": lambda: replace(one, node_cost=one.node_cost * np.inf),
        "table": lambda: replace(one, tables=(one.tables[0] * np.nan,)),
        "loop": lambda: replace(one, target=one.source),
        "end": lambda: replace(one, target=one.target * 0 + 2),
        "before": lambda: replace(one, source=one.source * 0 - 1),
        "rows": lambda: replace(one, rows=(one.rows[0][1:],)),
        "columns": lambda: replace(one, columns=(one.columns[0][1:],)),
    }
    recorded({name: refusal(change) for name, change in changes.items()}, "refused")
