"""Choices of one layer that recompute alike: plan, plan file, simulator and check are of the choice that the search took."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api, sim
from meshwright.api import plan_files
from meshwright.base.errors import InputError
from meshwright.planners.piper.answer import check_plan
from meshwright.planners.piper.costs.piper import evaluate, stages_of
from meshwright.writers import plan_json

N_LAYERS = 3


def content() -> dict[str, Any]:
    """Three layers; ``quick`` takes 2 s and 6 bytes, ``slim`` 3 s and 2 bytes, and neither recomputes anything.

    By hand, on one device of 10 bytes: quick + slim + slim hold 10 bytes and take 8 s.
    """

    def choice(name: str, seconds: float, held: float, v: int) -> dict[str, Any]:
        return {
            "id": name, "timePerSample": seconds, "parameterSize": 1.0, "memoryUsageA": 0.0, "memoryUsageB": held,
            "syncTimeFw": {str(v - 1): 0} if v else {}, "syncTimeBw": {str(v + 1): 0} if v < N_LAYERS - 1 else {},
        }  # fmt: skip

    nodes = [
        {"id": v, "name": "layer", "TMPCs": {"1": [choice("quick", 2.0, 6.0, v), choice("slim", 3.0, 2.0, v)]}}
        for v in range(N_LAYERS)
    ]
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 1.0} for v in range(N_LAYERS - 1)]
    return {"maxMemoryPerDevice": 10.0, "maxDevices": 1, "mbsInBatch": 4, "bandwidth": 1.0, "nodes": nodes, "edges": edges}


def planned(folder: pathlib.Path, **settings: str) -> tuple[Any, pathlib.Path]:
    (folder / "alike.json").write_text(json.dumps(content()))
    result = api.plan(str(folder / "alike.json"), search="piper", settings=settings)
    path = folder / "plan.json"
    plan_json.write(result, str(path))
    return result, path


def test_the_plan_is_of_the_choices_that_the_search_took(tmp_path: pathlib.Path) -> None:
    result, path = planned(tmp_path)
    assert result.answer.objective.value == pytest.approx(8.0, rel=1e-15)
    (stage,) = result.plan.stages
    assert sorted(stage.choices) == ["quick", "slim", "slim"]
    instance = result.problem.model_spec.instance
    assert evaluate(instance, stages_of(instance, result.plan)).seconds == pytest.approx(8.0, rel=1e-15)
    assert result.timeline.step_seconds == pytest.approx(4 * 8.0, rel=1e-12)
    assert sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes) == 0.0
    again = plan_files.resimulate(str(path))
    assert again.plan == result.plan
    assert again.timeline.step_seconds == result.timeline.step_seconds
    assert check_plan(again, json.loads(path.read_text()), str(path)).valid


@pytest.mark.parametrize(("choices", "why"), [
    (["quick", "quick", "quick"], "of different plans"),
    (None, "of different plans"),
])  # fmt: skip
def test_other_choices_in_the_stages_than_in_the_claim_are_not_confirmed(
    tmp_path: pathlib.Path, choices: list[str] | None, why: str
) -> None:
    _, path = planned(tmp_path)
    entry = json.loads(path.read_text())
    if choices is None:
        del entry["stages"][0]["choices"]
    else:
        entry["stages"][0]["choices"] = choices
    path.write_text(json.dumps(entry))
    verdict = check_plan(plan_files.load(str(path)), entry, str(path))
    assert not verdict.valid and why in verdict.reason


@pytest.mark.parametrize(("choices", "message"), [
    (["quick", "slim"], "choices has 2 ids for 3 layers"),
    (["quick", "slim", "other"], "no choice 'other'"),
    ([1, 2, 3], "choices"),
])  # fmt: skip
def test_choices_that_cannot_be_are_refused_in_one_line(tmp_path: pathlib.Path, choices: list[Any], message: str) -> None:
    _, path = planned(tmp_path)
    entry = json.loads(path.read_text())
    entry["stages"][0]["choices"] = choices
    path.write_text(json.dumps(entry))
    with pytest.raises(InputError, match=message):
        plan_files.resimulate(str(path))


def test_a_choice_that_recomputes_something_else_than_the_plan_says_is_refused(tmp_path: pathlib.Path) -> None:
    _, path = planned(tmp_path)
    entry = json.loads(path.read_text())
    entry["stages"][0]["recompute"] = ["full"] * N_LAYERS
    path.write_text(json.dumps(entry))
    with pytest.raises(InputError, match="recomputes 'none', but its recompute says 'full'"):
        plan_files.resimulate(str(path))


def test_a_cost_model_without_choices_refuses_a_plan_that_names_some(tmp_path: pathlib.Path) -> None:
    result = api.plan("gpt2", "pcie-a100:1", search="data_parallel", global_batch=1)
    path = tmp_path / "plan.json"
    plan_json.write(result, str(path))
    entry = json.loads(path.read_text())
    entry["stages"][0]["choices"] = ["vanilla"] * len(entry["stages"][0]["ops"])
    path.write_text(json.dumps(entry))
    with pytest.raises(InputError, match="cost model analytic does not know"):
        plan_files.load(str(path))


def test_where_what_is_recomputed_says_it_all_no_choice_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "wide.json").write_text(json.dumps(content() | {"maxMemoryPerDevice": 100.0}))
    result = api.plan(str(tmp_path / "wide.json"), search="piper")
    assert [stage.choices for stage in result.plan.stages] == [()]
    plan_json.write(result, str(tmp_path / "plan.json"))
    assert "choices" not in json.loads((tmp_path / "plan.json").read_text())["stages"][0]
