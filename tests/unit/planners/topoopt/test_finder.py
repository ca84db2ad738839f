"""Topologies: degrees are never exceeded, everything is connected, rings and routes lie on links."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.planners.topoopt import alternate, finder, networks, rings
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, PlacementTraffic, Step, data_parallel

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "oracle"))
import flow_simulation as twin


@pytest.mark.parametrize(("n", "degree"), [(4, 2), (4, 3), (5, 4), (8, 3), (8, 4), (9, 5), (16, 4), (2, 1), (3, 2)])
def test_no_server_has_more_links_than_interfaces(n: int, degree: int) -> None:
    rng = np.random.default_rng(1)
    pair = rng.random((n, n)) * 1e6
    groups = ((tuple(range(n)), 5e6), *(((a, a + 1), 1e6 * a) for a in range(1, n - 1)))
    n_found = 0
    for fabric in finder.fabrics(
        PlacementTraffic(pair, groups), n, degree, 1e9, 1e-6, finder.random_cycles(n, degree // 2, rng)
    ):
        ends = Counter(end for wire in fabric.wires() for end in wire)
        assert max(ends.values()) <= degree
        assert (fabric.hops[:, :n] >= 0).all()
        n_found += 1
    assert n_found


def test_hops_are_those_of_the_plain_twin_and_routes_are_that_long() -> None:
    fabric = networks.build("random", 10, 3, 1e9, 1e-6, 3).fabric
    hops = twin.shortest(10, fabric.link_of)
    for a in range(10):
        for b in range(10):
            links = fabric.pair(a, b)
            assert fabric.hops[b, a] == hops[a][b] == len(links)
            at = a
            for link in links:
                assert fabric.source[link] == at
                at = int(fabric.target[link])
            assert at == b


@pytest.mark.parametrize("name", [name for name in networks.NAMES if name not in ("topoopt", "optical")])
def test_rings_of_any_group_lead_from_member_to_member_and_carry_everything(name: str) -> None:
    fabric = networks.build(name, 12, 4, 1e9, 1e-6, 0).fabric
    for members in (tuple(range(12)), (0, 3, 6, 9), (1, 2, 7), (4, 5)):
        sent: Counter[int] = Counter()
        for links, share in fabric.flows(members):
            a, b = int(fabric.source[links[0]]), int(fabric.target[links[-1]])
            assert a in members and b in members and a != b
            sent[a] += share  # type: ignore[assignment]
        assert sorted(sent) == list(members)
        assert all(share == pytest.approx(1.0) for share in sent.values())


def test_the_best_known_rings_use_every_interface_for_one_group() -> None:
    group = tuple(range(8))
    traffic = PlacementTraffic(np.zeros((8, 8)), ((group, 1e9),))
    best = min(
        float(load(fabric, group).max())
        for fabric in finder.fabrics(traffic, 8, 4, 1e9, 1e-6, finder.random_cycles(8, 2, np.random.default_rng(0)))
    )
    assert best == pytest.approx(1 / 4)


def load(fabric: Fabric, members: tuple[int, ...]) -> np.ndarray:
    busy = np.zeros(len(fabric.source))
    for links, share in fabric.flows(members):
        np.add.at(busy, list(links), share)
    return busy / fabric.count


def test_joint_shares_never_load_the_busiest_link_more_than_separate_ones() -> None:
    fabric = networks.build("expander", 12, 4, 1e9, 1e-6, 0).fabric
    groups = [((0, 1, 2, 3), 3e6), ((4, 5, 6, 7), 2e6), ((0, 4, 8), 5e6)]

    def busiest(made: Fabric) -> float:
        return float(
            sum(load(made, members) * n_bytes * 2 * (len(members) - 1) / len(members) for members, n_bytes in groups).max()
        )

    assert busiest(fabric.refitted(np.zeros((12, 12)), groups)) <= busiest(fabric) * (1 + 1e-6)


def test_random_rings_at_128_servers_are_near_a_random_regular_graph() -> None:
    orders = finder.random_cycles(128, 2, np.random.default_rng(0))
    assert all(sorted(order) == list(range(128)) for order in orders)
    assert rings.mean_hops(128, orders) <= 4.0  # 5.62 for the published jumps


def test_a_topology_that_is_not_connected_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="cannot reach server"):
        Fabric("two islands", 4, {(0, 1): 1.0, (1, 0): 1.0, (2, 3): 1.0, (3, 2): 1.0}, 1e9, 0.0)


def test_the_traffic_decides_the_routes(small: Callable[..., Step]) -> None:
    step = small(n=8)
    traffic = step.traffic(data_parallel(step.space))
    fabric = networks.build("torus", 8, 4, 1e9, 1e-6, 0).fabric

    def busiest(made: Fabric) -> float:
        carried = np.zeros(len(made.source))
        for a in range(8):
            for b in range(8):
                carried[list(made.pair(a, b))] += traffic.pair_bytes[a, b]
        return float(carried.max())

    assert busiest(fabric.refitted(traffic.pair_bytes, traffic.group_bytes)) <= busiest(fabric)


def busiest(step: Step, plan: Placement, fabric: Fabric) -> float:
    from meshwright._kernels.topoopt import step_tasks

    split, tasks = step.tasks(plan, fabric)
    return float(step_tasks.loads(tasks, split, fabric.network())[3])


def test_shares_of_routes_by_linear_programme_never_load_the_busiest_link_more_than_even_ones(
    small: Callable[..., Step],
) -> None:
    step = small("topoopt:dlrm,tables=3,rows=1000,width=512,bottom=512-512,top=64-64-1,batch=8192", n=6)
    plan = data_parallel(step.space)
    for table in (i for i, op in enumerate(step.space.workload.operations) if op.kind == "embedding"):
        plan = plan.with_op(table, 0, (0,))
    traffic = step.traffic(plan)
    better = 0
    for fabric in finder.fabrics(traffic, 6, 4, 1e9, 1e-6, finder.random_cycles(6, 2, np.random.default_rng(0))):
        even = fabric.refitted(traffic.pair_bytes, traffic.group_bytes, 4)
        spread = even.spread(traffic.pair_bytes, traffic.group_bytes)
        assert spread is not None
        for a in range(6):
            for b in range(6):
                if a != b:
                    assert sum(spread.way_shares(a, b)) == pytest.approx(1.0)
                    assert min(spread.way_shares(a, b)) >= 0
        assert step.tasks(plan, spread)[1].edge_bytes.sum() == traffic.pair_bytes.sum()
        before, after = busiest(step, plan, even), busiest(step, plan, spread)
        assert after <= before * 1.01  # transfers are whole bytes, small shares are dropped
        better += after < before * 0.99
    assert better


@pytest.mark.parametrize(("n", "degree"), [(8, 4), (8, 6), (16, 4), (16, 6), (16, 8)])
def test_groups_of_all_and_of_half_the_servers_together_use_every_interface_to_the_full(n: int, degree: int) -> None:
    """256 MiB over all servers and over each half: no more than what all send over all their interfaces,
    where each group had less.
    """
    size, rate = float(256 << 20), 12.5e9
    halves = (tuple(range(0, n, 2)), tuple(range(1, n, 2)))
    mix = ((tuple(range(n)), size), (halves[0], size), (halves[1], size))
    none = np.zeros((n, n))
    best = alone = np.inf
    for fabric in finder.fabrics(
        PlacementTraffic(none, mix), n, degree, rate, 1e-6, finder.random_cycles(n, degree // 2, np.random.default_rng(0))
    ):
        together, apart = (fabric.spread(none, mix, together=way) for way in (True, False))
        if together is None or apart is None:
            continue
        joint = ring_seconds(together, mix)
        if joint < best * (1 - 1e-3):
            best, alone = joint, ring_seconds(apart, mix[:1])
    sent = [2 * (g - 1) / g * size / (degree * rate) for g in (n, n // 2)]
    assert best <= sum(sent) * 1.001
    assert alone <= sent[0] * 1.25


def ring_seconds(fabric: Fabric, groups: tuple[tuple[tuple[int, ...], float], ...]) -> float:
    """Return how long the busiest link carries the rings of some groups."""
    busy = np.zeros(len(fabric.source))
    for members, n_bytes in groups:
        for links, share in fabric.flows(members):
            amount = 2 * (len(members) - 1) / len(members) * n_bytes * share
            np.add.at(busy, list(links), amount * fabric.seconds_per_byte[list(links)])
    return float(busy.max())


def _all_graphs(n: int, degree: int) -> list[dict[tuple[int, int], float]]:
    """Return every way to lay as many cables as fit, at most one between two servers."""
    pairs = list(itertools.combinations(range(n), 2))
    found = []
    for chosen in itertools.combinations(pairs, n * degree // 2):
        if max(np.bincount(np.array(chosen).ravel(), minlength=n)) <= degree:
            found.append({pair: 1.0 for a, b in chosen for pair in ((a, b), (b, a))})
    return found


@pytest.mark.parametrize(("n", "degree"), [(4, 2), (5, 2), (6, 3)])
def test_of_all_topologies_there_are_none_makes_a_small_step_faster_than_the_one_found(
    small: Callable[..., Step], n: int, degree: int
) -> None:
    step = small("topoopt:dlrm,tables=2,rows=1000,width=512,bottom=256-256,top=256-256-1,batch=3600", n=n, shard=False)
    plan = data_parallel(step.space)
    traffic = step.traffic(plan)
    every = []
    for count in _all_graphs(n, degree):
        try:
            made = Fabric("one of all", n, count, 1e9, 1e-6)
        except InputError:
            continue  # not connected
        every.append(step.seconds(plan, made.refitted(traffic.pair_bytes, traffic.group_bytes)))
    found = alternate.improved(
        step, alternate.NetworkParts(n, degree, 1e9, 1e-6), np.random.default_rng(0), 60, placement="either"
    )
    assert len(every) >= 3
    assert found.seconds <= min(every)


def test_interfaces_go_to_the_group_whose_links_carry_the_most_bytes() -> None:
    """A pair adds up 10 bytes, 2 (1 / 2) 10 = 10 over its link; four servers 7, 2 (3 / 4) 7 = 10.5 over each of theirs.

    Two interfaces are enough for the ring of four, or for the pair's link and no ring. With 6 bytes (9 over each link) it is
    the pair.
    """

    def links(n_bytes: float) -> dict[tuple[int, int], float]:
        groups = (((0, 1), 10.0), ((0, 1, 2, 3), n_bytes))
        count, _ = finder.lay(PlacementTraffic(np.zeros((5, 5)), groups), 5, 2, (), 0)
        return {ends: n for ends, n in count.items() if ends[0] < ends[1]}

    ring = {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0, (0, 3): 1.0}
    assert links(7.0) == ring
    assert links(6.0)[0, 1] == 2.0  # the pair twice: half of its bytes each


def test_a_group_gets_its_next_ring_where_that_carries_more_than_another_groups_first() -> None:
    """Pairs of 10 and of 4 bytes that share a server of three interfaces: bytes over links so far and a half are 20, 8, then
    6.7, then 2.7.
    """
    groups = (((0, 1), 10.0), ((0, 2), 4.0))
    count, cycles = finder.lay(PlacementTraffic(np.zeros((4, 4)), groups), 4, 3, (), 0)
    assert (count[0, 1], count[0, 2]) == (2.0, 1.0)
    assert cycles == [(0, 1), (0, 2)]
