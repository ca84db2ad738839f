"""``meshwright check`` on plan files of the search piper: confirmed, refused when changed, other plans turned away."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import pytest

from meshwright.commands import _fields, check
from meshwright.report import progress


def small(folder: pathlib.Path) -> pathlib.Path:
    """Write a chain of four layers, 3 s each, with and without recomputation; return the file."""

    def choice(name: str, seconds: float, activation: float, v: int) -> dict[str, Any]:
        return {
            "id": name, "timePerSample": seconds, "parameterSize": 1.0, "memoryUsageA": activation, "memoryUsageB": 4.0,
            "syncTimeFw": {str(v - 1): 0} if v else {}, "syncTimeBw": {str(v + 1): 0} if v < 3 else {},
        }  # fmt: skip

    nodes = [
        {"id": v, "TMPCs": {"1": [choice("vanilla", 3.0, 2.0, v), choice("activation recomp", 4.0, 1.0, v)]}} for v in range(4)
    ]
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 1.0} for v in range(3)]
    content = {"maxMemoryPerDevice": 23.0, "maxDevices": 4, "mbsInBatch": 8, "bandwidth": 10.0, "nodes": nodes, "edges": edges}
    path = folder / "model.json"
    path.write_text(json.dumps(content))
    return path


def test_a_plan_file_is_confirmed_and_in_json_too(meshwright: Any, tmp_path: pathlib.Path) -> None:
    meshwright("plan", str(small(tmp_path)), "--set", "max_devices=3", "--out", "plan.json", "--json")
    done = meshwright("check", "plan.json")
    assert done.code == 0 and done.out.startswith("valid: the plan costs"), done
    entry = meshwright("check", "plan.json", "--json").json
    assert entry["valid"] and entry["value"] == json.loads((tmp_path / "plan.json").read_text())["objective"]["value"]


@pytest.mark.parametrize(("reason", "path", "value"), [
    ("above what the plan takes", ("bound", "value"), 1e9),
    ("the plan takes", ("objective", "value"), 1.0),
    ("more than the 2 devices", ("choices", 0, "dataParallelDegree"), 3),
    ("has no choice 'other'", ("choices", 0, "TMPCids", "0"), "other"),
    ("of different plans", ("choices", 0, "nodes"), [0]),
    ("stage_seconds[0] is 1.25 in the file", ("stage_seconds", 0), 1.25),
    ("stage_bytes[0] is 7.0 in the file", ("stage_bytes", 0), 7),
    ("stage_bytes has 0 values", ("stage_bytes",), []),
])  # fmt: skip
def test_a_plan_file_that_was_changed_is_refused(
    reason: str, path: tuple[Any, ...], value: Any, meshwright: Any, tmp_path: pathlib.Path
) -> None:
    meshwright("plan", str(small(tmp_path)), "--set", "max_devices=2", "--set", "memory=1000", "--out", "plan.json", "--json")
    entry = json.loads((tmp_path / "plan.json").read_text())
    inside = entry
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(entry))
    done = meshwright("check", "plan.json")
    assert done.code == 2 and done.out.startswith("refused:") and reason in done.out, done


def test_a_bound_that_is_too_high_is_refused(meshwright: Any, tmp_path: pathlib.Path) -> None:
    """A plan of one device claims to be the best of two: the check finds the better one."""
    meshwright("plan", str(small(tmp_path)), "--set", "max_devices=1", "--set", "memory=1000", "--out", "plan.json", "--json")
    entry = json.loads((tmp_path / "plan.json").read_text())
    entry["model"]["spec"] = entry["model"]["spec"].replace("max_devices=1", "max_devices=2")
    (tmp_path / "plan.json").write_text(json.dumps(entry))
    done = meshwright("check", "plan.json")
    assert done.code == 2 and "there is a plan" in done.out, done


def test_a_plan_of_the_greedy_choice_is_confirmed(meshwright: Any, tmp_path: pathlib.Path) -> None:
    meshwright("plan", str(small(tmp_path)), "--set", "knapsack=greedy", "--out", "plan.json", "--json")
    done = meshwright("check", "plan.json")
    assert done.code == 0 and "valid" in done.out


def test_figures_that_differ_by_more_than_rounding_are_named_with_both() -> None:
    plan = {"step_seconds": 2.0, "stages": [{"bytes": 3, "fits": True}, {"bytes": 5, "fits": True}]}
    assert set(plan) <= set(_fields.FIGURES)
    for found, said in (
        (plan, ""), ({}, ""), ({"step_seconds": 2.0 + 1e-12}, ""), ({"step_seconds": 2}, ""),
        ({"step_seconds": 2.1}, "step_seconds is 2.1 in the file, and 2.0 by the plan in it"),
        ({"step_seconds": "2.0"}, "step_seconds is '2.0' in the file, and 2.0 by the plan in it"),
        ({"step_seconds": None}, "step_seconds is None in the file, and 2.0 by the plan in it"),
        ({"stages": [{"bytes": 3}, {"fits": False}]}, "stages[1].fits is False in the file, and True by the plan in it"),
        ({"stages": [{"bytes": 3}, {"bytes": 6}]}, "stages[1].bytes is 6 in the file, and 5 by the plan in it"),
        ({"stages": []}, f"stages is [] in the file, and {plan['stages']!r} by the plan in it"),
    ):  # fmt: skip
        assert _fields.changed(plan, found) == said, found


def test_a_check_that_was_stopped_confirms_nothing(
    meshwright: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshwright("plan", str(small(tmp_path)), "--set", "max_devices=3", "--out", "plan.json", "--json")
    monkeypatch.setattr(check, "_verdict", lambda *question: time.sleep(60.0))
    done = meshwright("check", "plan.json", "--time-limit", "0.1")
    assert (
        done.code == 2
        and done.out == "not checked: stopped after 100 ms, before its end: nothing is confirmed and nothing refuted\n"
    )
    monkeypatch.setattr(progress, "Progress", lambda: time.sleep(60.0))  # and before the check has begun
    entry = meshwright("check", "plan.json", "--time-limit", "0.1", "--json").json
    assert not entry["valid"] and entry["stopped"] and "nothing is confirmed" in entry["reason"]
    monkeypatch.undo()
    assert meshwright("simulate", str(tmp_path / "plan.json"), "--time-limit", "1 min", "--json").code == 0
