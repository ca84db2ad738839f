"""Plans of adapters: written with peft's LoraConfig and read back the same, refused where that cannot be said."""

from __future__ import annotations

import ast
import pathlib
from dataclasses import replace

import pytest

from meshwright import api, frameworks
from meshwright.api.evaluation import evaluate
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _adapters, _python_file
from meshwright.models import fine_tuning


def posed(name: str, model: str = "llama-3.2-1b", lora: str = "r=8,targets=query,value", **freeze: tuple[str, ...]) -> Problem:
    return api.make_problem(api.read(model, lora=lora, **freeze), "dgx-h100:64", framework=name, batch=Batch(64, 1))


def planned(problem: Problem, strategy: Strategy, word: str = "none") -> Plan:
    last = len(problem.graph.ops) - 1
    words = ("none", *[word] * (last - 1), "none")
    stage = Stage(tuple(range(last + 1)), tuple(range(strategy.n_devices)), strategy, words)
    return Plan((stage,), 4, 2, "1f1b", 8 * strategy.data)


@pytest.mark.parametrize(
    ("name", "strategy", "lora"),
    [
        ("fsdp2", Strategy(8, shard=3), "r=8,targets=query,value"),
        ("fsdp2", Strategy(4, 1, 2, shard=2), "r=16,targets=output,gate,up,down"),
        ("fsdp2", Strategy(8, shard=3, shard_degree=4), "r=4,targets=key"),
        ("transformers", Strategy(8), "r=8,targets=query,key,value,output"),
        ("transformers", Strategy(8, shard=3), "r=8,targets=query,value,base=4bit"),
        ("transformers:deepspeed", Strategy(8, shard=2), "r=64,targets=down"),
    ],
)
def test_adapters_are_read_back_and_the_step_is_the_same(
    name: str, strategy: Strategy, lora: str, tmp_path: pathlib.Path
) -> None:
    problem, path = posed(name, lora=lora), tmp_path / "plan.py"
    plan = planned(problem, strategy, "full")
    module = frameworks.load(problem.framework.name)
    module.write(Result(problem, "best", 0, Answer(plan)), str(path))
    whole = api.read("llama-3.2-1b")
    said = module.read(str(path), whole.graph)
    assert (said.plan, said.warnings) == (plan, ())
    assert fine_tuning.parse_lora(said.lora) == fine_tuning.parse_lora(lora)
    back = replace(problem, model_spec=fine_tuning.fine_tuned(whole, (), said.lora))
    ran, asked = evaluate(back, said.plan)[1], evaluate(problem, plan)[1]
    assert ran is not None and asked is not None and ran.step_seconds == asked.step_seconds
    assert ran.peak_bytes == asked.peak_bytes


@pytest.mark.parametrize(
    ("name", "path", "problem", "strategy", "said"),
    [
        ("accelerate", "a.yaml", {}, Strategy(8, shard=3), "a model with frozen weights"),
        ("deepspeed", "a.json", {}, Strategy(8, shard=3), "a model with frozen weights"),
        ("megatron", "a.sh", {}, Strategy(8, shard=1), "a model with frozen weights"),
        ("transformers", "a.json", {}, Strategy(8, shard=3), "run_clm.py has no option"),
        ("transformers:deepspeed", "a.py", {}, Strategy(4, 2, shard=3), "adapters over a tensor axis"),
        ("fsdp2", "a.py", {}, Strategy(4, 2, shard=3), "adapters over a tensor axis"),
        ("fsdp2", "a.py", {"lora": "r=8,targets=query,base=4bit"}, Strategy(8, shard=3), "frozen weights in four bits"),
        ("fsdp2", "a.py", {"lora": "", "freeze": ("layers.1",)}, Strategy(8, shard=3), "frozen by name"),
        ("transformers", "a.py", {"lora": "", "freeze": ("layers.0",)}, Strategy(8, shard=3), "frozen by name"),
        ("fsdp2", "a.py", {"lora": "r=8,targets=query_key_value"}, Strategy(8, shard=3), "no module of its own in the family"),
        ("fsdp2", "a.py", {"model": "gpt2", "lora": "r=8,targets=query"}, Strategy(8, shard=3), "there: query_key_value"),
        ("fsdp2", "a.py", {"model": "gpt-oss-20b"}, Strategy(8, shard=3), "there: none"),
    ],
)
def test_what_cannot_be_said_is_refused_and_nothing_written(
    name: str, path: str, problem: dict[str, object], strategy: Strategy, said: str, tmp_path: pathlib.Path
) -> None:
    asked = posed(name if ":" in name else "", **problem)  # type: ignore[arg-type]
    module = frameworks.load(name.partition(":")[0])
    with pytest.raises(ExportError, match=said):
        module.write(Result(asked, "best", 0, Answer(planned(asked, strategy))), str(tmp_path / path))
    assert not list(tmp_path.iterdir())


LORA = 'LoraConfig(r=RANK, lora_alpha=f(), target_modules=["q_proj", "model.layers.0.self_attn.v_proj"], bias="none")'
PACKED = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)"


def in_python(text: str) -> tuple[str, tuple[str, ...]]:
    tree = ast.parse(text)
    return _adapters.in_python(tree, api.read("llama-3.2-1b").graph, "a.py", _python_file.constants(tree))


def test_literal_arguments_of_any_script_are_read() -> None:
    assert in_python("x = 1") == ("", ())
    assert in_python(f"RANK = 4\nconfig = peft.{LORA}") == ("r=4,targets=query,value", ())
    assert in_python(f"RANK = 4\nconfig = {LORA}\npacked = {PACKED}") == ("r=4,targets=query,value,base=4bit", ())
    text, notes = in_python("LoraConfig(target_modules='all-linear')")
    assert text == "r=8,targets=query,key,value,output,gate,up,down" and "all-linear" in notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LORA, "line 1: LoraConfig: r is no constant but RANK"), (f"RANK = 0\n{LORA}", "r is 0; it must be"),
        (f"RANK = 4\n{LORA}\n{LORA}", "line 3: makes LoraConfig 2 times"), ("LoraConfig(**options)", "write them out by name"),
        (f"RANK = 4\n{LORA}\nBitsAndBytesConfig(load_in_8bit=True)", "in eight bits are not priced"),
        ("LoraConfig(use_dora=True)", "use_dora is True; plans have plain adapters"),
        ("LoraConfig(modules_to_save=['lm_head'])", "modules_to_save is"), ("LoraConfig(bias='all')", "bias is 'all'"),
        ("LoraConfig(target_modules='.*proj')", "in a list, or all-linear"),
        ("LoraConfig(target_modules=['fc9'])", "has 'fc9'"),
        ("LoraConfig(rank_pattern={'q_proj': 4})", "rank_pattern is"),
    ],
)  # fmt: skip
def test_adapters_of_another_kind_are_refused_with_name_and_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        in_python(text)
    assert said in str(error.value) and str(error.value).startswith("a.py: line ") and "\n" not in str(error.value)


def test_four_bytes_are_held_where_products_have_four(tmp_path: pathlib.Path) -> None:
    """In fp32 frozen weights are written in fp32, too: what they are priced with."""
    path = tmp_path / "plan.py"
    problem = api.make_problem(
        api.read("llama-3.2-1b", lora="r=8,targets=query"), "dgx-h100:8", framework="fsdp2", batch=Batch(64, 1),
        training=MixedPrecision.of("fp32"),
    )  # fmt: skip
    frameworks.load("fsdp2").write(Result(problem, "best", 0, Answer(planned(problem, Strategy(8, shard=3)))), str(path))
    text = path.read_text()
    assert "dtype=PRECISION" in text and "PRECISION, SEQUENCE_LENGTH = torch.float32" in text
    compile(text, "plan.py", "exec")
    assert len(text.splitlines()) < 100
