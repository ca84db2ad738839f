"""Pictures of topologies as they were drawn when this was written, with loads of the test's own on their links."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from meshwright import clusters
from meshwright.core.cluster import Cluster
from meshwright.writers.report_html import topology_picture
from recorded import Recorded

SPECS = (
    "dgx-h100:8", "dgx-h100:16", "dgx-h100:72", "dgx-h100:80", "dgx-h100:600", "dgx-v100:16", "dgx-v100:3", "gb200-nvl72:144",
    "rtx-3090:12", "pcie-a100:16", "torus:4x4", "torus:3x4x2", "torus:5x6x40", "mesh:4x3", "mesh:2x3x2", "mesh:40x3",
    "rail-optimised:24,per_node=4", "rail-optimised:512", "rail-only:16,per_node=4", "fat-tree:16", "fat-tree:128",
    "dragonfly:18", "dragonfly:100", "ring:2", "ring:5", "ring:600", "full-mesh:4", "full-mesh:6", "flat:3", "flat:100",
    "two-level:13,per_node=4", "two-level:260,per_node=4", "dgx-h100:4800",
)  # fmt: skip


def loaded(cluster: Cluster) -> tuple[Cluster, np.ndarray]:
    """Return a cluster with rates of the test's own, and what each link carries: unlike each other, the last one nothing."""
    n = np.arange(len(cluster.links))
    links = dataclasses.replace(cluster.links, bytes_per_second=1e9 * (1.0 + n % 3))
    carried = 1e8 * (1.0 + (7 * n) % 11)
    carried[-1:] = 0.0
    return dataclasses.replace(cluster, links=links), carried


@pytest.mark.parametrize("spec", SPECS)
def test_a_picture_is_as_it_was(spec: str, recorded: Recorded) -> None:
    cluster, carried = loaded(clusters.cluster(spec))
    found: dict[str, Any] = topology_picture.picture(cluster, carried, 2.0)
    boxes, links = found["items"], found["links"]
    longest = max((len(link) for link in links), default=0)
    names = [item[5] for item in boxes if item[5]]
    recorded(
        {
            **{name: found[name] for name in ("width", "height", "notes")},
            "boxes": np.array([item[:5] + item[6:] for item in boxes], dtype=float),
            "names": [len(names), *names[:3], *names[-3:]],
            "links": np.array([link + [0] * (longest - len(link)) for link in links], dtype=float),
            "lengths": np.bincount([len(link) for link in links]),
        }
    )


def test_without_loads_or_time_nothing_is_carried() -> None:
    cluster, carried = loaded(clusters.cluster("dgx-h100:16"))
    plain = topology_picture.picture(cluster, np.zeros(0), 2.0)
    assert plain["links"] and all(not any(link[3:]) for link in plain["links"])
    assert topology_picture.picture(cluster, carried, 2.0)["items"] == plain["items"]
