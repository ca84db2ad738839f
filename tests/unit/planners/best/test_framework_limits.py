"""Plans for a framework: inside what it runs, never quicker than the free optimum as it prices, each setting searched."""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api, frameworks
from meshwright.base.errors import InputError
from meshwright.core.framework import FrameworkLimits, exceeded
from meshwright.core.plan_forms import inner_words
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Result

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")
TIGHT = {"memory_ratio": "0.08"}
"""Of 80 GiB: so little that layers must recompute."""


def posed(name: str, **changes: Any) -> Problem:
    problem = api.make_problem(TINY, "dgx-h100:4", batch=Batch(16, 0, 65536), framework=name)
    if changes:
        limits = replace(problem.framework.limits, **changes)
        problem = replace(problem, framework=replace(problem.framework, limits=limits))
    return problem


def solved(problem: Problem, **options: str) -> Result:
    return api.plan(problem, settings={"alternatives": "1", **options})


def seconds(result: Result) -> float:
    assert result.answer.objective is not None and result.answer.bound is not None
    assert result.answer.bound.gap_ratio(result.answer.objective) <= 1e-9
    return result.answer.objective.value


@pytest.mark.parametrize("name", frameworks.names())
def test_the_plan_for_a_framework_is_one_that_it_runs_and_no_quicker_than_without_its_limits(name: str) -> None:
    problem = posed(name)
    result = solved(problem)
    assert exceeded(problem.framework.limits, result.plan, problem.graph) == ()
    assert frameworks.refusals(problem.framework, result.plan, problem) == ()
    free = replace(problem, framework=replace(problem.framework, limits=FrameworkLimits()), framework_asked="")
    assert seconds(result) >= seconds(solved(free)) * (1 - 1e-9)


def test_the_answer_is_the_best_of_all_settings_searched_one_by_one() -> None:
    """Where memory is short; blocks of layers are the setting of none and full together."""
    problem = posed("megatron")
    one_by_one = []
    for words in ("none,full", "core_attn", "mlp"):
        result = solved(problem, recompute=words, **TIGHT)
        if result.feasible:
            one_by_one.append(seconds(result))
            used = {word for stage in result.plan.stages for word in stage.recompute}
            assert used <= {*words.split(","), "none"}
    assert seconds(solved(problem, **TIGHT)) == pytest.approx(min(one_by_one), rel=1e-9)


def test_blocks_recompute_as_few_first_layers_of_every_stage_as_fit() -> None:
    problem = posed("megatron", recompute=("none", "full"))
    result = solved(problem, pipeline="2", data="2", tensor="1", context="1", shard="1", schedules="1f1b", memory_ratio="0.21")
    assert any(word == "full" for stage in inner_words(result.plan, problem.graph) for word in stage)
    assert exceeded(problem.framework.limits, result.plan, problem.graph) == ()
    whole = posed("megatron", recompute=("none", "full"), block_recompute=False)
    alike = solved(whole, pipeline="2", data="2", tensor="1", context="1", shard="1", schedules="1f1b", memory_ratio="0.21")
    assert seconds(result) <= seconds(alike)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schedules": "zb_h1"}, "zb_h1: not in framework megatron_deepspeed, which has schedules 1f1b"),
        ({"shard": "3"}, "sharding levels"), ({"context": "2"}, "no context parallelism"),
        ({"recompute": "selective"}, "recompute selective: not in framework megatron_deepspeed, which has none, full"),
    ],
)  # fmt: skip
def test_an_option_outside_the_framework_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        solved(posed("megatron_deepspeed"), **options)
