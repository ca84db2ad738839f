"""Parmesan's topologies: the bandwidth of pairs as the paper's tables have them, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.planners.parmesan.bandwidth_table import hop_table


def rates(cluster: Cluster) -> np.ndarray:
    """Return GB/s between all devices, 0 on the diagonal; one wire for every pair."""
    n, links = cluster.n_devices, cluster.links
    table = np.zeros((n, n))
    np.add.at(table, (links.source, links.target), links.bytes_per_second / 1e9)
    assert len(links.source) == n * (n - 1) and (table == table.T).all()
    return table


def test_nodes_of_four_on_pcie_and_ethernet_between() -> None:
    cluster = clusters.cluster("parmesan-two-level:6")
    table = rates(cluster)
    for a in range(6):
        for b in range(6):
            assert table[a, b] == pytest.approx(0.0 if a == b else 11.0 if a // 4 == b // 4 else 1.1)
    assert cluster.node_of_device.tolist() == [0, 0, 0, 0, 1, 1]
    assert cluster.kinds[0].name.lower().startswith("titan")


def test_a_dgx_1_has_two_double_and_two_single_links_a_device_and_every_pair_but_those_goes_over_pcie() -> None:
    table = rates(clusters.cluster("parmesan-dgx1:16"))
    for device in range(16):
        near = np.delete(table[device, device // 8 * 8 : device // 8 * 8 + 8], device % 8)
        assert sorted(np.round(near, 6).tolist()) == [10.1, 10.1, 10.1, 21.4, 21.4, 43.2, 43.2]  # six NVLinks
        far = table[device, (1 - device // 8) * 8 : (2 - device // 8) * 8]
        assert np.allclose(far, 1.4)
    assert table[0, 3] == pytest.approx(43.2) and table[0, 1] == pytest.approx(21.4) and table[0, 5] == pytest.approx(10.1)
    assert np.array_equal(table[8:, 8:], table[:8, :8])


@pytest.mark.parametrize(
    ("hops", "rate"), [(1, 78.1), (2, 39.0), (5, 9.77), (20, 0.098), (21, 0.088), (30, 0.088), (31, 0.078), (51, 0.078),
                       (52, 0.068)]
)  # fmt: skip
def test_the_table_of_hops(hops: int, rate: float) -> None:
    assert hop_table(np.array([hops])) == pytest.approx(rate * 1e9)


def test_hops_are_counted_along_both_axes_and_round_the_ends_of_a_torus() -> None:
    mesh, torus = (rates(clusters.cluster(f"parmesan-{word}:4x3")) for word in ("mesh", "torus"))
    for a in range(12):
        for b in range(12):
            if a == b:
                continue
            steps = abs(a // 3 - b // 3), abs(a % 3 - b % 3)
            assert mesh[a, b] == pytest.approx(hop_table(np.array([sum(steps)]))[0] / 1e9)
            round_the_end = min(steps[0], 4 - steps[0]) + min(steps[1], 3 - steps[1])
            assert torus[a, b] == pytest.approx(hop_table(np.array([round_the_end]))[0] / 1e9)


def test_drawn_bandwidths_lie_in_the_papers_ranges_and_come_again_with_their_seed() -> None:
    unit = 1e6 / 1024  # the paper's MB/us in GB/s
    off = ~np.eye(64, dtype=bool)
    for word in ("uniform", "random-blocks-1", "random-blocks-2"):
        one, again, other = (rates(clusters.cluster(f"parmesan-{word}:64,seed={seed}")) for seed in (3, 3, 4))
        assert np.array_equal(one, again) and not np.array_equal(one, other)
    uniform = rates(clusters.cluster("parmesan-uniform:64"))[off] / unit
    assert 1e-5 < uniform.min() < 1e-4 and 9.9e-3 < uniform.max() < 1e-2 and uniform.mean() == pytest.approx(5e-3, rel=0.05)


@pytest.mark.parametrize("word", ["random-blocks-1", "random-blocks-2"])
def test_blocks_have_two_to_eight_devices_and_are_quicker_inside(word: str) -> None:
    unit = 1e6 / 1024
    cluster = clusters.cluster(f"parmesan-{word}:64")
    table, node = rates(cluster) / unit, cluster.node_of_device
    sizes = np.bincount(node)
    assert sizes[:-1].min() >= 2 and sizes.max() <= 8 and len(set(sizes.tolist())) > 2
    inside = (node[:, None] == node[None, :]) & ~np.eye(64, dtype=bool)
    between = node[:, None] != node[None, :]
    if word == "random-blocks-1":
        assert np.allclose(table[between], 1e-4)
        for block in range(len(sizes)):
            mine = table[np.ix_(node == block, node == block)][~np.eye(sizes[block], dtype=bool)]
            assert mine.size == 0 or (np.ptp(mine) < 1e-12 and 1e-4 < mine[0] < 1e-2)
        return
    first, last = np.flatnonzero(node == 0), np.flatnonzero(node == 1)
    near = table[first[0], last[0]]
    for distance in range(1, node.max() + 1):
        assert table[first[0], np.flatnonzero(node == distance)[0]] == pytest.approx(near / distance)
    assert table[inside].min() > 1e-5 and table[inside].max() < 1e-2 and len(np.unique(table[inside])) > 50
    assert near == pytest.approx(5e-4, rel=0.2)  # a tenth of the mean inside, which is near the middle of its range


def test_a_table_of_all_pairs_ends_at_1024_devices() -> None:
    with pytest.raises(InputError, match="at most 1024"):
        clusters.cluster("parmesan-uniform:1025")
