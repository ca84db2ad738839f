"""Task graphs of TopoOpt's authors against their packet simulator: the same files, played with fairly shared links."""

from __future__ import annotations

import pytest

import reference
from meshwright import clusters, models
from meshwright.planners.topoopt.readers import taskgraph_fbuf

ROWS = [
    row
    for row in reference.rows("topoopt/topoopt_packet_level.csv")
    if (reference.path("topoopt/taskgraphs") / row["taskgraph"]).exists()
]
NEAR = {"dlrm": 0.03, "vgg": 0.03, "transformer": 0.03, "candle": 0.08}
"""How near the step must come. CANDLE's transfers collide in the tree; how congestion control then shares a link is not
modelled, and its steps come out 2 to 7 % short, by the draw of paths."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["taskgraph"])
def test_a_step_takes_as_long_as_packet_by_packet(row: dict[str, str]) -> None:
    path = reference.path("topoopt/taskgraphs") / row["taskgraph"]
    rate = float(row["link_gbps"]) * 1e9 / 8
    tree = clusters.cluster(f"fat-tree:{row['fabric_nodes']},bandwidth={rate:g},latency=1e-6")
    step = taskgraph_fbuf.play(models.read(str(path)), tree)
    assert step.step_seconds * 1e3 == pytest.approx(float(row["iter_ms"]), rel=NEAR[row["workload"]])


def test_the_authors_files_are_here() -> None:
    assert len(ROWS) == 10 and {row["workload"] for row in ROWS} == set(NEAR)
