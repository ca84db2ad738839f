"""``meshwright show``: models, clusters and plans, as text and as JSON."""

from __future__ import annotations

import pathlib
from typing import Any

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"


def test_a_model_shows_its_layers_and_parameters(meshwright: Any) -> None:
    entry = meshwright("show", "llama-3.1-8b", "--json").json
    assert entry["kind"] == "model" and entry["n_layers"] == 34
    assert abs(entry["n_parameters"] / 8.03e9 - 1) < 0.005
    text = meshwright("show", "llama-3.1-8b").out
    assert "32 layers" in text and "8.03 B parameters" in text


def test_repeated_layers_are_one_row(meshwright: Any) -> None:
    rows = meshwright("show", "llama-3.1-8b", "--json").json["layers"]
    assert [row["n_layers"] for row in rows] == [1, 32, 1]


def test_a_cluster_shows_devices_links_and_sources(meshwright: Any) -> None:
    entry = meshwright("show", "dgx-h100:16", "--json").json
    assert entry["kind"] == "cluster" and entry["n_devices"] == 16
    assert entry["devices"][0]["flops_per_second"]["bf16"] > 5e14 and entry["devices"][0]["source"]
    assert "16 devices" in meshwright("show", "dgx-h100:16").out


def test_a_cluster_file_of_two_kinds_shows_both(meshwright: Any) -> None:
    entry = meshwright("show", str(DATA / "two_kinds.yaml"), "--json").json
    assert [device["n_devices"] for device in entry["devices"]] == [2, 2]


def test_a_plan_file_shows_its_stages(meshwright: Any, tiny: str) -> None:
    meshwright(
        "plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--set", "pipeline=2", "--json", "--out", "plan.json"
    )
    entry = meshwright("show", "plan.json", "--json").json
    assert entry["kind"] == "plan" and len(entry["plan"]["stages"]) >= 2
    assert "stage 1: " in meshwright("show", "plan.json").out


def test_the_answer_that_nothing_fits_shows_what_is_missing(meshwright: Any) -> None:
    question = (
        "llama-3.2-3b",
        "--cluster",
        "g4dn-t4:1",
        "--global-batch",
        "8",
        "--sequence-length",
        "512",
        "--precision",
        "fp16",
    )
    assert meshwright("plan", *question, "--json", "--out", "plan.json").code == 3
    done = meshwright("show", "plan.json")
    assert done.code == 0 and "nothing fits" in done.out


def test_a_plan_with_a_doubled_key_is_refused(meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "twice.json").write_text('{"format": "meshwright/plan/1", "stages": [], "stages": [1]}')
    done = meshwright("show", "twice.json")
    assert done.code == 2 and "stands twice" in done.err and not done.out
