"""The program that cuts two neighbouring stages anew, against every cut of small graphs, other stages round about."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright.solvers.partition import cut_programs
from meshwright.solvers.partition.cut_programs import halve
from meshwright.solvers.partition.hypergraph import Operators, Units, contract, loads_of


def graph(seed: int, n: int) -> Units:
    """Return a random graph; tensors have one to three readers, and some come back to earlier operators."""
    random = np.random.default_rng(seed)
    edges = {(int(u), v) for v in range(1, n) for u in random.choice(v, size=min(v, int(random.integers(1, 3))), replace=False)}
    readers = {u: tuple(v for s, v in sorted(edges) if s == u) for u in range(n)}
    nets = [(float(random.integers(1, 30)) / 10, (u, *vs)) for u, vs in readers.items() if vs]
    nets += [(float(random.integers(1, 9)) / 10, (v, u)) for u, v in sorted(edges)[::3]]
    compute, memory = random.integers(5, 50, n) / 10, random.integers(10, 20, n) / 10
    return contract(Operators(compute, np.zeros(n), memory, np.ones(n, dtype=bool), tuple(sorted(edges)), tuple(range(n)),
                              tuple(nets)))  # fmt: skip


def cuts(units: Units, members: np.ndarray) -> list[np.ndarray]:
    """Return every way to cut the members in two that no edge runs against."""
    a = units.arrays
    place = {int(v): i for i, v in enumerate(members)}
    edges = [
        (i, place[int(w)]) for v, i in place.items() for w in a.succ[a.succ_first[v] : a.succ_first[v + 1]] if int(w) in place
    ]
    chosen = (np.array(one) for one in itertools.product((False, True), repeat=len(members)))
    return [one for one in chosen if all(one[u] or not one[v] for u, v in edges)]


def larger_load(units: Units, members: np.ndarray, first: np.ndarray, scales: np.ndarray) -> float:
    """Return the larger load of the two stages, all other units in stages of their own before and after them."""
    before = tuple(v for v in range(len(units)) if v < members.min())
    after = tuple(v for v in range(len(units)) if v > members.max())
    groups = (before, tuple(int(v) for v in members[first]), tuple(int(v) for v in members[~first]), after)
    all_scales = np.concatenate((np.ones((2, 1)), scales, np.ones((2, 1))), axis=1)
    return max(loads_of(units, groups, (False,) * 4, all_scales)[1:3])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("start", "stop"), [(0, 8), (1, 8), (2, 7)])
def test_the_cut_is_the_best_of_all_and_the_bound_proves_it(seed: int, start: int, stop: int) -> None:
    units = graph(seed, 9)
    members = np.arange(min(start, len(units)), min(stop, len(units)))
    scales = np.array([[1.0, 1.5], [0.5, 2.0]]) if seed % 2 else np.ones((2, 2))
    limit = math.inf if seed % 3 else float(units.arrays.memory[members].sum()) * 0.6
    memory = units.arrays.memory[members]
    values = [
        larger_load(units, members, first, scales)
        for first in cuts(units, members)
        if max(memory[first].sum(), memory[~first].sum()) <= limit * (1 + 1e-9)
    ]
    best, top = min(values), max(values)
    chosen, bound = halve(units, members, scales, top, limit, 1000)
    assert chosen is not None
    assert larger_load(units, members, chosen, scales) == pytest.approx(best, rel=1e-6)
    assert bound == pytest.approx(best, rel=1e-6)
    assert max(memory[chosen].sum(), memory[~chosen].sum()) <= limit * (1 + 1e-9)
    none, bound = halve(units, members, scales, best * 0.99, limit, 1000)
    assert none is None and bound >= best * 0.99 * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_of_many_units_only_those_next_to_the_cut_move(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_programs, "_NEAR", 2)
    units = graph(seed, 9)
    members, scales = np.arange(len(units)), np.ones((2, 2))
    now = members < len(units) // 2
    allowed = [one for one in cuts(units, members) if one[now][:-2].all() and not one[~now][2:].any()]
    best = min(larger_load(units, members, first, scales) for first in allowed)
    found, _ = halve(units, members, scales, 1.001 * larger_load(units, members, now, scales), math.inf, in_first=now)
    assert found is not None
    assert any((found == one).all() for one in allowed)
    assert larger_load(units, members, found, scales) == pytest.approx(best)
