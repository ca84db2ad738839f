"""Routes of the kernel against plain walks over links."""

from __future__ import annotations

import numpy as np
import pytest
import wide_routes  # tests/oracle/wide_routes.py

from meshwright.planners.topoopt import networks


@pytest.mark.parametrize(
    ("name", "n", "degree"),
    [("expander", 16, 4), ("fat-tree", 16, 4), ("torus", 16, 4), ("random", 10, 5), ("rail-optimised", 9, 4)],
)
def test_more_routes_of_a_pair_are_those_of_the_plain_twin(name: str, n: int, degree: int) -> None:
    rng = np.random.default_rng(3)
    fabric = networks.build(name, n, degree, 1e9, 1e-6, 0).fabric
    demand = rng.random((n, n)) * 1e8 * (rng.random((n, n)) < 0.6)
    np.fill_diagonal(demand, 0.0)
    fabric.route(demand)
    pairs = np.flatnonzero(~np.eye(n, dtype=bool).ravel())
    order = pairs[np.lexsort((pairs, -np.maximum(demand.ravel()[pairs], 1.0)))].tolist()
    ways = [[list(fabric.pair(*divmod(pair, n)))] if pair % (n + 1) else [[]] for pair in range(n * n)]
    wide_routes.widen(fabric.source, fabric.target, ways, order, n, 5, forwards=fabric.forwards)
    fabric.route(demand, n_ways=5)
    for pair in order:
        assert fabric.ways(*divmod(pair, n)) == [tuple(way) for way in ways[pair]]
