"""Ideals that cut few nets: none that a partition below the limit ends a stage with is missing, against every partition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright._kernels.partition import cheap_ideals as kernel
from meshwright.solvers.partition import cheap_cuts, convex
from meshwright.solvers.partition.cheap_cuts import cheap_pool
from meshwright.solvers.partition.hypergraph import Operators, Units, contract
from meshwright.solvers.partition.ideal_pool import Task


def units_of(compute: list[float], edges: list[tuple[int, int]], nets: list[tuple[float, tuple[int, ...]]]) -> Units:
    n = len(compute)
    operators = Operators(
        np.array(compute), np.zeros(n), np.ones(n), np.ones(n, dtype=bool), tuple(edges), tuple(range(n)), tuple(nets)
    )
    return contract(operators, weigh_memory=True)


def two_lanes(seed: int, n: int = 10) -> Units:
    """Return two chains that read each other now and then, with tensors that are read far behind, and one without order."""
    dice = np.random.default_rng(seed)
    edges = {(v, v + 2) for v in range(n - 2)} | {(v, v + 1) for v in range(n - 1) if dice.random() < 0.3}
    edges |= {(u, int(dice.integers(u + 1, n))) for u in range(0, n - 1, 4)}
    nets = [(float(dice.uniform(0.05, 0.6)), (u, *sorted(v for s, v in edges if s == u))) for u in range(n - 1)]
    nets.append((0.07, (n - 2, n - 1)))
    compute = dice.uniform(0.5, 2.0, n) * (dice.random(n) < 0.9)
    return units_of(compute.tolist(), sorted(edges), nets)


def every_ideal(units: Units) -> list[frozenset[int]]:
    a, n = units.arrays, len(units)
    ideals = [frozenset[int]()]
    for v in range(n):
        before = set(a.pred[a.pred_first[v] : a.pred_first[v + 1]].tolist())
        ideals += [ideal | {v} for ideal in ideals if before <= ideal]
    return ideals


def cut_of(units: Units, part: frozenset[int], costs: np.ndarray | None = None) -> float:
    """Return what the nets with a pin in a set and a pin elsewhere cost."""
    a = units.arrays
    costs = a.net_cost if costs is None else costs
    pins = [set(a.net_pins[a.net_first[i] : a.net_first[i + 1]].tolist()) for i in range(len(costs))]
    return math.fsum(float(costs[i]) for i, net in enumerate(pins) if net & part and net - part)


def chains(units: Units, n_stages: int) -> list[tuple[float, tuple[frozenset[int], ...]]]:
    """Return the largest load of every partition with its ideals; stages may be empty."""
    a, ideals = units.arrays, every_ideal(units)
    load: dict[frozenset[int], float] = {}

    def of(part: frozenset[int]) -> float:
        if part not in load:
            load[part] = float(a.compute[sorted(part)].sum()) + cut_of(units, part)
        return load[part]

    whole, found = frozenset(range(len(units))), []
    for inner in itertools.product(ideals, repeat=n_stages - 1):
        cuts = (frozenset[int](), *inner, whole)
        if all(x <= y for x, y in itertools.pairwise(cuts)):
            found.append((max(of(y - x) for x, y in itertools.pairwise(cuts)), inner))
    return found


def task_of(units: Units, n_stages: int, n_ideals: int = 10_000) -> Task:
    return Task(units, n_stages, 0, math.inf, np.ones((2, n_stages)), n_ideals, 10**7)


@pytest.mark.parametrize("seed", range(12))
def test_the_pool_has_every_ideal_of_every_partition_within_the_limit(seed: int) -> None:
    units = two_lanes(seed)
    every = chains(units, 3)
    best = min(load for load, _ in every)
    for factor in (1.0, 1.02, 1.1, 1.5):
        limit = best * factor
        pool = cheap_pool(task_of(units, 3), limit)
        assert pool is not None and pool.complete
        task = task_of(units, 3)
        stages = {
            frozenset(task.members(pool.arrays, i)): tuple(pool.windows[i].tolist()) for i in range(len(pool.arrays.compute))
        }
        assert len(stages) == len(pool.arrays.compute)
        kept = [(load, inner) for load, inner in every if load <= limit]
        assert kept
        for _, inner in kept:
            assert all(stages[ideal][0] <= s <= stages[ideal][1] for s, ideal in enumerate(inner, 1))


def test_cheapest_cuts_narrow_the_windows_of_others_and_stay_below_every_cut_of_a_partition() -> None:
    n_raised = 0
    for seed in range(12):
        units = two_lanes(seed)
        every = chains(units, 3)
        limit = min(load for load, _ in every) * 1.01
        cuts = cheap_cuts._Cuts(task_of(units, 3), limit)
        cuts.narrow()
        for _, inner in [chain for chain in every if chain[0] <= limit]:
            for s, ideal in enumerate(inner, 1):
                assert cuts.least[s] <= cut_of(units, ideal, cuts.private[s])
        n_raised += int((cuts.least > 0.0).sum())
    assert n_raised >= 6


def test_a_tensor_read_only_in_the_last_stage_is_not_counted_at_every_cut() -> None:
    """It is cut three times and paid twice: with it at every cut no partition would be left."""
    nets = [(1.0, (0, 7)), *((0.01, (v, v + 1)) for v in range(7))]
    units = units_of([1.0] * 8, [(v, v + 1) for v in range(7)], nets)
    limit = 2.0 + 1.0 + 0.02
    pool = cheap_pool(task_of(units, 4), limit)
    assert pool is not None
    assert {2.0, 4.0, 6.0} <= set(pool.arrays.compute.tolist())
    private = cheap_cuts._private(task_of(units, 4), limit)
    assert all(cost[units.arrays.net_cost == 1.0] == 0.0 for cost in private)


@pytest.mark.parametrize("seed", range(4))
def test_the_walk_lists_just_the_ideals_of_its_window(seed: int) -> None:
    units = two_lanes(seed, 12)
    a, sides, bits_of = units.arrays, np.stack([units.before, units.after]), kernel.reaches(units.arrays)
    total = units.total
    by_cost = {ideal: (float(a.compute[sorted(ideal)].sum()), cut_of(units, ideal)) for ideal in every_ideal(units)}
    for low, high, most in ((0.0, total, 9.0), (0.3 * total, 0.6 * total, 9.0), (0.3 * total, 0.6 * total, 0.9)):
        expected = {i for i, (c, k) in by_cost.items() if low + k <= c <= high - k and k <= most}
        window = np.array([low, high, most, 1e-9])
        listed = kernel.cheap_ideals(a, sides, bits_of, a.net_cost, window, False, np.array([5000, 10**6]))
        found = [frozenset(v for v in range(12) if int(row[0]) >> v & 1) for row in listed[0]]
        assert listed[3] and len(found) == len(expected) and set(found) == expected
        least = kernel.cheap_ideals(a, sides, bits_of, a.net_cost, window, True, np.array([5000, 10**6]))
        cheapest = min((by_cost[ideal][1] for ideal in expected), default=most)
        assert least[3] and least[1] == pytest.approx(cheapest, abs=1e-8) and least[1] <= cheapest
        assert not kernel.cheap_ideals(a, sides, bits_of, a.net_cost, window, False, np.array([5000, listed[2] - 1]))[3]
        if len(expected) > 1:
            assert not kernel.cheap_ideals(a, sides, bits_of, a.net_cost, window, False, np.array([1, 10**6]))[3]


def test_lists_that_are_too_long_give_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    units = two_lanes(0, 16)
    assert cheap_pool(task_of(units, 3), 0.8 * units.total) is not None
    assert cheap_pool(task_of(units, 3, n_ideals=16), 0.8 * units.total) is None
    monkeypatch.setattr(cheap_cuts, "_STEPS", 40)
    assert cheap_pool(task_of(units, 3), 0.8 * units.total) is None


@pytest.mark.parametrize("seed", range(6))
def test_partitions_whose_windows_hold_too_many_ideals_are_proved_by_cheap_cuts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = two_lanes(seed)
    best = min(load for load, _ in chains(units, 3))
    monkeypatch.setattr(convex, "_pool", lambda *given, **named: (None, True))
    found = convex.partition(units, 3)
    assert found.exact and found.value == found.bound_value == pytest.approx(best, rel=1e-9)
    monkeypatch.setattr(convex, "cheap_pool", lambda task, limit: None)
    assert not convex.partition(units, 3).exact


def test_stages_of_unequal_speed_are_not_proved_by_cuts_that_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    units = two_lanes(1)
    monkeypatch.setattr(convex, "_pool", lambda *given, **named: (None, True))
    monkeypatch.setattr(convex, "cheap_pool", lambda task, limit: pytest.fail("stages differ"))
    scales = np.ones((2, 3))
    scales[0, 1] = 0.5
    assert not convex.partition(units, 3, scales=scales).exact
