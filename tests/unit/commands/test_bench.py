"""``meshwright bench``: ours and any command, asked the same, judged alike; wrong words and planners answered plainly."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

from meshwright.suite import outside

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "greedy_planner.py"
GREEDY = f"{sys.executable} {EXAMPLE}"
TEN = ("--problems", "generated/layers-10")


def test_ours_and_an_outside_planner_are_judged_alike(meshwright: Any) -> None:
    done = meshwright("bench", *TEN, "--planner", GREEDY, "--time-limit", "200s", "--json", "--out", "bench.html")
    assert done.code == 0 and done.json["format"] == "meshwright/bench/1" and done.json["complete"] is True
    (problem,) = done.json["problems"]
    ours, theirs = problem["attempts"]
    assert (ours["planner"], theirs["planner"]) == ("partition", "greedy_planner.py")
    assert ours["value"] == pytest.approx(problem["bound"], rel=1e-9) and theirs["bound"] is None
    assert theirs["status"] == "answered" and theirs["value"] > ours["value"] and theirs["to_bound_ratio"] > 1.0
    assert ours["cpu_seconds"] > theirs["cpu_seconds"] > 0.0
    assert "generated/layers-10: greedy_planner.py: answered" in done.err
    assert "greedy_planner.py" in pathlib.Path("bench.html").read_text()


def planner(folder: pathlib.Path, body: str) -> str:
    path = folder / "planner.py"
    path.write_text(f"import json, os, shutil, sys\nproblem, plan = sys.argv[1:]\n{body}\n")
    return f"{sys.executable} -S {path}"


@pytest.mark.parametrize(
    ("body", "status", "note"),
    [
        ("import time; time.sleep(60)", "timed out", "killed after 3 s"),
        ("raise RuntimeError('no idea')", "failed", "exit code 1: RuntimeError: no idea"),
        ("os.kill(os.getpid(), 9)", "failed", "signal 9"),
        ("pass", "failed", "wrote no plan file"),
        ("open(plan, 'w').write('{')", "refused", "not valid JSON"),
        ("os.mkfifo(plan)", "refused", "a device or a pipe"),
        ("os.mkdir(plan)", "refused", "a folder"),
        ("os.symlink('/dev/zero', plan)", "refused", "a link"),
        ("shutil.rmtree(os.path.dirname(plan))", "failed", "wrote no plan file"),
        ("open(plan, 'w').write('{\"format\": \"meshwright/plan/1\", \"problem\": \"pase/x\"}')", "refused", "pase/x"),
        ("json.dump({'format': 'meshwright/plan/1', 'feasible': False}, open(plan, 'w'))", "nothing fits", None),
    ],
    ids=lambda value: value.split("(")[0] if isinstance(value, str) else "",
)  # fmt: skip
def test_whatever_a_planner_does_the_bench_goes_on(
    meshwright: Any, tmp_path: pathlib.Path, body: str, status: str, note: str | None
) -> None:
    limit = ("--time-limit", "3s" if "sleep" in body else "60s")
    words = ("--searches", "none", "--planner", planner(tmp_path, body), "--planner", GREEDY, *limit, "--json")
    done = meshwright("bench", *TEN, *words)
    assert done.code == 0, done.err
    found, greedy = done.json["problems"][0]["attempts"]
    assert found["status"] == status and greedy["status"] == "answered"
    assert note in found["note"] if note else "though a plan" in found["note"]


def test_a_planner_that_changes_its_copy_of_the_graph_gains_nothing(meshwright: Any, tmp_path: pathlib.Path) -> None:
    body = (
        "asked = json.load(open(problem)); path = asked['model']['spec']; held = json.load(open(path))\n"
        "for node in held['nodes']: node['fpgaLatency'] = 1e-9\n"
        "json.dump(held, open(path, 'w')); names = [layer['name'] for layer in asked['layers']]\n"
        "stage = {'ops': names, 'devices': [0], 'data': 1, 'tensor': 1, 'recompute': []}\n"
        "schedule = {'name': '1f1b', 'n_microbatches': 1, 'micro_batch': 1, 'global_batch': 1}\n"
        "json.dump({'format': 'meshwright/plan/1', 'feasible': True, 'stages': [stage], 'schedule': schedule}, open(plan, 'w'))"
    )
    words = ("--searches", "none", "--planner", planner(tmp_path, body), "--planner", GREEDY, "--json")
    liar, greedy = meshwright("bench", *TEN, *words).json["problems"][0]["attempts"]
    assert liar["status"] == "answered" and liar["value"] > greedy["value"]


def test_a_search_that_does_not_take_a_problem_declines(meshwright: Any) -> None:
    done = meshwright("bench", *TEN, "--searches", "dapple", "--json")
    (attempt,) = done.json["problems"][0]["attempts"]
    assert done.code == 0 and attempt["status"] == "declined" and "profile" in attempt["note"]


def test_an_interrupt_keeps_what_was_done(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = outside.run, []

    def once(*words: Any) -> Any:
        calls.append(words)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(*words)

    monkeypatch.setattr(outside, "run", once)
    words = ("--searches", "none", "--planner", GREEDY, "--json", "--out", "cut.json")
    done = meshwright("bench", "--problems", "generated/chain-10,generated/layers-10", *words)
    assert done.code == 0 and done.json["complete"] is False and len(done.json["problems"]) == 1
    assert "interrupted after 1 of 2" in done.err and pathlib.Path("cut.json").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--problems", "nope"), "names no problem"),
        (("--searches", "none"), "nobody is left"),
        (("--searches", "nope", *TEN), "no search called 'nope'"),
        (("--planner", "'", *TEN), "is no command"),
        (("--planner", "./nope", "--searches", "none", *TEN), "cannot be run"),
        (("--time-limit", "0s"), "must be a time above 0"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--out", "a.txt"), ".html or .json"),
        (("--out", "none/a.html"), "does not exist"),
    ],
)
def test_wrong_words_are_answered_in_one_line(meshwright: Any, words: tuple[str, ...], why: str) -> None:
    done = meshwright("bench", *words)
    assert done.code == 2 and done.out == "" and why in done.err and len(done.err.splitlines()) == 1


def test_the_list_runs_nothing(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "run", None)
    done = meshwright("bench", "--list", "--json", "--problems", "pase")
    assert done.code == 0 and len(done.json["problems"]) == 7
    assert "pase/alexnet-8  flops_equivalent  pase,one_weird_trick" in meshwright("bench", "--list", "--problems", "pase").out


def test_the_page_shows_the_example_as_it_is() -> None:
    page = EXAMPLE.parents[1] / "docs" / "howto" / "compare_planners.md"
    assert f"```python file=greedy_planner.py\n{EXAMPLE.read_text()}```" in page.read_text()


def test_no_planner_is_mixed_up_with_another_or_with_a_search_of_ours(tmp_path: pathlib.Path) -> None:
    from meshwright.commands import bench

    for name in ("best", "mine"):
        (tmp_path / name).write_text("")
    told = [str(tmp_path / "best"), str(tmp_path / "mine"), "pase:/a/pase", str(tmp_path / "mine") + " --slow", "pase:/b/pase/"]
    names = [one.name for one in bench._planners(told)]
    assert names == ["best (outside)", "mine", "pase:pase", "mine (2)", "pase:pase (2)"]
