"""The partitioner against every partition of small random graphs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cases import cases
from meshwright.solvers.partition import operator_stages
from meshwright.solvers.partition.convex import partition
from meshwright.solvers.partition.hypergraph import Operators, contract, loads_of
from oracle import convex_partition as oracle


def operators_of(seed: int, n: int, *, colours: bool = False, unsupported: bool = False) -> Operators:
    """Return a small random graph: a few heavy operators, some free ones, tensors with one to three readers."""
    random = np.random.default_rng(seed)
    edges, nets = [], []
    for u in range(n - 1):
        readers = sorted({int(v) for v in random.integers(u + 1, n, size=random.integers(0, 3))})
        edges += [(u, v) for v in readers]
        if readers:
            nets.append((float(random.choice([0.0, 0.5, 1.0, 3.0])), (u, *readers)))
    colocated = list(range(n))
    if colours and n > 3:
        colocated[int(random.integers(1, n))] = colocated[0]
    supported = random.random(n) > 0.15 if unsupported else np.ones(n, dtype=bool)
    return Operators(
        compute=random.choice([0.0, 0.0, 1.0, 2.0, 5.0], size=n), host=random.integers(0, 20, size=n).astype(float),
        memory=random.integers(0, 5, size=n).astype(float), supported=supported, edges=tuple(edges),
        colocated=tuple(colocated), nets=tuple(nets),
    )  # fmt: skip


@settings(max_examples=cases(60), deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), n_stages=st.integers(1, 3))
def test_the_partition_is_the_best_of_all(seed: int, n: int, n_stages: int) -> None:
    operators = operators_of(seed, n, colours=seed % 2 == 0)
    found = operator_stages.cut(operators, n_stages)
    assert found.partition.exact
    assert found.partition.value == pytest.approx(oracle.best(operators, n_stages), rel=1e-9)


@settings(max_examples=cases(40), deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), limit=st.sampled_from([4.0, 7.0, 12.0]))
def test_memory_limits_and_host_devices_are_respected_at_no_loss(seed: int, n: int, limit: float) -> None:
    operators = operators_of(seed, n, unsupported=True)
    best = oracle.best(operators, 2, n_hosts=1, memory_limit_bytes=limit)
    found = operator_stages.cut(operators, 2, n_hosts=1, memory_limit_bytes=limit)
    assert found.partition.feasible == math.isfinite(best)
    if found.partition.feasible:
        assert found.partition.exact
        assert found.partition.value == pytest.approx(best, rel=1e-9)
        for group, host in zip(found.groups, found.partition.hosts, strict=True):
            assert host or sum(operators.memory[v] for v in group) <= limit


@settings(max_examples=cases(40), deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(4, 14), n_stages=st.integers(2, 6))
def test_stages_follow_the_edges_and_hold_every_operator_once(seed: int, n: int, n_stages: int) -> None:
    operators = operators_of(seed, n, colours=True)
    found = operator_stages.cut(operators, n_stages)
    stage = {op: i for i, group in enumerate(found.groups) for op in group}
    assert sorted(op for group in found.groups for op in group) == list(range(n))
    assert all(stage[u] <= stage[v] for u, v in operators.edges)
    assert found.partition.bound_value <= found.partition.value * (1 + 1e-9)
    assert found.partition.loads == loads_of(found.units, found.partition.groups, found.partition.hosts)


@settings(max_examples=cases(15), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_list_of_ideals_that_is_too_short_gives_a_bound_below_the_best(seed: int) -> None:
    operators = operators_of(seed, 10)
    units = contract(operators)
    exact = partition(units, 3)
    short = partition(units, 3, n_ideals=16)
    assert exact.exact
    assert short.bound_value <= exact.value * (1 + 1e-9) <= short.value * (1 + 1e-8)


@settings(max_examples=cases(30), deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6))
def test_unequal_devices_are_best_of_all_too(seed: int, n: int) -> None:
    import itertools

    operators = operators_of(seed, n)
    scales = np.array([[1.0, 2.0, 0.5], [3.0, 1.0, 1.0]])
    units = contract(operators)
    found = partition(units, 3, scales=scales)
    best = math.inf
    for stage in itertools.product(range(3), repeat=len(units)):
        a = units.arrays
        if all(stage[u] <= stage[a.succ[e]] for u in range(len(units)) for e in range(a.succ_first[u], a.succ_first[u + 1])):
            groups = tuple(tuple(u for u in range(len(units)) if stage[u] == s) for s in range(3))
            best = min(best, max(loads_of(units, groups, (False,) * 3, scales)))
    assert found.exact
    assert found.value == pytest.approx(best, rel=1e-9)
