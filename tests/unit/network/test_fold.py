"""One set of groups of every class must say, to the last digit, what all groups on the whole cluster say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from meshwright import clusters
from meshwright.core.cluster import Cluster, Links
from meshwright.network import Network, collectives, routes
from meshwright.network import fold as folding
from meshwright.network.fold import Fold, fold
from meshwright.network.wired import ClusterPart

SPECS = (
    "dgx-h100:320", "dgx-a100:72", "dgx-v100:24", "pcie-a100:32", "gb200-nvl72:144", "two-level:48,per_node=8",
    "fat-tree:54,oversubscription=2", "dragonfly:36", "torus:4x4", "rail-optimised:96,nodes_per_pod=3,oversubscription=2",
    "rail-only:32", "full-mesh:6",
)  # fmt: skip
CHANGES = ("as built", "three slow links", "unlike links", "numbered anew", "all algorithms")


@pytest.fixture(autouse=True)
def _no_cluster_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "SMALL", 0)


def changed(cluster: Cluster, change: str) -> Cluster:
    """Return the cluster without periods, changed."""
    links, random = cluster.links, np.random.default_rng(7)
    rate, latency, groups, ends = links.bytes_per_second, links.latency_seconds, cluster.groups, (links.source, links.target)
    if change == "three slow links":
        rate = rate * np.where(np.isin(np.arange(len(links)), random.choice(len(links), 3)), 0.25, 1.0)
    if change == "unlike links":
        rate, latency = rate * random.uniform(0.2, 1.0, len(links)), latency * random.uniform(1.0, 3.0, len(links))
    if change == "numbered anew":
        number = random.permutation(cluster.n_devices)
        every = np.append(number, np.arange(cluster.n_devices, cluster.n_devices + cluster.n_switches))
        ends, groups = (every[links.source], every[links.target]), groups[:, np.argsort(number)]
    found = dataclasses.replace(cluster, links=Links(*ends, rate, latency), groups=groups, periods=())
    return dataclasses.replace(found, algorithms=(), reduces_in_switch=True) if change == "all algorithms" else found


def tables(n_devices: int) -> list[np.ndarray]:
    """Return axes of meshes on all devices and on the last half, and groups of devices anywhere."""
    ids, random = np.arange(n_devices), np.random.default_rng(3)
    found = []
    for used in (ids, ids[n_devices // 2 :]):
        for size, stride in ((2, 1), (4, 2), (8, 1), (4, 8), (len(used) // 8, 8), (len(used), 1)):
            if size > 1 and len(used) % (size * stride) == 0:
                found.append(used.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size))
    found += [random.permutation(n_devices)[: max(6, n_devices // 12 * 6)].reshape(-1, 6) for _ in range(2)]
    found.append(np.sort(random.integers(0, n_devices, (5, 1)), axis=1) + np.array([[0, 1]]) - 1)  # devices in several groups
    return [np.ascontiguousarray(table % n_devices) for table in found]


def spread(folded: Fold, load: np.ndarray, n_links: int) -> np.ndarray:
    """Return what every link of the cluster carries."""
    links, amount = folded.spread(load)
    found = np.zeros(n_links)
    found[links] = amount
    return found


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("spec", SPECS)
def test_every_way_is_the_same_to_the_last_digit(spec: str, change: str) -> None:
    cluster = changed(clusters.cluster(spec), change)
    for i, groups in enumerate(tables(cluster.n_devices)):
        folded = fold(cluster, groups)
        for kind in ("all_reduce", ("all_gather", "all_to_all", "broadcast")[i % 3 if groups.shape[1] <= 64 else 0]):
            whole = collectives.ways(cluster, groups, kind)
            found = collectives.ways(folded.part, folded.groups, kind)
            assert [way.line for way in found] == [way.line for way in whole], (i, kind)
            for a, b in zip(found, whole, strict=True):
                assert np.array_equal(spread(folded, a.load, len(cluster.links)), b.load), (i, kind, a.line.algorithm)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("spec", SPECS)
def test_shares_of_pairs_are_the_same_to_the_last_digit(spec: str, change: str) -> None:
    cluster = changed(clusters.cluster(spec), change)
    n, random = cluster.n_devices, np.random.default_rng(11)
    for source, target in ((np.arange(n // 2), np.arange(n // 2) + n // 2), random.integers(0, n, (2, n))):
        for share in (np.ones(len(source)), random.choice([0.25, 1 / 3, 0.7], len(source))):
            load, latency = routes.load(cluster, source, target, share)
            found, links, amount = Network.of(cluster).sends(source, target, share)
            assert found == cluster.launch_seconds + latency.max()
            assert np.array_equal(links, np.flatnonzero(load > 0.0))
            assert np.array_equal(amount, load[links])


@pytest.mark.parametrize(
    ("size", "stride", "n_kept", "n_devices"),
    [(8, 1, 1, 8), (4, 1, 1, 4), (2048, 8, 1, 2048), (128, 1, 2, 256), (16, 8, 1, 16), (64, 1, 4, 256)],
)
def test_alike_groups_of_16384_devices_are_one(size: int, stride: int, n_kept: int, n_devices: int) -> None:
    cluster = clusters.cluster("dgx-h100:16384")
    groups = np.arange(16384).reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    folded = fold(cluster, groups)
    assert folded.groups.shape == (n_kept, size)
    assert isinstance(folded.part, ClusterPart)
    assert (folded.part.n_devices, len(folded.part.links)) == (n_devices, len(np.unique(folded.copy_of)))
    assert fold(cluster, groups[len(groups) // 2 :]).key == folded.key  # the same groups elsewhere are the same question


def test_a_link_unlike_the_others_makes_a_class() -> None:
    cluster = clusters.cluster("dgx-h100:64")
    links = cluster.links
    rate = links.bytes_per_second.copy()
    rate[(links.source == 13) & (rate > 1e11)] /= 2  # to the switch of its node
    unlike = dataclasses.replace(cluster, links=Links(links.source, links.target, rate, links.latency_seconds), periods=())
    assert fold(cluster, np.arange(64).reshape(-1, 8)).rows.tolist() == [0]
    assert fold(unlike, np.arange(64).reshape(-1, 8)).rows.tolist() == [0, 1]
    assert fold(unlike, np.arange(64).reshape(-1, 4)).rows.tolist() == [0, 3]


def test_groups_that_meet_on_a_link_stay_together() -> None:
    cluster = clusters.cluster("two-level:16,per_node=4")
    across = np.arange(16).reshape(2, 2, 4).transpose(0, 2, 1).reshape(-1, 2)  # nodes 0 with 1, and 2 with 3
    folded = fold(cluster, across)
    assert folded.rows.tolist() == [0, 1, 2, 3]
    assert len(folded.links) == 2 * len(folded.part.links)


def test_small_clusters_and_such_whose_devices_forward_are_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "SMALL", 17)
    for spec in ("dgx-h100:8", "torus:4x4"):
        cluster = clusters.cluster(spec)
        assert fold(cluster, np.arange(8).reshape(-1, 2)).part is cluster
    assert fold(clusters.cluster("dgx-h100:16"), np.arange(8).reshape(-1, 2)).rows.tolist() == [0]
