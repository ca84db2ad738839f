"""The published stage mapper against every placement of small graphs: what it returns, what it claims, and when it gives up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.solvers.mapping.backtracking import backtrack
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import evaluate


def problem(seed: int, n_stages: int, n_replicas: int, n_devices: int) -> tuple[StageGraph, np.ndarray]:
    """Return random stages in a chain with one skip, and random links; every figure takes part."""
    random = np.random.default_rng(seed)
    transfers = [(s, s + 1, float(random.integers(1, 9))) for s in range(n_stages - 1)]
    transfers += [(0, n_stages - 1, float(random.integers(1, 9)))] if n_stages > 2 else []
    reduced = random.integers(0, 9, n_stages).astype(float) * (n_replicas > 1)
    graph = StageGraph(random.integers(1, 20, n_stages).astype(float), tuple(transfers), reduced, n_replicas)
    links = random.integers(1, 10, (n_devices, n_devices)).astype(float)
    links = np.maximum(links, links.T)
    np.fill_diagonal(links, 0.0)
    return graph, links


def least(graph: StageGraph, links: np.ndarray) -> float:
    """Return the least largest cost of all placements."""
    size = graph.n_stages * graph.n_replicas
    return min(
        evaluate(graph, links, np.array(place).reshape(graph.n_stages, graph.n_replicas), fixed_rings=True).seconds
        for place in itertools.permutations(range(len(links)), size)
    )


@pytest.mark.parametrize(("n_stages", "n_replicas", "n_devices"), [(4, 1, 5), (3, 2, 6), (2, 2, 5), (2, 3, 6)])
@pytest.mark.parametrize("seed", range(4))
def test_bisection_ends_at_the_best_of_all_placements(seed: int, n_stages: int, n_replicas: int, n_devices: int) -> None:
    graph, links = problem(seed, n_stages, n_replicas, n_devices)
    start = np.arange(n_stages * n_replicas).reshape(n_stages, n_replicas)
    best = least(graph, links)
    for n_targets, n_same_target in ((1, 1), (3, 2)):
        found = backtrack(graph, links, [start], n_targets, n_same_target, n_rounds=30)
        assert found.finished
        assert len(set(found.devices.ravel().tolist())) == n_stages * n_replicas
        assert evaluate(graph, links, found.devices, fixed_rings=True).seconds == pytest.approx(found.seconds)
        assert best * (1 - 1e-12) <= found.seconds <= best * (1 + 1.1e-3)


def test_of_several_starts_the_best_is_the_upper_end_and_no_placement_tried_is_told() -> None:
    graph, links = problem(5, 3, 2, 6)
    starts = [np.random.default_rng(k).permutation(6).reshape(3, 2) for k in range(6)]
    values = [evaluate(graph, links, start, fixed_rings=True).seconds for start in starts]
    assert len(set(values)) > 1
    nothing = backtrack(graph, links, starts, n_rounds=0)
    assert nothing.seconds == min(values) and (nothing.n_searches, nothing.n_placements) == (0, 0)
    assert nothing.devices.tolist() == starts[int(np.argmin(values))].tolist()
    none_left = backtrack(graph, links, starts, timeout_seconds=0.0)
    assert (none_left.n_searches, none_left.finished, none_left.seconds) == (0, False, min(values))


def test_a_search_that_gives_up_is_said_to_have_and_its_target_is_no_bound() -> None:
    graph, links = problem(1, 3, 2, 6)
    start = np.arange(6).reshape(3, 2)
    hurried = backtrack(graph, links, [start], n_nodes=1, n_rounds=30)
    assert not hurried.finished and hurried.n_searches == 1
    assert hurried.seconds == evaluate(graph, links, start, fixed_rings=True).seconds > least(graph, links)


@pytest.mark.parametrize("size", [6, 12])
def test_a_ring_is_judged_in_the_direction_in_which_it_sends(size: int) -> None:
    """Each order here is quick one way round and slow the other; of many devices the walk to the nearest is the quick ring."""
    walk = np.array([0, *np.random.default_rng(2).permutation(np.arange(1, size))])
    links = np.full((size, size), 8.0)
    links[np.arange(size), np.roll(np.arange(size), -1)] = 5.0  # as they are numbered: 5 forward, 1.5 back
    links[np.roll(np.arange(size), -1), np.arange(size)] = 1.5
    links[walk, np.roll(walk, -1)] = 1.0
    links[np.roll(walk, -1), walk] = 9.0
    np.fill_diagonal(links, 0.0)
    found = evaluate(StageGraph(np.zeros(1), (), np.ones(1), size), links, np.arange(size).reshape(1, size))
    ring = found.rings[0]
    assert links[ring, np.roll(ring, -1)].max() == 1.0
