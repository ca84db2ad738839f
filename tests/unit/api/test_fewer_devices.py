"""A plan is planned again for the devices that are left: the same question, the samples of a step as they were."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.api import replanning
from meshwright.base.errors import InputError
from meshwright.writers import plan_json

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


def test_the_answer_on_what_is_left_is_that_on_a_cluster_of_as_many(tmp_path: pathlib.Path) -> None:
    found = api.plan(TINY, "flat:4", global_batch=12, settings={"schedules": "1f1b", "alternatives": "2"})
    path = tmp_path / "plan.json"
    plan_json.write(found, str(path))
    read = replanning.question_of(str(path))
    assert read.plan == found.plan and read.problem.cluster is not None
    again = replanning.on_what_is_left(read, [1])
    fewer = api.plan(TINY, "flat:3", global_batch=12, settings={"schedules": "1f1b", "alternatives": "2"})
    assert (again.step_seconds, again.plan.global_batch, again.settings) == (fewer.step_seconds, 12, fewer.settings)
    assert again.problem.required_cluster.n_devices == 3 and again.problem.batch.global_batch == 12
    assert {device for stage in again.plan.stages for device in stage.devices} <= {0, 1, 2}
    every = list(replanning.candidates(found))
    assert every[0] is found and [one.plan for one in every[1:]] == [one.plan for one in found.answer.alternatives]
    assert all(one.step_seconds >= found.step_seconds and one.timeline is not None for one in every)


def test_a_plan_without_a_cluster_is_not_planned_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    plan_json.write(api.plan("pase:alexnet", search="pase", settings={"n_processors": "4"}), str(path))
    with pytest.raises(
        InputError, match="names no cluster, so it cannot be planned again for fewer devices; plan with --cluster"
    ):
        replanning.question_of(str(path))
