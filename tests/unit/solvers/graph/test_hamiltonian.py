"""Rings through all nodes: they are rings, on edges, different; a graph without one has none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright.solvers.graph import hamiltonian


def graph(n: int, edges: set[tuple[int, int]]) -> dict[int, list[int]]:
    return {a: [b for b in range(n) if (a, b) in edges or (b, a) in edges] for a in range(n)}


def every_ring(n: int, beside: dict[int, list[int]]) -> set[tuple[int, ...]]:
    found = set()
    for rest in itertools.permutations(range(1, n)):
        ring = (0, *rest)
        if rest[0] < rest[-1] and all(b in beside[a] for a, b in zip(ring, ring[1:] + ring[:1], strict=True)):
            found.add(ring)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_drawn_rings_are_rings_of_the_graph_and_one_is_found_where_there_is_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = {(a, b) for a in range(7) for b in range(a) if rng.random() < 0.6}
    beside = graph(7, edges)
    every = every_ring(7, beside)
    drawn = hamiltonian.draw(beside, 40, np.random.default_rng(1))
    assert set(drawn) <= every
    assert len(set(drawn)) == len(drawn)
    assert bool(drawn) == bool(every)


def test_two_nodes_and_a_path_have_no_ring() -> None:
    assert hamiltonian.draw({0: [1], 1: [0]}, 5, np.random.default_rng(0)) == []
    assert hamiltonian.draw(graph(5, {(0, 1), (1, 2), (2, 3), (3, 4)}), 5, np.random.default_rng(0)) == []


def test_the_same_seed_draws_the_same_rings() -> None:
    beside = graph(12, {(i, (i + k) % 12) for i in range(12) for k in (1, 2)})
    once, again = (hamiltonian.draw(beside, 24, np.random.default_rng(3)) for _ in range(2))
    assert once == again
    assert len(once) > 5
