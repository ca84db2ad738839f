"""The bound on stage mappings against everything tried one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright._kernels.mapping.bounds import chain_in_pieces
from meshwright._kernels.mapping.search import best_ring, shorter_ring


def pieces_by_hand(
    base: list[float], extra: list[float], whole: list[float], split: list[float],
    longest: int, short: int, n_short: int, most_whole: int,
) -> float:  # fmt: skip
    """Try every set of cuts and every choice of whole rings."""
    n = len(base)
    best = np.inf
    for cuts in itertools.product((False, True), repeat=n - 1):
        piece = list(itertools.accumulate(cuts, initial=0))
        size = [piece.count(p) for p in piece]
        if max(size) > longest:
            continue
        for kept in itertools.product((False, True), repeat=n):
            first = [s for s in range(n) if kept[s]][:n_short]
            if sum(kept) > most_whole or any(size[s] > short for s in first):
                continue
            costs = [
                base[s] + (whole[s] if kept[s] else split[s])
                + (extra[s - 1] if s > 0 and cuts[s - 1] else 0.0) + (extra[s] if s < n - 1 and cuts[s] else 0.0)
                for s in range(n)
            ]  # fmt: skip
            best = min(best, max(costs))
    return best


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), limits=st.tuples(*[st.integers(0, 6)] * 4))
def test_the_cheapest_cut_into_pieces_is_that_of_all_cuts(seed: int, n: int, limits: tuple[int, int, int, int]) -> None:
    random = np.random.default_rng(seed)
    base, whole, split = (random.integers(0, 9, n).astype(float) for _ in range(3))
    extra = random.integers(0, 9, n - 1).astype(float)
    longest, short = max(1, min(limits[0], n)), max(1, limits[1])
    found = chain_in_pieces(base, extra, whole, split, longest, short, limits[2], limits[3])
    lists = [array.tolist() for array in (base, extra, whole, split)]
    assert found == pieces_by_hand(*lists, longest, short, limits[2], limits[3])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 9))
def test_a_bettered_ring_is_an_order_no_worse_than_it_began_and_no_better_than_the_best(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    seconds_per_byte = random.uniform(1.0, 9.0, (n, n))
    seconds_per_byte = seconds_per_byte + seconds_per_byte.T
    np.fill_diagonal(seconds_per_byte, 0.0)
    begun = random.permutation(n)
    order = shorter_ring(seconds_per_byte, begun)
    assert sorted(order.tolist()) == list(range(n))
    weight = (seconds_per_byte / seconds_per_byte.max()) ** 16
    sums = [weight[o, np.roll(o, 1)].sum() for o in (begun, order)]
    assert sums[1] <= sums[0] * (1 + 1e-9)
    slowest = seconds_per_byte[order, np.roll(order, 1)].max()
    best = best_ring(seconds_per_byte, np.arange(n))
    assert seconds_per_byte[best, np.roll(best, 1)].max() <= slowest


def test_a_ring_round_a_torus_is_found() -> None:
    place = np.arange(36)
    x, y = place // 6, place % 6
    steps = [np.minimum(np.abs(v[:, None] - v), 6 - np.abs(v[:, None] - v)) for v in (x, y)]
    seconds_per_byte = (steps[0] + steps[1]).astype(float)
    order = shorter_ring(seconds_per_byte, place)
    assert seconds_per_byte[order, np.roll(order, 1)].max() == pytest.approx(1.0)
