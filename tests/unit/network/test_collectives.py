"""Times of collectives on networks where they can be worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.network import Network, collectives
from meshwright.network.orders import double_binary_tree

GB = 1e9


def _slope(spec: str, groups: object, kind: str, algorithm: str) -> tuple[float, float]:
    cluster = clusters.cluster(spec)
    for line in collectives.lines(cluster, np.asarray(groups, dtype=np.int64), kind):
        if line.algorithm == algorithm:
            return line.latency_seconds, line.seconds_per_byte
    raise AssertionError(f"no {algorithm}")


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_a_ring_all_reduce_on_a_ring_takes_two_n_minus_one_over_n(n: int) -> None:
    latency, slope = _slope(f"ring:{n},bandwidth=1 GB/s,latency=1 us", [np.arange(n)], "all_reduce", "ring")
    assert slope == pytest.approx(2 * (n - 1) / n / GB)
    assert latency == pytest.approx(2 * (n - 1) * 1e-6)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_both_directions_of_a_ring_halve_the_time(n: int) -> None:
    _, slope = _slope(f"ring:{n},bandwidth=1 GB/s", [np.arange(n)], "all_reduce", "bidirectional_ring")
    assert slope == pytest.approx((n - 1) / n / GB)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_gathering_and_scattering_take_half_of_an_all_reduce(kind: str) -> None:
    latency, slope = _slope("flat:8,bandwidth=1 GB/s,latency=1 us", [np.arange(8)], kind, "ring")
    assert slope == pytest.approx(7 / 8 / GB)
    assert latency == pytest.approx(7 * 2e-6)


def test_halving_and_doubling_needs_only_log_n_steps_on_one_switch() -> None:
    latency, slope = _slope("flat:8,bandwidth=1 GB/s,latency=1 us", [np.arange(8)], "all_reduce", "halving_doubling")
    assert slope == pytest.approx(2 * 7 / 8 / GB)
    assert latency == pytest.approx(2 * 3 * 2e-6)


def test_an_all_to_all_on_one_switch_sends_all_but_ones_own_part() -> None:
    latency, slope = _slope("flat:8,bandwidth=1 GB/s,latency=1 us", [np.arange(8)], "all_to_all", "direct")
    assert slope == pytest.approx(7 / 8 / GB)
    assert latency == pytest.approx(2e-6)


def test_between_two_levels_the_slow_link_rules() -> None:
    spec = "two-level:16,per_node=8,node_bandwidth=300 GB/s,bandwidth=25 GB/s"
    _, slope = _slope(spec, [np.arange(16)], "all_reduce", "ring")
    assert slope == pytest.approx(2 * 15 / 16 / (25 * GB))


def test_groups_that_share_a_link_wait_for_each_other() -> None:
    spec = "two-level:16,per_node=8,node_bandwidth=300 GB/s,bandwidth=25 GB/s"
    _, one = _slope(spec, [[0, 8]], "all_reduce", "ring")
    _, eight = _slope(spec, np.arange(16).reshape(2, 8).T, "all_reduce", "ring")
    assert one == pytest.approx(1 / (25 * GB))
    assert eight == pytest.approx(8 * one)


def test_a_ring_over_nodes_uses_every_rail() -> None:
    spec = "rail-optimised:32,per_node=8,node_bandwidth=1000 GB/s,bandwidth=50 GB/s"
    _, slope = _slope(spec, [np.arange(32)], "all_reduce", "ring")
    assert slope == pytest.approx(2 * 31 / 32 / (8 * 50 * GB))


def test_the_order_in_which_members_are_named_does_not_matter_over_nodes() -> None:
    spec = "rail-optimised:32,per_node=8,node_bandwidth=1000 GB/s,bandwidth=50 GB/s"
    _, straight = _slope(spec, [np.arange(32)], "all_reduce", "ring")
    _, strided = _slope(spec, [np.arange(32).reshape(4, 8).T.ravel()], "all_reduce", "ring")
    assert strided == pytest.approx(straight)


def test_the_hierarchical_all_reduce_adds_its_three_steps() -> None:
    spec = "rail-optimised:32,per_node=8,node_bandwidth=100 GB/s,bandwidth=50 GB/s"
    _, slope = _slope(spec, [np.arange(32)], "all_reduce", "hierarchical(ring)")
    assert slope == pytest.approx(2 * 7 / 8 / (100 * GB) + 2 * 3 / 4 / 8 / (50 * GB))


@pytest.mark.parametrize(("shape", "n_links"), [("4x4", 4), ("4x4x4", 6), ("8x8", 4)])
def test_rings_along_all_dimensions_of_a_torus_use_every_link(shape: str, n_links: int) -> None:
    n = int(np.prod([int(size) for size in shape.split("x")]))
    _, slope = _slope(f"torus:{shape},bandwidth=1 GB/s", [np.arange(n)], "all_reduce", "dimension_rings")
    assert slope == pytest.approx(2 * (n - 1) / n / (n_links * GB))


def test_planes_of_a_torus_are_grids_too() -> None:
    ids = np.arange(64).reshape(4, 4, 4)
    for groups in (ids.reshape(4, 16), np.moveaxis(ids, 1, 0).reshape(4, 16), np.moveaxis(ids, 2, 0).reshape(4, 16)):
        _, slope = _slope("torus:4x4x4,bandwidth=1 GB/s", groups, "all_reduce", "dimension_rings")
        assert slope == pytest.approx(2 * 15 / 16 / (4 * GB))


def test_a_switch_that_reduces_sends_every_byte_up_and_down_once() -> None:
    plain = clusters.cluster("rail-optimised:16,per_node=8,node_bandwidth=100 GB/s,bandwidth=10 GB/s,latency=1 us")
    reducing = dataclasses.replace(plain, reduces_in_switch=True)
    inside, across = np.arange(16).reshape(2, 8), np.arange(16).reshape(2, 8).T
    for groups, rate in ((inside, 100 * GB), (across, 10 * GB)):
        lines = {line.algorithm: line for line in collectives.lines(reducing, groups, "all_reduce")}
        assert lines["in_switch"].seconds_per_byte == pytest.approx(1 / rate)
        assert lines["in_switch"].latency_seconds == pytest.approx(2e-6)
    everybody = np.arange(16)[None]
    assert "in_switch" not in {line.algorithm for line in collectives.lines(reducing, everybody, "all_reduce")}
    assert "in_switch" not in {line.algorithm for line in collectives.lines(plain, inside, "all_reduce")}


@pytest.mark.parametrize("size", range(2, 40))
def test_no_member_is_an_inner_node_of_both_trees(size: int) -> None:
    child, parent, depth = double_binary_tree(size)
    for c, p in zip(child, parent, strict=True):
        assert sorted({*c.tolist(), *p.tolist()}) == list(range(size))
        assert len(set(c.tolist())) == size - 1, "everyone but the root has one parent"
        assert max(np.bincount(p)) <= 2
    assert not set(parent[0].tolist()) & set(parent[1].tolist())
    assert depth <= np.ceil(np.log2(size))


def test_the_quickest_algorithm_is_picked_by_size() -> None:
    axis = Network.of(clusters.cluster("flat:12,bandwidth=1 GB/s,latency=10 us")).axis([np.arange(12)])
    small, large = axis.algorithm("all_reduce", 8), axis.algorithm("all_reduce", 1e9)
    assert small == "tree"
    assert large == "ring"
    for n_bytes in (8, 1e4, 1e6, 1e9):
        every = [
            line.latency_seconds + line.seconds_per_byte * n_bytes
            for line in collectives.lines(axis.cluster, axis.groups, "all_reduce")
        ]
        assert axis.seconds("all_reduce", n_bytes) == pytest.approx(min(every))


def test_a_group_of_one_and_no_bytes_take_no_time() -> None:
    cluster = clusters.cluster("dgx-h100:8")
    assert Network.of(cluster).axis([[0], [1]]).seconds("all_reduce", 1e9) == 0.0
    assert Network.of(cluster).axis([[0, 1]]).seconds("all_reduce", 0) == 0.0


def test_an_axis_is_remembered_and_wrong_groups_are_refused() -> None:
    cluster = clusters.cluster("dgx-h100:8")
    assert Network.of(cluster).axis([[0, 1]]) is Network.of(cluster).axis([[0, 1]])
    for groups in ([[0, 8]], [[0, 0]], [[-1, 0]], [0, 1], np.zeros((0, 2))):
        with pytest.raises(InputError):
            Network.of(cluster).axis(groups)
    with pytest.raises(UnknownNameError):
        Network.of(cluster).axis([[0, 1]]).seconds("all_reduction", 1.0)


def test_transfers_share_the_link_between_two_nodes() -> None:
    cluster = clusters.cluster("two-level:16,per_node=8,node_bandwidth=300 GB/s,bandwidth=25 GB/s,latency=1 us,launch=5 us")
    latency, slope = Network.of(cluster).transfer([(i, i + 8) for i in range(8)])
    assert slope == pytest.approx(8 / (25 * GB))
    assert latency == pytest.approx(5e-6 + 4e-6)
    assert Network.of(cluster).transfer([(3, 3)]) == (0.0, 0.0)


@pytest.mark.parametrize("kind", collectives.KINDS)
@pytest.mark.parametrize("spec", ["dgx-h100:24", "dgx-v100:16", "torus:4x4", "fat-tree:16,k=4", "dragonfly:20", "g4dn-t4:10"])
def test_more_bytes_never_take_less_time_and_no_link_moves_faster_than_it_can(kind: str, spec: str) -> None:
    cluster = clusters.cluster(spec)
    axis = Network.of(cluster).axis(np.arange(cluster.n_devices)[None])
    times = [axis.seconds(kind, n_bytes) for n_bytes in (1, 1e3, 1e6, 1e9)]
    assert all(b >= a > 0 for a, b in itertools.pairwise(times))
    out = np.bincount(cluster.links.source, cluster.links.bytes_per_second)[: cluster.n_devices].max()
    share = {"broadcast": 0.0}.get(kind, (axis.size - 1) / axis.size)
    assert times[-1] >= share * 1e9 / out


def test_a_librarys_tree_moves_everything_twice_between_two_nodes_so_that_rings_are_as_quick() -> None:
    groups = np.arange(16)[None]
    bought, free = clusters.cluster("dgx-a100:16"), clusters.cluster("two-level:16,per_node=8,bandwidth=180 GB/s")
    lines = {line.algorithm: line for line in collectives.lines(bought, groups, "all_reduce")}
    uplinks = 8 * 25 * GB * 0.9  # eight adapters a node
    assert lines["tree"].seconds_per_byte == pytest.approx(2 / uplinks)
    assert lines["ring"].seconds_per_byte == pytest.approx(2 * 15 / 16 / uplinks)
    assert not free.algorithms  # nothing is known of its library: both halves of the double tree are used
    assert {line.algorithm: line for line in collectives.lines(free, groups, "all_reduce")}[
        "tree"
    ].seconds_per_byte == pytest.approx(1 / (180 * GB))


@pytest.mark.parametrize(("kind", "n_ways"), [("all_reduce", 2), ("broadcast", 1)])
@pytest.mark.parametrize(("n", "depth"), [(2, 1), (4, 2), (8, 3), (12, 3)])
def test_a_tree_takes_a_hop_for_every_level_and_goes_there_and_back_to_reduce(
    n: int, depth: int, kind: str, n_ways: int
) -> None:
    """Every device on one switch: an edge of the tree is two links of 1 us. Root 8 of 12 has 4 and 12 below it, these 2, 6,
    10, these the rest.
    """
    latency, _ = _slope(f"flat:{n},bandwidth=1 GB/s,latency=1 us", [np.arange(n)], kind, "tree")
    assert latency == pytest.approx(n_ways * depth * 2e-6)


@pytest.mark.parametrize(("kind", "n_ways"), [("all_reduce", 2), ("broadcast", 1)])
def test_a_tree_over_nodes_also_walks_the_chain_inside_each(kind: str, n_ways: int) -> None:
    """Four nodes of four devices: three hops of 2 us along the chain, and two levels of 4 us between nodes (up, over, down)."""
    spec = "two-level:16,per_node=4,node_bandwidth=300 GB/s,bandwidth=25 GB/s,latency=1 us"
    latency, _ = _slope(spec, [np.arange(16)], kind, "tree")
    assert latency == pytest.approx(n_ways * (3 * 2e-6 + 2 * 4e-6))
