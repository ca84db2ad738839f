"""Clustering and refinement on graphs small enough to follow by hand."""

from __future__ import annotations

import numpy as np

from meshwright.solvers.partition.coarsen import _candidates, cluster, refine
from meshwright.solvers.partition.hypergraph import Operators, Units, contract, loads_of


def units_of(compute: list[float], edges: list[tuple[int, int]], cost: float = 1.0) -> Units:
    n = len(compute)
    readers = [tuple(v for u, v in edges if u == source) for source in range(n)]
    nets = tuple((cost, (u, *readers[u])) for u in range(n) if readers[u])
    zero = np.zeros(n)
    return contract(
        Operators(np.array(compute), zero, zero + 1, zero == 0, tuple(edges), tuple(range(n)), nets), weigh_memory=True
    )


def test_the_lightest_neighbours_are_merged_first() -> None:
    units = units_of([5.0, 1.0, 1.0, 5.0], [(0, 1), (1, 2), (2, 3)])
    assert cluster(units, 3, 0.0) == (0, 1, 1, 2)


def test_a_merge_that_would_close_a_cycle_is_not_made() -> None:
    # a -> b -> c and a -> c: a and c are the lightest pair, but b lies between
    units = units_of([1.0, 9.0, 1.0], [(0, 1), (1, 2), (0, 2)])
    label = cluster(units, 2, 0.0)
    assert label[0] != label[2] or len(set(label)) == 1
    assert len(set(label)) == 2


def test_clusters_stop_at_the_memory_limit_and_are_numbered_topologically() -> None:
    units = units_of([1.0] * 6, [(i, i + 1) for i in range(5)])
    label = cluster(units, 1, 0.0, memory_limit_bytes=2.0)
    assert max(label.count(c) for c in set(label)) == 2
    assert list(label) == sorted(label)


def test_saved_communication_outweighs_compute_with_a_large_weight() -> None:
    # the first pair is light and cheap to cut, the second heavy and costly to cut
    operators = Operators(
        np.array([1.0, 1.0, 4.0, 4.0]), np.zeros(4), np.ones(4), np.ones(4, dtype=bool), ((0, 1), (1, 2), (2, 3)), (0, 1, 2, 3),
        ((0.1, (0, 1)), (0.1, (1, 2)), (9.0, (2, 3))),
    )  # fmt: skip
    units = contract(operators, weigh_memory=True)
    assert cluster(units, 3, 0.01)[:2] == (0, 0)
    assert cluster(units, 3, 100.0) == (0, 1, 2, 2)


def test_refinement_moves_an_operator_to_the_side_where_less_is_cut() -> None:
    units = units_of([2.0, 2.0, 2.0, 2.0], [(0, 1), (1, 2), (2, 3)])
    before = ((0,), (1, 2, 3))
    after = refine(units, before)
    assert max(loads_of(units, after, (False, False))) <= max(loads_of(units, before, (False, False)))
    assert after == ((0, 1), (2, 3))


def test_operators_may_move_where_all_that_read_them_lie_behind_or_all_that_they_read_lies_before() -> None:
    """Three stages of a chain and a branch: 0 1 | 2 3 | 4 5, with 1 read by 2 and 5."""
    units = units_of([1.0] * 6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 5)])
    stage = np.array([0, 0, 1, 1, 2, 2])
    assert sorted(_candidates(units, stage, 3)) == [(1, 1), (2, 0), (3, 2), (4, 1)]
    assert sorted(_candidates(units, np.array([0, 0, 0, 1, 1, 2]), 3)) == [(2, 1), (3, 0), (4, 2), (5, 1)]
    alone = units_of([1.0] * 2, [])
    assert _candidates(alone, np.array([0, 1]), 2) == []  # no cut runs beside what nothing reads
