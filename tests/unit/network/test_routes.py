"""Routes against the slow twin on random graphs, and on cases solved by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import clusters
from meshwright._kernels.network import trees
from meshwright._kernels.network.paths import FAR, ForwardingNodes
from meshwright.base.errors import InputError
from meshwright.clusters.wires import Wires
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.network import routes

DEVICE = Device("test", (("bf16", 1.0),), 1.0, 1.0)


def _cluster(n_devices: int, n_switches: int, links: Links, *, forwards: bool) -> Cluster:
    return Cluster(
        "test", (DEVICE,), np.zeros(n_devices, dtype=np.int64), n_switches, links, np.arange(n_devices)[None], forwards=forwards
    )


@st.composite
def _clusters(draw: st.DrawFn) -> Cluster | None:
    """Return a cluster; None where its devices do not reach each other."""
    n_devices, n_switches = draw(st.integers(2, 4)), draw(st.integers(0, 4))
    nodes = st.integers(0, n_devices + n_switches - 1)
    wires = Wires()
    for a, b, rate, latency in draw(
        st.lists(st.tuples(nodes, nodes, st.sampled_from([1e9, 2e9]), st.sampled_from([0.0, 1e-6])), min_size=1, max_size=14)
    ):
        if a != b:
            wires.join(a, b, rate, latency)
    forwards = draw(st.booleans())
    try:
        return _cluster(n_devices, n_switches, wires.links(), forwards=forwards)
    except InputError:
        return None


@settings(max_examples=150, deadline=None)
@given(cluster=_clusters())
def test_loads_and_latencies_equal_the_slow_twin(routes_oracle: ModuleType, cluster: Cluster | None) -> None:
    if cluster is None:
        return
    n = cluster.n_devices
    pairs = [(a, b) for a in range(n) for b in range(n)]
    expected = np.zeros(len(cluster.links))
    for k, (a, b) in enumerate(pairs):
        share, slowest = routes_oracle.load(cluster, a, b)
        for link, part in share.items():
            expected[link] += float(part) * (k + 1)
        _, found = routes.load(cluster, np.array([a]), np.array([b]))
        assert found[0] == pytest.approx(slowest, abs=1e-15)
    source, target = np.array(pairs).T
    load, _ = routes.load(cluster, source, target, np.arange(1.0, len(pairs) + 1))
    np.testing.assert_allclose(load, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "spec",
    ["dgx-h100:72", "dgx-v100:20", "fat-tree:54", "torus:3x4x5", "dragonfly:72", "rail-only:24,per_node=4", "p4d-a100:24"],
)
def test_what_flows_into_a_node_flows_out_or_stays(spec: str) -> None:
    cluster = clusters.cluster(spec)
    rng = np.random.default_rng(1)
    source, target = rng.integers(0, cluster.n_devices, (2, 300))
    amount = rng.uniform(1, 2, 300)
    amount[source == target] = 0.0
    load, _ = routes.load(cluster, source, target, amount)
    n_nodes = cluster.n_devices + cluster.n_switches
    come = np.bincount(cluster.links.target, load, n_nodes) + np.bincount(source, amount, n_nodes)
    leave = np.bincount(cluster.links.source, load, n_nodes) + np.bincount(target, amount, n_nodes)
    np.testing.assert_allclose(come, leave)


def test_a_fat_tree_gives_every_device_its_full_bandwidth_across_the_bisection() -> None:
    cluster = clusters.cluster("fat-tree:16,k=4,bandwidth=1 GB/s")
    ids = np.arange(16)
    load, _ = routes.load(cluster, ids, (ids + 8) % 16)
    assert (load / cluster.links.bytes_per_second).max() == pytest.approx(1e-9)


def test_oversubscription_by_two_halves_what_crosses_the_tree() -> None:
    cluster = clusters.cluster("fat-tree:16,k=4,bandwidth=1 GB/s,oversubscription=2")
    ids = np.arange(16)
    load, _ = routes.load(cluster, ids, (ids + 8) % 16)
    assert (load / cluster.links.bytes_per_second).max() == pytest.approx(2e-9)


def test_a_node_uses_its_fast_switch_and_rails_meet_at_the_spine() -> None:
    cluster = clusters.cluster("rail-optimised:16,per_node=8,latency=1 us")
    _, latency = routes.load(cluster, np.array([0, 0, 0]), np.array([1, 8, 9]))
    np.testing.assert_allclose(latency, [2e-6, 2e-6, 4e-6])


def test_without_a_spine_traffic_between_rails_passes_through_a_neighbour() -> None:
    cluster = clusters.cluster("rail-only:16,per_node=8,latency=1 us")
    _, latency = routes.load(cluster, np.array([0]), np.array([9]))
    assert latency[0] == pytest.approx(4e-6)


def test_a_torus_is_symmetric_under_traffic_from_all_to_all() -> None:
    cluster = clusters.cluster("torus:3x3x3")
    source, target = (ends.ravel() for ends in np.mgrid[:27, :27])
    load, _ = routes.load(cluster, source, target)
    np.testing.assert_allclose(load, load[0])


def test_a_twisted_torus_has_shorter_ways_than_a_plain_one() -> None:
    totals = []
    for text in ("torus:4x8", "torus:4x8,twisted=true"):
        cluster = clusters.cluster(text)
        source, target = (ends.ravel() for ends in np.mgrid[:32, :32])
        load, _ = routes.load(cluster, source, target)
        totals.append((load.sum(), load.max()))
    assert totals[1][0] < totals[0][0]
    assert totals[1][1] < totals[0][1]


@pytest.mark.parametrize("spec", ["dgx-v100:24", "dgx-h100:24", "fat-tree:16"])
def test_many_pairs_are_laid_out_in_pieces(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, random = clusters.cluster(spec), np.random.default_rng(2)
    source, target = random.integers(0, cluster.n_devices, (2, 100))
    amount = random.uniform(0.1, 1.0, 100)
    at_once = routes.load(cluster, source, target, amount)
    monkeypatch.setattr(routes, "MOST_PAIRS", 7)
    for a, b in zip(routes.load(cluster, source, target, amount), at_once, strict=True):
        assert np.array_equal(a, b)


@st.composite
def _forests(draw: st.DrawFn) -> tuple[Cluster, bool]:
    """Return devices that forward, joined as one or two trees or with one wire more, and whether they are trees."""
    n = draw(st.integers(2, 9))
    wires, latencies = Wires(), st.sampled_from([0.0, 1e-6, 3e-6])
    below = [(i, draw(st.integers(0, i - 1))) for i in range(1, n)]
    for a, b in below:
        wires.join(a, b, draw(st.sampled_from([1e9, 2e9])), draw(latencies))
    more = draw(st.booleans())
    if more:  # a circle, or a second wire between two nodes
        a, b = draw(st.sampled_from([(a, b) for a in range(n) for b in range(a)]))
        wires.join(a, b, 1e9, draw(latencies))
    return _cluster(n, 0, wires.links(), forwards=True), not more


@settings(max_examples=150, deadline=None)
@given(_forests(), st.randoms(use_true_random=False))
def test_routes_in_trees_are_those_of_any_network(drawn: tuple[Cluster, bool], random: Random) -> None:
    cluster, are_trees = drawn
    own = routes.tables(cluster)
    assert (own.trees is not None) == are_trees
    n = cluster.n_devices
    pairs = [(random.randrange(n), random.randrange(n)) for _ in range(2 * n)]
    source, target = np.array(pairs, dtype=np.int64).T
    amount = np.array([random.random() for _ in pairs])
    plain = replace(own, trees=None)
    load, latency = routes._core(own, source, target, amount)
    expected_load, expected_latency = routes._core(plain, source, target, amount)
    assert np.allclose(load, expected_load, rtol=1e-14, atol=0.0) and np.array_equal(latency, expected_latency)
    assert np.array_equal(routes._near(own, source, target), routes._near(plain, source, target))


@pytest.mark.parametrize(
    ("links", "are_trees"),
    [
        ([(0, 1), (1, 0), (2, 3), (3, 2)], True),  # two trees, and a node that hangs on nothing
        ([(0, 1), (1, 0), (1, 2)], False),  # no link back, from the root on
        ([(1, 0), (2, 1), (1, 2)], False),  # nor towards it
        ([(0, 1), (0, 1), (1, 0)], False), ([(0, 1), (1, 0), (1, 0)], False),  # two of a way
        ([(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)], False),  # a circle
    ],
)  # fmt: skip
def test_trees_are_told_from_other_networks(links: list[tuple[int, int]], are_trees: bool) -> None:
    source, target = np.array(links, dtype=np.int64).T
    cost, n = np.arange(1, len(links) + 1), 5
    into, out = routes.ranges(target, n), routes.ranges(source, n)
    net = ForwardingNodes(*into, *out, source, target, cost, np.zeros(len(links)), np.array([False]))
    found, said = trees.rooted(net)
    assert said == are_trees
    if said:
        assert trees.distances(found, cost, np.array([0, 1, 3, 0, 4]), np.array([1, 0, 2, 2, 4])).tolist() == [1, 2, 4, FAR, 0]
