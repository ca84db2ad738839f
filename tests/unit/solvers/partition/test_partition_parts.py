"""Parts of the partitioner, each alone: on a graph small enough to follow by hand, or against every cut."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshwright.solvers.partition import coarsen, cut_programs, hypergraph, orders, reach_bound, recutting, unlike
from meshwright.solvers.partition.convex import partition
from meshwright.solvers.partition.hypergraph import Operators, Units, contract, entries, loads_of, sums_of_rows

Edges = list[tuple[int, int]]
BRANCH: Edges = [(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6)]
"""A chain with a diamond in it."""


def operators_of(compute: list[float], edges: Edges, costs: list[float] | None = None, **changes: object) -> Operators:
    n = len(compute)
    readers = [tuple(v for u, v in edges if u == source) for source in range(n)]
    nets = tuple(((costs or [1.0] * n)[u], (u, *readers[u])) for u in range(n) if readers[u])
    given = {
        "compute": np.array(compute), "host": np.zeros(n), "memory": np.ones(n), "supported": np.ones(n, dtype=bool),
        "edges": tuple(edges), "colocated": tuple(range(n)), "nets": nets,
    }  # fmt: skip
    return Operators(**(given | changes))  # type: ignore[arg-type]


def units_of(compute: list[float], edges: Edges, costs: list[float] | None = None) -> Units:
    return contract(operators_of(compute, edges, costs), weigh_memory=True)


def random_units(seed: int, n: int = 7) -> Units:
    dice = np.random.default_rng(seed)
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if dice.random() < 0.35]
    return units_of(dice.uniform(0.5, 3.0, n).tolist(), edges or [(0, 1)], dice.uniform(0.1, 1.5, n).tolist())


def closed(units: Units, members: set[int]) -> bool:
    """Return whether a set has every predecessor of its members."""
    a = units.arrays
    return all(int(u) in members for v in members for u in a.pred[a.pred_first[v] : a.pred_first[v + 1]])


def test_edges_to_the_nearest_branching_are_counted_both_ways() -> None:
    units = units_of([1.0] * 7, BRANCH)
    assert units.members == tuple((v,) for v in range(7))
    assert coarsen._reconverging(units).tolist() == [2, 1, 0, 1, 1, 0, 1]
    long = [(0, 2), (1, 2), *((v, v + 1) for v in range(2, 9)), (9, 10), (9, 11)]
    assert coarsen._reconverging(units_of([1.0] * 12, long)).tolist() == [1, 1, 0, 1, 2, 3, 3, 2, 1, 0, 1, 1]
    chain = units_of([1.0] * 4, [(0, 1), (1, 2), (2, 3)])
    assert coarsen._reconverging(chain).tolist() == [4, 4, 4, 4]


def test_candidates_are_units_at_a_cut_whose_edges_still_point_forward() -> None:
    units = units_of([1.0] * 7, BRANCH)
    assert coarsen._candidates(units, np.array([0, 0, 0, 1, 1, 1, 2]), 3) == [(2, 1), (3, 0), (4, 0), (5, 2), (6, 1)]
    assert coarsen._candidates(units, np.array([0, 0, 0, 0, 1, 1, 1]), 2) == [(3, 1), (4, 0)]
    assert coarsen._candidates(units, np.zeros(7, dtype=int), 1) == []


@pytest.mark.parametrize(("v", "target", "compute", "gain"), [
    (5, 2, [3, 3, 1], (0.0, -2.0, 1.0)),  # tensors of 3 and 4 are cut, that of 6 is not any more
    (3, 0, [3, 3, 5], (1.0, -2.0, -1.0)),  # the cut comes to lie beside 5, where branches meet
    (3, 0, [3, 3, 1], (0.0, 0.0, 0.0)), (3, 0, [3, 3, 4], (1.0, -2.0, -1.0)),  # no stage grows beyond the largest
    (6, 1, [3, 3, 5], (0.0, 0.0, 0.0)),  # nor becomes empty
    (2, 1, [3, 3, 4], (0.0, 0.0, -1.0)),
])  # fmt: skip
def test_gains_of_a_move_by_hand(v: int, target: int, compute: list[int], gain: tuple[float, ...]) -> None:
    units = units_of([1.0] * 7, BRANCH)
    stage = np.array([0, 0, 0, 1, 1, 1, 2])
    distance = coarsen._reconverging(units)
    assert coarsen._gain(units, stage, np.array(compute, dtype=float), distance, v, target) == gain


def test_neighbours_share_the_nets_that_have_pins_in_both_and_merge_into_one() -> None:
    units = units_of([1.0] * 3, [(0, 1), (1, 2), (0, 2)], [2.0, 3.0, 0.0])
    shared = coarsen._shared(units)
    assert shared == [{1: 2.0, 2: 2.0}, {0: 2.0, 2: 5.0}, {0: 2.0, 1: 5.0}]
    succ, pred = [{1, 2}, {2}, set()], [set(), {0}, {0, 1}]
    assert coarsen._other_path(succ, 0, 2) and not coarsen._other_path(succ, 0, 1) and not coarsen._other_path(succ, 1, 2)
    coarsen._merge(succ, pred, shared, 0, 1)
    assert succ == [{2}, set(), set()] and pred == [set(), set(), {0}]
    assert shared == [{2: 7.0}, {}, {0: 7.0}]
    assert coarsen._numbered([0, 0, 2], succ) == (0, 0, 1)
    assert coarsen._numbered([0, 1, 1, 2], [{1}, set(), set(), set()]) == (0, 1, 1, 1)
    assert coarsen._numbered([0, 1, 2], [set(), {0}, {1}]) == (2, 1, 0)


def test_clusters_of_a_chain_are_merged_lightest_first_until_so_few_are_left() -> None:
    """1 + 2 first, then 3 with that or with 4: 6 against 7."""
    units = units_of([1.0, 2.0, 3.0, 4.0], [(0, 1), (1, 2), (2, 3)], [0.5, 0.5, 4.0, 0.0])
    assert coarsen.cluster(units, 4, 0.0) == (0, 1, 2, 3)
    assert coarsen.cluster(units, 3, 0.0) == (0, 0, 1, 2)
    assert coarsen.cluster(units, 2, 0.0) == (0, 0, 0, 1)
    assert coarsen.cluster(units, 3, 1.5) == (0, 1, 2, 2)  # 7 less 6 against 3 less 0.75
    assert coarsen.cluster(units, 2, 1.0) == (0, 0, 1, 1)  # 3 - 0.5, then 7 - 4 against 6 - 0.5
    assert coarsen.cluster(units, 1, 0.0, 3.0) == (0, 0, 0, 1)
    assert coarsen.cluster(units, 1, 0.0, 2.9) == (0, 0, 1, 1)


def test_refinement_stops_after_so_many_moves_and_within_memory() -> None:
    units = units_of([1.0] * 6, [(i, i + 1) for i in range(5)])
    begin = ((0,), (1, 2, 3, 4, 5))
    assert coarsen.refine(units, begin, 0) == begin
    assert coarsen.refine(units, begin, 1) == ((0, 1), (2, 3, 4, 5))
    assert coarsen.refine(units, begin, 2) == ((0, 1, 2), (3, 4, 5))
    assert coarsen.refine(units, begin, 100) == ((0, 1, 2), (3, 4, 5))
    assert coarsen.refine(units, begin, 100, 2.0) == ((0, 1), (2, 3, 4, 5))


def test_topological_orders_of_every_style_by_hand() -> None:
    """0 -> 2, 1 -> 3, both -> 4; unit 1 is the heaviest."""
    units = units_of([1.0, 5.0, 1.0, 1.0, 1.0], [(0, 2), (1, 3), (2, 4), (3, 4)])
    assert units.before.tolist() == [1, 5, 2, 6, 9] and units.after.tolist() == [3, 7, 2, 2, 1]
    assert orders._by_priority(units, units.before).tolist() == [0, 2, 1, 3, 4]
    assert orders._by_priority(units, -units.after).tolist() == [1, 0, 2, 3, 4]
    assert orders._by_priority(units, np.arange(5.0), first_come=True).tolist() == [0, 1, 2, 3, 4]
    assert orders._by_priority(units, np.array([2.0, 1, 0, 9, 0]), first_come=True).tolist() == [1, 0, 3, 2, 4]
    assert orders._depth_first(units, reverse=False).tolist() == [1, 3, 0, 2, 4]
    assert orders._depth_first(units, reverse=True).tolist() == [0, 2, 1, 3, 4]
    assert orders._least_open(units, np.zeros(5)).tolist() == [0, 2, 1, 3, 4]
    assert orders._least_open(units, np.array([0.0, 0.0, 2.0, 0.0, 0.0])).tolist() == [0, 1, 3, 2, 4]
    cheap = units_of([1.0, 5.0, 1.0, 1.0, 1.0], [(0, 2), (1, 3), (2, 4), (3, 4)], [1.0, 0.5, 1.0, 1.0, 0.0])
    assert orders._least_open(cheap, np.zeros(5)).tolist() == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("n_orders", range(1, 12))
def test_as_many_orders_as_asked_for_all_topological(n_orders: int) -> None:
    units = random_units(3)
    found = [order.tolist() for order in orders.orders(units, n_orders, 1)]
    assert len(found) == n_orders and found[0] == list(range(len(units)))
    for order in found:
        assert sorted(order) == list(range(len(units)))
        assert all(closed(units, set(order[:k])) for k in range(len(order)))


@pytest.mark.parametrize("seed", range(6))
def test_units_know_what_comes_before_and_after_and_are_numbered_by_it(seed: int) -> None:
    units = random_units(seed)
    a, n = units.arrays, len(units)
    below = [{v} for v in range(n)]
    for v in reversed(range(n)):
        for w in a.succ[a.succ_first[v] : a.succ_first[v + 1]]:
            assert w > v
            below[v] |= below[int(w)]
    for v in range(n):
        assert units.after[v] == pytest.approx(sum(a.compute[w] for w in below[v]))
        assert units.before[v] == pytest.approx(sum(a.compute[u] for u in range(n) if v in below[u]))
    depth = units.before - units.after
    assert (np.diff(depth) >= -1e-12).all()


def test_what_costs_nothing_is_joined_with_its_only_neighbour_and_tensors_add_up() -> None:
    plain = operators_of([1.0, 0.0, 2.0, 3.0], [(0, 1), (0, 2), (2, 3)], memory=np.array([1.0, 2.0, 3.0, 4.0]))
    assert contract(plain).members == ((0, 1), (2,), (3,))
    assert len(contract(plain, weigh_memory=True)) == 4
    assert contract(plain).arrays.memory.tolist() == [3.0, 3.0, 4.0]
    # on a host it costs something; or a device that cannot run it has it; or another tensor would be cut
    for changes in ({"host": np.array([0.0, 1.0, 0.0, 0.0])}, {"supported": np.array([True, False, True, True])},
                    {"nets": ((1.0, (1, 2)), (1.0, (2, 3)))}):  # fmt: skip
        assert len(contract(operators_of([1.0, 0.0, 2.0, 3.0], [(0, 1), (0, 2), (2, 3)], **changes))) == 4
    cycle = operators_of([1.0, 2.0, 4.0], [(0, 1), (1, 0), (1, 2)])
    assert contract(cycle).members == ((0, 1), (2,)) and contract(cycle).arrays.compute.tolist() == [3.0, 4.0]
    assert hypergraph._nets([(1.0, (0, 1)), (2.0, (1, 0)), (5.0, (1,)), (0.0, (0, 2))], np.arange(3)) == [(3.0, (0, 1))]
    assert hypergraph._dense(np.array([5, 2, 5, 9])).tolist() == [0, 1, 0, 2]


def test_the_load_of_a_device_is_its_compute_and_what_it_cuts() -> None:
    units = units_of([1.0] * 7, BRANCH, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 0.0])
    groups = ((0, 1, 2), (3, 4), (5, 6))
    assert loads_of(units, groups, (False,) * 3) == (7.0, 2.0 + 4.0 + 24.0, 2.0 + 24.0)
    scales = np.array([[1.0, 2.0, 3.0], [1.0, 0.5, 0.25]])
    assert loads_of(units, groups, (False,) * 3, scales) == (7.0, 4.0 + 14.0, 6.0 + 6.0)
    assert loads_of(units, groups, (False, True, False), scales) == (7.0, 0.0, 4.0 + 12.0)


def best_halves(units: Units, members: list[int], scales: np.ndarray, limit_bytes: float) -> float:
    """Return the least larger load of two stages over all ways to cut some units."""
    least = math.inf
    a = units.arrays
    for size in range(len(members) + 1):
        for first in itertools.combinations(members, size):
            second = tuple(v for v in members if v not in first)
            if closed(units, set(range(members[0])) | set(first)):
                held = max(len(first), len(second)) * float(a.memory[0])
                if held <= limit_bytes:
                    loads = loads_of(units, (first, second), (False, False), scales)
                    least = min(least, max(loads))
    return least


@pytest.mark.parametrize("seed", range(6))
def test_two_stages_are_cut_anew_as_well_as_any_cut(seed: int) -> None:
    """Some units before and behind lie in other stages, so that tensors are paid wherever a pin of them stands."""
    units = random_units(seed)
    members = list(range(1, 7)) if closed(units, {0}) else list(range(7))
    scales = np.array([[1.0, 1.5], [1.0, 0.7]])
    for limit_bytes in (math.inf, 3.0):
        best = best_halves(units, members, scales, limit_bytes)
        chosen, bound = cut_programs.halve(units, np.array(members), scales, best * 1.3, limit_bytes)
        assert chosen is not None and bound <= best * (1 + 1e-6)
        halves = tuple(tuple(v for v, mine in zip(members, chosen, strict=True) if mine == first) for first in (True, False))
        assert closed(units, set(range(members[0])) | set(halves[0]))
        assert max(loads_of(units, halves, (False, False), scales)) == pytest.approx(best, rel=1e-6)
        assert bound == pytest.approx(best, rel=1e-4)
        none, none_bound = cut_programs.halve(units, np.array(members), scales, best * 0.99, limit_bytes)
        assert none is None and none_bound >= best * 0.99 * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_stages_can_be_cut_better_after_recutting(seed: int) -> None:
    units = random_units(seed, 8)
    begin = ((0,), (1,), tuple(range(2, 8)))
    scales = np.array([[1.0, 1.2, 0.8], [1.0, 1.0, 1.0]])
    found = recutting.recut(units, begin, scales=scales, n_programs=40)
    loads = loads_of(units, found, (False,) * 3, scales)
    assert max(loads) < max(loads_of(units, begin, (False,) * 3, scales))
    assert sorted(v for group in found for v in group) == list(range(8))
    for s in (0, 1):
        if max(loads[s : s + 2]) == max(loads):
            members = sorted((*found[s], *found[s + 1]))
            before = {v for group in found[:s] for v in group}
            best = min(
                max(loads_of(units, (first, tuple(v for v in members if v not in first)), (False, False), scales[:, s : s + 2]))
                for size in range(len(members) + 1) for first in itertools.combinations(members, size)
                if closed(units, before | set(first))
            )  # fmt: skip
            assert max(loads[s : s + 2]) <= best * (1 + 2e-6)
    assert recutting.recut(units, begin, scales=scales, n_programs=0) == begin
    assert recutting.recut(units, (tuple(range(8)),)) == (tuple(range(8)),)


REACHED = {0: 0.8354491, 2: 0.7685546, 4: 0.7548827}
"""By seed: the bound from how far stages reach, over the best, when this was written."""


def _reach_ratio(seed: int) -> float:
    units = random_units(seed, 10)
    best = partition(units, 3).value
    return reach_bound.reach_bound(units, np.ones((2, 3)), 0.0, best) / best


@pytest.mark.parametrize("seed", list(REACHED))
def test_the_bound_by_reach_comes_as_close_as_when_this_was_written(seed: int) -> None:
    assert REACHED[seed] * (1 - 1e-6) <= _reach_ratio(seed) <= 1 + 1e-9


def test_how_far_a_stage_reaches_on_a_chain_without_tensors_is_its_length() -> None:
    """Nothing is paid at cuts: stages of 4.5 s end after 4 and after 8 units, told to one window of 6 % of a stage."""
    units = units_of([1.0] * 12, [(i, i + 1) for i in range(11)], [0.0] * 12)
    frame = reach_bound._Frame.of(units)
    one = np.ones(2)
    assert 4.0 <= reach_bound._farthest(frame, one, 0.0, 4.5) <= 4.27
    assert 8.0 <= reach_bound._farthest(frame, one, 4.0, 4.5) <= 8.27
    assert 6.0 <= reach_bound._farthest(frame, np.array([2.0, 1.0]), 4.0, 4.5) <= 6.135
    assert reach_bound._farthest(frame, one, 10.0, 4.5) == pytest.approx(12.0, rel=1e-6)
    assert 4.0 <= reach_bound._farthest(frame, one, 4.0, 0.9) <= 4.054
    assert reach_bound._covers(frame, np.ones((2, 3)), 4.01) and not reach_bound._covers(frame, np.ones((2, 3)), 3.99)
    assert reach_bound.reach_bound(units, np.ones((2, 3)), 0.0, 5.0) == pytest.approx(4.0, rel=2e-3)
    assert reach_bound.reach_bound(units, np.ones((2, 3)), 0.0, 5.0) <= 4.0 * (1 + 1e-9)


def test_ideals_are_listed_by_size_and_devices_counted_in_a_mixed_radix() -> None:
    units = units_of([1.0] * 7, BRANCH)
    pool = unlike._all_ideals(units)
    assert pool is not None
    assert pool.sum(axis=1).tolist() == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert unlike._flags({0b10, 0b01, 0b11, 0}, 2).tolist() == [[False] * 2, [True, False], [False, True], [True, True]]
    kinds = (unlike.DeviceKind(np.ones(7), 9.0, 3), unlike.DeviceKind(np.full(7, 2.0), 5.0, 1))
    task = unlike._Task.of(units, kinds, 2)
    assert task.sizes == (3, 2) and not task.capped and task.free_bytes == (9.0, 5.0)
    digits, strides = task._digits()
    assert strides == [2, 1] and digits.tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]]
    assert task.width == 6 * 2 + 6
    assert task.loads(((0, 1, 2), (3, 4, 5, 6)), (0, 1)) == (3.0 + 1.0, 8.0 + 1.0)
    groups, of = task.solve(pool)
    assert max(task.loads(groups, of)) == 5.0 and of == (0, 0)
    assert unlike.least_excess(operators_of([1.0] * 7, BRANCH), (unlike.DeviceKind(np.ones(7), 2.0, 3),), 3) == 1.0
    assert unlike.least_excess(operators_of([1.0] * 7, BRANCH), (unlike.DeviceKind(np.ones(7), 2.0, 2),), 3) == 2.0


def test_rows_one_after_the_other() -> None:
    first, values = np.array([0, 2, 2, 5]), np.array([7, 8, 1, 2, 3])
    found, counts = entries(first, values, np.array([2, 1, 0, 2]))
    assert found.tolist() == [1, 2, 3, 7, 8, 1, 2, 3]
    assert counts.tolist() == [3, 0, 2, 3]
    assert sums_of_rows(found, counts).tolist() == [6, 0, 15, 6]
    assert sums_of_rows(found[:0], counts[:0]).tolist() == []


@pytest.mark.parametrize("cyclic", [False, True])
def test_only_operators_on_a_cycle_are_joined(cyclic: bool) -> None:
    edges = ((0, 1), (1, 2), (2, 3)) + (((2, 1),) if cyclic else ())
    ones = np.ones(4)
    operators = Operators(ones, ones, ones, np.ones(4, dtype=bool), edges, tuple(range(4)), ())
    assert contract(operators).members == (((0,), (1, 2), (3,)) if cyclic else ((0,), (1,), (2,), (3,)))
