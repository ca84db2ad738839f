"""What collectives put on links: nothing gets lost on the way, and the time stands on the slowest link."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.network import Network, collectives

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
SPECS = (
    "flat:8", "two-level:16,per_node=4", "dgx-h100:16", "fat-tree:16,oversubscription=2", "torus:4x4", "dgx-v100:8",
    "dragonfly:18",
)  # fmt: skip


def some_groups(n_devices: int) -> list[np.ndarray]:
    ids = np.arange(n_devices)
    half = n_devices // 2
    return [ids[None], ids[: 2 * half].reshape(half, 2), ids[: 2 * half].reshape(2, half).T, ids[:2][None]]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_flows_into_a_switch_flows_out_and_devices_send_what_they_get(spec: str, kind: str) -> None:
    cluster = clusters.cluster(spec)
    n_nodes = cluster.n_devices + cluster.n_switches
    for groups in some_groups(cluster.n_devices):
        for way in collectives.ways(cluster, groups, kind):
            into = np.bincount(cluster.links.target, way.load, n_nodes)
            out = np.bincount(cluster.links.source, way.load, n_nodes)
            assert into[cluster.n_devices :] == pytest.approx(out[cluster.n_devices :]), way.line.algorithm
            assert into.sum() == pytest.approx(out.sum())
            silent = np.setdiff1d(np.arange(cluster.n_devices), groups)
            if not cluster.forwards:
                assert not into[silent].any()
            if kind != "broadcast" and not cluster.forwards:
                assert into[groups] == pytest.approx(out[groups]), way.line.algorithm


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_link_is_used_longer_than_the_collective_takes(spec: str, kind: str) -> None:
    cluster = clusters.cluster(spec)
    for groups in some_groups(cluster.n_devices):
        for way in collectives.ways(cluster, groups, kind):
            busiest = (way.load / cluster.links.bytes_per_second).max()
            assert busiest <= way.line.seconds_per_byte * (1 + 1e-9), way.line.algorithm
            if way.line.algorithm.startswith(("ring", "direct", "tree", "bidirectional", "packed")):
                assert busiest == pytest.approx(way.line.seconds_per_byte)


def test_a_ring_of_four_sends_six_quarters_of_the_tensor_over_each_port() -> None:
    cluster = clusters.cluster("flat:4")
    links, per_byte = Network.of(cluster).load(np.arange(4)[None], "all_reduce", 1e9)
    assert (len(links), per_byte.tolist()) == (8, [1.5] * 8)
    assert Network.of(cluster).load(np.arange(4)[None], "all_reduce", 1e9)[0] is links
    none = Network.of(cluster).load(np.arange(4)[:, None], "all_reduce", 1e9)
    assert len(none[0]) == len(none[1]) == 0


@pytest.mark.parametrize("n_bytes", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("kind", KINDS)
def test_the_load_is_that_of_the_algorithm_that_the_time_stands_on(kind: str, n_bytes: float) -> None:
    cluster = clusters.cluster("two-level:16,per_node=4")
    for groups in some_groups(16):
        axis = Network.of(cluster).axis(groups)
        name = axis.algorithm(kind, n_bytes)
        links, per_byte = Network.of(cluster).load(groups, kind, n_bytes)
        ways = [way for way in collectives.ways(cluster, groups, kind) if way.line.algorithm == name]
        assert any(np.array_equal(way.load[links], per_byte) and way.load.sum() == per_byte.sum() for way in ways)
