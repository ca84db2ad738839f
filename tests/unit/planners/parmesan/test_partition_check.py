"""The check of partitions and mappings: what holds is confirmed, what was tampered with is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import clusters
from meshwright.planners.parmesan.check import mapping as check_mapping
from meshwright.planners.parmesan.check import partition as check_partition
from meshwright.planners.parmesan.check.blocks import OperatorBlocks
from meshwright.planners.parmesan.check.mapping import ClaimedMapping, MappedStages
from meshwright.planners.parmesan.check.partition import ClaimedPartition
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import map_stages, pair_seconds
from meshwright.solvers.partition import operator_stages
from meshwright.solvers.partition.hypergraph import Operators


def graph(seed: int, n: int) -> Operators:
    """Return a random graph with free operators, operators that stay together, and a tensor that comes back."""
    random = np.random.default_rng(seed)
    edges = [(int(u), v) for v in range(1, n) for u in random.choice(v, size=min(v, int(random.integers(1, 3))), replace=False)]
    readers = {u: tuple(v for s, v in edges if s == u) for u in range(n)}
    colocated = list(range(n))
    colocated[n - 1] = colocated[int(random.integers(0, n))]
    return Operators(
        random.uniform(0.5, 5, n) * (random.random(n) < 0.8), np.zeros(n), random.uniform(1, 2, n), np.ones(n, dtype=bool),
        tuple(edges),
        tuple(colocated), tuple((float(random.uniform(0.1, 3)), (u, *vs)) for u, vs in readers.items() if vs),
    )  # fmt: skip


def claim_of(
    operators: Operators, n_stages: int, value: float | None = None, bound_value: float | None = None
) -> ClaimedPartition:
    """Return the solver's answer as a claim, with another value or bound."""
    found = operator_stages.cut(operators, n_stages)
    best = found.partition
    return ClaimedPartition(
        found.groups, best.hosts, n_stages, 0, np.inf, best.value if value is None else value,
        best.bound_value if bound_value is None else bound_value,
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_stages=st.sampled_from([1, 2, 3, 5]))
def test_proved_partitions_are_confirmed_and_larger_bounds_refused(seed: int, n_stages: int) -> None:
    operators = graph(seed, 9)
    claim = claim_of(operators, n_stages)
    assert check_partition.check(operators, claim).valid
    everything = ((tuple(range(9)),), (False,), n_stages, 0, np.inf)  # one stage is legal, and at best as good
    value = float(operators.compute.sum())
    assert check_partition.check(operators, ClaimedPartition(*everything, value, claim.value)).valid
    if value > claim.value * (1 + 1e-5):
        refused = check_partition.check(operators, ClaimedPartition(*everything, value, claim.value * (1 + 1e-6)))
        assert not refused.valid and "some partition has less" in refused.reason


def test_a_bound_above_the_best_partition_is_refused_though_the_plan_is_worse_still() -> None:
    operators = Operators(
        np.array([2.0, 2.0, 2.0, 2.0]), np.zeros(4), np.zeros(4), np.ones(4, dtype=bool), ((0, 1), (1, 2), (2, 3)),
        (0, 1, 2, 3),
        ((0.5, (0, 1)), (0.5, (1, 2)), (0.5, (2, 3))),
    )  # fmt: skip
    uneven = (((0,), (1, 2, 3)), (False, False), 2, 0, np.inf)
    assert check_partition.check(operators, ClaimedPartition(*uneven, 6.5, 4.5)).valid
    refused = check_partition.check(operators, ClaimedPartition(*uneven, 6.5, 4.6))
    assert not refused.valid and "less than the bound" in refused.reason


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (((0, 2), (1, 3)), "behind stage"),
        (((0, 1), (2,)), "exactly one stage"),
        (((0,), (1,), (2, 3)), "3 accelerators"),
    ],
)
def test_illegal_partitions_are_refused(groups: tuple[tuple[int, ...], ...], words: str) -> None:
    operators = Operators(
        np.ones(4), np.zeros(4), np.ones(4), np.ones(4, dtype=bool), ((0, 1), (1, 2), (2, 3)), (0, 1, 2, 3), ()
    )
    verdict = check_partition.check(operators, ClaimedPartition(groups, (False,) * len(groups), 2, 0, np.inf, 2.0, 0.0))
    assert not verdict.valid and words in verdict.reason
    over = check_partition.check(operators, ClaimedPartition(((0, 1, 2), (3,)), (False,) * 2, 2, 0, 2.5, 3.0, 0.0))
    assert not over.valid and "bytes" in over.reason


@pytest.mark.parametrize(
    "spec", ["parmesan-mesh:2x3", "parmesan-uniform:6,seed=4", "parmesan-two-level:6", "dgx-h100:6", "ring:6"]
)
def test_mappings_are_confirmed_and_tampered_ones_refused(spec: str) -> None:
    cluster = clusters.cluster(spec)
    slow = check_mapping.pair_table(cluster)
    np.testing.assert_allclose(slow, pair_seconds(cluster), rtol=1e-12)
    graph = StageGraph(np.array([1e-3, 1.1e-3, 0.9e-3]), ((0, 1, 4e6), (1, 2, 5e6), (0, 2, 1e6)), np.array([2e6, 3e6, 4e6]), 2)
    stages = MappedStages(tuple(graph.compute_seconds), {(a, b): v for a, b, v in graph.transfers}, tuple(graph.reduce_bytes))
    found = map_stages(graph, pair_seconds(cluster))
    devices, rings = tuple(map(tuple, found.devices.tolist())), tuple(map(tuple, found.rings.tolist()))
    assert found.exact
    assert check_mapping.check(stages, slow, ClaimedMapping(devices, rings, found.seconds, found.bound_seconds)) == ""
    cheaper = ClaimedMapping(devices, rings, found.seconds * 0.99, found.bound_seconds * 0.99)
    assert "largest cost" in check_mapping.check(stages, slow, cheaper)
    twice = ClaimedMapping((devices[0], devices[0], devices[2]), rings, found.seconds, found.bound_seconds)
    assert "used twice" in check_mapping.check(stages, slow, twice)


def test_a_bound_above_the_best_mapping_is_refused() -> None:
    slow = check_mapping.pair_table(clusters.cluster("ring:4"))
    stages = MappedStages((1e-3,) * 4, {(0, 1): 9e6, (1, 2): 9e6, (2, 3): 9e6}, (0.0,) * 4)
    worse = ((0,), (2,), (1,), (3,))
    cost = 1e-3 + 9e6 * (slow[2][0] + slow[2][1])
    near = 1e-3 + 2 * 9e6 * slow[0][1]
    rings = ((0,),) * 4
    assert check_mapping.check(stages, slow, ClaimedMapping(worse, rings, cost, near)) == ""
    assert "some mapping costs less" in check_mapping.check(stages, slow, ClaimedMapping(worse, rings, cost, near * 1.001))


def lanes(seed: int, n: int = 12) -> Operators:
    """Return two chains that read each other now and then, with tensors that are read far behind."""
    random = np.random.default_rng(seed)
    edges = {(v, v + 2) for v in range(n - 2)} | {(v, v + 1) for v in range(n - 1) if random.random() < 0.3}
    edges |= {(u, int(random.integers(u + 1, n))) for u in range(0, n - 1, 4)}
    nets = tuple((float(random.uniform(0.05, 0.6)), (u, *sorted(v for s, v in edges if s == u))) for u in range(n - 1))
    return Operators(
        random.uniform(0.5, 2.0, n),
        np.zeros(n),
        np.ones(n),
        np.ones(n, dtype=bool),
        tuple(sorted(edges)),
        tuple(range(n)),
        nets,
    )


def test_bounds_are_checked_alike_where_the_cheapest_cuts_narrow_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    n_narrowed = 0
    for seed in range(16):
        operators = lanes(seed)
        for n_stages in (2, 3, 4):
            found = operator_stages.cut(operators, n_stages).partition
            assert found.exact
            blocks = OperatorBlocks.of(operators)
            for factor in (1 - 1e-7, 1 + 1e-7, 1.01, 1.1):
                limit = found.value * factor
                with monkeypatch.context() as few:
                    few.setattr(check_partition, "FEW_STEPS", 0)
                    assert check_partition._exists(blocks, n_stages, limit) == (factor > 1)
                assert check_partition._exists(blocks, n_stages, limit) == (factor > 1)
                n_narrowed += sum(check_partition._cheapest_cuts(blocks, n_stages, limit, [0])) > 0.0
    assert n_narrowed >= 16


def test_a_tensor_that_several_cuts_cut_is_not_taken_from_windows_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paid by the first stage and the last alone: counted at all three cuts, it would leave no partition of load 3.02."""
    nets = ((1.0, (0, 7)), *((0.01, (v, v + 1)) for v in range(7)))
    chain = tuple((v, v + 1) for v in range(7))
    operators = Operators(np.ones(8), np.zeros(8), np.ones(8), np.ones(8, dtype=bool), chain, tuple(range(8)), nets)
    monkeypatch.setattr(check_partition, "FEW_STEPS", 0)
    blocks = OperatorBlocks.of(operators)
    assert check_partition._exists(blocks, 4, 3.02) and not check_partition._exists(blocks, 4, 3.0)
    limit = [0.0] * 5
    windows = check_partition._windows(8.0, 3.02, limit, 0.0)
    long = next(i for i, (cost, _) in enumerate(blocks.nets) if cost == 1.0)
    assert not any(nets >> long & 1 for nets in check_partition._of_one_cut(blocks, windows))


def test_a_check_that_takes_too_many_steps_says_so_after_the_cheapest_cuts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = lanes(0, 16)
    claim = claim_of(operators, 3)
    monkeypatch.setattr(check_partition, "FEW_STEPS", 0)
    assert check_partition.check(operators, claim).valid
    monkeypatch.setattr(check_partition, "MOST_STEPS", 20)
    refused = check_partition.check(operators, claim)
    assert not refused.valid and "too many" in refused.reason
