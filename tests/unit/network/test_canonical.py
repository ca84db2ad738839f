"""One block of alike groups must cost what all of them cost."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from meshwright import clusters
from meshwright.network import Network, canonical

SPECS = ["dgx-h100:512", "dgx-v100:96", "g4dn-t4:24", "p4d-a100:64", "pcie-a100:48", "gb200-nvl72:288", "dgx-a100:520"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("degrees", [(1, 1, 8), (2, 1, 4), (1, 8, 1), (4, 2, 2), (2, 4, 4), (1, 3, 4), (1, 2, 1), (8, 1, 2)])
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_representative_costs_what_all_groups_cost(spec: str, degrees: tuple[int, int, int], axis: int) -> None:
    cluster = clusters.cluster(spec)
    plain = dataclasses.replace(cluster, periods=())
    per_block = math.prod(degrees)
    n = cluster.n_devices // per_block * per_block
    mesh = np.arange(n).reshape(n // per_block, *degrees)
    if n == 0 or mesh.shape[axis] == 1:
        return
    groups = np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis])
    for part in (groups, groups[len(groups) // 3 : 2 * len(groups) // 3]):
        for kind in ("all_reduce", "all_to_all"):
            for n_bytes in (1e3, 1e8):
                assert Network.of(cluster).axis(part).seconds(kind, n_bytes) == pytest.approx(
                    Network.of(plain).axis(part).seconds(kind, n_bytes)
                )
    pairs = np.stack([mesh[:-1].ravel(), mesh[1:].ravel()], axis=1)
    assert Network.of(cluster).transfer(pairs) == pytest.approx(Network.of(plain).transfer(pairs))


def test_groups_inside_the_nodes_are_represented_by_one_node() -> None:
    cluster = clusters.cluster("dgx-h100:16384")
    found = canonical.representative(cluster, np.arange(16384).reshape(-1, 4))
    assert found.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    moved = canonical.representative(cluster, np.arange(1024, 2048).reshape(-1, 8))
    assert moved.tolist() == [list(range(8))]


def test_groups_that_differ_are_all_kept() -> None:
    cluster = clusters.cluster("dgx-h100:16")
    groups = np.array([[0, 1], [2, 3], [8, 10], [9, 11]])
    assert canonical.representative(cluster, groups).tolist() == groups.tolist()
