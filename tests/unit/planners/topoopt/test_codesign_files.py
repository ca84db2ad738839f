"""Files beside an answer of ``codesign``: cables with every port once, a page with everything, times that can be read back."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from meshwright import api
from meshwright.planners.topoopt import choices, networks
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.readers import flexflow_measures as reader
from meshwright.planners.topoopt.writers import codesign_html, flexflow_measures, wiring_csv


@pytest.fixture(scope="module")
def answer() -> Design:
    model = "topoopt:dlrm,tables=3,rows=1000,width=64,bottom=64-64,top=64-64-1,batch=6400"
    return api.codesign(
        model, servers=6, degree=3, link_bandwidth="1 Gbit/s", budget=10, topologies=("topoopt", "switch"),
        settings={"shard_weights": "no"},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["random", "torus", "fat-tree", "rail-optimised", "full-mesh", "oversubscribed"])
def test_every_port_has_one_cable_and_no_server_more_than_its_ports(name: str) -> None:
    built = networks.build(name, 16, 4, 1e9, 1e-6, 0)
    rows = list(csv.DictReader(io.StringIO(wiring_csv.as_csv(built.fabric, built.degree))))
    assert len(rows) == len(built.fabric.wires())
    ends = [(row[end], int(row[f"{end}_port"])) for row in rows for end in ("from", "to")]
    assert len(set(ends)) == len(ends)
    assert max(port for who, port in ends if who.startswith("server")) <= built.degree
    panel = [int(row[f"{end}_panel_port"]) for row in rows for end in ("from", "to") if row[f"{end}_panel_port"]]
    assert len(set(panel)) == len(panel) and max(panel) <= 16 * built.degree
    slow = [float(row["gbit_per_second"]) for row in rows if row["from"].startswith("switch")]
    assert name != "oversubscribed" or set(slow) == {16.0}


def test_the_cables_are_the_links_of_the_answer(answer: Design) -> None:
    fabric = dict(answer.entries)["topoopt"].found.fabric
    assert sorted(cable.ends for cable in wiring_csv.cables(fabric, 3)) == sorted(fabric.wires())


def test_the_page_holds_every_topology_operator_and_cable(answer: Design) -> None:
    page = codesign_html.page(answer)
    for word in ("topoopt", "switch", "Dense_64_64", "Embed_1000x64", "<svg", "Cables"):
        assert word in page
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert page.count("<table") == page.count("</table")


def test_times_written_are_read_back_and_make_the_same_choices(answer: Design, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    flexflow_measures.write(choices.measurements(answer.step.space), str(path))
    again = choices.space(answer.workload, answer.step.space.servers, reader.load(str(path)), shard=False, place=str(path))
    for before, after, operation in zip(answer.step.space.choices, again.choices, answer.workload.operations, strict=True):
        assert [choice.samples for choice in before] == [choice.samples for choice in after]
        if answer.workload.operations.index(operation) in (0, 1, 3):  # keys omit the input: others share the first's times
            for one, other in zip(before, after, strict=True):
                assert other.forward_seconds == pytest.approx(one.forward_seconds) and other.measured
                assert other.memory_bytes == pytest.approx(one.memory_bytes, abs=4)
