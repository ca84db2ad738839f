"""What others make of our files on a CPU: Accelerate, DeepSpeed, Megatron-Core, torchtitan, transformers, trace analysis.

Each runs in a process of its own; ``make frameworks`` installs them. What is not installed is skipped.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from meshwright import api, frameworks
from meshwright.api import plan_files
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks.torchtitan.writers import pytorch_schedule
from meshwright.writers import plan_json

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def has(package: str) -> bool:
    """Return whether a package is installed; folders of tests may be called like it."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(package), reason=f"{package} is not installed; 'make frameworks' does")


def asked(script: str, *words: str, folder: pathlib.Path, **environment: str) -> Any:
    """Run a script in a process of its own; return the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *words], cwd=folder, capture_output=True, text=True, timeout=600,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def made(model: str, name: str, strategy: Strategy, counts: list[int], n_ranks: int, **said: Any) -> tuple[Problem, Plan]:
    """Return a plan of stages of so many layers, in turn or, for those in a V, there and back."""
    n, micro, schedule, word = (
        said.get(key, usual) for key, usual in (("n", 8), ("micro", 1), ("schedule", "1f1b"), ("word", "none"))
    )
    problem = api.make_problem(model, "flat:512", framework=name, batch=Batch(n * micro * strategy.data, micro, 4096))
    last, size, first, stages = len(problem.graph.ops) - 1, strategy.n_devices, 1, []
    for i, count in enumerate(counts):
        ops = [0] * (i == 0) + list(range(first, first + count)) + [last] * (i == len(counts) - 1)
        first += count
        rank = 2 * n_ranks - 1 - i if schedule in ("zb_v", "dualpipe_v") and i >= n_ranks else i % n_ranks
        words = tuple("none" if op in (0, last) else word for op in ops)
        stages.append(Stage(tuple(ops), tuple(range(rank * size, (rank + 1) * size)), strategy, words))
    assert first == last
    return problem, Plan(tuple(stages), n, micro, schedule, n * micro * strategy.data)


def written(case: tuple[Problem, Plan], name: str, path: pathlib.Path) -> None:
    frameworks.load(name).write(Result(case[0], "best", 0, Answer(case[1])), str(path))


ACCELERATE = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
args = launch_command_parser().parse_args(["--config_file", sys.argv[1], "run.py"])
args = _validate_launch_command(args)[0]
os.environ.update({key: str(value) for key, value in prepare_multi_gpu_env(args).items()})
from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig
mesh, plugin = ParallelismConfig(), FullyShardedDataParallelPlugin()
print(json.dumps({
    "sizes": [mesh.dp_replicate_size, mesh.dp_shard_size, mesh.tp_size, mesh.cp_size], "total": mesh.total_size,
    "version": plugin.fsdp_version, "reshard": plugin.reshard_after_forward, "full": plugin.activation_checkpointing,
    "wraps": list(plugin.transformer_cls_names_to_wrap), "n": args.num_processes, "mixed": args.mixed_precision,
}))
"""


@needs("accelerate")
@pytest.mark.parametrize(
    ("strategy", "word", "sizes"),
    [
        (Strategy(16, shard=3), "full", [1, 16, 1, 1]), (Strategy(8, shard=3, shard_degree=4), "none", [2, 4, 1, 1]),
        (Strategy(4, 2, 2, shard=2), "none", [1, 4, 2, 2]), (Strategy(8, 2, 2, 1, False, 3, 4), "full", [2, 4, 2, 2]),
    ],
)  # fmt: skip
def test_accelerate_launches_the_mesh_of_the_plan(
    strategy: Strategy, word: str, sizes: list[int], tmp_path: pathlib.Path
) -> None:
    written(made("llama-3.1-8b", "accelerate", strategy, [32], 1, word=word), "accelerate", tmp_path / "plan.yaml")
    said = asked(ACCELERATE, "plan.yaml", folder=tmp_path)
    assert said["sizes"] == sizes and said["total"] == said["n"] == strategy.n_devices
    assert (said["version"], said["reshard"], said["full"]) == (2, strategy.shard == 3, word == "full")
    assert (said["mixed"], said["wraps"]) == ("bf16", ["LlamaDecoderLayer"])


DEEPSPEED = """
import json, sys
from unittest.mock import patch
from deepspeed.runtime.config import DeepSpeedConfig
n, tensor = int(sys.argv[2]), int(sys.argv[3])
class Mesh:
    get_data_parallel_world_size = lambda self: n // tensor
    get_model_parallel_world_size = lambda self: tensor
name = "deepspeed.runtime.config.dist.get_"
with patch(name + "world_size", lambda *a, **k: n), patch(name + "rank", lambda *a, **k: 0):
    said = DeepSpeedConfig(json.load(open(sys.argv[1])), mpu=Mesh())
print(json.dumps({
    "batch": [said.train_batch_size, said.train_micro_batch_size_per_gpu, said.gradient_accumulation_steps],
    "stage": int(said.zero_config.stage), "tensor": said.tensor_parallel_config.autotp_size,
    "bf16": said.bfloat16_config.enabled,
}))
"""


@needs("deepspeed")
@pytest.mark.parametrize("strategy", [Strategy(8), Strategy(8, shard=1), Strategy(4, 2, shard=2), Strategy(16, shard=3)])
def test_deepspeed_reads_stage_batches_and_degrees(strategy: Strategy, tmp_path: pathlib.Path) -> None:
    written(made("llama-3.1-8b", "deepspeed", strategy, [32], 1, word="full", micro=2), "deepspeed", tmp_path / "plan.json")
    said = asked(
        DEEPSPEED, "plan.json", str(strategy.n_devices), str(strategy.tensor), folder=tmp_path, DS_ACCELERATOR="cpu"
    )  # fmt: skip
    assert said["batch"] == [16 * strategy.data, 2, 8]
    assert (said["stage"], max(said["tensor"], 1), said["bf16"]) == (strategy.shard, strategy.tensor, True)


TRANSFORMERS = """
import dataclasses, functools, importlib.util, json, sys
import transformers
import transformers.training_args
from transformers import HfArgumentParser
transformers.training_args.is_torch_bf16_gpu_available = lambda: True  # asked when arguments are made, here without a GPU
path = sys.argv[1]
if path.endswith(".json"):
    said = HfArgumentParser(transformers.TrainingArguments).parse_json_file(path, allow_extra_keys=True)[0]
else:
    spec = importlib.util.spec_from_file_location("plan", path)
    module = importlib.util.module_from_spec(spec)
    transformers.TrainingArguments = functools.partial(transformers.TrainingArguments, use_cpu=True)
    spec.loader.exec_module(module)
    said = module.arguments()
mesh, plugin = said.parallelism_config, said.fsdp_plugin_args or {}
ds = said.hf_deepspeed_config.config if said.deepspeed else {}
print(json.dumps({
    "batch": [said.per_device_train_batch_size, said.gradient_accumulation_steps], "mixed": said.mixed_precision,
    "sizes": mesh and [mesh.dp_replicate_size, mesh.dp_shard_size, mesh.cp_size, mesh.total_size],
    "version": plugin.get("fsdp_version"), "reshard": plugin.get("reshard_after_forward"),
    "full": bool(said.activation_checkpointing or plugin.get("activation_checkpointing")),
    "stage": ds.get("zero_optimization", {}).get("stage"), "micro": ds.get("train_micro_batch_size_per_gpu"),
    "names": [one.name for one in dataclasses.fields(said) if one.init],
}))
"""


@needs("accelerate")
@pytest.mark.parametrize(
    ("word", "strategy", "recompute", "sizes", "suffix"),
    [
        ("transformers", Strategy(16, shard=3), "full", None, "py"),
        ("transformers", Strategy(8, 1, 2, shard=2, shard_degree=4), "none", [2, 4, 2, 16], "py"),
        ("transformers", Strategy(8), "full", None, "json"),
        pytest.param("transformers:deepspeed", Strategy(8, 2, shard=1), "none", None, "py", marks=needs("deepspeed")),
    ],
)
def test_training_arguments_are_those_of_the_plan(
    word: str, strategy: Strategy, recompute: str, sizes: list[int] | None, suffix: str, tmp_path: pathlib.Path
) -> None:
    written(made("llama-3.1-8b", word, strategy, [32], 1, word=recompute, micro=2), "transformers", tmp_path / f"plan.{suffix}")
    text = (tmp_path / f"plan.{suffix}").read_text()
    if suffix == "json":
        (tmp_path / "plan.json").write_text(json.dumps(json.loads(text) | {"use_cpu": True}))
    said = asked(TRANSFORMERS, f"plan.{suffix}", folder=tmp_path, DS_ACCELERATOR="cpu")
    assert (said["batch"], said["mixed"], said["sizes"]) == ([2, 8], "bf16", sizes)
    assert said["full"] == (recompute == "full")
    by_shards = strategy.shard if word == "transformers" else 0
    assert (said["version"], said["reshard"]) == ((2, strategy.shard == 3) if by_shards else (None, None))
    assert (said["stage"], said["micro"]) == ((1, 2) if word.endswith("deepspeed") else (None, None))
    data = pathlib.Path(frameworks.__file__).parent / "data" / "transformers_options.json"
    assert set(said["names"]) == set(json.loads(data.read_text())["arguments"])


MEGATRON = """
import json, sys
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
said = json.loads(sys.argv[1])
dist.init_process_group("fake", rank=said["rank"], world_size=said["n"], store=FakeStore())
from megatron.core import parallel_state as ps
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import get_num_layers_to_build
o = said["options"]
virtual, layout = o.get("--num-virtual-stages-per-pipeline-rank"), o.get("--pipeline-model-parallel-layout")
whole = lambda name: int(o.get(name, 1))
sizes = dict(tensor_model_parallel_size=whole("--tensor-model-parallel-size"),
             pipeline_model_parallel_size=whole("--pipeline-model-parallel-size"),
             context_parallel_size=whole("--context-parallel-size"))
order = "tp-cp-ep-pp-dp" if "--use-tp-pp-dp-mapping" in o else "tp-cp-ep-dp-pp"
config = TransformerConfig(
    num_layers=int(o["--num-layers"]), hidden_size=int(o["--hidden-size"]), num_attention_heads=int(o["--num-attention-heads"]),
    virtual_pipeline_model_parallel_size=int(virtual) if virtual else None, pipeline_model_parallel_layout=layout,
    sequence_parallel="--sequence-parallel" in o, pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16, bf16=True,
    recompute_granularity=o.get("--recompute-granularity"), recompute_method=o.get("--recompute-method"),
    recompute_num_layers=int(o["--recompute-num-layers"]) if "--recompute-num-layers" in o else None,
    recompute_modules=o["--recompute-modules"].split() if "--recompute-modules" in o else None, **sizes)
chunks = config.virtual_pipeline_model_parallel_size or 1
ps.initialize_model_parallel(
    **sizes, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None, order=order, create_gloo_process_groups=False)
print(json.dumps({
    "layers": [get_num_layers_to_build(config, vp_stage=v if chunks > 1 else None) for v in range(chunks)],
    "data": dist.get_process_group_ranks(ps.get_data_parallel_group()), "rank": ps.get_pipeline_model_parallel_rank(),
}))
"""


@needs("megatron-core")
@pytest.mark.parametrize(
    ("strategy", "counts", "n_ranks", "said"),
    [
        (Strategy(2, 2, 1, 1, True, 1), [8, 8, 8, 8], 4, {"word": "core_attn"}), (Strategy(4, 1, 2, shard=1), [15, 17], 2, {}),
        (Strategy(2, 4, 1, 1, True, 1), [8] * 4, 2, {"schedule": "interleaved_1f1b", "word": "full"}),
        (Strategy(2, 2, 1, 1, True), [7, 9, 9, 7], 2, {"schedule": "interleaved_1f1b", "word": "mlp"}),
    ],
)  # fmt: skip
def test_megatron_core_builds_the_stages_on_the_ranks_of_the_plan(
    strategy: Strategy, counts: list[int], n_ranks: int, said: dict[str, str], tmp_path: pathlib.Path
) -> None:
    from meshwright.frameworks import _command_line

    case = made("llama-3.1-8b", "megatron", strategy, counts, n_ranks, **said)
    written(case, "megatron", tmp_path / "train.sh")
    options = {
        name: " ".join(words) for name, words in _command_line.options((tmp_path / "train.sh").read_text(), "train.sh").items()
    }
    plan = case[1]
    for rank in (0, plan.n_devices - 1):
        question = json.dumps({"options": options, "rank": rank, "n": plan.n_devices})
        answer = asked(MEGATRON, question, folder=tmp_path)
        mine = [i for i, stage in enumerate(plan.stages) if rank in stage.devices]
        assert answer["layers"] == [counts[i] for i in mine]
        assert answer["rank"] == plan.rank_of_stage()[mine[0]]
        width = strategy.tensor * strategy.context
        row = [device for k, device in enumerate(plan.stages[mine[0]].devices) if k % width == (0 if rank == 0 else width - 1)]
        assert answer["data"] == row


ANALYSIS = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
traces = TraceAnalysis(trace_dir=sys.argv[1])
table = traces.get_temporal_breakdown(visualize=False).sort_values("rank")
idle, _ = traces.get_idle_time_breakdown(ranks=[0], visualize=False)
kinds, kernels = traces.get_gpu_kernel_breakdown(visualize=False)
print(json.dumps({
    "ranks": [int(rank) for rank in table["rank"]],
    **{word: [float(x) for x in table[f"{word}_time(us)"]] for word in ("idle", "compute", "non_compute", "kernel")},
    "overlap": [float(x) for x in traces.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]],
    "categories": {str(k): float(v) for k, v in idle.groupby("idle_category", observed=True)["idle_time"].sum().items()},
    "kinds": sorted(kinds["kernel_type"]),
    "launches": len(traces.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]),
}))
"""


@needs("HolisticTraceAnalysis")
def test_holistic_trace_analysis_finds_the_plan_in_its_trace(tmp_path: pathlib.Path) -> None:
    from meshwright.api.evaluation import evaluate
    from meshwright.writers import kineto_trace

    case = made("llama-3.1-8b", "megatron", Strategy(2, 2, 1, 1, True, 1), [16, 16], 2, word="core_attn")
    stage_costs, timeline = evaluate(*case)
    assert timeline is not None
    result = Result(case[0], "best", 0, Answer(case[1]), stage_costs, timeline)
    kineto_trace.write(result, str(tmp_path / "trace"))
    said = asked(ANALYSIS, str(tmp_path), folder=tmp_path)
    assert said["ranks"] == [0, 1] and {"COMMUNICATION", "COMPUTATION"} <= set(said["kinds"])
    for rank, trace in enumerate(kineto_trace.as_json(result)):
        own = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        compute = sum(event["dur"] for event in own if not event["name"].startswith("nccl"))
        assert said["compute"][rank] == pytest.approx(compute, rel=2e-3)
        whole = said["idle"][rank] + said["compute"][rank] + said["non_compute"][rank]
        assert whole == pytest.approx(said["kernel"][rank], rel=1e-6) and said["idle"][rank] > 0
    assert said["kernel"][0] == pytest.approx(timeline.step_seconds * 1e6, rel=1e-3)
    assert said["categories"].get("host_wait", 0.0) == 0.0, "the simulator knows no host"
    assert said["launches"] > 8


TORCHTITAN = """
import importlib.machinery, json, os, sys, types
from unittest.mock import MagicMock
import torch, torch._utils
torch._utils._get_available_device_type = lambda: "cpu"
torch.nn.init.trunc_normal_ = torch.nn.init.normal_ = lambda tensor, *a, **k: tensor  # nobody reads the weights
kernels = "torchtitan.distributed.minimal_async_ep.kernels"  # needs triton
stand_in = MagicMock()
stand_in.__path__, stand_in.__spec__ = [], importlib.machinery.ModuleSpec(kernels, None)
sys.modules[kernels] = stand_in
cpu = torch.cpu
cpu.get_device_name = lambda *a: "cpu"
cpu.reset_peak_memory_stats = cpu.empty_cache = lambda *a: None
cpu.get_device_properties = lambda *a: types.SimpleNamespace(total_memory=80 << 30)
cpu.memory_stats = lambda *a: {}
os.environ.update(NGPU=sys.argv[1], WORLD_SIZE=sys.argv[1], LOCAL_RANK="0", RANK="0")
sys.path.insert(0, os.getcwd())
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(["--module", "my_plan", "--config", "plan"])
config.comm.mode = "fake_backend"
config.parallelism.spmd_backend = "partial_dtensor"  # the default needs a newer PyTorch than ours
config.hf_assets_path = os.getcwd()
config.profiler.enable_profiling = config.metrics.enable_tensorboard = False
config.validator.enable = False
config.dataloader.dataset = "c4_test"
trainer = config.build()
schedule = getattr(trainer, "pp_schedule", None)
dims = trainer.parallel_dims
print(json.dumps({
    "dims": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp, dims.ep],
    "layers": [
        sorted(int(name) for name, _ in one.layers.named_children()) for one in trainer.model_parts
    ],
    "ends": [
        [getattr(one, name, None) is not None for name in ("tok_embeddings", "norm", "lm_head")] for one in trainer.model_parts
    ],
    "dims_of_model": [config.model_spec.model.dim, len(config.model_spec.model.layers), config.model_spec.model.vocab_size],
    "accumulation": trainer.gradient_accumulation_steps, "class": type(schedule).__name__,
    "microbatches": getattr(schedule, "_n_microbatches", 0),
    "order": [[str(a) for a in row if a] for _, row in sorted((getattr(schedule, "pipeline_order", None) or {}).items())],
}))
"""


def trainer_files(folder: pathlib.Path) -> None:
    """Write a tokenizer and a few lines, without which torchtitan builds no trainer."""
    vocabulary = {"[UNK]": 0, "a": 1}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }))  # fmt: skip
    data = folder / "tests" / "assets" / "c4_test"
    data.mkdir(parents=True)
    (data / "data.json").write_text("".join(json.dumps({"text": "a a a"}) + "\n" for _ in range(64)))


@needs("torchtitan")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "counts", "n_ranks", "said", "kind"),
    [
        (Strategy(8, shard=3), [32], 1, {"word": "every_second_product"}, "NoneType"),
        (Strategy(4, 2, 1, 1, True, 2, 2), [15, 17], 2, {"word": "full"}, "Schedule1F1B"),
        (Strategy(4, shard=2), [8] * 4, 2, {"schedule": "interleaved_1f1b"}, "ScheduleInterleaved1F1B"),
        (Strategy(2, 2, 2, 1, True, 3), [17, 15], 2, {"schedule": "zb_h1", "micro": 2}, "_PipelineScheduleRuntime"),
        (Strategy(4), [7, 9, 9, 7], 2, {"schedule": "zb_v"}, "_PipelineScheduleRuntime"),
        (Strategy(4), [8, 9, 9, 6], 2, {"schedule": "dualpipe_v"}, "ScheduleDualPipeV"),
    ],
)  # fmt: skip
def test_torchtitan_builds_the_trainer_of_the_plan(
    strategy: Strategy, counts: list[int], n_ranks: int, said: dict[str, Any], kind: str, tmp_path: pathlib.Path
) -> None:
    problem, plan = made("llama-3.1-8b", "torchtitan", strategy, counts, n_ranks, **said)
    written((problem, plan), "torchtitan", tmp_path / "my_plan.py")
    trainer_files(tmp_path)
    answer = asked(TORCHTITAN, str(plan.n_devices), folder=tmp_path)
    shard = 1 if not strategy.shard else strategy.shard_degree or strategy.data
    assert answer["dims"] == [strategy.data // shard, shard, strategy.context, strategy.tensor, n_ranks, strategy.expert]
    mine = [i for i, stage in enumerate(plan.stages) if 0 in stage.devices]
    assert answer["layers"] == [[op - 1 for op in plan.stages[i].ops if 0 < op < 33] for i in mine]
    ends = [0 in plan.stages[i].ops for i in mine], [33 in plan.stages[i].ops for i in mine]
    assert answer["ends"] == [[first, last, last] for first, last in zip(*ends, strict=True)]
    assert answer["dims_of_model"] == [4096, 32, 128256]
    assert answer["class"] == kind
    assert answer["microbatches"] * answer["accumulation"] == (plan.n_microbatches if n_ranks > 1 else 0)
    assert n_ranks > 1 or answer["accumulation"] == plan.n_microbatches


PEFT = """
import json, sys
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoConfig, AutoModelForCausalLM
found = []
for fields, lora in json.loads(sys.argv[1]):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    inject_adapter_in_model(LoraConfig(**lora), model)
    found.append(sum(weight.numel() for weight in model.parameters() if weight.requires_grad))
print(json.dumps(found))
"""
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 256},
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "intermediate_size": 96, "vocab_size": 256,
                "max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]]},
    "opt": SMALL | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "mixtral": SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}  # fmt: skip


@needs("peft")
def test_peft_trains_as_many_weights_as_were_planned(tmp_path: pathlib.Path) -> None:
    """Of every family, every product that has an adapter."""
    from meshwright.frameworks import _adapters

    asked_for, planned = [], []
    for family, modules in _adapters._MODULES.items():
        fields = {"model_type": family, **OTHERS.get(family, SMALL)}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        for word in modules:
            if word in ("gate", "up", "down") and family in ("mixtral", "qwen3_moe"):
                continue  # experts have none
            spec = api.read(str(tmp_path / "config.json"), lora=f"r=8,targets={word}", sequence_length=64)
            asked_for.append((fields, _adapters.config(api.make_problem(spec, "dgx-h100:2"))))
            planned.append(spec.graph.n_trained_parameters)
    assert asked(PEFT, json.dumps(asked_for), folder=tmp_path) == planned and len(planned) > 60


IN_TRAINER = (
    TORCHTITAN.split("from torchtitan.config")[0]
    + """
import meshwright
from meshwright.base.errors import ExportError
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.distributed.activation_checkpoint import SelectiveAC
os.environ["RANK"] = sys.argv[2]


def built(config):
    config.comm.mode = "fake_backend"
    config.parallelism.spmd_backend = "partial_dtensor"  # the default needs a newer PyTorch than ours
    config.compile.enable = False
    config.hf_assets_path = os.getcwd()
    config.validator.enable = False
    return config.build()


if sys.argv[3:]:
    refused = llama3_debugmodel()
    one = refused.model_spec
    one.parallelize_fn, one.pipelining_fn = meshwright.torchtitan_functions("plan.json", one)
    try:
        built(refused)
    except ExportError as error:
        print(json.dumps({"refused": str(error)}))
    sys.exit()
import in_torchtitan
trainer = built(in_torchtitan.plan())
schedule = getattr(trainer, "pp_schedule", None)
dims = trainer.parallel_dims
told = []
for part in trainer.model_parts:
    blocks = {}
    for name, block in part.layers.named_children():
        context = block.checkpoint_fn.keywords.get("context_fn") if hasattr(block, "checkpoint_fn") else None
        word = "every_second_product" if context else "full"
        reshards = block._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info is not None
        blocks[name] = [word if "Checkpoint" in type(block).__mro__[2].__name__ else "none", reshards]
    ends = [getattr(part, name, None) is not None for name in ("tok_embeddings", "norm", "lm_head")]
    told.append([blocks, ends])
rows = getattr(schedule, "pipeline_order_with_comms", None) or getattr(schedule, "pipeline_order", None) or {}
kinds = ("F", "B", "I", "W")
order = {
    rank: [str(one) for one in row if one and str(one).strip("0123456789") in kinds] for rank, row in rows.items()
}
print(json.dumps({
    "dims": [dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp, dims.ep], "parts": told, "order": order,
    "accumulation": trainer.gradient_accumulation_steps, "microbatches": getattr(schedule, "_n_microbatches", 0),
}))
"""
)

DEBUG_MODEL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16,
    "intermediate_size": 768, "vocab_size": 2048, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip


@needs("torchtitan")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "strategy", "cut", "n_ranks"),
    [
        ("v_half", Strategy(2, shard=3), [[0, 1], [2, 3], [4], [5, 6, 7]], 2),
        ("zb_h2", Strategy(2, 2, 1, 1, True, 2), [[0, 1, 2, 3], [4, 5, 6, 7]], 2),
        ("interleaved_1f1b", Strategy(1), [[0, 1], [2, 3, 4], [5], [6, 7]], 2),
        ("1f1b", Strategy(4, shard=2), [[*range(8)]], 1),
    ],
)
def test_torchtitan_s_trainer_runs_a_plan_by_our_functions(
    schedule: str, strategy: Strategy, cut: list[list[int]], n_ranks: int, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEBUG_MODEL))
    n = 5 if schedule == "interleaved_1f1b" else 4  # no whole round, which torchtitan's own schedule refuses
    problem = api.make_problem(
        str(tmp_path / "config.json"), f"flat:{strategy.n_devices * n_ranks}", framework="torchtitan:functions",
        batch=Batch(n * 2 * strategy.data, 2, 256),
    )  # fmt: skip
    words = ("none", "none", "full", "every_second_product", "none", "full", "none", "none")
    size, v = strategy.n_devices, schedule == "v_half"
    ranks = [2 * n_ranks - 1 - i if v and i >= n_ranks else i % n_ranks for i in range(len(cut))]
    stages = tuple(
        Stage(tuple(ops), tuple(range(rank * size, (rank + 1) * size)), strategy, tuple(words[op] for op in ops))
        for ops, rank in zip(cut, ranks, strict=True)
    )
    plan = Plan(stages, n, 2, schedule, n * 2 * strategy.data)
    result = Result(problem, "best", 0, Answer(plan))
    plan_json.write(result, str(tmp_path / "plan.json"))
    (tmp_path / "in_torchtitan.py").write_text((EXAMPLES / "in_torchtitan.py").read_text())
    trainer_files(tmp_path)
    for rank in range(0, plan.n_devices, size):
        said = asked(IN_TRAINER, str(plan.n_devices), str(rank), folder=tmp_path)
        shard = strategy.data if strategy.shard else 1
        assert said["dims"] == [strategy.data // shard, shard, 1, strategy.tensor, n_ranks, 1]
        mine = [stage for stage, on in zip(stages, ranks, strict=True) if on == rank // size]
        reshards = strategy.shard != 2
        assert said["parts"] == [
            [{str(op - 1): [words[op], reshards] for op in stage.ops if 0 < op < 7}, [0 in stage.ops, *[7 in stage.ops] * 2]]
            for stage in mine
        ]
        if n_ranks > 1:
            assert said["microbatches"] == n and said["accumulation"] == 1
            order = pytorch_schedule.rows(plan_files.load(str(tmp_path / "plan.json"))).splitlines()
            assert [",".join(said["order"][str(i)]) for i in range(n_ranks)] == order
        else:
            assert said["accumulation"] == n
    refused = asked(IN_TRAINER, str(plan.n_devices), "0", "as it is", folder=tmp_path)["refused"]
    assert "training.seq_len=256 (it is 2048)" in refused and "activation_checkpoint=None (it is SelectiveAC.Config)" in refused
