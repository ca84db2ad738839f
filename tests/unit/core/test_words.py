"""Answers as Python and notebooks show them: few lines, a table of HTML, a table of stages, plain values."""

from __future__ import annotations

import json
import pathlib
import sys
import types
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core import words
from meshwright.core.result import Answer, Result

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


@pytest.fixture(scope="module")
def result() -> Result:
    return api.plan(TINY, "flat:4", global_batch=16, fix={"pipeline": 2, "tensor": 1, "data": 2})


def test_an_answer_is_about_ten_lines(result: Result) -> None:
    lines = repr(result).splitlines()
    assert 5 <= len(lines) <= 12 and all(len(line) < 400 for line in lines)
    assert lines[0] == "<Result of search best>" and " a step" in lines[1] and "proven: " in lines[1]
    assert any(line.startswith("plan: data 2, pipeline 2") and "on 4 devices" in line for line in lines)


def test_html_is_a_table_and_escapes_names(result: Result) -> None:
    spec = replace(result.problem.model_spec, name="<b>m</b>")
    found = replace(result, problem=replace(result.problem, model_spec=spec))._repr_html_()
    assert "<b>" not in found and "&lt;b&gt;m" in found and found.count("<tr>") == found.count("</tr>") >= 4


def test_values_are_those_of_the_command(result: Result) -> None:
    entry = result.to_dict()
    assert entry["format"] == "meshwright/plan/1" and entry["step_seconds"] == result.step_seconds
    assert entry["fixed"]["values"] == {"pipeline": "2", "tensor": "1", "data": "2"} and json.dumps(entry)


def test_a_frame_has_a_row_for_each_stage(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    class DataFrame:
        def __init__(self, rows: list[dict[str, object]]) -> None:
            self.rows = rows

    stand_in = types.ModuleType("polars")
    stand_in.DataFrame = DataFrame  # type: ignore[attr-defined]
    stand_in.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "polars", stand_in)
    rows = result.to_frame("polars").rows
    assert [row["stage"] for row in rows] == [0, 1] and rows[0]["first_op"] == "embed" and rows[1]["last_op"] == "head"
    assert {row["n_devices"] for row in rows} == {2} and all(row["peak_bytes"] > 0 for row in rows)
    with pytest.raises(InputError, match=r"to_frame\('pandas'\)"):
        result.to_frame("excel")
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="neither pandas nor polars is installed; pip install pandas"):
        result.to_frame()


def test_a_real_frame_where_one_is_installed(result: Result) -> None:
    pandas = pytest.importorskip("pandas", reason="optional")
    assert list(result.to_frame("pandas").columns) == list(words.rows(result.to_dict())[0]) and pandas


def test_show_prints_what_the_command_prints(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    result.show()
    few = capsys.readouterr().out
    result.show(verbose=True)
    all_of_it = capsys.readouterr().out
    assert "with pipeline=2, tensor=1, data=2 given: " in few and "\ntime: " in few
    assert "allocated" in all_of_it and "allocated" not in few


def test_an_answer_without_a_plan_shows_what_is_missing(result: Result) -> None:
    answer = Answer(None, missing_bytes=2.0**30, nearest="16 devices", infeasible_proven=True)
    nothing = Result(result.problem, "best", 0, answer)
    said = repr(nothing)
    assert "nothing fits; the nearest plan lacks 1 GiB" in said and "nearest: 16 devices" in said
    assert nothing.to_frame.__name__ == "to_frame" and words.rows(nothing.to_dict()) == []


def test_words_have_plurals() -> None:
    assert [words.plural(1, "layer"), words.plural(2, "micro-batch"), words.plural(0, "row")] == [
        "1 layer", "2 micro-batches", "0 rows",
    ]  # fmt: skip
