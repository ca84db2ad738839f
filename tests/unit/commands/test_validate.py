"""``meshwright validate``: the page and the worst rows; wrong files and folders answered in one line."""

from __future__ import annotations

import pathlib
import signal
import time
from typing import Any

import pytest

from meshwright import validation

RUNS = "params_b,gpus,gbs,mbs,hidden,heads,layers,seq,tp,dp,pp,iter_ms\n3.6,8,16,2,1024,16,12,1024,1,8,1,500\n"


def test_the_page_is_written_and_the_worst_rows_printed(meshwright: Any) -> None:
    pathlib.Path("runs.csv").write_text(RUNS)
    done = meshwright("validate", "runs.csv", "--report", "page.html", "--worst", "3")
    assert done.code == 0, done.err
    assert "vtrain: worst rows by time" in done.out and "compute" in done.out
    assert "tp 1, dp 8" in pathlib.Path("page.html").read_text()


def test_a_folder_that_does_not_exist_is_named_before_anything_is_read(meshwright: Any) -> None:
    done = meshwright("validate", "none.csv", "--report", "nowhere/page.html")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "--report nowhere/page.html: the folder nowhere does not exist" in done.err


def test_a_wrong_cell_is_named_by_file_row_and_column_and_nothing_is_written(meshwright: Any) -> None:
    pathlib.Path("runs.csv").write_text(RUNS.replace(",500", ",fast"))
    done = meshwright("validate", "runs.csv", "--report", "page.html")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "runs.csv: row 1, column iter_ms: 'fast' is no number" in done.err
    assert not pathlib.Path("page.html").exists()


def test_a_wrong_cell_of_ones_own_runs_ends_the_command_and_what_is_not_used_is_told(meshwright: Any) -> None:
    text = (
        "model,cluster,global_batch,micro_batch,data,tensor,pipeline,step_seconds,note\ngpt2,dgx-a100:8,16,1,8,1,1,0.5,night\n"
    )
    pathlib.Path("runs.csv").write_text(text)
    done = meshwright("validate", "runs.csv", "--json")
    assert done.code == 0 and done.json["sets"][0]["unused_columns"] == ["note"]
    pathlib.Path("runs.csv").write_text(text.replace("16,1,8,1,1", "16,1,8,1.5,1"))
    done = meshwright("validate", "runs.csv")
    assert done.code == 2 and done.err.count("\n") == 1 and "runs.csv: row 1, column tensor: " in done.err


def test_a_built_in_set_is_named_without_its_ending_and_listed_with_kind_rows_and_source(meshwright: Any) -> None:
    done = meshwright("validate", "korthikanti_iteration", "torchtitan", "--json")
    assert done.code == 0, done.err
    known = meshwright("list", "measured", "--json").json["measured"]
    for found in done.json["sets"]:
        line = known[found["file"].removesuffix(".csv")]
        assert line.startswith(f"{found['n_rows']} rows of the kind {found['kind']}; ")
    assert "arXiv 2205.05198" in known["korthikanti_iteration"] and "github:pytorch/torchtitan" in known["torchtitan"]


def test_all_means_every_built_in_set(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pathlib.Path("runs.csv").write_text(RUNS)
    read: list[str] = []

    def count_rows(word: str, framework: str = "") -> validation.Report:
        read.append(word)
        return validation.Report(word, "vtrain", (), ())

    monkeypatch.setattr(validation, "validate", count_rows)
    assert meshwright("validate", "all", "runs.csv").code == 0
    assert read == [*meshwright("list", "measured", "--json").json["measured"], "runs.csv"]


def test_a_set_that_is_not_there_is_answered_by_one_line_that_names_those_that_are(meshwright: Any) -> None:
    done = meshwright("validate", "vtrain_a10")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "did you mean 'vtrain_a100'" in done.err and "simumax_b200" in done.err
    assert "cannot be read" in meshwright("validate", "vtrain_a100.csv").err  # an ending makes it a path


def test_a_file_of_the_name_of_a_set_is_the_file(meshwright: Any) -> None:
    pathlib.Path("torchtitan").write_text(RUNS)
    assert meshwright("validate", "torchtitan", "--json").json["sets"][0]["kind"] == "vtrain"


def test_sets_predicted_before_time_was_up_are_shown_and_the_others_named(
    meshwright: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pathlib.Path("runs.csv").write_text(RUNS)
    predicted = validation.validate

    def slow(path: Any, **more: Any) -> Any:
        if str(path) != "runs.csv":
            time.sleep(60.0)
        return predicted(path, **more)

    monkeypatch.setattr(validation, "validate", slow)
    done = meshwright("validate", "runs.csv", "torchtitan", "vtrain_a100", "--time-limit", "3", "--json")
    assert done.code == 0 and done.json["complete"] is False and len(done.json["sets"]) == 1
    assert "time was up; not predicted: torchtitan, vtrain_a100" in done.err
    done = meshwright("validate", "torchtitan", "--time-limit", "0.1")
    assert done.code == 2 and done.out == "" and "time was up before the end; there is no answer" in done.err
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
