"""Orders of the devices: permutations without repetition, the expected places, nothing twice."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.network import placement


@pytest.mark.parametrize("spec", ["dgx-h100:24", "dgx-v100:13", "torus:4x4x4", "fat-tree:20", "gh200:70", "random-regular:10"])
@pytest.mark.parametrize("n", [0, 1, 4, 10])
def test_an_order_names_every_device_at_most_once_and_no_order_comes_twice(spec: str, n: int) -> None:
    cluster = clusters.cluster(spec)
    found = placement.orders(cluster, n)
    assert found[0][0] == "node_by_node"
    for name, order in found:
        assert len(order) == (n or cluster.n_devices), name
        assert len(np.unique(order)) == len(order)
        assert order.min() >= 0 and order.max() < cluster.n_devices
    assert len({order.tobytes() for _, order in found}) == len(found)


def test_across_nodes_puts_neighbouring_ranks_on_different_nodes() -> None:
    orders = dict(placement.orders(clusters.cluster("dgx-h100:16")))
    assert orders["node_by_node"].tolist() == list(range(16))
    assert orders["across_nodes"].tolist() == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]


def test_boxes_of_a_torus_are_cubes() -> None:
    order = dict(placement.orders(clusters.cluster("torus:4x4x4")))["boxes"]
    for box in order.reshape(8, 8):
        x, y, z = box // 16, box // 4 % 4, box % 4
        assert [np.ptp(c) for c in (x, y, z)] == [1, 1, 1]


def test_fast_devices_come_first_in_a_mixed_cluster(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(
        "nodes:\n"
        "  - {name: slow, devices: [t4-16gb, t4-16gb], switch: {bandwidth: 6 GB/s}}\n"
        "  - {name: fast, devices: [v100-sxm2-32gb, v100-sxm2-32gb], switch: {bandwidth: 22 GB/s}}\n"
        "links: [{from: slow, to: fast, bandwidth: 3 GB/s}]\n"
    )
    orders = dict(placement.orders(clusters.cluster(str(path))))
    assert orders["fast_first"].tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize("n", [-1, 17])
def test_more_devices_than_there_are_cannot_be_placed(n: int) -> None:
    with pytest.raises(InputError, match="16"):
        placement.orders(clusters.cluster("dgx-h100:16"), n)
