"""MaxText's and nanotron's files name or describe their model: advice on one needs no ``--model``, and is of the same step."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.api.evaluation import evaluate
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("maxtext", "llama-3.1-8b"), ("maxtext", "llama-2-7b"), ("maxtext", "deepseek-v3"), ("maxtext", "deepseek-v3-mtp"),
        ("maxtext", "gemma-2-9b"), ("maxtext", "gpt-oss-20b"), ("nanotron", "llama-3.1-8b"), ("nanotron", "llama-3.2-1b"),
        ("nanotron", "qwen2.5-7b"),
    ],
)  # fmt: skip
def test_the_model_of_a_written_file_takes_the_same_step(name: str, model: str, tmp_path: pathlib.Path) -> None:
    module, path = frameworks.load(name), str(tmp_path / "plan.yml")
    problem = api.make_problem(model, "dgx-h100:64", framework=name, batch=Batch(64, 1))
    words = ("none", *("full",) * (len(problem.graph.ops) - 2), "none")
    stage = Stage(tuple(range(len(words))), tuple(range(64)), Strategy(64, shard=module.FRAMEWORK.limits.shards[-1]), words)
    plan = Plan((stage,), 1, 1, "1f1b", 64)
    module.write(Result(problem, "best", 0, Answer(plan)), path)
    spec = module.model_of(path, 0)
    assert spec.graph.n_parameters == problem.graph.n_parameters and module.read(path, spec.graph, 64).plan == plan
    again = api.make_problem(spec, "dgx-h100:64", framework=name, batch=Batch(64, 1))
    ran, asked = evaluate(again, plan)[1], evaluate(problem, plan)[1]
    assert ran is not None and asked is not None
    assert (ran.step_seconds, ran.peak_bytes) == (asked.step_seconds, asked.peak_bytes)
    assert module.model_of(path, 2048).graph.sequence_length == 2048


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("maxtext", "base_config: base.yml\nmodel_name: mine-7b\n", "mine-7b is none of the built-in models; give --model"),
        ("maxtext", "base_config: base.yml\nbase_emb_dim: 64\n", "leaves base_num_query_heads open; give --model"),
        ("nanotron", "parallelism: {dp: 8}\ntokens: {sequence_length: 8}\n", "model.model_config is missing; give --model"),
        ("nanotron", "tokens: {}\nmodel: {model_config: {moe_config: {a: 1}}}\n", "is of a mixture; give --model"),
        ("nanotron", "model: {model_config: {hidden_size: 8}}\n", "num_attention_heads is missing"),
    ],
)  # fmt: skip
def test_a_file_that_leaves_its_model_open_says_so_in_one_line(name: str, text: str, told: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as error:
        frameworks.load(name).model_of(str(path), 0)
    assert "\n" not in str(error.value)
