"""The picture of a topology: everything is in it once, links know what they carry, and thousands of devices stay small."""

from __future__ import annotations

import json

import numpy as np
import pytest

from meshwright import clusters
from meshwright.core.cluster import Cluster
from meshwright.writers.report_html import topology_picture

SPECS = (
    "dgx-h100:64", "dgx-h100:8", "torus:4x4x4", "torus:4x4", "mesh:4x8", "rail-optimised:512", "rail-only:64", "fat-tree:128",
    "dragonfly:72", "ring:8", "random-regular:16", "full-mesh:8", "flat:8", "dgx-v100:16", "gb200-nvl72:144",
    "two-level:32,per_node=8",
)  # fmt: skip


def drawn(cluster: Cluster, carried: np.ndarray | None = None) -> dict:
    return topology_picture.picture(cluster, np.zeros(len(cluster.links)) if carried is None else carried, 2.0)


@pytest.mark.parametrize("spec", SPECS)
def test_every_device_is_drawn_once_inside_the_picture(spec: str) -> None:
    cluster = clusters.cluster(spec)
    found = drawn(cluster)
    cells = [item for item in found["items"] if item[4] in (topology_picture.DEVICE, topology_picture.GROUP)]
    assert sorted(item[6] for item in cells) == list(range(cluster.n_devices))
    for x, y, width, height, *_ in found["items"]:
        assert x >= 0 and x + width <= found["width"] + 0.2 and y >= 0 and y + height <= found["height"] + 0.2
        assert width > 0 and height > 0


@pytest.mark.parametrize("spec", SPECS)
def test_no_two_cells_or_switches_lie_on_each_other(spec: str) -> None:
    boxes = np.array([item[:4] for item in drawn(clusters.cluster(spec))["items"] if item[4] != topology_picture.FRAME])
    apart_x = (boxes[:, None, 0] + boxes[:, None, 2] <= boxes[None, :, 0] + 0.15) | (
        boxes[None, :, 0] + boxes[None, :, 2] <= boxes[:, None, 0] + 0.15
    )
    apart_y = (boxes[:, None, 1] + boxes[:, None, 3] <= boxes[None, :, 1] + 0.15) | (
        boxes[None, :, 1] + boxes[None, :, 3] <= boxes[:, None, 1] + 0.15
    )
    assert (apart_x | apart_y | np.eye(len(boxes), dtype=bool)).all()


@pytest.mark.parametrize("spec", ["dgx-h100:64", "torus:4x4x4", "fat-tree:16", "ring:8", "dragonfly:18"])
def test_small_clusters_show_every_link(spec: str) -> None:
    cluster = clusters.cluster(spec)
    found = drawn(cluster)
    assert sum(link[2] for link in found["links"]) == len(cluster.links) // 2
    assert not any("together" in note for note in found["notes"])


def test_a_link_shows_the_share_of_its_bandwidth_that_it_carries() -> None:
    """Two of four ports carry half and a quarter of two seconds' worth, one way only."""
    cluster = clusters.cluster("flat:4,bandwidth=1 GB/s")
    carried = np.zeros(len(cluster.links))
    out = {int(source): link for link, source in enumerate(cluster.links.source) if source < 4}
    carried[out[1]], carried[out[2]] = 1e9, 0.5e9
    found = drawn(cluster, carried)
    device = [item[6] for item in found["items"]]
    uses = {device[link[0]]: link[3:6] for link in found["links"]}
    assert uses[1] == [0.5, 0, 1e9]
    assert uses[2] == [0.25, 0, 0.5e9]
    assert uses[0] == uses[3] == [0, 0, 0]


def test_what_is_drawn_together_shows_the_busiest_and_the_mean() -> None:
    cluster = clusters.cluster("fat-tree:128")
    carried = np.zeros(len(cluster.links))
    into = np.flatnonzero(cluster.links.source < 4)
    carried[into[0]] = cluster.links.bytes_per_second[into[0]]
    found = drawn(cluster, carried)
    (busy,) = [link for link in found["links"] if max(link[3:5]) > 0]
    assert (busy[2], busy[3], busy[7]) == (4, 0.5, 0.125)
    assert any("together" in note for note in found["notes"])


def test_sixteen_thousand_devices_are_a_small_picture_that_says_what_it_joins() -> None:
    cluster = clusters.cluster("dgx-h100:16384")
    found = drawn(cluster)
    assert len(json.dumps(found)) < 200_000
    assert any("a cell is a node" in note for note in found["notes"])
    assert any("2048 nodes are drawn in 64 frames" in note for note in found["notes"])
    cells = [item for item in found["items"] if item[4] == topology_picture.GROUP]
    assert len(cells) == 2048


def test_a_grid_says_what_its_short_strokes_are() -> None:
    torus, mesh = drawn(clusters.cluster("torus:4x4")), drawn(clusters.cluster("mesh:4x4"))
    assert sum(link[6] > 0 for link in torus["links"] if len(link) > 6) == 8
    assert any("around the torus" in note for note in torus["notes"])
    assert mesh["notes"] == [] and all(len(link) == 6 for link in mesh["links"])
