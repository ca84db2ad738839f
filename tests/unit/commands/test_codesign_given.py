"""`meshwright codesign` with plans that are given: task graphs, and strategy files of FlexNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reference

Run = Any  # what the fixture returns

SMALL = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64"
GRAPH = str(reference.path("topoopt/taskgraphs/100dlrm_16.fbuf"))
ASKED = ("--degree", "4", "--link-bandwidth", "100 Gbit/s")


def test_codesign_finds_a_network_for_a_task_graph(meshwright: Run) -> None:
    asked = ("codesign", GRAPH, "--servers", "16", *ASKED, "--topology", "topoopt,switch")
    answer = meshwright(*asked, "--json", "--taskgraph", "again.fbuf").json
    assert answer["model"]["global_batch"] is answer["samples_per_second"] is answer["plan"]["peak_bytes"] is None
    assert answer["bound"]["value"] <= answer["iteration_seconds"] and "plan of the file" in answer["bound"]["method"]
    assert {name: row["proposals"] for name, row in answer["topologies"].items()} == {"topoopt": 1, "switch": 1}
    assert Path("again.fbuf").stat().st_size > 10_000
    shown = meshwright(*asked, "--report", "page.html")
    assert shown.code == 0 and "the step of a task graph on 16 servers" in shown.out and "fullest server" not in shown.out
    assert "takes 17.6 ms at least" in shown.out and "The step of a task graph" in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--servers", "16", "--set", "global_batch=64"), "holds the whole plan"),
        (("--servers", "16", "--measures", "m.json"), "leave the rest out"),
        (("--servers", "8"), "is of 16 servers"),
        (("--servers", "16", "--export", "plan.txt"), "does not say the axes"),
    ],
)
def test_what_a_task_graph_leaves_no_choice_for_is_refused(words: tuple[str, ...], said: str, meshwright: Run) -> None:
    refused = meshwright("codesign", GRAPH, *ASKED, *words)
    assert refused.code == 2 and said in refused.err and not Path("plan.txt").exists()


def test_an_imported_plan_is_kept_and_takes_the_step_it_had(meshwright: Run) -> None:
    asked = ["codesign", SMALL, "--servers", "4", "--degree", "2", "--link-bandwidth", "10 Gbit/s", "--json"]
    asked += ["--set", "shard_weights=no", "--set", "control_edges=no", "--topology", "switch"]
    free = meshwright(*asked, "--budget", "80", "--export", "plan.txt").json
    kept = meshwright(*asked, "--import", "plan.txt").json
    assert kept["plan"]["operators"] == free["plan"]["operators"]
    assert kept["iteration_seconds"] == pytest.approx(free["iteration_seconds"], rel=1e-9)
    assert any("only networks are searched" in note for note in kept["notes"])
    assert kept["bound"] == free["bound"]
