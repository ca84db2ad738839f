"""The bound by prices of slots and the cuts along one order: never above, never below what is best."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace

import pytest

from meshwright.costs._piper_menu import Options, menu_of
from meshwright.costs.piper import evaluate
from meshwright.search import _piper_solve
from meshwright.solvers import stage_bound, stage_fill, stage_orders, stage_search

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "oracle"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "benchmarks"))

import piper_by_definition as oracle
import piper_graphs


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_is_below_every_plan(seed: int) -> None:
    """Tight memory, two degrees, choices with their own weights: the smallest plan of all is never excluded."""
    instance = oracle.random_instance(seed, n_nodes=5, n_choices=2 + seed % 2, alike=seed % 3 == 0)
    best = oracle.best(instance)
    if best is None:
        return
    menu = menu_of(instance, Options())
    bound = stage_bound.lower_bound(menu, stage_search.relaxation(menu), 1.5 * best.seconds)
    assert bound <= best.seconds * (1 + 1e-9)


@pytest.mark.parametrize("ratio", [2.0, 3.0])
def test_where_memory_binds_the_bound_is_nearer_than_the_simple_one_and_still_below_the_best(ratio: float) -> None:
    instance = piper_graphs.layered(60, 1, n_devices=8, memory_ratio=ratio)
    solution = _piper_solve.solve(instance, Options(), nearly_ratio=0.0)
    assert solution.method == "exact"
    best = evaluate(instance, solution.stages).seconds
    menu = menu_of(instance, Options())
    simple = stage_search.relaxation(menu)
    bound = stage_bound.lower_bound(menu, simple, best)
    assert simple < bound <= best * (1 + 1e-9)


def test_the_cuts_along_the_one_order_of_a_chain_are_nearly_the_best() -> None:
    for ratio in (0.0, 3.0):
        instance = piper_graphs.layered(60, 1, n_devices=8, memory_ratio=ratio)
        menu = menu_of(instance, Options())
        order = stage_orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target)[0]
        seconds, cuts = stage_fill.cuts(menu, order, 0, stage_search.relaxation(menu))
        best = evaluate(instance, _piper_solve.solve(instance, Options(), nearly_ratio=0.0).stages).seconds
        assert seconds <= best * (1 + 1e-3), "choices are swapped in parts, so it may only be faster"
        assert cuts[0] == 0 and list(cuts) == sorted(set(cuts))


def test_no_cuts_are_found_where_nothing_fits() -> None:
    instance = replace(piper_graphs.layered(20, 1, n_devices=2), memory_bytes=1.0)
    menu = menu_of(instance, Options())
    assert stage_fill.cuts(menu, tuple(range(20)), 0, 1e-9)[1] == ()


def test_resnet_as_a_graph_of_operators_has_the_published_numbers_of_downsets_and_pairs() -> None:
    from meshwright.solvers import downsets

    instance = piper_graphs.resnet50()
    menu = menu_of(instance, Options())
    family = downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, 1000)
    assert family is not None
    inside = downsets.members(family[0], menu.n_nodes).astype(int)
    assert len(inside) == 242
    assert int((inside @ (1 - inside).T == 0).sum()) - len(inside) == 28_729
