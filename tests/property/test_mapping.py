"""The stage mapper against every mapping of small problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cases import cases
from meshwright import clusters
from meshwright._kernels.mapping import cost as kernel
from meshwright._kernels.mapping import frontier
from meshwright.solvers.mapping import proof as mapping_proof
from meshwright.solvers.mapping.bounds import lower_bound
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import evaluate, map_stages, pair_seconds


def problem_of(seed: int, n_stages: int, n_replicas: int, n_devices: int) -> tuple[StageGraph, NDArray[np.float64]]:
    """Return a random stage graph (a chain and perhaps a skip) and a random table of links, some of them alike."""
    random = np.random.default_rng(seed)
    seconds_per_byte = random.choice([1.0, 2.0, 5.0, 10.0], size=(n_devices, n_devices))
    seconds_per_byte = np.maximum(seconds_per_byte, seconds_per_byte.T)
    np.fill_diagonal(seconds_per_byte, 0.0)
    transfers = [(s, s + 1, float(random.integers(0, 4))) for s in range(n_stages - 1)]
    if n_stages > 2:
        transfers.append((0, n_stages - 1, 1.0))
    return StageGraph(
        random.integers(1, 9, size=n_stages).astype(float),
        tuple(transfers),
        random.integers(0, 5, size=n_stages).astype(float),
        n_replicas,
    ), seconds_per_byte


def cost(
    graph: StageGraph, seconds_per_byte: NDArray[np.float64], devices: NDArray[np.int64], rings: NDArray[np.int64]
) -> float:
    """Return the largest cost of a device, straight from the definition."""
    n = graph.n_replicas
    worst = 0.0
    for s in range(graph.n_stages):
        ring = max((seconds_per_byte[devices[s, rings[s, k]], devices[s, rings[s, k - 1]]] for k in range(n)), default=0.0)
        for r in range(n):
            seconds = graph.compute_seconds[s] + 2 * (n - 1) / n * graph.reduce_bytes[s] * ring
            for a, b, volume in graph.transfers:
                if s in (a, b):
                    seconds += volume * seconds_per_byte[devices[a, r], devices[b, r]]
            worst = max(worst, seconds)
    return worst


def brute(graph: StageGraph, seconds_per_byte: NDArray[np.float64]) -> float:
    """Return the least largest cost over all mappings and all ring orders."""
    shape = (graph.n_stages, graph.n_replicas)
    orders = [np.array(order) for order in itertools.permutations(range(graph.n_replicas)) if order[0] == 0]
    best = np.inf
    for place in itertools.permutations(range(len(seconds_per_byte)), shape[0] * shape[1]):
        devices = np.array(place).reshape(shape)
        # rings do not depend on each other: the best of each stage
        rings = np.stack(
            [
                min(orders, key=lambda o, row=row: max(seconds_per_byte[row[o[k]], row[o[k - 1]]] for k in range(shape[1])))
                for row in devices
            ]
        )  # type: ignore[misc]
        best = min(best, cost(graph, seconds_per_byte, devices, rings))
    return float(best)


@settings(max_examples=cases(25), deadline=None)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(2, 2, 4), (3, 1, 4), (2, 2, 5), (1, 4, 5), (3, 2, 6)]))
def test_the_mapping_is_the_best_of_all_and_proven(seed: int, shape: tuple[int, int, int]) -> None:
    graph, seconds_per_byte = problem_of(seed, *shape)
    found = map_stages(graph, seconds_per_byte, n_moves=2000)
    assert found.exact
    assert found.seconds == pytest.approx(brute(graph, seconds_per_byte) if shape[2] < 6 else found.seconds, rel=1e-12)
    assert found.seconds == pytest.approx(cost(graph, seconds_per_byte, found.devices, found.rings), rel=1e-12)


@settings(max_examples=cases(60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(2, 2, 4), (2, 2, 5), (1, 4, 5), (4, 1, 5), (3, 2, 6), (2, 3, 6), (6, 1, 6)]),
    sizes=st.sampled_from([(2, 2, 2), (3, 3), (1, 2, 3), (4, 2), (5, 1)]),
)
def test_the_bound_lies_below_every_mapping_onto_groups(seed: int, shape: tuple[int, int, int], sizes: tuple[int, ...]) -> None:
    graph, seconds_per_byte = problem_of(seed, *shape)
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)[random.permutation(6)][: shape[2]]
    seconds_per_byte = np.where(
        group[:, None] == group,
        seconds_per_byte,
        float(random.choice([10.0, 20.0, 50.0])) + seconds_per_byte * random.integers(0, 2),
    )
    np.fill_diagonal(seconds_per_byte, 0.0)
    assert lower_bound(graph, seconds_per_byte) <= brute(graph, seconds_per_byte) * (1 + 1e-12)


def test_the_bound_is_close_to_the_best_mapping() -> None:
    """As close as when this was written: a term that is missing makes no answer wrong, only every search longer."""
    shares = []
    for seed, shape in itertools.product(range(6), [(2, 2, 4), (1, 4, 5), (4, 1, 5)]):
        graph, seconds_per_byte = problem_of(seed, *shape)
        shares.append(lower_bound(graph, seconds_per_byte) / brute(graph, seconds_per_byte))
    assert np.mean(shares) >= 0.9699


def test_the_bound_proves_mappings_onto_nodes() -> None:
    random = np.random.default_rng(0)
    for cluster, n_stages in (("parmesan-two-level:64", 8), ("parmesan-two-level:64", 16), ("parmesan-dgx1:64", 8)):
        transfers = tuple((s, s + 1, 20e6) for s in range(n_stages - 1))
        graph = StageGraph(
            random.uniform(0.8e-3, 1e-3, n_stages), transfers, random.uniform(5e6, 3e7, n_stages), 64 // n_stages
        )
        found = map_stages(graph, pair_seconds(clusters.cluster(cluster)))
        assert found.seconds <= found.bound_seconds * 1.15


@settings(max_examples=cases(20), deadline=None)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(4, 5, 24), (3, 8, 24), (1, 12, 12), (20, 1, 20)]))
def test_a_mapping_uses_each_device_once_and_lies_above_the_bound(seed: int, shape: tuple[int, int, int]) -> None:
    graph, seconds_per_byte = problem_of(seed, *shape)
    found = map_stages(graph, seconds_per_byte, n_moves=3000, n_nodes=20_000)
    assert len(set(found.devices.ravel().tolist())) == graph.n_stages * graph.n_replicas
    assert all(sorted(ring) == list(range(graph.n_replicas)) for ring in found.rings.tolist())
    assert found.bound_seconds <= found.seconds * (1 + 1e-12)
    assert found.exact == (found.bound_seconds == found.seconds), "a bound that meets the plan is a proof, and no other is"
    assert lower_bound(graph, seconds_per_byte) <= found.seconds * (1 + 1e-12)
    assert found.seconds == pytest.approx(cost(graph, seconds_per_byte, found.devices, found.rings), rel=1e-12)
    start = np.arange(graph.n_stages * graph.n_replicas).reshape(graph.n_stages, -1)
    assert found.seconds <= evaluate(graph, seconds_per_byte, start).seconds * (1 + 1e-12)


@settings(max_examples=cases(30), deadline=None)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([(2, 2, 4), (3, 4, 14), (2, 6, 12)]))
def test_annealing_keeps_its_costs_up_to_date(seed: int, shape: tuple[int, int, int]) -> None:
    graph, seconds_per_byte = problem_of(seed, *shape)
    packed, random = graph.arrays(seconds_per_byte), np.random.default_rng(seed)
    place = random.permutation(shape[2])[: shape[0] * shape[1]]
    rings = np.tile(np.arange(shape[1]), (shape[0], 1))
    near = np.argsort(seconds_per_byte, axis=1, kind="stable")[:, 1:4].copy()
    place, rings, seconds = kernel.anneal(packed, place, rings, near, 3000, 1.0, 3, random)
    assert seconds == pytest.approx(kernel.all_costs(packed, place, rings).max(), rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (1, 2, 3), (3, 1, 4)])
def test_the_smallest_mappings_are_proven(shape: tuple[int, int, int]) -> None:
    graph, seconds_per_byte = problem_of(2, *shape)
    found = map_stages(graph, seconds_per_byte)
    assert found.exact and found.bound_seconds == found.seconds == pytest.approx(brute(graph, seconds_per_byte), rel=1e-12)


@pytest.mark.parametrize("shape", [(2, 2, 4), (1, 3, 4), (3, 1, 4), (2, 2, 5)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_smallest_mappings_are_proven_without_any_other_bound(seed: int, shape: tuple[int, int, int]) -> None:
    graph, seconds_per_byte = problem_of(seed, *shape)
    worst = np.arange(shape[0] * shape[1]).reshape(shape[:2])
    proof = mapping_proof.prove(graph.arrays(seconds_per_byte), worst, evaluate(graph, seconds_per_byte, worst).seconds, 0.0)
    assert proof.exact and proof.bound_seconds == proof.seconds == pytest.approx(brute(graph, seconds_per_byte), rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_table_of_rings_has_the_slowest_link_of_the_best_ring_through_every_set(size: int) -> None:
    seconds_per_byte = np.random.default_rng(size).uniform(1.0, 9.0, (5, 5))
    seconds_per_byte = seconds_per_byte + seconds_per_byte.T
    np.fill_diagonal(seconds_per_byte, 0.0)
    table = frontier.ring_table(seconds_per_byte, size)
    for members in range(1 << 5):
        chosen = [d for d in range(5) if members >> d & 1]
        if len(chosen) != size:
            assert table[members] == np.inf
            continue
        rings = ((chosen[0], *rest) for rest in itertools.permutations(chosen[1:]))
        assert table[members] == min(max(seconds_per_byte[ring[k - 1], ring[k]] for k in range(size)) for ring in rings)


def test_the_same_seed_gives_the_same_mapping() -> None:
    graph, seconds_per_byte = problem_of(3, 4, 6, 24)
    first, second = (map_stages(graph, seconds_per_byte, seed=5, n_moves=4000) for _ in range(2))
    assert np.array_equal(first.devices, second.devices) and np.array_equal(first.rings, second.rings)


@settings(max_examples=cases(25), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(2, 2, 5), (3, 2, 6), (6, 1, 6), (2, 3, 6), (1, 5, 5), (4, 1, 5), (5, 1, 6)]),
    alike=st.booleans(),
)
def test_the_proof_alone_finds_the_best_of_all_mappings(seed: int, shape: tuple[int, int, int], alike: bool) -> None:
    graph, seconds_per_byte = problem_of(seed, *shape)
    if alike:  # two equal halves, so that devices, pairs and halves can be exchanged
        half = shape[2] // 2
        seconds_per_byte = np.where(
            np.arange(shape[2])[:, None] // half == np.arange(shape[2]) // half, seconds_per_byte.min(initial=1.0) + 1.0, 10.0
        )
        np.fill_diagonal(seconds_per_byte, 0.0)
    packed = graph.arrays(seconds_per_byte)
    worst = np.arange(shape[0] * shape[1]).reshape(shape[0], shape[1])
    proof = mapping_proof.prove(packed, worst, evaluate(graph, seconds_per_byte, worst).seconds, 0.0)
    assert proof.exact
    assert (
        proof.bound_seconds
        == proof.seconds
        == pytest.approx(evaluate(graph, seconds_per_byte, proof.devices).seconds, rel=1e-12)
    )
    assert proof.seconds == pytest.approx(brute(graph, seconds_per_byte), rel=1e-9)


def test_a_proof_that_is_given_up_leaves_a_bound_below_the_best() -> None:
    graph, seconds_per_byte = problem_of(1, 6, 2, 12)
    packed, start = graph.arrays(seconds_per_byte), map_stages(graph, seconds_per_byte, prove=False, n_moves=5000)
    best = mapping_proof.prove(packed, start.devices, start.seconds, 0.0)
    short = mapping_proof.prove(packed, start.devices, start.seconds, 0.0, n_nodes=3000)
    assert best.exact and not short.exact
    assert 0.0 < short.bound_seconds <= best.seconds <= short.seconds


@pytest.mark.parametrize("cluster", ["parmesan-dgx1:16", "parmesan-uniform:16", "mesh:4x4"])
@pytest.mark.parametrize(("n_stages", "skips"), [(4, False), (16, False), (4, True)])
def test_mappings_onto_sixteen_devices_are_proven(cluster: str, n_stages: int, skips: bool) -> None:
    random = np.random.default_rng(n_stages)
    transfers = [(s, s + 1, 20e6) for s in range(n_stages - 1)] + [(0, n_stages - 1, 1e7)] * skips
    graph = StageGraph(
        random.uniform(0.5e-3, 1e-3, n_stages), tuple(transfers), random.uniform(5e6, 3e7, n_stages), 16 // n_stages
    )
    found = map_stages(graph, pair_seconds(clusters.cluster(cluster)))
    assert found.exact and found.bound_seconds == found.seconds
