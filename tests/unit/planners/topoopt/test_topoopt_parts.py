"""Parts of the co-design of plan and network, each alone: by hand, or written out plainly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshwright.clusters.wires import device
from meshwright.planners.topoopt import bounds, components, finder, moves, optical, rings
from meshwright.planners.topoopt.alternate import NetworkParts
from meshwright.planners.topoopt.choices import OperatorSplit, Servers, SplitSpace, space
from meshwright.planners.topoopt.components import Bill, Prices
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, PlacementTraffic, Step, data_parallel
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload, flops

PRICES = Prices((10.0, 20.0, 30.0, 40.0, 50.0), (1.0, 2.0, 3.0, 4.0, 5.0), "made up")


@pytest.mark.parametrize(("topology", "n_links", "n_switch_ports", "counts"), [
    ("optical", 6, 0, (12, 12, 0, 0, 12)), ("fat-tree", 6, 20, (12, 32, 20, 0, 0)), ("topoopt", 5, 0, (12, 10, 0, 10, 0)),
    ("random", 6, 0, (12, 12, 0, 12, 0)), ("expander", 7, 0, (14, 14, 0, 14, 0)), ("mesh", 7, 0, (14, 14, 0, 0, 0)),
])  # fmt: skip
def test_the_parts_of_a_network_of_four_servers_with_three_interfaces(
    topology: str, n_links: int, n_switch_ports: int, counts: tuple[int, ...]
) -> None:
    assert components.bill(topology, 4, 3, n_links, n_switch_ports, 1e9).counts == counts


def test_what_parts_cost_and_the_speed_at_which_they_cost_as_much() -> None:
    parts = Bill((2, 0, 3, 0, 1), 10 * components.GBIT)
    assert parts.cost(PRICES) == 2 * 20 + 3 * 60 + 100
    assert components.equal_cost_bandwidth(parts, 320.0, PRICES) == pytest.approx(10 * components.GBIT)
    assert components.equal_cost_bandwidth(parts, 160.0, PRICES) == 0.0
    assert components.equal_cost_bandwidth(parts, 176.0, PRICES) == pytest.approx(1 * components.GBIT)
    assert components.equal_cost_bandwidth(Bill((0,) * 5, 1.0), 9.0, PRICES) == 0.0


def ring_of(n: int) -> Fabric:
    """Return servers in a ring, one link each way, the first pair two."""
    count = {(a, (a + 1) % n): 1.0 for a in range(n)} | {((a + 1) % n, a): 1.0 for a in range(n)}
    count[0, 1] = count[1, 0] = 2.0
    return Fabric("ring", n, count, 1e9, 1e-6, cycles=[tuple(range(n))])


def test_rings_of_some_servers_follow_the_cycle_they_lie_on() -> None:
    fabric = ring_of(5)
    of = fabric.link_of
    assert rings.along(of, (0, 1, 2, 3, 4), {1, 3, 4}) == [
        (1, (of[1, 2], of[2, 3])),
        (3, (of[3, 4],)),
        (4, (of[4, 0], of[0, 1])),
    ]
    flows = rings.over_paths(of, 5, (0, 2), [(1, 1), (-1,)])
    assert flows == [((of[0, 1], of[1, 2]), 0.5), ((of[0, 4],), 0.5), ((of[2, 3], of[3, 4]), 0.5), ((of[2, 1],), 0.5)]
    one, other = [(3, (0,)), (1, (1,))], [(1, (2,)), (3, (3,))]
    assert rings.by_member([one, other, one], [0.25, 0.75, 0.0]) == [((1,), 0.25), ((2,), 0.75), ((0,), 0.25), ((3,), 0.75)]


def test_the_figures_of_a_fabric_by_hand() -> None:
    fabric = ring_of(5)
    assert (
        fabric.mean_hops() == 1.5
        and fabric.injection_bytes_per_second() == 3e9
        and fabric.longest_route(np.arange(len(fabric.pair_first) - 1)) == 2
    )
    assert sorted(fabric.wires()) == [(0, 1), (0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]
    assert fabric.pair(0, 2) == (fabric.link_of[0, 1], fabric.link_of[1, 2]) and fabric.ways(3, 4) == [(fabric.link_of[3, 4],)]
    assert fabric.way_shares(0, 2) == [1.0]
    assert fabric.seconds_per_byte[fabric.link_of[0, 1]] == 0.5e-9 and fabric.seconds_per_byte[fabric.link_of[1, 2]] == 1e-9
    assert fabric.group((0, 1, 2, 3, 4)) == 0 and fabric.group((1, 3)) == 1 and fabric.group((0, 1, 2, 3, 4)) == 0
    assert fabric.longest_flow([0]) == 1 and fabric.longest_flow([]) == 0
    share = {links: 0.0 for links, _ in fabric.flows((0, 1, 2, 3, 4))}
    for links, part in fabric.flows((0, 1, 2, 3, 4)):
        share[links] += part
    # of five candidates the rings that use every link once finish first: shares add up to one for every member
    assert sum(share.values()) == pytest.approx(5.0)
    one_way = Fabric("one way", 3, {(0, 1): 1.0, (1, 2): 1.5, (2, 0): 1.0, (0, 2): 3.0}, 1e9, 0.0)
    assert sorted(one_way.wires()) == [(0, 1), (0, 2), (0, 2), (0, 2), (1, 2), (1, 2)]
    assert one_way.injection_bytes_per_second() == 4.5e9


def test_circuits_that_take_turns_are_slower_and_later_by_the_formula() -> None:
    """Two turns, 1 ms dark: a period of 20 ms, 9 of them lit; the mean wait is 11 squared over 40."""
    wires = NetworkParts(5, 2, 1e9, 1e-6)
    fabric = optical.taking_turns([[(0, 1, 2, 3, 4)], [(0, 2, 4, 1, 3)]], wires, 1e-3)
    assert fabric.count.tolist() == pytest.approx([0.45] * 20)
    assert fabric.latency_seconds == pytest.approx(1e-6 + 11e-3**2 / 40e-3)
    stays = optical.taking_turns([[(0, 1, 2, 3, 4)]], wires, 1e-3)
    assert set(stays.count.tolist()) == {1.0} and stays.latency_seconds == 1e-6
    at_once = optical.taking_turns([[(0, 1, 2, 3, 4)], [(0, 2, 4, 1, 3)]], wires, 0.0)
    assert set(at_once.count.tolist()) == {0.5} and at_once.latency_seconds == 1e-6


def test_rings_take_interfaces_and_the_heaviest_groups_come_first() -> None:
    count: dict[tuple[int, int], float] = {}
    free = np.full(4, 3)
    finder._close((0, 1, 2), count, free)
    finder._close((0, 3), count, free)
    assert free.tolist() == [0, 1, 1, 2]
    assert count == dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2), (0, 3), (3, 0)], 1.0)
    traffic = PlacementTraffic(np.zeros((4, 4)), (((0, 1), 10.0), ((2, 3), 3.0)))
    count, cycles = finder.lay(traffic, 4, 3, [(0, 1, 2, 3)], 0)
    assert cycles == [(0, 1, 2, 3), (0, 1), (2, 3)] and count[0, 1] == count[2, 3] == 2.0 and count[1, 2] == 1.0
    count, cycles = finder.lay(traffic, 4, 1, [], 0)
    assert cycles == [(0, 1), (2, 3)] and sum(count.values()) == 4.0
    pair_bytes = np.zeros((4, 4))
    pair_bytes[0, 3] = 5.0
    count, cycles = finder.lay(PlacementTraffic(pair_bytes, ()), 4, 3, [(0, 1, 2, 3)], 1)
    assert cycles == [(0, 1, 2, 3)] and count[0, 3] == count[3, 0] == 2.0


def test_rings_through_all_servers() -> None:
    assert finder.hamiltonian(2, 3) == [(0, 1)] * 3 and finder.hamiltonian(5, 0) == []
    for n, n_rings in ((5, 2), (8, 3), (6, 4)):
        found = finder.hamiltonian(n, n_rings)
        assert len(found) == n_rings and all(sorted(ring) == list(range(n)) for ring in found)
    assert rings.mean_hops(5, [(0, 1, 2, 3, 4)]) == 1.5 and rings.mean_hops(4, [(0, 1)]) == math.inf
    assert rings.mean_hops(5, [(0, 1, 2, 3, 4), (0, 2, 4, 1, 3)]) == 1.0
    assert finder.random_cycles(4, 2, np.random.default_rng(0)) == [(0, 1, 2, 3)] * 2
    drawn = finder.random_cycles(9, 3, np.random.default_rng(0))
    links = [frozenset(pair) for ring in drawn for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
    assert drawn[0] == tuple(range(9)) and len(set(links)) == 27
    assert rings.mean_hops(9, drawn) <= 1.25 * (1 + 1e-9)


def diamond() -> Workload:
    """Return a matrix that two others read, whose results are added; the last one is data's own."""
    return Workload("diamond", 8, (
        Operation("a", "linear", "a", (DATA,), (4,), (12, 4)), Operation("b", "linear", "b", (0,), (6,), (24,)),
        Operation("c", "linear", "c", (0,), (6,), (24,)), Operation("d", "add", "d", (1, 2), (6,)),
        Operation("e", "embedding", "e", (DATA,), (4,), (400,), 3),
    ))  # fmt: skip


def test_operators_are_grouped_into_chains_and_streams() -> None:
    assert moves.chains(diamond()) == ((0,), (1,), (2,), (3,), (4,))
    line = replace(diamond(), operations=tuple(replace(op, inputs=(i - 1,)) for i, op in enumerate(diamond().operations)))
    assert moves.chains(line) == ((0, 1, 2, 3, 4),) == moves.streams(line)
    assert moves.streams(diamond()) == ((0, 1, 3), (2,), (4,))


def test_servers_of_an_operator_lie_side_by_side_or_evenly_spaced() -> None:
    for draw in range(6):
        rng = np.random.default_rng(draw)
        strided, beside = (moves.servers_for(6, 3, rng, way) for way in ("strided", "contiguous"))
        assert strided in ((0, 2, 4), (1, 3, 5))
        assert beside in {tuple(sorted((first + i) % 6 for i in range(3))) for first in range(6)}
        odd = moves.servers_for(6, 4, rng, "strided")
        assert odd in {tuple(sorted((first + i) % 6 for i in range(4))) for first in range(6)}
    assert {moves.servers_for(6, 3, np.random.default_rng(k), "strided") for k in range(20)} == {(0, 2, 4), (1, 3, 5)}
    assert moves._two_halves(6, "contiguous") == ((0, 1, 2), (3, 4, 5)) and moves._two_halves(4, "strided") == ((0, 2), (1, 3))


def split_space(n: int = 2, n_gpus: int = 2) -> SplitSpace:
    """Return the diamond where every operator is whole or split by samples, taking 1, 2, ... seconds whole."""
    servers = Servers(n, n_gpus, device("a100-sxm-40gb"), 1e9, 1e-3)
    choices = tuple(
        (OperatorSplit(1, 1, 1, 1.0 + i, 2.0 + i, 100.0), OperatorSplit(2, 1, 1, 0.5 + i / 2, 1.0 + i / 2, 50.0))
        for i in range(5)
    )  # fmt: skip
    return SplitSpace(diamond(), servers, choices)


def test_the_sums_of_the_lemma_by_hand() -> None:
    """Weights of 16, 24 and 24 elements, 400 in the table, of 4 bytes; two parts send once round: 2 (g - 1) W."""
    made = split_space()
    whole, halves = made.choices[0]
    assert bounds._reduced(made, whole, 0) == (0.0, 0.0)
    sent, inside = bounds._reduced(made, halves, 0)
    # two weights of 48 and 16 bytes; each part's devices add up 48 and 16 at 1 GB/s, and 1 ms before
    assert sent == 2.0 * 64 and inside == pytest.approx(2 * (2e-3 + (48 + 16) / 1e9))
    rows = replace(halves, samples=2, rows=2)
    assert bounds._reduced(made, rows, 1)[0] == 2.0 * 2 * (96 // 2)
    seconds = np.array([5.0, 1.0, 2.0, 1.0, 7.5])
    assert bounds._longest(made, seconds) == [3, 2, 0] and bounds._longest(made, seconds + [0, 1, 0, 0, 2.0]) == [4]
    assert bounds._longest(made, seconds + [0, 1, 0, 0, 0]) == [3, 1, 0]
    # forward 0.5, then 1 or 1.5, then 2, and its backward 2.5; or the table alone: 2.5 and 3
    assert bounds._first_gradient_seconds(made) == min(0.5 + 1.5 + 2.0 + 2.5, 2.5 + 3.0)
    sums = bounds._Sums(made, 1e9, "segments")
    assert sums.rows[0].tolist() == pytest.approx([(3.0 + 2 * i) * 0.5 for i in range(5) for k in (0, 1)])
    assert sums.rows[1][1] == pytest.approx(128 / 2e9) and sums.constants == [0.0, 5.5, 2.5]
    assert sums.least(np.array([1.0, 0.0, 0.0])) == pytest.approx((3 + 5 + 7 + 9 + 11) / 2)
    assert sums.least(np.array([0.0, 1.0, 0.0])) == 5.5
    closed = bounds._Sums(made, 1e9, "closed")
    assert closed.rows[0][1] == pytest.approx(1.5 + 128 / 2e9 + inside / 2) and len(closed.rows) == 1
    # the mean of servers: 17.5 s; the path of a, c and d in halves takes (3 + 7 + 9) / 2
    assert bounds.step_seconds(made, 1e9) == pytest.approx(17.5, rel=1e-6)
    lonely = bounds.step_seconds(split_space(4), 1e9)
    assert lonely >= 9.5 * (1 - 1e-6)


def test_tables_lie_before_and_behind_what_reads_them_by_hand() -> None:
    """Two tables of 1 and 2 s, halves of 0.5 and 1 s, on two servers: 1 s and 2 s whatever the split, and what reads them,
    whole in 2 + 2 s or in halves of 1.9 + 1.9 s, lies between.
    """
    table = Operation("table", "embedding", "Embed", (DATA,), (8,), (8,), bag=1)
    top = Operation("top", "linear", "Dense", (0, 1), (8,), (1000,))
    tables = (OperatorSplit(1, 1, 1, 1.0, 2.0, 1.0), OperatorSplit(1, 2, 1, 0.5, 1.0, 1.0))
    tops = (OperatorSplit(1, 1, 1, 2.0, 2.0, 1.0), OperatorSplit(2, 1, 1, 1.9, 1.9, 1.0))
    servers = Servers(2, 1, device("a100-sxm-40gb"), 1e9)
    made = SplitSpace(Workload("two tables", 10, (table, replace(table, name="other"), top)), servers, (tables, tables, tops))
    assert bounds.step_seconds(made, 1e12) == pytest.approx(1 + 2 + 2 * 1.9, rel=1e-6)
    # work alone is 3 s and the mean of 2 s a server, or 3.8 s
    assert bounds.step_seconds(made, 1e12, "closed") == pytest.approx(5.0, rel=1e-6)
    # halves all-reduce 4,000 bytes, twice, after the tables and the end, forward and back: 1 + 1.9 + 1.9 s
    # whole it may find all 320 bytes of each table on its server; halves find half, and as much goes back at the end
    halves = SplitSpace(made.workload, servers, (tables, tables, tops[1:]))
    moved = 2 * 320.0 * 0.5
    assert bounds._moved(halves, tops[1], 2) == moved and bounds._moved(made, tops[0], 2) == 0.0
    assert bounds.step_seconds(halves, 10.0) == pytest.approx((2 * 4000 + 2 * moved) / 20.0, rel=1e-6)
    assert bounds.step_seconds(halves, 100.0) == pytest.approx(1 + 3.8 + (2 * 4000 + moved) / 200.0, rel=1e-6)
    assert bounds.step_seconds(halves, 10.0, apart=False) == pytest.approx(1 + 3.8 + 2 * 4000 / 20.0, rel=1e-6)


def test_the_busiest_server_bounds_what_a_plan_sends() -> None:
    pair_bytes = np.array([[0.0, 4.0, 0.0], [1.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    assert bounds.cut_seconds(PlacementTraffic(pair_bytes, ()), 2.0) == 5.0
    traffic = PlacementTraffic(pair_bytes, (((0, 1, 2), 6.0), ((0, 1), 3.0)))
    assert bounds.cut_seconds(traffic, 2.0) == (10.0 + 8.0 + 3.0) / 2.0
    assert PlacementTraffic(pair_bytes, (((0, 1), 4.0), ((1, 2), 2.0), ((0, 1, 2), 3.0))).by_group_size() == {2: 9.0, 3: 5.0}


def test_devices_of_a_server_add_up_what_the_formula_says() -> None:
    gpu = device("a100-sxm-40gb")
    assert Servers(2, 4, gpu, 1e9, 1e-3).inner_seconds(1002) == pytest.approx(1e-3 + (2004 // 4) / 1e9)
    assert Servers(2, 1, gpu, 1e9, 1e-3).inner_seconds(1000) == 0.0
    assert Servers(2, 3, gpu, 1e9).memory_bytes == 3 * Servers(2, 1, gpu, 1e9).memory_bytes


def test_splits_of_matrices_and_tables_by_hand() -> None:
    """Two servers of two devices; the batch of 8 leaves 2 samples on each of 4 devices, tables lie on one."""
    gpu = device("a100-sxm-40gb")
    servers, workload = Servers(2, 2, gpu, 1e9), diamond()
    made = space(workload, servers, None, shard=True)
    rate = gpu.memory_bytes_per_second * gpu.memory_ratio

    def seconds(share: int, moved: int, i: int) -> float:
        work = share * flops(workload.operations[i]) / (gpu.peak("fp32") * gpu.matmul_ratio)
        return max(work, 4 * moved / rate) + gpu.launch_seconds

    a, b, table = made.choices[0], made.choices[1], made.choices[4]
    assert [(c.samples, c.columns, c.rows) for c in b] == [(1, 1, 1), (2, 1, 1), (1, 2, 1)]
    assert [(c.samples, c.columns, c.rows) for c in table] == [(1, 1, 1), (1, 2, 1), (1, 1, 2)]
    for k, share in ((0, 4), (1, 2)):
        assert b[k].forward_seconds == pytest.approx(seconds(share, share * (4 + 6) + 24, 1))
        assert b[k].backward_seconds == 2 * b[k].forward_seconds
        assert b[k].memory_bytes == (8 * 24 + 2 * 4 * share * (4 + 6)) * 2
    assert a[0].memory_bytes == (8 * 16 + 2 * 4 * 4 * 4) * 2 and a[0].forward_seconds == pytest.approx(seconds(4, 16 + 16, 0))
    # columns: times of as many parts of samples; half the weights less, half of all inputs of the samples more
    assert b[2].forward_seconds == b[1].forward_seconds
    assert b[2].memory_bytes == b[1].memory_bytes + (2 * 4 * 4 * 8 - 8 * 24 * 2) / 2
    assert table[0].forward_seconds == pytest.approx(seconds(8, 8 * 4 * 4, 4))
    assert table[0].memory_bytes == 8 * 400 + 2 * 4 * 8 * 4
    assert table[1].forward_seconds == table[0].forward_seconds / 2 and table[1].memory_bytes == table[0].memory_bytes / 2
    written = 4 * 4 * 8
    assert table[2].forward_seconds == pytest.approx(table[0].forward_seconds / 2 + written / rate)
    assert table[2].memory_bytes == pytest.approx(table[0].memory_bytes / 2 + 2 * written / 2)


def test_operations_of_every_kind_by_hand() -> None:
    kinds = [
        (Operation("a", "linear", "a", (), (3, 4), (20, 4)), 2 * 20 * 3), (Operation("a", "linear", "a", (), (4,), (20,)), 40),
        (Operation("a", "conv2d", "a", (), (5, 6, 7), (45,)), 2 * 45 * 42), (Operation("a", "add", "a", (), (5, 6)), 30),
        (Operation("a", "mha", "a", (), (6, 8), (256,)), 2 * 256 * 6 + 4 * 36 * 8),
        (Operation("a", "embedding", "a", (), (4,), (400,), 3), 12), (Operation("a", "embedding", "a", (), (4,), (400,)), 4),
        (Operation("a", "layer", "a", (), (4,), (), 0, 77.0), 77),
    ]  # fmt: skip
    for operation, expected in kinds:
        assert flops(operation) == expected, operation.kind


def test_what_an_operator_may_copy_from_those_beside_it(small: Callable[..., Step]) -> None:
    made = replace(split_space(), choices=split_space().choices)
    plan = Placement((0, 1, 0, 1, 0), ((0,), (0, 1), (1,), (0, 1), (0,)))
    assert moves.near(made, plan, 0) == [(1, (0, 1)), (0, (1,))]
    assert moves.near(made, plan, 3) == [(0, (1,))] and moves.near(made, plan, 4) == []
    base = data_parallel(made)
    assert base.servers[0] == (0, 1)
