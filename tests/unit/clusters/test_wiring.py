"""Who is plugged in where: every wire of small clusters, drawn by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.clusters import grid
from meshwright.core.cluster import Cluster

GB, US = 1e9, 1e-6
Wires = list[tuple[int, int]]


def wires(cluster: Cluster) -> dict[tuple[float, float], Wires]:
    """Return the wires by gigabytes a second and microseconds; each must be there in both directions."""
    links = cluster.links
    rows = zip(links.source.tolist(), links.target.tolist(), links.bytes_per_second, links.latency_seconds, strict=True)
    found: dict[tuple[float, float], Wires] = {}
    back: dict[tuple[float, float], Wires] = {}
    for a, b, rate, latency in rows:
        kind = (round(rate / GB, 6), round(latency / US, 6))
        (found if a < b else back).setdefault(kind, []).append((min(a, b), max(a, b)))
    assert {kind: sorted(ends) for kind, ends in found.items()} == {kind: sorted(ends) for kind, ends in back.items()}
    return {kind: sorted(ends) for kind, ends in found.items()}


def ports(devices: range, first: int, per_switch: int = 1) -> Wires:
    """Return one wire for each device, to switches that take `per_switch` neighbours."""
    return [(device, first + i // per_switch) for i, device in enumerate(devices)]


def test_rails_join_the_same_device_of_every_node_and_the_spine_joins_rails() -> None:
    """Two pods of two nodes of two devices: node switches 8 to 11, leaves 12 and 13 of the first pod, 14 and 15 of the second, spine 16."""  # noqa: E501
    spec = "rail-optimised:8,per_node=2,nodes_per_pod=2,node_bandwidth=10 GB/s,bandwidth=3 GB/s,latency=2 us"
    cluster = clusters.cluster(spec)
    assert wires(cluster) == {
        (10.0, 2.0): ports(range(8), 8, 2),
        (3.0, 2.0): [(0, 12), (1, 13), (2, 12), (3, 13), (4, 14), (5, 15), (6, 14), (7, 15)],
        (6.0, 2.0): [(12, 16), (13, 16), (14, 16), (15, 16)],  # the two adapters below each leaf
    }
    assert cluster.n_switches == 9 and not cluster.forwards
    assert cluster.groups.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]]


def test_one_node_of_rails_has_its_switch_alone_and_one_pod_is_no_level() -> None:
    one = clusters.cluster("rail-optimised:2,per_node=2,node_bandwidth=10 GB/s,latency=2 us")
    assert (wires(one), one.n_switches) == ({(10.0, 2.0): [(0, 2), (1, 2)]}, 1)
    assert clusters.cluster("rail-optimised:4,per_node=2").groups.tolist() == [[0, 0, 1, 1]]
    only = clusters.cluster("rail-only:4,per_node=2,node_bandwidth=10 GB/s,bandwidth=3 GB/s,latency=2 us")
    assert wires(only) == {(10.0, 2.0): ports(range(4), 4, 2), (3.0, 2.0): [(0, 6), (1, 7), (2, 6), (3, 7)]}
    assert only.n_switches == 4


def test_a_dgx_1_is_a_cube_mesh_over_four_pcie_switches_with_an_adapter_each() -> None:
    """V100: six NVLinks a device, two to the next in the ring; a PCIe switch for two devices; switches of a node meet over the host."""  # noqa: E501
    found = wires(clusters.cluster("dgx-v100:16"))
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    assert found.pop((22.5, 3.5)) == sorted(single + [(a + 8, b + 8) for a, b in single])
    assert found.pop((45.0, 3.5)) == sorted(double + [(a + 8, b + 8) for a, b in double])
    n_links = np.bincount(np.ravel(single), minlength=8) + 2 * np.bincount(np.ravel(double), minlength=8)
    assert n_links.tolist() == [6] * 8
    assert found.pop((11.97, 4.0)) == ports(range(16), 16, 2)
    assert found.pop((40.0, 2.0)) == [
        (a, b) for node in (16, 20) for a in range(node, node + 4) for b in range(a + 1, node + 4)
    ]
    assert found.pop((11.25, 5.0)) == [(16 + i, 24 + i % 4) for i in range(8)]  # one rail for each switch of a node
    assert list(found.values()) == [[(24, 28), (25, 28), (26, 28), (27, 28)]]


def test_part_of_a_node_has_the_wires_between_its_devices_only() -> None:
    assert wires(clusters.cluster("dgx-v100:3")) == {
        (11.97, 4.0): [(0, 3), (1, 3), (2, 4)], (40.0, 2.0): [(3, 4)], (22.5, 3.5): [(0, 1), (0, 2)], (45.0, 3.5): [(1, 2)],
    }  # fmt: skip


def test_a_switched_node_has_an_adapter_for_each_device_and_leaves_meet_at_the_spine() -> None:
    """One device on a second node: it shares the first rail's leaf; NVSwitches 9 and 10, leaves 11 to 18, spine 19."""
    found = wires(clusters.cluster("dgx-h100:9"))
    assert list(found.values()) == [
        ports(range(8), 9, 8) + [(8, 10)],
        sorted([*ports(range(8), 11), (8, 11)]),
        [(i, 19) for i in range(11, 19)],
    ]
    assert len(clusters.cluster("dgx-h100:8").links) == 16  # no network for a single node


def test_a_dragonfly_joins_all_routers_of_a_group_and_every_pair_of_groups() -> None:
    """Two devices a router, four routers a group, two global links each: two groups have all eight, one for every router and port."""  # noqa: E501
    cluster = clusters.cluster("dragonfly:12,devices_per_router=2,bandwidth=5 GB/s,latency=1 us")
    first, second = range(12, 16), range(16, 20)
    inside = [(a, b) for group in (first, second) for a in group for b in group if a < b]
    across = [(a, b) for a, b in zip(first, second, strict=True) for _ in range(2)]
    assert wires(cluster) == {(5.0, 1.0): sorted(ports(range(12), 12, 2) + inside + across)}
    assert cluster.n_switches == 8
    assert cluster.groups[1:].tolist() == [[i // 2 for i in range(12)], [i // 8 for i in range(12)]]
    # the smallest routers whose groups hold all: with p devices each, 2 p p (2 p p + 1)
    assert clusters.cluster("dragonfly:6").groups[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert clusters.cluster("dragonfly:7").groups[1].tolist() == [0, 0, 1, 1, 2, 2, 3]


def test_a_fat_tree_of_four_ports_has_two_of_everything() -> None:
    """Edges 8 to 11 with two devices each, two aggregation switches a pod (12 to 15), cores 16 to 19 with one port for each pod."""  # noqa: E501
    up = [(8, 12), (8, 13), (9, 12), (9, 13), (10, 14), (10, 15), (11, 14), (11, 15)]
    core = [(12, 16), (12, 17), (13, 18), (13, 19), (14, 16), (14, 17), (15, 18), (15, 19)]
    cluster = clusters.cluster("fat-tree:8,k=4,bandwidth=5 GB/s,latency=1 us")
    assert wires(cluster) == {(5.0, 1.0): sorted(ports(range(8), 8, 2) + up + core)}


@pytest.mark.parametrize(("wraps", "n_wires"), [((False, False), 7), ((True, False), 7), ((False, True), 9)])
def test_a_grid_closes_the_dimensions_that_wrap_and_are_longer_than_two(wraps: tuple[bool, bool], n_wires: int) -> None:
    """Two rows of three: three wires between the rows and two along each; a ring of three has one more."""
    links = grid.lay((2, 3), wraps, grid.no_shift(2), 1.0, 1.0).links()
    assert len(links) == 2 * n_wires
    pairs = {(a, b) for a, b in zip(links.source.tolist(), links.target.tolist(), strict=True) if a < b}
    closed = {(0, 2), (3, 5)} if wraps[1] else set()
    assert pairs == {(0, 3), (1, 4), (2, 5), (0, 1), (1, 2), (3, 4), (4, 5)} | closed


def test_a_twist_moves_the_wire_that_closes_a_dimension() -> None:
    """Three rows of two: the last row's device 0 closes to the first row's device 1, and the other way round."""
    links = grid.lay((3, 2), (True, False), lambda dim: (0, 1) if dim == 0 else (0, 0), 1.0, 1.0).links()
    pairs = {(a, b) for a, b in zip(links.source.tolist(), links.target.tolist(), strict=True) if a < b}
    assert {pair for pair in pairs if pair[1] >= 4 and pair[0] < 2} == {(0, 5), (1, 4)}
    assert grid.lines_of((2, 3)).tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1]]
