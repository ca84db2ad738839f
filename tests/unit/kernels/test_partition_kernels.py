"""Kernels of the convex partitioner on small graphs: every cut, ideal and move as when this was written, and by definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright._kernels.partition import annealing, convex, ideals
from meshwright.solvers.partition import ideal_pool
from meshwright.solvers.partition.hypergraph import Operators, Units, contract, loads_of
from recorded import Recorded


def units_of(seed: int, n: int = 8, *, barred: int = -1) -> Units:
    """Return a drawn graph with times in quarters; tensors have one to three readers."""
    dice = np.random.default_rng(seed)
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if dice.random() < 0.3] or [(0, 1)]
    readers = [tuple(v for a, v in edges if a == u) for u in range(n)]
    nets = [(float(dice.integers(1, 9)) / 4, (u, *readers[u])) for u in range(n) if readers[u]]
    compute, host, memory = (dice.integers(1, 12, n) / 4 for _ in range(3))
    operators = Operators(
        compute, host, memory, np.arange(n) != barred, tuple(edges), tuple(range(n)), (*nets, (0.25, (n - 1, 0)))
    )
    return contract(operators, weigh_memory=True)


def fixed(*values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return arrays that cannot be written, as the searches pass them: kernels are compiled for each kind."""
    for value in values:
        value.setflags(write=False)
    return values


def closed(units: Units, members: set[int]) -> bool:
    a = units.arrays
    return all(int(u) in members for v in members for u in a.pred[a.pred_first[v] : a.pred_first[v + 1]])


def task_of(units: Units, n_stages: int, n_hosts: int = 0, **changes: object) -> ideal_pool.Task:
    (scales,) = fixed(np.ones((2, n_stages)))
    given = {"memory_limit_bytes": np.inf, "scales": scales, "n_ideals": 2000, "n_pairs": 10**6}
    return ideal_pool.Task(units, n_stages, n_hosts, **(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_cuts_along_an_order(seed: int, recorded: Recorded) -> None:
    units = units_of(seed, barred=5 if seed == 2 else -1)
    (order,) = fixed(np.arange(len(units)))
    found = []
    for n_stages, limit, memory, scales in (
        (1, 100.0, np.inf, None),
        (3, 100.0, np.inf, None),
        (3, 9.0, np.inf, None),
        (4, 100.0, 4.5, None),
        (3, 100.0, np.inf, ([1.0, 0.5, 2.0], [1.0, 3.0, 0.25])),
        (3, 12.0, 9.0, ([1.5, 1.0, 1.0], [1.0, 1.0, 0.5])),
        (2, 3.0, np.inf, None),
    ):
        (factors,) = fixed(np.array(scales) if scales else np.ones((2, n_stages)))
        value, cuts = convex.cut_order(units.arrays, order, n_stages, limit, memory, factors[0], factors[1])
        found.append([float(value), cuts.tolist()])
        if np.isfinite(value):
            groups = tuple(tuple(range(a, b)) for a, b in itertools.pairwise(cuts.tolist()))
            assert max(loads_of(units, groups, (False,) * n_stages, factors)) == pytest.approx(value)
    recorded(found)


@pytest.mark.parametrize("seed", range(3))
def test_ideals_of_windows_and_what_they_cut(seed: int, recorded: Recorded) -> None:
    units = units_of(seed)
    a, n = units.arrays, len(units)
    sets = [set(some) for size in range(n + 1) for some in itertools.combinations(range(n), size) if closed(units, set(some))]
    for low, high in ((0.0, 100.0), (0.2 * units.total, 0.5 * units.total), (0.7 * units.total, 0.8 * units.total)):
        bits, offset, complete = ideal_pool._window(task_of(units, 2), low, high)
        assert complete and offset == 0
        held = {tuple(v for v in range(n) if int(row[0]) >> v & 1) for row in bits}
        assert len(held) == len(bits)
        assert held == {tuple(sorted(one)) for one in sets if low <= float(a.compute[sorted(one)].sum()) <= high}
        recorded([bits[:, 0].tolist()[:40], len(bits)], f"walk from {low:g}")
    bits, _, _ = ideal_pool._window(task_of(units, 2), 0.0, 100.0)
    active, start = fixed(np.arange(n), np.zeros(1, np.uint64))
    cut_off, compute, complete = ideals.enumerate_window(a, active, start, 0, 0.0, 100.0, 5)
    recorded([cut_off[:, 0].tolist(), compute, bool(complete)], "cut off")
    sums, first, nets, inside = ideals.cut_lists(a, bits[:12], 0, np.arange(len(a.net_cost)), 0)
    recorded([sums, first, nets, inside], "cut lists")
    after = ideals.closures(a.succ_first.copy(), a.succ.copy(), a.compute.copy(), True)
    closures = [after, ideals.closures(a.pred_first.copy(), a.pred.copy(), a.memory.copy(), False)]
    recorded(closures, "closures")


def test_ideals_beyond_the_first_word(recorded: Recorded) -> None:
    """A chain of 70 units with a side branch: lists begin in the word in which ideals differ."""
    n = 70
    edges = tuple((i, i + 1) for i in range(n - 2)) + ((60, 69),)
    nets = tuple((1.0, (i, i + 1)) for i in range(n - 2)) + ((2.0, (60, 69)),)
    ones = np.ones(n)
    units = contract(Operators(ones, ones / 2, ones * 3, ones > 0, edges, tuple(range(n)), nets), weigh_memory=True)
    for n_stages, limit in ((2, 40.0), (3, 28.0)):
        pool = ideal_pool.build_pool(task_of(units, n_stages), limit)
        assert pool is not None
        arrays = pool.arrays
        recorded(
            [[float(np.asarray(one, dtype=np.float64).sum()) for one in arrays], pool.windows, arrays.offset, arrays.compute],
            f"{n_stages}",
        )
        value, origin, n_pairs = convex.solve_pool(
            units.arrays, arrays, pool.windows, *fixed(np.ones((2, n_stages))), 0, np.array([limit, np.inf, 1e6]), False
        )
        recorded([value[-1], origin[-1], n_pairs], f"{n_stages} solved")
    active, start = fixed(np.arange(60, 70), np.array([2**64 - 1, 0], dtype=np.uint64))
    bits, compute, complete = ideals.enumerate_window(units.arrays, active, start, 0, 58.0, 66.0, 60)
    recorded([bits.astype(np.float64), compute, bool(complete)], "two words")
    bits, compute, _ = ideals.enumerate_window(
        units.arrays, *fixed(np.arange(64, 70), np.zeros(1, np.uint64)), 1, 64.0, 68.0, 60
    )
    sums, first, cut, inside = ideals.cut_lists(units.arrays, bits, 1, np.arange(55, len(units.arrays.net_cost)), 64)
    recorded([bits[:, 0], compute, sums[:4], first, cut, inside], "second word")


@pytest.mark.parametrize("seed", range(4))
def test_the_dynamic_program_over_pairs_of_ideals(seed: int, recorded: Recorded) -> None:
    units = units_of(seed, 7, barred=3 if seed == 3 else -1)
    (scaled,) = fixed(np.array([[1.0, 0.5, 1.5], [1.0, 2.0, 0.5]]))
    cases = (
        (3, 0, {}, 0.6, False),
        (3, 0, {"scales": scaled}, 0.9, False),
        (2, 1, {}, 0.8, False),
        (1, 2, {}, 0.7, True),
        (3, 0, {}, 0.6, True),
        (3, 0, {"memory_limit_bytes": 5.0}, 0.8, False),
        (0, 2, {}, 1.0, False),
    )
    for k, (n_stages, n_hosts, changes, share, squares) in enumerate(cases):
        task = task_of(units, n_stages, n_hosts, **changes)
        limit = share * (units.total + float(units.arrays.net_cost.sum()))
        pool = ideal_pool.build_pool(task, limit)
        assert pool is not None and pool.complete
        limits = np.array([limit, task.memory_limit_bytes, 1e6])
        value, origin, n_pairs = convex.solve_pool(
            units.arrays, pool.arrays, pool.windows, task.scales, n_hosts, limits, squares
        )
        recorded([len(pool.arrays.compute), pool.windows.sum(axis=0), value[-1], value, origin, n_pairs], f"{k}")
    limits[2] = 3
    recorded(convex.solve_pool(units.arrays, pool.arrays, pool.windows, task.scales, n_hosts, limits, False)[2], "given up")


@pytest.mark.parametrize("seed", range(3))
def test_annealing_keeps_its_books_and_the_best_it_met(seed: int, recorded: Recorded) -> None:
    units = units_of(seed, 9)
    n = len(units)
    stage = np.arange(n) * 3 // n
    (scales,) = fixed(np.array([[1.0, 1.25, 0.75], [1.0, 0.5, 2.0]]))
    for k, (most_units, power, memory) in enumerate(((1, 4.0, np.inf), (3, 8.0, np.inf), (6, 2.0, 7.0))):
        random = np.random.default_rng(seed)
        found = annealing.anneal(
            units.arrays, stage.copy(), scales, memory, 250, power, np.array([0.5, 0.01]), most_units, random
        )
        groups = [tuple(tuple(np.flatnonzero(one == s).tolist()) for s in range(3)) for one in (stage, found)]
        before, after = (max(loads_of(units, one, (False,) * 3, scales)) for one in groups)
        assert after <= before * (1 + 1e-12)
        recorded([found, after, int(random.integers(10**6))], f"{k}")
    once = annealing.anneal(
        units.arrays, stage.copy(), scales, np.inf, 1, 4.0, np.array([0.5, 0.01]), 4, np.random.default_rng(0)
    )
    none = annealing.anneal(
        units.arrays, stage.copy(), scales, np.inf, 0, 4.0, np.array([0.5, 0.01]), 4, np.random.default_rng(0)
    )
    recorded([once, none], "one move and none")
