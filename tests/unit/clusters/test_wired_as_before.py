"""Clusters as they were wired when this was written: every topology and kind of node, full and partly filled."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.clusters import built_in, nodes
from meshwright.core.cluster import Cluster
from recorded import Recorded

RATES = "bandwidth=10 GB/s,latency=2 us"
SPECS = (
    "dragonfly:72,devices_per_router=2", "dragonfly:18", "dragonfly:7", "dragonfly:30,devices_per_router=2,routers_per_group=3",
    "dragonfly:36,devices_per_router=3,global_links=2", "dragonfly:100", "dragonfly:900,devices_per_router=1",
    "fat-tree:16", "fat-tree:128,oversubscription=2", "fat-tree:5", "fat-tree:33,oversubscription=4", "fat-tree:54",
    "fat-tree:1", "fat-tree:1025", "tpu-v4:64", "tpu-v4:8", "tpu-v4:16", "tpu-v4:128", "tpu-v4:100", "tpu-v4:4096",
    "random-regular:16,degree=3,seed=1", "random-regular:9,degree=4,seed=2", "random-regular:9,degree=3,seed=2",
    "random-regular:5,degree=4,seed=0", "random-regular:4,degree=4,seed=0", "random-regular:12,degree=2,seed=7",
    "two-level:16,per_node=8,bandwidth=25 GB/s", "two-level:13,per_node=4,bandwidth=25 GB/s", "two-level:3,per_node=4",
    "torus:4x4x4", "torus:3x5", "torus:2x2", "torus:7", "torus:2x3x4x2", "torus:1x4", "mesh:3x5", "mesh:2", "mesh:2x2x3",
    "rail-only:16,per_node=4", "rail-only:10,per_node=4", "rail-optimised:24,per_node=4,oversubscription=2",
    "rail-optimised:10,per_node=4", "ring:5", "ring:2", "ring:1", "ring:16", "full-mesh:5", "full-mesh:1", "flat:3",
    "flat:1", "ring:0", "ring:x", "ring:5,colour=red", "torus:4x", "torus:0x3", "torus:4x-1", "nothing:4",
)  # fmt: skip
KINDS = sorted(set(built_in.stems().values()))


def wired(cluster: Cluster, *, rates: bool) -> list[Any]:
    """Return how a cluster is wired; of its rates and latencies only the order unless they are told."""
    links = cluster.links
    largest = cluster.groups.max(axis=1).tolist()
    found: list[Any] = [cluster.n_devices, cluster.n_switches, len(links), largest, zlib.crc32(cluster.groups.tobytes())]
    found += [list(cluster.periods), cluster.devices_per_host, cluster.forwards, len(cluster.kinds)]
    ends = np.stack((links.source, links.target)).astype("<i8")
    by_end = np.lexsort(ends)
    if "random" not in cluster.name:  # drawn by NumPy, whose draws may change
        found.append(zlib.crc32(np.ascontiguousarray(ends[:, by_end]).tobytes()))
    for column in (links.bytes_per_second, links.latency_seconds):
        values, index = np.unique(column, return_inverse=True)
        found.append([float(f"{value:.6g}") for value in values] if rates else len(values))
        if "random" not in cluster.name:
            found.append(zlib.crc32(index[by_end].astype("<i8").tobytes()))
    return found


def built(spec: str, *, rates: bool) -> list[Any] | str:
    try:
        return wired(clusters.cluster(spec), rates=rates)
    except InputError as error:
        return str(error)[:200]


def test_topologies_are_wired_as_before(recorded: Recorded) -> None:
    recorded({spec: built(f"{spec},{RATES}" if "bandwidth" not in spec else spec, rates=True) for spec in SPECS})


@pytest.mark.parametrize("stem", KINDS)
def test_nodes_are_wired_as_before(stem: str, recorded: Recorded) -> None:
    name = stem.replace("_", "-")
    recorded({str(n): built(f"{name}:{n}", rates=False) for n in (1, 3, 8, 12, 73, 300, 0, -1)})


@pytest.mark.parametrize("stem", ["dgx_v100", "dgx_a100", "pcie_a100", "gb200_nvl72", "g5_a10g"])
def test_nodes_of_these_figures_have_these_rates(stem: str, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """Every figure of the file is replaced by one of the test's own, so that none of them is asked for twice."""
    told = copy.deepcopy(built_in.figures(stem))
    for place, table in enumerate(told[key] for key in ("nvlink", "pcie", "network") if key in told):
        for i, (key, entry) in enumerate(sorted(table.items())):
            if isinstance(entry, dict) and "value" in entry:
                step = 1 + place + i / 8
                own = {"achievable": 0.5 + step / 20, "latency": f"{step} us", "switch_latency": f"{step / 4} us"}
                entry["value"] = own.get(key, f"{10 * step} GB/s")
    told["launch"]["value"] = "7 us"
    monkeypatch.setattr(built_in, "figures", lambda _: told)
    found = []
    for n, pods, over in ((8, 2, 1), (20, 2, 1), (40, 2, 2), (37, 1, 4), (150, 1, 1)):
        told["network"].update(nodes_per_pod=pods, oversubscription=over)
        cluster = nodes.build(stem, n, "own")
        found.append([*wired(cluster, rates=True), cluster.launch_seconds])
    recorded(found)
