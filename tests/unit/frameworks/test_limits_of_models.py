"""Models that a framework splits less than others, or cannot be told at all: searches keep to that, and answers say so."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.api import export as exporting
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.models.readers import huggingface

SPLITTING = ("accelerate", "fsdp2", "transformers:context", "transformers:deepspeed")
FEWER = {
    "accelerate": {"tensor", "context"}, "fsdp2": {"tensor", "context"}, "transformers:context": {"context"},
    "transformers:deepspeed": {"tensor"},
}  # fmt: skip


def one_stage(problem: Problem, strategy: Strategy) -> Plan:
    words = ("none",) * len(problem.graph.ops)
    stage = Stage(tuple(range(len(words))), tuple(range(strategy.n_devices)), strategy, words)
    return Plan((stage,), 2, 1, "1f1b", 2 * strategy.data)


@pytest.mark.parametrize("word", SPLITTING)
def test_limits_of_a_model_and_refusals_of_its_plans_say_the_same(word: str) -> None:
    own, left = frameworks.find(word), set()
    for model in huggingface.names():
        problem = api.make_problem(model, "flat:8", framework=word, batch=Batch(8, 1))
        degrees = problem.framework.limits.degrees
        assert (
            set(degrees) <= set(own.limits.degrees)
            and frameworks.suited(problem.framework, problem.model_spec, problem.training.optimizer).limits.degrees == degrees
        )
        for axis in set(own.limits.degrees) & {"tensor", "context"}:
            plan = one_stage(problem, Strategy(2, shard=3, **{axis: 2}))
            said = any(axis in reason for reason in frameworks.refusals(problem.framework, plan, problem))
            assert said == (axis not in degrees), (model, axis)
            left |= {axis} if said else set()
    assert left == FEWER[word]


@pytest.mark.parametrize(
    ("model", "name"), [("gemma-7b", "fsdp2"), ("gpt2-xl", "fsdp2"), ("phi-3-mini", "fsdp2"), ("gpt2-xl", "accelerate")]
)
def test_the_plan_for_a_framework_is_one_that_it_is_told(model: str, name: str, tmp_path: pathlib.Path) -> None:
    result = api.plan(model, "dgx-h100:16", framework=name, settings={"alternatives": "1"}, global_batch=16)
    assert not [note for note in result.answer.notes if "refuses this plan" in note]
    exporting.export(result, name, str(tmp_path / "plan.py"))


@pytest.mark.parametrize(
    ("model", "name", "said"),
    [
        ("gpt2", "nanotron", "gpt2 is of the family gpt2, which is not written out"),
        ("gpt2", "torchtitan", "gpt2 is not in its registry"), ("llama-3.2-1b", "nanotron", ""), ("gpt2", "megatron", ""),
        ("gpt2", "meshwright", ""), ("gpt2", "", ""),
    ],
)  # fmt: skip
def test_an_answer_says_why_its_framework_cannot_be_told_it(model: str, name: str, said: str) -> None:
    result = api.plan(model, "flat:2", search="data_parallel", batch=api.Batch(2), framework=name)
    notes = [note for note in result.answer.notes if "refuses this plan" in note]
    assert len(notes) == bool(said) and all(note.startswith(f"export --to {name} refuses") and said in note for note in notes)


@pytest.mark.parametrize("name", ["deepspeed", "transformers"])
def test_a_file_that_does_not_say_how_many_devices_run_it_says_so_where_some_are_left_aside(
    name: str, tmp_path: pathlib.Path
) -> None:
    problem = api.make_problem("llama-3.2-1b", "dgx-h100:16", framework=name, batch=Batch(16, 1))
    path = tmp_path / "plan.json"
    for n, told in ((8, 1), (16, 0)):
        plan = one_stage(problem, Strategy(n, shard=3))
        notes = frameworks.load(name).write(Result(problem, "best", 0, Answer(plan)), str(path))
        assert sum("of the 16 devices run it" in note for note in notes) == told


def test_frameworks_of_other_models_are_not_said_to_run_a_plan_nor_one_near_it() -> None:
    from meshwright.api import targets

    owning = {name for name in frameworks.names() if getattr(frameworks.load(name), "OWN_MODELS", False)}
    assert owning == {"maxtext", "megatron_bridge", "nanotron", "torchtitan"}
    for model, held in (("bert-base", set()), ("llama-3.2-1b", owning)):
        problem = api.make_problem(model, "flat:8", batch=Batch(16, 1))
        for plan in (one_stage(problem, Strategy(8)), one_stage(problem, Strategy(4, 2))):
            result = Result(problem, "best", 0, Answer(plan))
            found = {one.word.partition(":")[0]: one for one in targets.runs_on(result)}
            told = {name for name in owning if not found[name].refusals or found[name].near is not None}
            assert told == held
            assert not any(found[name].near for name in owning - held)


def test_kimi_k2_is_told_as_deepseek_v3_whose_layers_it_has(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.py"
    for name in ("fsdp2", "deepspeed"):
        problem = api.make_problem("kimi-k2", "flat:8", framework=name, batch=Batch(8, 1))
        plan = one_stage(problem, Strategy(8, shard=3))
        notes = frameworks.load(name).write(Result(problem, "best", 0, Answer(plan)), str(path))
        assert name == "fsdp2" or "in which model_type is deepseek_v3" in notes[0]
        if name == "fsdp2":
            graph = frameworks.load(name).model_of(str(path), 0).graph
            assert "deepseek_v3" in path.read_text() and graph.n_parameters == problem.graph.n_parameters
