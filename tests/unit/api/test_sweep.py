"""Sweeps over batch sizes: the same rows whatever runs them, refusals, table, CSV and plot."""

from __future__ import annotations

import json
import pathlib
import warnings
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.api import sweep as sweeping
from meshwright.api.sweep import Row, batches, sweep
from meshwright.base.errors import InputError, MissingExtraError
from meshwright.core.problem import Batch, Problem, Stop
from meshwright.core.result import Bound
from meshwright.report import sweep_table

PROFILE = "\n".join(
    [
        f"n{i} -- L{i} -- forward_compute_time={2 + i}, backward_compute_time={4 + i}, activation_size=1e6, parameter_size=2e8"
        for i in range(5)
    ]
    + [f"\tn{i} -- n{i + 1}" for i in range(4)]
)
SETTINGS = {"profile_batch": "1", "machines": "2,4"}


@pytest.fixture
def problem(tmp_path: pathlib.Path):
    path = tmp_path / "p.txt"
    path.write_text(PROFILE + "\n")
    return api.make_problem(str(path), batch=Batch(4))


def test_sizes_are_numbers_and_ranges() -> None:
    assert batches("64,128") == (64, 128)
    assert batches("32:128:32,512") == (32, 64, 96, 128, 512)
    assert batches("3:5") == (3, 4, 5)
    for text in ("", "a", "4:2", "0", "4:8:0", "1:2:3:4", "1:10000000"):
        with pytest.raises(InputError, match="--global-batches"):
            batches(text)


def test_a_row_holds_the_speedups_and_the_plan(problem) -> None:
    row = sweep(problem, [8], search="dapple", settings=SETTINGS)[0]
    assert row.hybrid_ratio is not None and row.data_parallel_ratio is not None and row.step_seconds is not None
    assert row.hybrid_ratio >= row.data_parallel_ratio
    assert sum(n_layers for n_layers, _ in row.stages) == 5
    published = sweep(problem, [8], search="dapple", settings=SETTINGS | {"mode": "published"})[0]
    assert published.objective is not None and published.hybrid_ratio == published.objective[1]


def test_a_size_that_cannot_be_planned_is_a_row_with_its_reason(problem) -> None:
    rows = sweep(problem, [2, 8], search="dapple", settings=SETTINGS | {"min_micro_batch": "4"})
    assert "smaller than min_micro_batch" in rows[0].note and not rows[0].stages
    assert rows[1].stages and not rows[1].note


def test_a_row_whose_time_was_up_says_so() -> None:
    asked = api.make_problem("llama-3.1-8b", "dgx-h100:8", batch=Batch(64))
    (cut,) = sweep(asked, [64], search="best", jobs=1, time_limit_seconds=1e-9)
    (whole,) = sweep(asked, [64], search="best", jobs=1)
    assert cut.stages and cut.note.startswith("stopped before its end: a plan at most ") and not whole.note


def test_a_quicker_plan_is_not_said_to_be_possible_where_it_would_read_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = api.make_problem("gpt2", "dgx-h100:1", batch=Batch(8))
    found = api.plan(asked, search="best")
    assert found.answer.objective is not None
    for gap, said in ((4e-5, ""), (6e-5, ": a plan at most 0.01% quicker may exist")):
        bound = Bound(found.answer.objective.value / (1.0 + gap), "test")
        extra = {**found.answer.extra, "stopped_early": True}
        cut = replace(found, answer=replace(found.answer, bound=bound, extra=extra))
        monkeypatch.setattr(api, "plan", lambda *args, cut=cut, **named: cut)
        (row,) = sweep(asked, [8], search="best", jobs=1)
        assert row.note == f"stopped before its end{said}"


@pytest.mark.parametrize("backend", ["loky", "dask", "ray"])
def test_rows_do_not_depend_on_who_computes_them(problem, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend != "loky":
        pytest.importorskip({"dask": "distributed"}.get(backend, backend), reason=f"the extra '{backend}' is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # asks nothing of a network
    settings = SETTINGS | {"mode": "published"}
    alone = sweep(problem, [4, 6, 8], search="dapple", settings=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the backend's own packages
        together = sweep(problem, [4, 6, 8], search="dapple", settings=settings, jobs=2, backend=backend)
    assert together == alone
    if backend == "ray":
        assert not __import__("ray").is_initialized(), "a cluster of one's own ends with the rows"


def test_wrong_questions_are_refused(problem) -> None:
    with pytest.raises(InputError, match="choose one of loky, dask, ray"):
        sweep(problem, [4], search="dapple", settings=SETTINGS, backend="spark")
    with pytest.raises(InputError, match="--jobs 0"):
        sweep(problem, [4], search="dapple", settings=SETTINGS, jobs=0)
    with pytest.raises(InputError, match="contradicts"):
        sweep(problem, [4], search="dapple", settings=SETTINGS | {"global_batch": "4"})


def test_an_absent_backend_names_its_extra(problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"meshwright\[ray\]"):
        sweep(problem, [4], search="dapple", settings=SETTINGS, backend="ray", jobs=2)


def test_table_csv_and_plot_say_the_same() -> None:
    from dataclasses import asdict

    rows = [Row(8, 2.0, 2.5, 3.0, 0.5, 4, "1f1b", ((3, 2), (2, 2)), ("step_seconds", 0.5)), Row(16, note="nothing fits")]
    entries = [asdict(row) | {"plan": row.plan} for row in rows]
    lines = sweep_table.csv(entries).splitlines()
    assert lines[0].startswith("global_batch,data_parallel_ratio") and lines[1].startswith("8,2.0,2.5,3.0,0.5,4,1f1b,3@2 | 2@2")
    assert sweep_table.svg("net", entries).count("<polyline") == 3
    assert sweep_table.table("net", entries).row_count == 2


def test_the_command_prints_one_json_object(problem, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path) -> None:
    from meshwright import cli

    out, plot = tmp_path / "t.csv", tmp_path / "t.svg"
    words = [
        "sweep",
        problem.model_spec.spec,
        "--global-batches",
        "4,8",
        "--jobs",
        "1",
        "--json",
        "--out",
        str(out),
        "--plot",
        str(plot),
    ]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"]
    monkeypatch.setattr("sys.argv", ["meshwright", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["format"] == "meshwright/sweep/1" and [row["global_batch"] for row in answer["rows"]] == [4, 8]
    assert out.read_text().count("\n") == 3 and plot.read_text().startswith("<svg")
    assert sweeping.BACKENDS == ("loky", "dask", "ray")


def test_a_time_limit_is_for_searches_that_can_stop(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--time-limit: search dapple cannot stop early"):
        sweep(problem, (4,), search="dapple", settings=SETTINGS, time_limit_seconds=1.0)
    seen: list[float] = []

    def planned(*_: object, stop: Stop, **more: object) -> None:
        seen.append(stop.seconds)
        raise InputError("seen")

    monkeypatch.setattr(sweeping.api, "plan", planned)
    assert [row.note for row in sweep(problem, (4, 8), search="best", time_limit_seconds=1.5)] == ["seen", "seen"]
    assert seen == [1.5, 1.5]


def test_the_longest_table_is_that_of_all_ranges_together() -> None:
    half = sweeping.MOST_ROWS // 2
    assert len(batches(f"1:{half},1:{half}")) == sweeping.MOST_ROWS
    for text in (f"1:{half},1:{half},7", f"7,1:{half},1:{half}", f"1:{half + 1},1:{half}"):
        with pytest.raises(InputError, match=f"more than {sweeping.MOST_ROWS} sizes"):
            batches(text)


def test_ctrl_c_keeps_the_rows_that_were_answered(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    from meshwright import cli

    plan = api.plan

    def pressed(asked: Problem, **more: object) -> object:
        if asked.batch.global_batch == 16:
            raise KeyboardInterrupt
        return plan(asked, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(api, "plan", pressed)
    words = ["sweep", str(tmp_path / "p.txt"), "--search", "dapple", "--jobs", "1", "--set", "profile_batch=1"]
    words += ["--set", "machines=2,4", "--out", str(tmp_path / "rows.csv"), "--json"]

    def run(sizes: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["meshwright", *words, "--global-batches", sizes])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, err = run("8,16,32")
    assert code == 0 and "not answered: batch sizes 16, 32" in err
    rows = json.loads(out)["rows"]
    assert rows[0]["plan"] and not rows[0]["note"]
    assert [(row["plan"], row["note"]) for row in rows[1:]] == [("", sweeping.NOT_ANSWERED)] * 2
    assert (tmp_path / "rows.csv").read_text().count(sweeping.NOT_ANSWERED) == 2
    code, out, err = run("16,32")
    assert code == 130 and not out and "interrupted" in err
