"""Invariants of the pairwise solvers, the PaSE costs and re-sharding on random inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planners.pase.layer_costs import allowed_splits, configurations, edge_cost, layer_cost
from meshwright.planners.pase.operators import NetworkBuilder, PaseGraph, Tensor
from meshwright.planners.pase.tables import splits_cost, tables
from meshwright.solvers.pairwise.certificate import check
from meshwright.solvers.pairwise.labelling import solve
from meshwright.solvers.pairwise.problem import Pairwise, total_cost


@st.composite
def problems(draw: st.DrawFn) -> Pairwise:
    """Up to 12 nodes of up to 6 labels, any edges, costs of any sign."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, m = draw(st.integers(1, 12)), draw(st.integers(0, 20))
    counts = rng.integers(1, 7, n)
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    ends = [rng.choice(n, 2, replace=False) for _ in range(m if n > 1 else 0)]
    tables_ = tuple(rng.normal(size=(counts[u], counts[v])) * 10 for u, v in ends)
    source, target = (np.array([pair[i] for pair in ends], dtype=np.int64) for i in (0, 1))
    rows, columns = (tuple(np.arange(counts[pair[i]]) for pair in ends) for i in (0, 1))
    return Pairwise(first, rng.normal(size=first[-1]), source, target, rows, columns, np.arange(len(ends)), tables_)


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_no_labelling_is_below_the_bound_and_the_proof_is_accepted(problem: Pairwise, seed: int) -> None:
    found = solve(problem)
    scale = 1e-9 * (1.0 + abs(found.value) + np.abs(problem.node_cost).sum())
    rng = np.random.default_rng(seed)
    for _ in range(20):
        labels = np.array([rng.integers(n) for n in np.diff(problem.first)])
        assert total_cost(problem, labels) >= found.bound_value - scale
    assert found.value - found.bound_value <= scale
    if abs(found.value) > 1e-3:
        proof = found.relaxation.to_row, found.relaxation.to_column
        verdict = check(
            problem, found.labels.tolist(), *proof, claimed_value=found.value, claimed_bound_value=found.bound_value
        )
        assert verdict.valid, verdict.reason


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 5), st.integers(1, 70))
def test_splits_divide_leave_enough_and_stay_within_the_processors(size: int, cutoff: int, n_processors: int) -> None:
    splits = allowed_splits(size, cutoff, n_processors)
    assert splits[0] == 1 and len(set(splits.tolist())) == len(splits)
    assert all(size % split == 0 for split in splits)
    assert all(split <= n_processors and size // split >= cutoff for split in splits[1:])


@st.composite
def networks(draw: st.DrawFn) -> PaseGraph:
    """A small network with a branch that meets again: two products, a sum, a norm, a loss."""
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
    b, n_in, n_mid, n_out = (draw(sizes) for _ in range(4))
    net = NetworkBuilder(cutoff=1)
    x = net.fully_connected(Tensor(-1, (b, n_in)), n_mid, pointwise=draw(st.integers(0, 2)))
    y = net.fully_connected(x, n_mid)
    net.cross_entropy(net.fully_connected(net.elementwise(x, y), n_out))
    return PaseGraph("small", tuple(net.operators))


@settings(max_examples=30, deadline=None)
@given(networks(), st.integers(1, 12), st.floats(1.0, 1e4))
def test_more_processors_never_cost_more_and_never_more_than_one_alone(network: PaseGraph, p: int, word_flop: float) -> None:
    few, more = (solve(tables(network, n, word_flop).problem) for n in (p, 2 * p))
    assert more.value <= few.value * (1 + 1e-12)
    alone = splits_cost(network, tuple(np.ones(len(one.sizes), dtype=np.int64) for one in network.operators), word_flop)
    assert few.value <= alone * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(networks(), st.integers(1, 16), st.floats(1.0, 1e4))
def test_costs_are_finite_and_no_tensor_moves_where_the_split_stays(network: PaseGraph, p: int, word_flop: float) -> None:
    for operator in network.operators:
        rows = configurations(operator, p)
        cost = layer_cost(operator, rows, word_flop)
        assert np.isfinite(cost).all() and (cost >= 0).all()
        moved = edge_cost(operator.sizes, rows, rows, word_flop)
        assert (np.diag(moved) == 0).all() and (moved >= 0).all()
