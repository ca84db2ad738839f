"""Recipes of Megatron-Bridge: fields, the provider of every family, other people's recipes, what is wrong in one line."""

from __future__ import annotations

import ast
import functools
import json
import pathlib
from collections import Counter

import pytest

from meshwright import api, frameworks
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks.megatron_bridge import fields
from meshwright.models.readers import huggingface

MODULE = frameworks.load("megatron_bridge")


@functools.cache
def posed(model: str = "llama-3.2-1b", precision: str = "bf16", word: str = "megatron_bridge") -> Problem:
    return api.make_problem(model, "dgx-h100:64", framework=word, batch=Batch(64, 1), training=MixedPrecision.of(precision))


def planned(problem: Problem, strategy: Strategy, n_ranks: int = 1, word: str = "none") -> Plan:
    """Return a plan of even stages, what is over on the last one."""
    last, size = len(problem.graph.ops) - 1, strategy.n_devices
    each, stages = (last - 1) // n_ranks, []
    for i in range(n_ranks):
        first, end = 1 + i * each, 1 + (i + 1) * each if i < n_ranks - 1 else last
        ops = [0] * (i == 0) + list(range(first, end)) + [last] * (i == n_ranks - 1)
        words = tuple("none" if op in (0, last) else word for op in ops)
        stages.append(Stage(tuple(ops), tuple(range(i * size, (i + 1) * size)), strategy, words))
    return Plan(tuple(stages), 8, 1, "1f1b", 8 * strategy.data)


def written(problem: Problem, plan: Plan, path: pathlib.Path) -> str:
    MODULE.write(Result(problem, "best", 0, Answer(plan)), str(path))
    return path.read_text()


def test_every_family_has_its_provider_or_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    told: Counter[str] = Counter()
    first = {str(huggingface.configuration(model)["model_type"]): model for model in reversed(huggingface.names())}
    for family, model in first.items():
        problem = posed(model)
        try:
            text = written(problem, planned(problem, Strategy(8, shard=1), word="full"), tmp_path / "recipe.py")
        except ExportError as error:
            told["refused"] += 1
            assert model in str(error) and f"the family {family}" in str(error)
            continue
        ast.parse(text)
        (kind,) = [name for name in ("AutoBridge.from_hf", "KimiK2Provider()", "GPTModelProvider(") if f"model={name}" in text]
        told[kind] += 1
        assert f"cfg.model.seq_length = {problem.graph.sequence_length}\n" in text
    assert told == {"AutoBridge.from_hf": 11, "KimiK2Provider()": 1, "GPTModelProvider(": 4, "refused": 6}


DECODER = {
    "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24,
    "intermediate_size": 200, "vocab_size": 1003, "max_position_embeddings": 256, "rope_theta": 10000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("arcee", "activation_func=squared_relu"), ("ernie4_5", "rotary_interleaved=True"), ("glm", "rotary_percent=0.5"),
        ("phi3", "gated_linear_unit=True"), ("seed_oss", "add_qkv_bias=True"), ("smollm3", "no_rope_freq=[0,0,0,1]"),
        ("mixtral", "window_size=(31, 0)"), ("qwen2_moe", "moe_router_pre_softmax=True"),
    ],
)  # fmt: skip
def test_families_without_a_bridge_are_written_field_by_field(family: str, said: str, tmp_path: pathlib.Path) -> None:
    experts: dict[str, dict[str, int]] = {
        "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 32},
        "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 56,
                      "shared_expert_intermediate_size": 72},
    }  # fmt: skip
    own = {**DECODER, **experts.get(family, {})}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **own}))
    problem = api.make_problem(str(tmp_path / "config.json"), "dgx-h100:8", framework="megatron_bridge", batch=Batch(8, 1, 64))
    plan = planned(problem, Strategy(8, shard=1))
    text = written(problem, plan, tmp_path / "recipe.py")
    assert f"            {said},\n" in text
    (call,) = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "GPTModelProvider"
    ]
    assert {keyword.arg for keyword in call.keywords} <= set(fields.known()["fields"]["model"])
    assert MODULE.read(str(tmp_path / "recipe.py"), problem.graph).plan == plan


def test_a_kimi_of_other_dimensions_is_refused(tmp_path: pathlib.Path) -> None:
    own = {**huggingface.configuration("kimi-k2"), "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps({name: one for name, one in own.items() if name[0] != "_"}))
    problem = api.make_problem(str(tmp_path / "config.json"), "dgx-h100:8", framework="megatron_bridge", batch=Batch(8, 1, 64))
    with pytest.raises(ExportError, match="vocab_size 1000; KimiK2Provider has 163840"):
        written(problem, planned(problem, Strategy(8, shard=1)), tmp_path / "recipe.py")


def test_every_field_that_is_written_is_one_of_the_release_and_is_written_whatever_a_provider_sets(
    tmp_path: pathlib.Path,
) -> None:
    known = fields.known()["fields"]
    for model, strategy in (("llama-3.2-1b", Strategy(4, 2, 1, 1, True, 3)), ("qwen3-30b-a3b", Strategy(4, 1, 1, 4, shard=1))):
        for precision in ("fp32", "fp16", "mxfp8"):
            problem = posed(model, precision)
            text = written(problem, planned(problem, strategy, 1, "full"), tmp_path / "recipe.py")
            names = [line.split(" = ")[0].split(".")[1:] for line in text.splitlines() if line.startswith("    cfg.")]
            assert all(name in known[part] for part, name in names if part in known)
            assert ["model", "recompute_modules"] in names and ["ddp", "use_distributed_optimizer"] in names
            assert MODULE.read(str(tmp_path / "recipe.py"), problem.graph).precision == precision


def test_what_is_priced_is_what_is_set(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "recipe.py"
    split = Strategy(4, 2, 1, 1, True, 1)
    for word, overlap in (("megatron_bridge", True), ("megatron_bridge:plain", False)):
        problem = posed(word=word)
        assert f"tp_comm_overlap={overlap}" in written(problem, planned(problem, split), path)
        assert MODULE.read(str(path), problem.graph).variant == ("" if overlap else "plain")
    problem = posed("qwen3-30b-a3b")  # on hosts with x86 processors tokens are exchanged by DeepEP
    assert problem.framework.word == "megatron_bridge:experts_x86" and problem.framework.dispatches_once
    assert 'moe_flex_dispatcher_backend = "deepep"' in written(problem, planned(problem, Strategy(8, 1, 1, 8, shard=1)), path)
    text = written(posed(), planned(posed(), Strategy(8)), path)
    assert "cfg.optimizer.use_distributed_optimizer = False" in text and MODULE.read(str(path), posed().graph).plan.stages[
        0
    ].strategy == Strategy(8)
    text = written(posed(), planned(posed(), Strategy(8, shard=3)), path)
    assert 'ckpt_format="fsdp_dtensor"' in text and "cfg.model.gradient_accumulation_fusion = False" in text


RECIPE = """# torchrun --nproc-per-node 8 train.py
from megatron.bridge.training.config import ConfigContainer
SEQUENCE = 2 * 256
def mine():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = SEQUENCE
    cfg.train.global_batch_size = 16
    cfg.train.micro_batch_size = 2
    cfg.mixed_precision = get_mixed_precision_config("bf16-with-mxfp8-mixed")
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    return cfg
"""


def test_a_recipe_of_ones_own_is_read_with_what_bridge_assumes(tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "mine.py", posed().graph
    path.write_text(RECIPE.replace("get_mixed_precision_config(", "(").replace('("bf16', '"bf16').replace('mixed")', 'mixed"'))
    said = MODULE.read(str(path), graph)
    assert (said.plan.stages[0].strategy, said.plan.n_microbatches) == (Strategy(4, 2, 1, 1, True, 1), 2)
    assert (said.precision, said.sequence_length, said.variant) == ("mxfp8", 512, "")
    assert [one.partition("line ")[2] for one in said.warnings] == ["5: what _pretrain_common sets by itself is not read"]
    path.write_text(
        RECIPE.replace('get_mixed_precision_config("bf16-with-mxfp8-mixed")', "bf16_mixed()").replace(
            "cfg.train.micro_batch_size = 2",
            'cfg.train.micro_batch_size = 2\n    cfg.model.recompute_granularity = "selective"\n'
            '    cfg.model.recompute_modules = ["mlp", "core_attn"]\n    cfg.model.pipeline_model_parallel_size = 2\n'
            '    cfg.model.pipeline_model_parallel_layout = [["embedding"] + ["decoder"] * 3] + '
            '[13 * ["decoder"] + ["loss"]]',
        )
    )
    plan = MODULE.read(str(path), graph).plan
    assert [len(stage.ops) for stage in plan.stages] == [4, 14] and plan.stages[0].recompute[1] == "core_attn+mlp"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("_size = 2", "_size = 3", "no multiple of"),
        ("_size = 2", '_size = "two"', "model.tensor_model_parallel_size is 'two'"),
        ("_size = 2", "_size = choose()", "line 7: model.tensor_model_parallel_size is no constant"),
        ("--nproc-per-node 8", "", "how many processes"),
        ("global_batch_size = 16", "global_batch_size = 17", "no multiple of"),
        ("cfg.train.global_batch_size = 16", "", "train.global_batch_size is missing"),
        ("def mine", "def other():\n    cfg.model.tensor_model_parallel_size = 1\ndef mine", "holds 2 recipes"),
        ("SEQUENCE\n", "SEQUENCE\n    cfg.model.num_layers = 17\n", "another model?"),
        ("SEQUENCE\n", "SEQUENCE\n    cfg.model.cpu_offloading = True\n", "leave it out"),
        ("SEQUENCE\n", "SEQUENCE\n    cfg.model.recompute_granularity = 'some'\n", "model.recompute_granularity is 'some'"),
        ("sequence_parallel = True", "sequence_parallel = 3", "must be True or False"),
        ("2 * 256", "[1] * 99999999", "no constant"),
        ("SEQUENCE\n", "SEQUENCE\n    cfg.model.pipeline_model_parallel_layout = ['E']\n", "layout names E"),
        ('"bf16-with-mxfp8-mixed"', '"int4"', "it must be None, bf16_mixed"), ("def mine", "def (", "is no Python"),
    ],
)  # fmt: skip
def test_wrong_recipes_are_one_line_with_the_field(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    text = RECIPE.replace("get_mixed_precision_config(", "(")
    path.write_text(text)
    assert MODULE.read(str(path), posed().graph).plan.n_devices == 8 and old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        MODULE.read(str(path), posed().graph)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_what_is_unknown_conditional_or_priced_otherwise_is_a_warning(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        RECIPE.replace('get_mixed_precision_config("bf16-with-mxfp8-mixed")', "bf16_with_fp8_delayed_scaling_mixed()").replace(
            "    return cfg",
            "    if big:\n        cfg.train.micro_batch_size = 1\n    cfg.ddp.weather = 3\n"
            "    cfg.mixed_precision.grad_reduce_in_fp32 = False\n    return cfg",
        )
    )
    said = MODULE.read(str(path), posed().graph)
    assert said.precision == "fp8" and said.plan.micro_batch == 1
    assert said.training is not None and said.training.gradient_bytes == 2
    for text in (
        "line 15: train.micro_batch_size is set under",
        "line 16: nothing is known of ddp.weather",
        "fp8",
    ):
        assert any(text in warning for warning in said.warnings), said.warnings


def test_a_recipe_is_recognised_as_no_other_file() -> None:
    names = [
        name for name in frameworks.names()
        if hasattr(frameworks.load(name), "recognises") and frameworks.load(name).recognises(RECIPE)
    ]  # fmt: skip
    assert names == ["megatron_bridge"]


def test_what_a_recipe_called_by_name_sets_is_said_to_be_left_out(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "# torchrun --nproc-per-node 8\ncfg = llama.llama3_8b_pretrain_config(seq_length=128)\n"
        "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 16\ncfg.model.tensor_model_parallel_size = 2\n"
    )
    found = MODULE.read(str(path), posed().graph)
    assert found.plan.stages[0].strategy.tensor == 2
    assert "line 2: what llama.llama3_8b_pretrain_config sets by itself is not read" in found.warnings[0]
