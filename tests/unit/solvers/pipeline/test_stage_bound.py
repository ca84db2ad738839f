"""The bound by prices of slots and the cuts along one order: never above, never below what is best."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from meshwright._kernels.pipeline import blocks
from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options, menu_of
from meshwright.solvers.pipeline import bound as stage_bound
from meshwright.solvers.pipeline import fill, filling, orders, search

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "benchmarks"))

import piper_by_definition as oracle
import piper_graphs


def test_the_bound_is_below_every_plan_and_close_to_the_best() -> None:
    """Tight memory, two degrees, choices with their own weights: the smallest plan of all is never excluded."""
    shares = []
    for seed in range(40):
        instance = oracle.random_instance(seed, n_nodes=5, n_choices=2 + seed % 2, alike=seed % 3 == 0)
        best = oracle.best(instance)
        if best is None:
            continue
        menu = menu_of(instance, Options())
        simple = search.relaxation(menu)
        bound = stage_bound.lower_bound(menu, simple, 1.5 * best.seconds)
        assert simple <= bound <= best.seconds * (1 + 1e-9), seed
        shares.append((simple / best.seconds, bound / best.seconds))
    # as close as when this was written: a term that is missing makes no answer wrong, only every search longer
    assert len(shares) == 37 and (np.mean(shares, axis=0) >= (0.536, 0.550)).all()


@pytest.mark.parametrize("ratio", [2.0, 3.0])
def test_where_memory_binds_the_bound_is_nearer_than_the_simple_one_and_still_below_the_best(ratio: float) -> None:
    instance = piper_graphs.layered(60, 1, n_devices=8, memory_ratio=ratio)
    solution = solve.solve(instance, Options(), nearly_ratio=0.0)
    assert solution.method == "exact"
    best = evaluate(instance, solution.stages).seconds
    menu = menu_of(instance, Options())
    simple = search.relaxation(menu)
    bound = stage_bound.lower_bound(menu, simple, best)
    assert simple < bound <= best * (1 + 1e-9)


def test_the_cuts_along_the_one_order_of_a_chain_are_nearly_the_best() -> None:
    for ratio in (0.0, 3.0):
        instance = piper_graphs.layered(60, 1, n_devices=8, memory_ratio=ratio)
        menu = menu_of(instance, Options())
        order = orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target)[0]
        seconds, cuts = fill.cuts(menu, order, 0, search.relaxation(menu))
        best = evaluate(instance, solve.solve(instance, Options(), nearly_ratio=0.0).stages).seconds
        assert seconds <= best * (1 + 1e-3), "choices are swapped in parts, so it may only be faster"
        assert cuts[0] == 0 and list(cuts) == sorted(set(cuts))


def test_no_cuts_are_found_where_nothing_fits() -> None:
    instance = replace(piper_graphs.layered(20, 1, n_devices=2), memory_bytes=1.0)
    menu = menu_of(instance, Options())
    assert fill.cuts(menu, tuple(range(20)), 0, 1e-9)[1] == ()


def test_memory_that_is_too_little_for_every_plan_is_proven_so_and_none_that_is_enough() -> None:
    n_proven = 0
    for seed in range(30):
        instance = oracle.random_instance(seed, n_nodes=5, alike=seed % 2 == 0)
        instance = replace(instance, memory_bytes=instance.memory_bytes * (0.2 + 0.1 * (seed % 6)))
        menu = menu_of(instance, Options())
        if stage_bound.nothing_fits(menu):
            n_proven += 1
            assert oracle.best(instance) is None, seed
    assert n_proven >= 11


def test_what_is_not_found_in_a_graph_too_large_to_search_is_infeasible_only_with_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "MOST_DOWNSETS", 20)
    instance = replace(piper_graphs.branches(3, 6, n_devices=2), memory_bytes=1.0)
    assert solve.solve(instance, Options(), nearly_ratio=0.0).notes == ()
    monkeypatch.setattr(stage_bound, "nothing_fits", lambda menu: False)
    assert solve.solve(instance, Options(), nearly_ratio=0.0).notes == (solve.UNPROVEN,)


def test_sums_over_sets_given_as_bits_are_those_of_their_members() -> None:
    dice = np.random.default_rng(0)
    for n in (1, 63, 64, 65, 200):
        inside = dice.random((7, n)) < 0.4
        packed = np.zeros((7, 8 * ((n + 63) // 64)), np.uint8)
        packed[:, : (n + 7) // 8] = np.packbits(inside, axis=1, bitorder="little")
        value = dice.random(n)
        assert np.allclose(blocks.sums_of_sets(packed.view(np.uint64), value), inside @ value, rtol=1e-12)


FILLED = {"": 0.928, "any_replicas": 0.919, "shard_optimizer": 0.904, "layer_buffers": 0.928}
"""How close the bound with filling came to the best, on average, when this was written."""


@pytest.mark.parametrize("change", [{}, {"any_replicas": True}, {"shard_optimizer": True}, {"layer_buffers": True}], ids=str)
def test_the_bound_with_filling_is_between_the_steady_state_and_the_best_of_all_plans(change: dict[str, bool]) -> None:
    n_above, shares = 0, []
    for seed in range(20):
        instance = oracle.random_instance(seed, n_nodes=4, n_choices=2 + seed % 2, alike=seed % 2 == 0)
        instance = replace(instance, counting=replace(instance.counting, fill_drain=True, **change))
        best = oracle.best_counted(instance)
        if best == float("inf"):
            continue
        solved = search.solve(menu_of(instance, Options()))
        bound = filling.lower_bound(solved.prepared, solved.lower_seconds, 2.0 * best, instance.n_microbatches)
        assert solved.lower_seconds <= bound <= best * (1 + 1e-9), seed
        n_above += bound > solved.lower_seconds * 1.001
        shares.append(bound / best)
    assert n_above >= 3 and np.mean(shares) >= FILLED[next(iter(change), "")]


def test_resnet_as_a_graph_of_operators_has_the_published_numbers_of_downsets_and_pairs() -> None:
    from meshwright.solvers.pipeline import downsets

    instance = piper_graphs.resnet50()
    menu = menu_of(instance, Options())
    family = downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, 1000)
    assert family is not None
    inside = downsets.members(family[0], menu.n_nodes).astype(int)
    assert len(inside) == 242
    assert int((inside @ (1 - inside).T == 0).sum()) - len(inside) == 28_729
