"""What betters and bounds a convex partition, where its ideals are too many to list, against all partitions of small graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import cases
from meshwright.solvers.partition.annealing import annealed
from meshwright.solvers.partition.hypergraph import Operators, Units, contract, loads_of
from meshwright.solvers.partition.reach_bound import reach_bound
from meshwright.solvers.partition.recutting import recut


def graph(seed: int, n: int) -> Units:
    """Return a random graph; some tensors have several readers, and some come back from a later operator to earlier ones."""
    random = np.random.default_rng(seed)
    edges = [(u, v) for v in range(1, n) for u in random.choice(v, size=min(v, int(random.integers(1, 3))), replace=False)]
    readers = {u: tuple(v for s, v in edges if s == u) for u in range(n)}
    nets = [(float(random.uniform(0.1, 3)), (u, *vs)) for u, vs in readers.items() if vs]
    nets += [(float(random.uniform(0.1, 1)), (v, u)) for u, v in edges[::3]]
    return contract(
        Operators(
            random.uniform(0.5, 5, n), np.zeros(n), random.uniform(1, 2, n), np.ones(n, dtype=bool),
            tuple((int(u), int(v)) for u, v in edges), tuple(range(n)),
            tuple((c, tuple(int(p) for p in pins)) for c, pins in nets),
        )
    )  # fmt: skip


def chains(units: Units, n_stages: int) -> list[tuple[tuple[int, ...], ...]]:
    """Return all convex partitions into at most n_stages stages; units are numbered topologically."""
    a = units.arrays
    before: list[list[int]] = [[] for _ in range(len(units))]
    for u in range(len(units)):
        for v in a.succ[a.succ_first[u] : a.succ_first[u + 1]]:
            assert u < v
            before[int(v)].append(u)
    placed: list[tuple[int, ...]] = [()]
    for v in range(len(units)):
        placed = [(*stages, s) for stages in placed for s in range(max((stages[u] for u in before[v]), default=0), n_stages)]
    return [tuple(tuple(v for v, mine in enumerate(stages) if mine == s) for s in range(n_stages)) for stages in placed]


@settings(max_examples=cases(15), deadline=None)
@given(seed=st.integers(0, 10**6), n_stages=st.sampled_from([2, 3]), share=st.sampled_from([0.0, 0.5]))
def test_the_reach_bound_lies_below_every_partition(seed: int, n_stages: int, share: float) -> None:
    units = graph(seed, 7)
    scales = np.random.default_rng(seed).uniform(0.5, 2, (2, n_stages)) if seed % 2 else np.ones((2, n_stages))
    values = [max(loads_of(units, groups, (False,) * n_stages, scales)) for groups in chains(units, n_stages)]
    best = min(values)
    bound = reach_bound(units, scales, 0.0, float(np.quantile(values, share)))
    assert bound <= best * (1 + 1e-9)
    assert bound >= units.total / (1 / scales[0]).sum() * (1 - 3e-3)


def test_the_reach_bound_is_close_to_the_best_partition() -> None:
    """As close as when this was written: a condition that is missing makes no answer wrong, only every search longer."""
    shares = []
    for seed in range(4):
        units, n_stages = graph(seed, 7), 2 + seed % 2
        scales = np.random.default_rng(seed).uniform(0.5, 2, (2, n_stages)) if seed % 2 else np.ones((2, n_stages))
        best = min(max(loads_of(units, groups, (False,) * n_stages, scales)) for groups in chains(units, n_stages))
        shares.append(reach_bound(units, scales, 0.0, best) / best)
    assert np.mean(shares) >= 0.937


def test_a_chain_of_equal_operators_pays_its_tensors_in_the_reach_bound() -> None:
    n, tensor = 12, 0.5
    units = contract(
        Operators(
            np.ones(n), np.zeros(n), np.ones(n), np.ones(n, dtype=bool), tuple((i, i + 1) for i in range(n - 1)),
            tuple(range(n)),
            tuple((tensor, (i, i + 1)) for i in range(n - 1)),
        )
    )  # fmt: skip
    # three stages of four operators: the middle one pays two tensors; compute alone says 4
    bound = reach_bound(units, np.ones((2, 3)), 4.0, 5.0)
    assert 4.6 < bound <= 5.0


@settings(max_examples=cases(15), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_annealing_keeps_order_and_memory_and_is_never_worse(seed: int) -> None:
    units = graph(seed, 9)
    n = len(units)
    groups = (tuple(range(n // 3)), tuple(range(n // 3, n // 2)), tuple(range(n // 2, n)))
    memory = units.arrays.memory
    limit = max(float(memory[list(group)].sum()) for group in groups)
    scales = np.random.default_rng(seed).uniform(0.5, 2, (2, 3)) if seed % 2 else np.ones((2, 3))
    new = annealed(units, groups, scales=scales, memory_limit_bytes=limit, seed=seed)
    kinds = (False,) * 3
    assert new in chains(units, 3)
    assert max(loads_of(units, new, kinds, scales)) <= max(loads_of(units, groups, kinds, scales))
    assert all(math.fsum(memory[list(group)]) <= limit * (1 + 1e-12) for group in new)


def test_annealing_comes_close_to_the_best_on_the_average() -> None:
    """It is a heuristic: single graphs may be off by a seventh, which no bound forbids."""
    ratios = []
    for seed in range(12):
        units = graph(seed, 9)
        n, kinds = len(units), (False,) * 3
        groups = (tuple(range(n // 3)), tuple(range(n // 3, n // 2)), tuple(range(n // 2, n)))
        scales = np.random.default_rng(seed).uniform(0.5, 2, (2, 3))
        found = max(loads_of(units, annealed(units, groups, scales=scales, seed=seed), kinds, scales))
        ratios.append(found / min(max(loads_of(units, chain, kinds, scales)) for chain in chains(units, 3)))
    assert min(ratios) >= 1.0 - 1e-12 and sum(ratios) / len(ratios) <= 1.02, ratios


@settings(max_examples=cases(15), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_two_stages_cut_anew_are_the_best_of_all(seed: int) -> None:
    units = graph(seed, 8)
    scales = np.random.default_rng(seed).uniform(0.5, 2, (2, 2)) if seed % 2 else np.ones((2, 2))
    everything = (tuple(range(len(units))), ())
    groups = recut(units, everything, scales=scales)
    best = min(max(loads_of(units, chain, (False, False), scales)) for chain in chains(units, 2))
    assert max(loads_of(units, groups, (False, False), scales)) == pytest.approx(best, rel=2e-6)


@settings(max_examples=cases(15), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_cutting_anew_keeps_order_and_memory_and_is_never_worse(seed: int) -> None:
    units = graph(seed, 9)
    n = len(units)
    groups = (tuple(range(n // 3)), tuple(range(n // 3, n // 2)), tuple(range(n // 2, n)))
    memory = units.arrays.memory
    limit = max(float(memory[list(group)].sum()) for group in groups)
    new = recut(units, groups, memory_limit_bytes=limit)
    kinds = (False,) * 3
    assert new in chains(units, 3)
    assert max(loads_of(units, new, kinds)) <= max(loads_of(units, groups, kinds)) * (1 + 1e-12)
    assert all(math.fsum(memory[list(group)]) <= limit * (1 + 1e-12) for group in new)
