"""What runs of Megatron-Bridge and NeMo write down: the same plan as the recipe, the model, what is wrong in one line."""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import Any

import pytest
import yaml

from meshwright import api, frameworks
from meshwright.api import advise
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy

MODULE = frameworks.load("megatron_bridge")

DUMP = """_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap: null
dataset:
  _target_: megatron.bridge.training.config.GPTDatasetConfig
  sequence_length: 1024
ddp:
  average_in_collective: true
  grad_reduce_in_fp32: true
  overlap_grad_reduce: true
  overlap_param_gather: true
  use_distributed_optimizer: true
ft: null
mixed_precision:
  _target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig
  bf16: true
  fp8: null
  fp8_recipe: tensorwise
  params_dtype:
    _call_: false
    _target_: torch.bfloat16
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider
  activation_func:
    _call_: false
    _target_: torch.nn.functional.silu
  add_bias_linear: false
  ffn_hidden_size: 8192
  gated_linear_unit: true
  hidden_size: 2048
  kv_channels: 64
  moe_token_dispatcher_type: allgather
  num_attention_heads: 32
  num_layers: 16
  num_query_groups: 8
  pipeline_model_parallel_size: 1
  recompute_granularity: null
  recompute_modules:
  - core_attn
  scale_factor: 32.0
  seq_length: 1024
  sequence_parallel: true
  share_embeddings_and_output_weights: true
  tensor_model_parallel_size: 2
  tp_comm_overlap: false
  vocab_size: 128256
optimizer:
  optimizer: adam
  use_distributed_optimizer: true
peft: null
train:
  global_batch_size: 512
  micro_batch_size: 1
  rampup_batch_size: null
"""

NEMO = """_target_: nemo.collections.llm.api.pretrain
_partial_: true
data:
  _target_: nemo.collections.llm.gpt.data.mock.MockDataModule
  global_batch_size: 128
  micro_batch_size: 1
  seq_length: 2048
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config:
    _target_: nemo.collections.llm.gpt.model.llama.Llama32Config1B
    cross_entropy_fusion_impl: te
optim:
  config:
    _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
    optimizer: adam
    use_distributed_optimizer: true
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  accumulate_grad_batches: 1
  callbacks:
  - _target_: nemo.utils.exp_manager.TimingCallback
  - _target_: nemo.lightning.pytorch.callbacks.megatron_comm_overlap.MegatronCommOverlapCallback
    tp_comm_overlap: true
  devices: 8
  num_nodes: 2
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    fp8: hybrid
    fp8_recipe: mxfp8
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    ckpt_async_save: true
    context_parallel_size: 2
    ddp:
      data_parallel_sharding_strategy: optim_grads_params
      grad_reduce_in_fp32: true
    expert_tensor_parallel_size: null
    fsdp: null
    pipeline_model_parallel_size: 2
    sequence_parallel: true
    tensor_model_parallel_size: 2
    virtual_pipeline_model_parallel_size: 4
"""


@functools.cache
def posed(model: str = "llama-3.2-1b", precision: str = "bf16") -> Problem:
    return api.make_problem(
        model, "dgx-h100:64", framework="megatron_bridge", batch=Batch(64, 1), training=MixedPrecision.of(precision)
    )


def read(path: pathlib.Path, text: str, problem: Problem, n_devices: int = 8) -> Any:
    path.write_text(text)
    assert MODULE.recognises(text)
    return MODULE.read(str(path), problem.graph, n_devices)


def test_what_a_run_wrote_is_read_as_what_it_ran(tmp_path: pathlib.Path) -> None:
    said = read(tmp_path / "run_config.yaml", DUMP, posed())
    assert said.plan.stages[0].strategy == Strategy(4, 2, 1, 1, True, 1) and set(said.plan.stages[0].recompute) == {"none"}
    assert (said.plan.n_microbatches, said.plan.global_batch, said.precision) == (128, 512, "bf16")
    assert (said.sequence_length, said.warnings, said.variant) == (1024, (), "plain")
    noted = DUMP.replace("comm_overlap: null", "comm_overlap: {data_parallel_size: 2, tp_comm_overlap: true}")
    said = read(tmp_path / "run_config.yaml", noted, posed(), 0)
    assert (said.plan.n_devices, said.variant) == (4, "")


def test_its_model_is_built_from_its_fields(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run_config.yaml"
    path.write_text(DUMP)
    graph, own = MODULE.model_of(str(path)).graph, api.read("llama-3.2-1b", sequence_length=1024).graph
    assert (graph.n_parameters, graph.sequence_length) == (own.n_parameters, 1024)
    advice = advise.advise(str(path), "dgx-h100:8", stop=None)
    named = advise.advise(str(path), "dgx-h100:8", "llama-3.2-1b")
    assert advice.result.timeline and named.result.timeline and advice.result.problem.framework.variant == "plain"
    assert advice.result.timeline.step_seconds == named.result.timeline.step_seconds


@pytest.mark.parametrize(
    ("more", "family"),
    [
        ({"num_moe_experts": 8, "moe_ffn_hidden_size": 8192, "share_embeddings_and_output_weights": False}, "mixtral-like"),
        ({"num_moe_experts": 8, "moe_ffn_hidden_size": 768, "qk_layernorm": True, "moe_layer_freq": 1}, "qwen3_moe-like"),
        ({"num_moe_experts": 8, "moe_ffn_hidden_size": 1024, "multi_latent_attention": True, "q_lora_rank": 256,
          "kv_lora_rank": 128, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 64, "num_query_groups": None,
          "moe_router_score_function": "sigmoid", "moe_layer_freq": [0] + [1] * 15,
          "moe_shared_expert_intermediate_size": 1024, "moe_router_enable_expert_bias": True}, "deepseek_v3-like"),
        ({"num_moe_experts": 4, "moe_ffn_hidden_size": 2048, "add_bias_linear": True, "softmax_type": "learnable",
          "activation_func": {"_target_": "megatron.core.activations.quick_gelu"}, "window_size": [127, 0],
          "window_attn_skip_freq": 2}, "gpt_oss-like"),
    ],
)  # fmt: skip
def test_mixtures_are_built_from_their_fields(more: dict[str, Any], family: str, tmp_path: pathlib.Path) -> None:
    content = yaml.safe_load(DUMP)
    content["model"] |= more
    path = tmp_path / "run_config.yaml"
    path.write_text(yaml.safe_dump(content))
    graph = MODULE.model_of(str(path)).graph
    said = MODULE.read(str(path), graph, 8)
    assert sum(op.kind == "moe" for op in graph.ops) == (15 if "deepseek" in family else 16), family
    assert said.plan.stages[0].strategy == Strategy(4, 2, 1, 1, True, 1)
    assert [text for text in said.warnings if "nothing is known" in text] == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  num_layers: 16", "  num_layers: 17", "another model?"),
        ("  global_batch_size: 512", "  global_batch_size: 511", "no multiple of"),
        ("  global_batch_size: 512\n", "", "train.global_batch_size is missing"),
        ("tensor_model_parallel_size: 2", "tensor_model_parallel_size: many", "is 'many'; it must be a whole number"),
        ("peft: null", "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8", "line 49: peft is set (megatron.bridge"),
        ("optimizer: adam", "optimizer: adam\n  optimizer_cpu_offload: true", "optimizer_cpu_offload is set"),
        ("optimizer: adam", "optimizer: muon", "optimizer.optimizer is 'muon'"),
        ("fp8: null\n  fp8_recipe: tensorwise", "fp8: hybrid\n  fp8_recipe: custom", "fp8_recipe is 'custom'"),
        ("  bf16: true\n", "  bf16: true\n  bf16: true\n", "given twice"), ("ddp:\n", "ddp: 3\nx:\n", "ddp is 3"),
        ("train:", "trains:", "micro_batch_size is missing"), ("ft: null", "ft: [", "is no YAML"),
        ("  num_layers: 16", "  num_layers: 16\n  num_layers_in_first_pipeline_stage: 20\n", "-4 layers"),
    ],
)  # fmt: skip
def test_wrong_dumps_are_one_line_with_the_field(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run_config.yaml"
    assert old in DUMP
    text = DUMP.replace(old, new, 1)
    if "first_pipeline" in new:
        text = text.replace("pipeline_model_parallel_size: 1", "pipeline_model_parallel_size: 2")
    with pytest.raises(InputError) as error:
        read(path, text, posed())
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_what_is_unknown_or_priced_otherwise_is_said_with_name_and_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run_config.yaml"
    text = DUMP.replace("fp8: null", "fp8: hybrid\n  fp8_param_gather: true\n  weather: fine").replace(
        "\nft: null", "\nmoon: null"
    )
    text = text.replace("rampup_batch_size: null", "rampup_batch_size: [8, 8, 100]").replace(
        "  overlap_param_gather: true", "  overlap_param_gather: false"
    )
    text = text.replace("  sequence_length: 1024", "  sequence_length: 512")
    said = read(path, text, posed())
    assert [one.removeprefix(f"{path}: ") for one in said.warnings] == [
        "fp8_param_gather is True; weights are priced as held and gathered in bf16",
        "line 12: nothing is known of moon; it is left out",
        "line 18: nothing is known of mixed_precision.weather; it is left out",
        "train.rampup_batch_size: the global batch after the ramp is priced",
        "samples have 512 tokens, model.seq_length is 1024: 512 are priced",
    ]
    assert (said.precision, said.sequence_length) == ("fp8", 512)


def test_a_task_of_nemo_is_read_with_what_its_callbacks_do(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "task.yaml"
    said = read(path, NEMO, posed())
    assert said.plan.stages[0].strategy == Strategy(2, 2, 2, 1, True, 1)  # no FSDP without trainer.strategy.fsdp
    assert (len(said.plan.stages), said.plan.schedule, said.plan.n_devices) == (8, "interleaved_1f1b", 16)
    assert (said.precision, said.sequence_length, said.variant, said.warnings) == ("mxfp8", 2048, "", ())
    assert MODULE.model_of(str(path)).name == "llama-3.2-1b"
    sharded = NEMO.replace("fsdp: null", "fsdp: megatron").replace("virtual_pipeline_model_parallel_size: 4", "weather: 1")
    said = read(path, sharded, posed())
    assert said.plan.stages[0].strategy == Strategy(2, 2, 2, 1, True, 3)
    assert said.warnings == (f"{path}: line 44: nothing is known of strategy.weather; it is left out",)
    inside = "task:\n" + "".join(f"  {line}\n" for line in NEMO.splitlines())
    assert read(path, inside, posed()).plan.n_devices == 16
    plain = NEMO.replace(
        "  - _target_: nemo.lightning.pytorch.callbacks.megatron_comm_overlap.MegatronCommOverlapCallback\n", ""
    )
    said = read(path, plain.replace("    tp_comm_overlap: true\n", ""), posed())
    assert (said.variant, said.warnings) == ("plain+late_reduce", ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("megatron_strategy.MegatronStrategy", "ddp.DDPStrategy", "only MegatronStrategy"),
        ("fsdp: null", "fsdp: pytorch", "fsdp is 'pytorch'"), ("batches: 1", "batches: 4", "accumulate_grad_batches"),
        ("bf16-mixed", "int4", "precision is 'int4'"),
        ("optim:", "peft: {_target_: nemo.collections.llm.peft.lora.LoRA}\noptim:", "line 13: peft is set"),
        ("  devices: 8\n", "  devices: auto\n", "is no multiple of train.micro_batch_size 1 x 3"),
    ],
)  # fmt: skip
def test_wrong_tasks_are_one_line(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "task.yaml"
    assert old in NEMO
    with pytest.raises(InputError, match=said) as error:
        read(path, NEMO.replace(old, new, 1), posed(), 20 + 4)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_class_of_nemo_that_is_changed_needs_the_model(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "task.yaml"
    for text, said in (
        (NEMO.replace("cross_entropy_fusion_impl: te", "num_layers: 4"), "model.config.num_layers is set"),
        (NEMO.replace("Llama32Config1B", "BaichuanConfig"), "BaichuanConfig is none"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            MODULE.model_of(str(path))


def test_every_field_of_a_recipe_says_the_same_in_a_dump(tmp_path: pathlib.Path) -> None:
    """A recipe's assignments put down as the run would: the same plan, precision and variant."""
    even = [Stage((0, *range(1, 9)), tuple(range(8)), Strategy(4, 2, 1, 1, True, 1), ("none", *["full"] * 8))]
    even.append(Stage((*range(9, 17), 17), tuple(range(8, 16)), even[0].strategy, (*["full"] * 8, "none")))
    uneven = [Stage((0, *range(1, 6)), tuple(range(8)), Strategy(8, shard=2, shard_degree=4), ("none",) * 6)]
    uneven.append(Stage(tuple(range(6, 18)), tuple(range(8, 16)), uneven[0].strategy, ("none",) * 12))
    for precision in ("bf16", "mxfp8", "fp32"):
        for stages in (even, uneven):
            problem, path = posed(precision=precision), tmp_path / "recipe.py"
            plan = Plan(tuple(stages), 8, 1, "1f1b", 8 * stages[0].strategy.data)
            MODULE.write(Result(problem, "best", 0, Answer(plan)), str(path))
            content: dict[str, Any] = {}
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Assign)
                    and ast.unparse(node.targets[0]).startswith("cfg.")
                    and "vocab" not in ast.unparse(node)
                ):
                    _, part, name = ast.unparse(node.targets[0]).split(".")
                    content.setdefault(part, {})[name] = ast.literal_eval(node.value)
            mixed = {
                "bf16": {"bf16": True},
                "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
                "fp32": {"fp32": True},
            }
            content["mixed_precision"] = content.get("mixed_precision", {}) | mixed[precision]
            content["model"]["tp_comm_overlap"] = stages is even
            said = read(tmp_path / "run_config.yaml", yaml.safe_dump(content), problem, 16)
            assert (said.plan, said.precision, said.variant, said.warnings) == (plan, precision, "", ())
