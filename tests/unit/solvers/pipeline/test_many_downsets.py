"""Graphs whose downsets are too many to search all: a plan along orders, a bound that holds, and the gap in words."""

from __future__ import annotations

import itertools
import pathlib
import sys

import pytest

from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options, menu_of
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode
from meshwright.solvers.pipeline import downsets, orders, search

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))

import piper_by_definition as oracle


def branches(n_branches: int, length: int) -> PiperInstance:
    """Return chains side by side between one first and one last node; (length + 1)^n_branches + 3 - 1 downsets or so."""
    pairs = []
    last = 1 + n_branches * length
    for b in range(n_branches):
        chain = [0, *range(1 + b * length, 1 + (b + 1) * length), last]
        pairs += itertools.pairwise(chain)
    nodes = []
    for v in range(last + 1):
        forward = tuple((u, 0.0) for u, x in pairs if x == v)
        backward = tuple((x, 0.0) for u, x in pairs if u == v)
        seconds = 1.0 + (v * 7 % 5) / 10.0
        choices = (
            PiperChoice("vanilla", seconds, 1.0, 2.0, 3.0, forward, backward),
            PiperChoice("activation recomp", seconds * 1.3, 1.0, 0.5, 4.0, forward, backward),
        )
        nodes.append(PiperNode(v, "layer", ((1, choices),)))
    return PiperInstance(tuple(nodes), tuple(PiperEdge(u, v, 0.1) for u, v in pairs), 8, 64, 10.0, 1e4)


def test_the_number_of_downsets_is_known_for_chains_side_by_side() -> None:
    """Empty, with the last node any suffix of each branch, all: 1 + (3 + 1)^2 + 1."""
    menu = menu_of(branches(2, 3), Options())
    family = downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, 1000)
    assert family is not None
    assert len(family[0]) == 1 + 4**2 + 1
    assert downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, 17) is None


def test_orders_follow_every_edge() -> None:
    menu = menu_of(branches(3, 4), Options())
    for order in orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target):
        place = {v: i for i, v in enumerate(order)}
        assert sorted(order) == list(range(menu.n_nodes))
        assert all(place[u] < place[v] for u, v in zip(menu.edge_source.tolist(), menu.edge_target.tolist(), strict=True))


def test_beyond_the_limit_there_is_a_plan_with_a_bound_and_the_gap_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = branches(3, 6)
    exact = solve.solve(instance, Options(), nearly_ratio=0.0)
    assert exact.method == "exact"
    best = evaluate(instance, exact.stages).seconds
    monkeypatch.setattr(search, "MOST_DOWNSETS", 50)
    answer = solve.solve(instance, Options(), nearly_ratio=0.0)
    value = evaluate(instance, answer.stages).seconds
    assert answer.method == "relaxation"
    assert answer.lower_seconds <= best <= value * (1 + 1e-12)
    assert any("downsets" in note and "slower than any" in note for note in answer.notes)
    monkeypatch.setattr(search, "MOST_CUTS", 4)
    coarse = solve.solve(instance, Options(), nearly_ratio=0.0)
    assert evaluate(instance, coarse.stages).seconds >= best * (1 - 1e-12)


def test_the_relaxation_is_below_every_plan() -> None:
    for seed in range(30):
        instance = oracle.random_instance(seed, n_nodes=4, n_choices=3)
        best = oracle.best(instance)
        bound = search.relaxation(menu_of(instance, Options()))
        assert best is None or bound <= best.seconds * (1 + 1e-12)


def test_a_quarter_of_a_million_downsets_get_an_answer_within_seconds() -> None:
    instance = branches(4, 22)
    answer = solve.solve(instance, Options(), nearly_ratio=0.01)
    value = evaluate(instance, answer.stages).seconds
    assert answer.n_downsets < 0, "more than are enumerated"
    assert 0 < answer.lower_seconds <= value <= answer.lower_seconds * 1.2
