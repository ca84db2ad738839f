"""The bound of an all-gather: by hand, against all cuts of small graphs, and never above what an algorithm takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import clusters
from meshwright.clusters.wires import Wires
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.network import bounds, collectives

GB = 1e9


@pytest.mark.parametrize("n", [3, 4, 7])
def test_on_a_ring_everything_comes_in_over_two_links(n: int) -> None:
    cluster = clusters.cluster(f"ring:{n},bandwidth=1 GB/s")
    assert bounds.all_gather(cluster, range(n)) == pytest.approx((n - 1) / n / (2 * GB))


def test_on_one_switch_everything_comes_in_over_one_link() -> None:
    assert bounds.all_gather(clusters.cluster("flat:8,bandwidth=1 GB/s"), range(8)) == pytest.approx(7 / 8 / GB)


def test_between_two_nodes_half_of_it_passes_the_slow_link() -> None:
    cluster = clusters.cluster("two-level:8,per_node=4,node_bandwidth=100 GB/s,bandwidth=1 GB/s")
    assert bounds.all_gather(cluster, range(8)) == pytest.approx(4 / 8 / GB)


def test_one_device_needs_no_time() -> None:
    assert bounds.all_gather(clusters.cluster("flat:2"), [0]) == 0.0


@pytest.mark.parametrize(
    "spec", ["dgx-v100:8", "dgx-h100:16", "torus:3x4", "dragonfly:8", "random-regular:10", "fat-tree:8,k=4"]
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_no_algorithm_beats_the_bound(spec: str, kind: str) -> None:
    cluster = clusters.cluster(spec)
    bound = getattr(bounds, kind)(cluster, range(cluster.n_devices))
    assert bound > 0
    for line in collectives.lines(cluster, np.arange(cluster.n_devices)[None], kind):
        assert line.seconds_per_byte >= bound * (1 - 1e-9), line.algorithm


def test_packed_rings_reach_the_bound_on_a_dgx_1() -> None:
    cluster = clusters.cluster("dgx-v100:8")
    slopes = {line.algorithm: line.seconds_per_byte for line in collectives.lines(cluster, np.arange(8)[None], "all_gather")}
    assert slopes["packed_rings"] < 1.4 * bounds.all_gather(cluster, range(8))


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[Cluster, int]:
    n_devices, n_switches = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    n_nodes = n_devices + n_switches
    rates = st.sampled_from((1.0, 2.0, 3.0, 4.0, 1e4))  # one link may carry more than all that there is
    wires = Wires()
    for node in range(1, n_nodes):  # a tree, so that all is connected
        wires.join(node, draw(st.integers(0, node - 1)), draw(rates), 0.0)
    for a, b in draw(st.lists(st.tuples(st.integers(0, n_nodes - 1), st.integers(0, n_nodes - 1)), max_size=5)):
        if a != b:
            wires.join(a, b, draw(rates), 0.0)
    links: Links = wires.links()
    kind = Device("test", (("bf16", 1.0),), 1.0, 1.0)
    return (
        Cluster("test", (kind,), np.zeros(n_devices, np.int64), n_switches, links, np.arange(n_devices)[None]),
        draw(st.integers(2, n_devices)),
    )


@settings(max_examples=60, deadline=None)
@given(_clusters())
def test_the_bound_is_the_worst_of_all_cuts(drawn: tuple[Cluster, int]) -> None:
    _check_all_cuts(*drawn)


def test_a_link_faster_than_all_that_is_sent_is_no_cut() -> None:
    wires = Wires()
    for a, b, rate in ((1, 0, 1e5), (2, 0, 1.0), (3, 0, 3.0), (4, 1, 3.0), (2, 4, 1.0)):
        wires.join(a, b, rate, 0.0)
    kind = Device("test", (("bf16", 1.0),), 1.0, 1.0)
    _check_all_cuts(Cluster("test", (kind,), np.zeros(5, np.int64), 0, wires.links(), np.arange(5)[None]), 5)


def _check_all_cuts(cluster: Cluster, size: int) -> None:
    links = cluster.links
    n_nodes = cluster.n_devices + cluster.n_switches
    worst = 0.0
    for inside in itertools.product((False, True), repeat=n_nodes):
        part = np.array(inside)
        n_inside = int(part[:size].sum())
        if 0 < n_inside < size:
            leaving = links.bytes_per_second[part[links.source] & ~part[links.target]].sum()
            worst = max(worst, n_inside / leaving / size)
    assert bounds.all_gather(cluster, range(size)) == pytest.approx(worst)
