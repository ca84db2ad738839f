"""``meshwright plan --within --time-limit --why-not``, and Ctrl-C."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import api
from meshwright.api import sensitivity, targets
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.commands import _early
from meshwright.core.result import Result
from meshwright.planners.best.branch_and_bound import BestFirstSearch

SLOW = "two-level:4,per_node=1,device=a100-sxm-80gb,bandwidth=2 GB/s"


def interrupt_at(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Press Ctrl-C when the search looks at its n-th set of plans."""
    describe, left = BestFirstSearch._look, iter(range(n))

    def pressed(self: BestFirstSearch, *entry: Any) -> None:
        if next(left, None) is None:
            signal.raise_signal(signal.SIGINT)
        describe(self, *entry)

    monkeypatch.setattr(BestFirstSearch, "_look", pressed)


def test_the_simplest_plan_within_is_the_answer_and_the_fastest_is_shown(meshwright: Any, tiny: str) -> None:
    words = ("plan", tiny, "--cluster", SLOW, "--global-batch", "16", "--no-what-if")
    entry = meshwright(*words, "--json", "--within", "100%").json
    fastest = meshwright(*words, "--json", "--within", "0").json
    assert entry["within_ratio"] == 1.0 and fastest["within_ratio"] == 0.0 and fastest["fastest"] is None
    assert entry["fastest"]["step_seconds"] == pytest.approx(fastest["step_seconds"])
    assert entry["step_seconds"] > fastest["step_seconds"] and entry["settings"] == {}
    text = " ".join(meshwright(*words, "--within", "1.0").out.split())
    assert "--within 0 finds " in text and f"{1.0 / (1.0 - entry['fastest']['quicker_ratio']) - 1.0:.2%} quicker" in text
    assert "--within 0 finds" not in " ".join(meshwright(*words, "--within", "0").out.split())


def test_degrees_asked_for_are_compared_by_cause(meshwright: Any, tiny: str) -> None:
    words = ("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--no-what-if", "--why-not", "tensor=2,pipeline=2")
    entry = meshwright(*words, "--json").json
    asked = entry["why_not"]
    assert asked["fixed"] == {"tensor": "2", "pipeline": "2"} and asked["feasible"] is True
    assert asked["step_seconds"] == pytest.approx(entry["step_seconds"] * (1 + asked["slower_ratio"]))
    alone = meshwright(*words[:-2], "--json", "--set", "tensor=2", "--set", "pipeline=2", "--within", "0").json
    assert asked["step_seconds"] == pytest.approx(alone["step_seconds"])
    differences = [row["difference_seconds"] for row in asked["causes"]]
    assert differences == sorted(differences, reverse=True)
    assert sum(differences) == pytest.approx(asked["step_seconds"] - entry["step_seconds"], rel=1e-6)
    assert sum(row["seconds"] for row in asked["causes"]) == pytest.approx(asked["step_seconds"], rel=1e-6)
    text = meshwright(*words).out
    assert "why not tensor=2, pipeline=2: " in text and "slower" in text and "difference" in text


def test_degrees_that_do_not_fit_or_cannot_be_say_what_is_missing(meshwright: Any, tiny: str) -> None:
    words = ("plan", "llama-3.2-3b", "--cluster", "g4dn-t4:16", "--global-batch", "16", "--sequence-length", "512")
    words = (*words, "--precision", "fp16", "--no-what-if", "--top", "0", "--why-not")
    asked = meshwright(*words, "tensor=1,pipeline=1,context=1,shard=0", "--json").json["why_not"]
    assert asked["feasible"] is False and asked["infeasible_proven"] is True and asked["missing_bytes"] > 1e9
    few = ("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--no-what-if", "--why-not", "tensor=8")
    done = meshwright(*few)
    said = " ".join(done.out.split())
    assert done.code == 0 and "why not tensor=8: " in said and "tensor 8 needs 8 devices, there are 4" in said


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--within", "much", "write a share"), ("--within", "-1%", "between 0"), ("--within", "101%", "between 0"),
        ("--time-limit", "0", "--time-limit"), ("--time-limit", "soon", "--time-limit"),
        ("--why-not", "tensor", "KEY=VALUE"), ("--why-not", "tensors=2", "tensors"), ("--why-not", "tensor=x", "whole number"),
    ],
)  # fmt: skip
def test_wrong_wishes_are_one_line(meshwright: Any, tiny: str, option: str, value: str, word: str) -> None:
    done = meshwright("plan", tiny, "--cluster", "flat:2", "--global-batch", "4", "--no-what-if", option, value)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1 and word in done.err


def test_ctrl_c_answers_with_the_best_plan_so_far(meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 60)
    before = signal.getsignal(signal.SIGINT)
    done = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16")
    assert done.code == 0 and "stopped before its end, as asked" in done.out and "gap" in done.out
    assert "samples/s at least, with: " not in done.out  # nothing is searched after it
    assert "stopping; the best plan so far" in done.err
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_it_looks_for_what_would_help_keeps_the_plan(
    meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = sensitivity._planned

    def pressed(*question: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return planned(*question)

    monkeypatch.setattr(sensitivity, "_planned", pressed)
    done = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--out", "plan.json")
    assert done.code == 0 and "stopping" in done.err
    assert "proven: " in done.out and "samples/s at least, with: " not in done.out


def test_ctrl_c_once_the_search_has_ended_keeps_the_plan_and_nothing_more_is_searched(
    meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = targets.runs_on

    def pressed(result: Result) -> tuple[targets.Target, ...]:
        signal.raise_signal(signal.SIGINT)
        return told(result)

    monkeypatch.setattr(targets, "runs_on", pressed)
    done = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--out", "plan.json")
    assert done.code == 0 and "stopping" in done.err and pathlib.Path("plan.json").exists()
    assert "proven: " in done.out and "samples/s at least, with: " not in done.out


START = """
import signal
import sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs behind them without it

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressed())
sys.argv = ["meshwright", "list", "schedules"]
from meshwright.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["meshwright.cli", "typer", "meshwright.commands.list", "meshwright.api.listing"])
def test_ctrl_c_while_the_program_starts_is_one_line(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", START.format(module=module)], capture_output=True, text=True)
    assert done.stderr == "meshwright: interrupted; nothing was written\n" and done.stdout == ""
    assert done.returncode in (130, -signal.SIGINT)


@pytest.mark.parametrize("caught", [True, False], ids=["cli", "main"])
def test_ctrl_c_while_a_class_is_made_ends_with_the_code_of_an_interrupt(tmp_path: pathlib.Path, caught: bool) -> None:
    inside = "exec('raise KeyboardInterrupt')"
    pressed = f"try: {inside}\nexcept KeyboardInterrupt: sys.exit(130)" if caught else inside
    (tmp_path / "pressed.py").write_text(
        f"import sys\nfrom meshwright import __main__, cli\ncli.main = lambda: exec({pressed!r})\n__main__.main()\n"
    )
    where = {**os.environ, "PYTHONPATH": f"{pathlib.Path(api.__file__).parents[2]}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-m", "pressed"], capture_output=True, text=True, env=where)
    assert done.returncode == 130 and "Traceback" not in done.stderr


def test_ctrl_c_in_a_comparison_ranks_what_there_is(meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 60)
    words = ("compare", tiny, "--cluster", "flat:4", "--global-batch", "16", "--searches", "best,data_parallel", "--json")
    done = meshwright(*words)
    assert done.code == 0 and [entry["search"] for entry in done.json["results"]] == ["best"]
    assert "not run: data_parallel" in done.err


def test_ctrl_c_in_a_search_that_cannot_stop_keeps_what_others_answered(
    meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = api.plan

    def pressed(*question: Any, search: str, **settings: Any) -> Any:
        if search == "data_parallel":
            raise KeyboardInterrupt
        return plan(*question, search=search, **settings)

    monkeypatch.setattr(api, "plan", pressed)
    words = ("compare", tiny, "--cluster", "flat:4", "--global-batch", "16", "--searches")
    done = meshwright(*words, "best,data_parallel,megatron_grid", "--json")
    assert done.code == 0 and [entry["search"] for entry in done.json["results"]] == ["best"]
    assert "not run: data_parallel, megatron_grid" in done.err
    assert meshwright(*words, "data_parallel,best").code == 130


def test_a_row_of_a_comparison_says_that_its_search_was_stopped(meshwright: Any, tiny: str) -> None:
    words = ("compare", tiny, "--cluster", SLOW, "--global-batch", "64", "--searches", "best")
    stopped = [" ".join(meshwright(*words, *more).out.split()) for more in (("--time-limit", "1ms"), ())]
    assert "stopped" in stopped[0] and "stopped" not in stopped[1]


@pytest.mark.parametrize("limit", ["1ms", "1 ms"])
def test_a_time_limit_stops_each_search_that_is_compared(meshwright: Any, tiny: str, limit: str) -> None:
    words = ("compare", tiny, "--cluster", SLOW, "--global-batch", "64", "--searches", "best,data_parallel", "--json")
    limited, whole = meshwright(*words, "--time-limit", limit).json["results"], meshwright(*words).json["results"]
    assert limited[0]["stopped_early"] is True and whole[0]["stopped_early"] is False


def test_ctrl_c_before_there_is_a_plan_ends_with_one_line(meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(monkeypatch, 1)
    done = meshwright("plan", tiny, "--cluster", "flat:4", "--global-batch", "16", "--out", "plan.json")
    assert done.code == 130 and done.out == ""
    assert done.err.splitlines()[-1] == "meshwright: interrupted; nothing was written"


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), (" 100 % ".strip(), 1.0), ("0", 0.0), ("1", 1.0), ("0%", 0.0)]
)
def test_shares_are_written_in_percent_or_as_numbers(text: str, share: float) -> None:
    assert _early.share_of(text, "--gap") == pytest.approx(share)


@pytest.mark.parametrize("text", ["101%", "1.01", "-1%", "x", "", "nan", "1%%", "5 s"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--gap .*: (must be between 0 and 100%|write a share, for example 1% or 0\.01)$"):
        _early.share_of(text, "--gap")
    assert _early.share_of("250%", "--gap", 3.0) == 2.5


@pytest.mark.parametrize(
    ("search", "own", "costs", "asked"),
    [
        ("", "best", "analytic", "best"), ("best", "pase", "pase", "pase"), ("best", "pase", "analytic", "best"),
        ("best", "dapple", "profiled", "best"), ("best", "best", "other", "best"), ("", "pase", "pase", "pase"),
        ("one-weird-trick", "best", "analytic", "one_weird_trick"), ("dapple", "pase", "pase", "dapple"),
        ("best", "piper", "sharded", "best"),
    ],
)  # fmt: skip
def test_the_search_that_answers_is_asked_whether_it_stops_early(
    search: str, own: str, costs: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Search best hands a problem whose costs it cannot price to the search of the model's format."""
    loaded: list[str] = []
    module = SimpleNamespace(STOPS_EARLY=True)
    monkeypatch.setattr(registry, "load", lambda room, word, what: loaded.append(word) or module)
    problem: Any = SimpleNamespace(model_spec=SimpleNamespace(search=own), costs=costs)
    assert _early.stops_early(problem, search) is True and loaded == [asked]
    del module.STOPS_EARLY
    assert _early.stops_early(problem, search) is False
