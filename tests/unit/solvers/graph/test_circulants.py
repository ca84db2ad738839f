"""Jumps, sums of jumps and matchings: against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright.solvers.graph import circulants, matching
from meshwright.solvers.graph.coin_change import last_coins, shortest_sum
from meshwright.solvers.graph.min_max_split import even_out


@pytest.mark.parametrize(("n", "group"), [(8, 8), (8, 4), (12, 6), (12, 2), (15, 5)])
def test_a_candidate_visits_every_member_of_its_group_and_no_other(n: int, group: int) -> None:
    members = set(range(0, n, n // group))
    found = circulants.candidates(n, group)
    for jump in range(1, n):
        visited = {k * jump % n for k in range(group)}
        assert (jump in found) == (visited == members)


def test_jumps_near_a_geometric_sequence_by_hand() -> None:
    # ratio 15 ** (1 / 2) = 3.87: 1, then the first candidate from 3.87 on
    assert circulants.geometric(circulants.candidates(16, 16), 2, bidirectional=True) == (1, 5)
    assert circulants.geometric((1, 3, 5, 7), 3, bidirectional=True) == (1, 3, 5)
    assert circulants.geometric((2, 6), 3, bidirectional=True) == (2, 6)  # no third: left out
    assert circulants.geometric((1, 5), 1, bidirectional=False) == (1,)


@pytest.mark.parametrize(("n", "degree"), [(8, 4), (13, 4), (16, 6), (12, 4), (9, 8), (5, 2), (3, 2)])
@pytest.mark.parametrize("coprime", [True, False])
def test_the_best_jumps_are_those_of_enumeration(n: int, degree: int, coprime: bool) -> None:
    pool = [j for j in range(1, n) if 2 * j < n and (math.gcd(n, j) == 1 or not coprime)]
    every = [s for k in range(1, degree // 2 + 1) for s in itertools.combinations(pool, k) if 1 in s]
    best = min(circulants.summary(n, jumps)[1] for jumps in every)
    assert circulants.summary(n, circulants.best_jumps(n, degree, coprime=coprime))[1] == pytest.approx(best)


@pytest.mark.parametrize(("n", "coins"), [(12, (1, 11)), (16, (3, 13, 5)), (10, (4,)), (9, (2, 3))])
def test_the_shortest_sum_is_that_of_enumeration(n: int, coins: tuple[int, ...]) -> None:
    n_coins, last = last_coins(n, coins)
    for residue in range(1, n):
        lengths = [
            k for k in range(1, n + 1) for s in itertools.combinations_with_replacement(coins, k) if sum(s) % n == residue
        ]
        path = shortest_sum(n, residue, last)
        if not lengths:
            assert n_coins[residue] == -1
            assert path == ()
        else:
            assert n_coins[residue] == len(path) == min(lengths)
            assert sum(path) % n == residue


def _pairings(nodes: list[int]) -> list[list[tuple[int, int]]]:
    if not nodes:
        return [[]]
    first, *rest = nodes
    return [[(first, other), *more] for other in rest for more in _pairings([x for x in rest if x != other])]


@pytest.mark.parametrize("seed", range(4))
def test_a_matching_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.integers(1, 100, (8, 8)).astype(float)
    weight += weight.T
    best = max(sum(weight[a, b] for a, b in pairs) for pairs in _pairings(list(range(8))))
    assert sum(weight[a, b] for a, b in matching.match(weight, [True] * 8)) == best


def test_a_pair_that_has_a_link_counts_for_half_and_nobody_gets_more_links_than_interfaces() -> None:
    demand = np.zeros((4, 4))
    demand[0, 1], demand[2, 3], demand[0, 2], demand[1, 3] = 100, 100, 60, 60
    links = matching.rounds(demand, np.array([2, 2, 2, 1]), 3)
    assert links[:2] == [(0, 1), (2, 3)]
    assert (0, 2) in links  # 60 beats a second link for half of 100
    assert max(sum(end in link for link in links) for end in range(4)) <= 2
    assert sum(3 in link for link in links) == 1


def test_shares_even_out_the_links_by_hand() -> None:
    # two ways over links of their own, one twice as slow: two thirds and one third
    shares = even_out(np.array([[1.0, 0.0], [0.0, 2.0]]), np.zeros(2, dtype=np.int64))
    assert shares == pytest.approx([2 / 3, 1 / 3])
    # a second item that can only use the fast link pushes the first off it
    shares = even_out(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 0, 1]))
    assert shares == pytest.approx([0.0, 1.0, 1.0])
