"""Textbook algorithms on graphs of a few nodes: circulants, rings, matchings, shares, antichains, as recorded."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright.solvers.graph import antichains, circulants, coin_change, hamiltonian, matching, min_max_split
from recorded import Recorded
from returned import Returned


def test_jumps_of_every_small_circulant_are_as_recorded(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for n in (1, 2, 3, 4, 5, 8, 9, 12, 15, 16):
        found[n] = [
            [circulants.candidates(n, group) for group in range(1, n + 1) if n % group == 0],
            [
                circulants.geometric(pool, k, bidirectional=both)
                for pool in ([1, 2, 3, 5, 7, 9], [2, 4, 8], [3])
                for k in range(5)
                for both in (False, True)
            ]
            if n == 1
            else [circulants.hop_counts(n, jumps) for jumps in ((1,), (2,), (1, 3), (2, 4))],
            [circulants.summary(n, jumps) for jumps in ((1,), (2,), (3, 4))],
            [circulants.best_jumps(n, degree, coprime=coprime) for degree in range(1, 8) for coprime in (True, False)],
        ]
    monkeypatch.setattr(circulants, "MOST_SETS", 1)
    exchanged = [
        circulants.best_jumps(n, degree, coprime=coprime)
        for n in (11, 16, 21, 24)
        for degree in (4, 5, 6, 8)
        for coprime in (True, False)
    ]
    recorded([found, exchanged])


def test_sums_of_coins_are_as_recorded(recorded: Recorded) -> None:
    found = []
    for n, coins in ((1, ()), (7, (3,)), (8, (2, 6)), (9, (1, 4)), (12, (5, 3)), (12, (7, 2, 10))):
        counts, last = coin_change.last_coins(n, coins)
        found.append([counts, last, [coin_change.shortest_sum(n, residue, last) for residue in range(-2, n + 3)]])
        for residue in range(n):
            coins_used = coin_change.shortest_sum(n, residue, last)
            assert len(coins_used) == max(counts[residue], 0) and (counts[residue] < 0 or sum(coins_used) % n == residue)
    recorded(found)


def test_rings_and_matchings_are_as_recorded(recorded: Recorded) -> None:
    whole = {v: [w for w in range(6) if w != v] for v in range(6)}
    cube = {v: [v ^ 1, v ^ 2, v ^ 4] for v in range(8)}
    path = {0: [1], 1: [0, 2], 2: [1]}
    rings = []
    with Returned("solvers/graph/hamiltonian") as said:
        for graph, n, seed in itertools.product(
            (whole, cube, path, {0: [1], 1: [0]}, {3: [5, 7], 5: [3, 7], 7: [3, 5]}), (1, 4), (0, 1)
        ):
            drawn = hamiltonian.draw(graph, n, np.random.default_rng(seed))
            for ring in drawn:
                assert ring[0] == min(graph) and ring[1] <= ring[-1] and sorted(ring) == sorted(graph)
                assert all(b in graph[a] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
            rings.append(drawn)
    recorded([rings, said.lines()], "rings")
    dice = np.random.default_rng(3)
    matched = []
    for n in (2, 3, 4, 5):
        demand = dice.permutation(n * n).reshape(n, n).astype(float) ** 2
        weight = demand + demand.T
        for free in ([True] * n, [i != 1 for i in range(n)], [False] * n):
            pairs = matching.match(weight, free)
            places = [i for i in range(n) if free[i]]
            every = [
                sum(weight[a, b] for a, b in zip(order[::2], order[1::2], strict=False))
                for order in itertools.permutations(places)
            ]
            assert len(pairs) == len(places) // 2 and sum(weight[a, b] for a, b in pairs) == pytest.approx(
                max(every, default=0.0)
            )
            assert pairs == sorted(pairs) and all(a < b for a, b in pairs)
            matched.append(pairs)
        matched += [matching.rounds(demand, np.full(n, k), n_rounds) for k, n_rounds in ((1, 3), (2, 3), (3, 2), (0, 2))]
    assert matching.match(np.zeros((2, 2)), [True, True]) == [(0, 1)]
    recorded(matched, "matched")


def test_shares_even_out_the_busiest_link() -> None:
    """Shares by hand: two ways alike take a half each; one twice as long a third; what lies there already counts."""
    busy = np.array([[2.0, 0.0], [0.0, 2.0]])
    item = np.array([0, 0])
    assert min_max_split.even_out(busy, item) == pytest.approx([0.5, 0.5])
    assert min_max_split.even_out(np.array([[2.0, 0.0], [0.0, 4.0]]), item) == pytest.approx([2 / 3, 1 / 3])
    assert min_max_split.even_out(busy, item, np.array([1.0, 0.0])) == pytest.approx([0.25, 0.75])
    assert min_max_split.even_out(busy, item, np.array([3.0, 0.0])) == pytest.approx([0.0, 1.0])
    assert min_max_split.even_out(busy, np.array([0, 1])) == pytest.approx([1.0, 1.0])
    two = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    assert min_max_split.even_out(two, np.array([0, 0, 1, 1])) == pytest.approx([2 / 3, 1 / 3, 1 / 3, 2 / 3])
    # of ways that keep the busiest link alike the shorter is taken: the second adds a link that nobody needs
    longer = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 4.0]])
    shares = min_max_split.even_out(longer, np.array([0, 0, 1]))
    assert shares == pytest.approx([1.0, 0.0, 1.0])
    assert math.isclose(min_max_split.even_out(busy * 1e-9, item)[0], 0.5)


def test_antichains_are_as_recorded(recorded: Recorded) -> None:
    found = []
    with Returned("solvers/graph/antichains") as said:
        for seed, n in itertools.product(range(4), (1, 3, 5, 7)):
            dice = np.random.default_rng(seed)
            edges = [(a, b) for a in range(n) for b in range(a + 1, n) if dice.random() < 0.45]
            labels = ["abc"[int(i)] for i in dice.integers(0, 3, n)]
            graph = antichains.antichain_graph(n, edges, labels, max_states=1000)
            found.append(
                [graph, [antichains.antichain_graph(n, edges, labels, max_states=most) is None for most in (1, 3, 6, 12)]]
            )
            if graph is not None:
                found.append(antichains.bit_matrix(graph.down_set, n))
    recorded([found, said.lines()])


def test_where_one_solver_gives_up_the_next_is_asked_and_then_shares_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS' simplex ends without an answer on some rings of 128 servers."""
    import scipy.optimize

    solve, methods = scipy.optimize.linprog, list[str]()

    def failing(*args: object, method: str, **options: object) -> object:
        methods.append(method)
        if method in broken:
            return scipy.optimize.OptimizeResult(x=None, status=4)
        return solve(*args, method=method, **options)

    monkeypatch.setattr(scipy.optimize, "linprog", failing)
    busy, item = np.array([[2.0, 0.0], [0.0, 4.0], [1.0, 1.0]]), np.array([0, 0, 1])
    broken = ["highs"]
    assert min_max_split.even_out(busy, item) == pytest.approx([2 / 3, 1 / 3, 1.0], abs=1e-6)
    assert methods == ["highs", "highs-ipm"]
    broken = ["highs", "highs-ipm"]
    assert min_max_split.even_out(busy, item).tolist() == [0.5, 0.5, 1.0]
