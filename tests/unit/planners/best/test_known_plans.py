"""Plans that are known before a search starts: those of the space that fit count as found, all others are passed over."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from meshwright import api, clusters
from meshwright.core.problem import Batch, Stop
from meshwright.core.result import Answer
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.search import best

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")
CLUSTER = clusters.cluster("two-level:8,per_node=4,device=a100-sxm-80gb,bandwidth=1 GB/s")
PROBLEM = api.make_problem(TINY, CLUSTER, batch=Batch(16))


def _stopped(answer: Answer, problem: object = PROBLEM) -> Answer:
    """What the search answers if it may do nothing but look at the plan of another answer."""
    assert answer.plan is not None
    return best.search(problem, Limits(), seed=0, stop=Stop(asked=lambda: True), known=(answer.plan,))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pipeline": "2", "schedules": "interleaved_1f1b"},
        {"pipeline": "2", "schedules": "zb_v"},
        {"shard": "3"},
        {"pipeline": "3"},
    ],
    ids=["best", "interleaved", "zb_v", "zero-3", "idle devices"],
)
def test_a_known_plan_is_the_answer_until_a_better_one_is_found(settings: dict[str, str]) -> None:
    answer = api.plan(PROBLEM, settings=settings).answer
    known = _stopped(answer)
    assert known.plan == answer.plan and known.objective == answer.objective
    assert known.bound is not None and known.bound.value <= known.objective.value


def test_a_known_plan_that_does_not_fit_or_is_none_of_the_space_is_passed_over() -> None:
    answer = api.plan(PROBLEM).answer
    small = dataclasses.replace(CLUSTER.kinds[0], memory_bytes=2e9)
    cramped = dataclasses.replace(PROBLEM, cluster=dataclasses.replace(CLUSTER, kinds=(small,)))
    assert _stopped(answer, cramped).plan is None
    stages = answer.plan.stages
    turned = tuple(dataclasses.replace(stage, devices=stage.devices[::-1]) for stage in stages)
    other = dataclasses.replace(answer, plan=dataclasses.replace(answer.plan, stages=turned))
    assert len(stages[0].devices) > 1 and _stopped(other).plan is None


def test_a_search_that_knows_a_plan_answers_no_worse() -> None:
    answer = api.plan(PROBLEM, settings={"pipeline": "1"}).answer
    found = best.search(PROBLEM, Limits(evaluations=1), seed=0, stop=Stop(), known=(answer.plan,))
    assert found.objective.value <= answer.objective.value
