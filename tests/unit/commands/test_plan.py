"""``meshwright plan``: one JSON object with the fields that scripts rely on, files written whole, exit codes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest


def _same_but_time(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "planning_seconds"}


def test_json_is_one_object_with_the_fields_of_the_interface(meshwright: Any, tiny: str) -> None:
    done = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--json")
    assert done.code == 0 and done.err == ""
    entry = done.json
    assert entry["format"] == "meshwright/plan/1"
    assert (entry["search"], entry["costs"], entry["seed"], entry["feasible"]) == ("best", "analytic", 0, True)
    assert entry["objective"]["name"] == "step_seconds"
    assert set(entry["bound"]) == {"value", "gap_ratio", "method"}
    assert entry["bound"]["gap_ratio"] == pytest.approx(entry["objective"]["value"] / entry["bound"]["value"] - 1)
    assert entry["samples_per_second"] == pytest.approx(16 / entry["step_seconds"])
    assert 0 < entry["model_flops_utilization_ratio"] < 1
    assert set(entry["schedule"]) >= {"name", "n_microbatches"}
    assert entry["planning_seconds"] > 0 and entry["iterations"] >= 1
    for stage in entry["stages"]:
        assert set(stage) >= {"ops", "devices", "data", "tensor", "recompute", "peak_bytes"}
        assert len(stage["recompute"]) == len(stage["ops"])
    assert [op for stage in entry["stages"] for op in stage["ops"]] == ["embed", *(f"layers.{i}" for i in range(4)), "head"]


def test_the_whole_batch_passes_through_the_plan(meshwright: Any, tiny: str) -> None:
    entry = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "24", "--json").json
    schedule = entry["schedule"]
    assert entry["stages"][0]["data"] * schedule["n_microbatches"] * schedule["micro_batch"] == schedule["global_batch"] == 24


def test_the_same_question_gets_the_same_answer(meshwright: Any, tiny: str) -> None:
    words = ("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--json")
    assert _same_but_time(meshwright(*words).json) == _same_but_time(meshwright(*words).json)


def test_the_text_tells_plan_time_memory_alternatives_and_what_would_help(meshwright: Any, tiny: str) -> None:
    done = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16")
    assert done.code == 0
    for section in ("step: ", "proven: ", "plan: ", "time: ", "memory: "):
        assert section in done.out
    assert "runners-up" in done.out and "samples/s at least, with: " in done.out
    shorter = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--no-what-if", "--top", "0").out
    assert "runners-up" not in shorter and "samples/s at least, with: " not in shorter


def test_top_limits_the_alternatives(meshwright: Any, tiny: str) -> None:
    words = ("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--json")
    assert len(meshwright(*words, "--top", "1").json["alternatives"]) == 1
    several = meshwright(*words, "--top", "3").json
    values = [other["objective"]["value"] for other in several["alternatives"]]
    assert values == sorted(values) and values[0] >= several["objective"]["value"]


def test_a_missing_batch_is_assumed_aloud(meshwright: Any, tiny: str) -> None:
    notes = meshwright("plan", tiny, "--cluster", "flat:4", "--json").json["notes"]
    assert any("--global-batch" in note for note in notes)


def test_out_trace_and_report_are_written_whole(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    done = meshwright(
        *("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--json", "--no-what-if"),
        *("--out", "plan.json", "--trace", "trace.json", "--report", "report.html"),
    )
    assert done.code == 0
    assert json.loads((tmp_path / "plan.json").read_text()) == done.json
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "report.html").read_text().rstrip().endswith("</html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "report.html", "trace.json"]


def test_a_plan_file_plays_again_to_the_same_step(meshwright: Any, tiny: str) -> None:
    planned = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--json", "--out", "plan.json").json
    played = meshwright("simulate", "plan.json", "--json")
    assert played.code == 0
    assert played.json["step_seconds"] == pytest.approx(planned["step_seconds"], rel=1e-12)


def test_settings_fix_degrees(meshwright: Any, tiny: str) -> None:
    words = ("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--json")
    entry = meshwright(*words, "--set", "tensor=2", "--set", "pipeline=2").json
    assert len(entry["stages"]) >= 2 and {stage["tensor"] for stage in entry["stages"]} == {2}


def test_where_nothing_fits_the_answer_says_what_is_missing_and_what_would_do(meshwright: Any, tmp_path: pathlib.Path) -> None:
    words = (
        "plan",
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
    done = meshwright(*words, "--json", "--out", "plan.json", "--report", "report.html")
    assert done.code == 3
    entry = done.json
    assert entry["feasible"] is False and entry["missing_bytes"] > 0 and "fits on g4dn-t4:" in entry["nearest"]
    assert entry["stages"] == [] and entry["step_seconds"] is None
    assert "report.html cannot be drawn" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    text = meshwright(*words)
    assert text.code == 3 and "Nothing fits." in text.out and "Nearest: fits on g4dn-t4:" in text.out
    # the nearest plan is not a guess: it is found again
    n_devices = entry["nearest"].split("g4dn-t4:")[1].split(":")[0]
    again = meshwright(
        "plan", "llama-3.2-3b", "--cluster", f"g4dn-t4:{n_devices}", *words[4:], "--json", "--set", "evaluations=1"
    )
    assert again.code == 0


def test_costs_without_seconds_refuse_a_timeline_before_anything_is_written(meshwright: Any, tmp_path: pathlib.Path) -> None:
    words = ("plan", "pase:alexnet", "--search", "data_parallel", "--set", "n_processors=4")
    done = meshwright(*words, "--out", "plan.json", "--trace", "trace.json")
    assert done.code == 2 and "trace.json" in done.err and done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    entry = meshwright(*words, "--json").json
    assert entry["step_seconds"] is None and entry["objective"]["value"] > 0


def test_what_would_help_ends_with_the_time_limit(planned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.commands.plan import Outputs, show

    assert show(planned, Outputs("", "", "", True, False, left_seconds=0.0)) == 0
    over = capsys.readouterr()
    assert "--time-limit is over before all was planned that would help" in over.err and "twice the memory" not in over.out
    assert show(planned, Outputs("", "", "", True, False)) == 0
    done = capsys.readouterr()
    assert "--time-limit" not in done.err and "twice the memory" in done.out


def test_settings_are_those_given_and_with_fix_those_it_makes(meshwright: Any, tiny: str) -> None:
    asked = ("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--set", "evaluations=3", "--json")
    assert meshwright(*asked).json["settings"] == {"evaluations": "3"}
    assert meshwright(*asked, "--fix", "tensor=2").json["settings"] == {"evaluations": "3", "tensor": "2"}
