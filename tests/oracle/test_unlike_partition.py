"""The partitioner of unlike devices against trying everything, and against itself where not all ideals are listed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from unlike_brute_force import least_load

from meshwright.planners.parmesan.check.unlike import ClaimedUnlikePartition, check
from meshwright.solvers.partition import unlike
from meshwright.solvers.partition.hypergraph import Operators
from meshwright.solvers.partition.unlike import DeviceKind, cut_unlike, least_excess


def question(seed: int, *, n_kinds: int = 2, tight: float = 1.0) -> tuple[Operators, list[DeviceKind], int]:
    """Return a random graph of a few operators, kinds of unlike speed and memory, and most stages."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 6))
    edges = tuple((u, v) for u in range(n) for v in range(u + 1, n) if random.random() < 0.45)
    nets = tuple(
        (float(random.integers(0, 4)), (u, *sorted(v for a, v in edges if a == u)))
        for u in range(n)
        if any(a == u for a, _ in edges)
    )
    memory = random.integers(0, 9, n).astype(float)
    colocated = tuple(range(n)) if random.random() < 0.7 else (*range(n - 1), 0)
    operators = Operators(np.zeros(n), np.zeros(n), memory, np.ones(n, dtype=bool), edges, colocated, nets)
    base = random.integers(0, 8, n).astype(float)
    share = memory.sum() * tight
    kinds = [
        DeviceKind(
            base * float(random.choice([1.0, 2.0, 5.0])),
            float(np.floor(share * random.uniform(0.2, 0.9))),
            int(random.integers(1, 3)),
        )
        for _ in range(n_kinds)
    ]
    return operators, kinds, int(random.integers(1, 4))


@pytest.mark.parametrize("seed", range(60))
def test_the_least_largest_load_is_that_of_trying_everything(seed: int) -> None:
    operators, kinds, n_stages = question(seed)
    truth = least_load(operators, kinds, n_stages)
    found = cut_unlike(operators, kinds, n_stages)
    assert found.exact
    if math.isinf(truth):
        assert found.groups == () and math.isinf(found.bound_value)
        assert least_excess(operators, kinds, n_stages) > 0.0
    else:
        assert found.value == pytest.approx(truth, rel=1e-12) and found.bound_value == found.value
        assert least_excess(operators, kinds, n_stages) <= 0.0


@pytest.mark.parametrize("seed", range(30))
def test_the_order_of_the_kinds_and_splitting_one_changes_nothing(seed: int) -> None:
    operators, kinds, n_stages = question(seed, n_kinds=3)
    value = cut_unlike(operators, kinds, n_stages).value
    assert cut_unlike(operators, kinds[::-1], n_stages).value == value
    single = [replace(kind, n_devices=1) for kind in kinds for _ in range(kind.n_devices)]
    assert cut_unlike(operators, single, n_stages).value == value


@pytest.mark.parametrize("seed", range(60))
def test_where_not_all_ideals_are_listed_nothing_is_claimed_that_trying_everything_refutes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators, kinds, n_stages = question(seed, tight=1.3)
    truth = least_load(operators, kinds, n_stages)
    monkeypatch.setattr(unlike, "_IDEALS", 1)
    monkeypatch.setattr(unlike, "_ORDERS", 1)
    found = cut_unlike(operators, kinds, n_stages)
    assert found.value >= truth * (1 - 1e-12)
    assert found.bound_value <= truth * (1 + 1e-9)
    if found.exact:
        assert found.value == pytest.approx(truth, rel=1e-9)


def test_a_large_stage_goes_to_the_large_device_wherever_that_stands() -> None:
    operators = Operators(
        np.zeros(2), np.zeros(2), np.array([30.0, 5.0]), np.ones(2, dtype=bool), ((0, 1),), (0, 1), ((0.01, (0, 1)),)
    )
    times = np.array([1.0, 1.0])
    found = cut_unlike(operators, [DeviceKind(times, 16.0, 1), DeviceKind(times, 80.0, 1)], 2)
    assert found.groups == ((0,), (1,)) and found.kinds == (1, 0) and found.loads == (1.01, 1.01)


def test_the_least_that_is_missing_is_what_the_best_cut_misses() -> None:
    operators = Operators(np.zeros(2), np.zeros(2), np.array([30.0, 5.0]), np.ones(2, dtype=bool), ((0, 1),), (0, 1), ())
    times = np.array([1.0, 1.0])
    kinds = [DeviceKind(times, 2.0, 1), DeviceKind(times, 28.0, 1)]
    # 30 on 28 and 5 on 2: three bytes are missing on the small one, two on the large one
    assert least_excess(operators, kinds, 2) == 3.0
    assert cut_unlike(operators, kinds, 2).exact


@pytest.mark.parametrize("seed", range(40))
def test_the_check_confirms_what_is_best_and_refuses_what_only_says_so(seed: int) -> None:
    operators, kinds, n_stages = question(seed)
    found = cut_unlike(operators, kinds, n_stages)
    if not found.groups:
        return
    best = ClaimedUnlikePartition(found.groups, found.kinds, n_stages, found.value, found.bound_value)
    assert check(operators, kinds, best).valid
    whole = tuple(range(len(operators.memory)))
    for kind in range(len(kinds)):
        value = float(kinds[kind].compute.sum())
        claim = check(operators, kinds, ClaimedUnlikePartition((whole,), (kind,), n_stages, value, value))
        fits = operators.memory.sum() <= kinds[kind].free_bytes
        assert claim.valid == (fits and value <= found.value * (1 + 1e-9)), claim.reason
