"""A plan as torchtitan's configuration: a Python module with a function ``plan``, for ``--module NAME --config plan``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import ALTERNATE
from meshwright.frameworks import _exact
from meshwright.frameworks.torchtitan import degrees, flavors
from meshwright.frameworks.torchtitan.writers import pytorch_schedule
from meshwright.models.readers import huggingface

__all__ = ["CHECKPOINTING", "DTYPES", "batches", "parallelism", "parts", "uncaptured", "write"]

CHECKPOINTING: Mapping[str, str] = MappingProxyType({"none": "", "full": "FullAC", ALTERNATE: "SelectiveAC"})
"""The class of ``activation_checkpoint`` of each setting of recomputation."""

DTYPES: Mapping[str, str] = MappingProxyType({"bf16": "bfloat16", "fp32": "float32"})
"""``training.mixed_precision_param`` of each precision that the file says."""


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the module of a plan that is not refused, whole or not at all.

    Raises
    ------
    ExportError
        When its registry does not hold the model.
    """
    problem = result.problem
    spec = problem.model_spec
    if spec.format != "huggingface":
        raise ExportError(f"torchtitan: a model read from {spec.format}; models are told by their Hugging Face configuration")
    family, flavor = flavors.flavor(huggingface.said_of(spec.spec))
    if not family:
        raise ExportError(
            f"torchtitan: {spec.name} is not in its registry, which holds sizes of Llama 3.1 and 3.2, Qwen3, DeepSeek V2 "
            "and V3, and gpt-oss"
        )
    if any(op.name.startswith("mtp.") for op in problem.graph.ops):
        raise ExportError(
            f"torchtitan: {flavor} of its registry has no layers that predict further tokens, and {spec.name} has; plan with "
            "num_nextn_predict_layers 0"
        )
    if problem.training.precision not in DTYPES:
        raise ExportError(
            f"torchtitan: products in {problem.training.precision} need its converters and torch.compile, which the file does "
            "not say; plan with --precision bf16 or fp32"
        )
    nodes, per_node = _exact.launch_sizes("torchtitan", result)
    files.write(path, _text(result, (family, flavor), (nodes, per_node), Path(path).stem))
    return ()


def _text(result: Result, model: tuple[str, str], sizes: tuple[int, int], name: str) -> str:
    """Return the module."""
    plan, problem, (family, flavor) = result.plan, result.problem, model
    kind = CHECKPOINTING[next(iter(_words(plan, problem.graph)))]
    order, compiled = _order(result), _compiled(problem)
    return "\n".join([
        f'"""{problem.model_spec.name} on {plan.n_devices} devices{_exact.predicted(result)}; for torchtitan 0.3.0.',
        "",
        f"    torchrun --nnodes {sizes[0]} --nproc-per-node {sizes[1]} --node-rank RANK --master-addr HOST \\",
        f"        --master-port 29500 -m torchtitan.train --module {name} --config plan",
        '"""',
        "",
        *(["import tempfile", ""] if order else []),
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
        f"from torchtitan.config import {'CompileConfig, ' * bool(compiled)}ParallelismConfig",
        *([f"from torchtitan.distributed.activation_checkpoint import {kind}"] if kind else []),
        "from torchtitan.models.common.config_utils import decoder_vocab_size",
        f"from torchtitan.models.{family} import model_registry",
        f"from torchtitan.models.{family}.config_registry import {flavors.START[family]}",
        "from torchtitan.trainer import Trainer",
        "",
        *order,
        "",
        "def plan() -> Trainer.Config:",
        f"    config = {flavors.START[family]}()  # its optimizer, data and checkpoints",
        f'    config.model_spec = model_registry("{flavor}")',
        "    vocabulary = decoder_vocab_size(config.model_spec)",
        "    config.loss = ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=vocabulary))",
        f'    config.hf_assets_path = "./assets/hf/{problem.model_spec.name}"',
        *(f"    config.training.{key} = {_literal(value)}" for key, value in batches(result).items()),
        *(["    config.training.disable_cuda_graphs = True  # pipelines and exchanges of tokens are not captured"]
          if uncaptured(plan) else []),
        f"    config.activation_checkpoint = {f'{kind}.Config()' if kind else 'None'}",
        f"    config.compile{f' = CompileConfig({compiled})' if compiled else '.enable = False'}",
        "    config.parallelism = ParallelismConfig(",
        *(f"        {key}={_literal(value)}," for key, value in parallelism(result).items()),
        *(f"        {key}={value}," for key, value in _pipeline(result, bool(order)).items()),
        "    )",
        "    return config",
        "",
    ])  # fmt: skip


def _compiled(problem: Problem) -> str:
    """Return what says that blocks are compiled, as they are priced; empty where they are not."""
    variant = problem.framework.variant if problem.framework.name == "torchtitan" else ""
    if variant == "eager":
        return ""
    return "enable=True" + ", enable_async_tensor_parallel=True" * (variant == "async_tensor")


def _words(plan: Plan, graph: Graph) -> list[str]:
    """Return the one setting of recomputation that all layers have."""
    found = {
        word
        for stage in plan.stages
        for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True)
        if graph.ops[op].kind not in _exact.ENDS
    }
    return sorted(found) or ["none"]


def batches(result: Result) -> dict[str, object]:
    """Return what ``TrainingConfig`` says of a plan. A pipeline cuts the local batch into its micro-batches; otherwise they
    follow from the global batch.
    """
    plan = result.plan
    return {
        "local_batch_size": plan.micro_batch * (plan.n_microbatches if len(plan.ranks()) > 1 else 1),
        "global_batch_size": plan.global_batch,
        "seq_len": result.problem.graph.sequence_length,
        "mixed_precision_param": DTYPES[result.problem.training.precision],
    }


def parallelism(result: Result) -> dict[str, object]:
    """Return what ``ParallelismConfig`` says of a plan, but for the schedule."""
    plan, one = result.plan, result.plan.stages[0].strategy
    shard = 1 if not one.shard else one.shard_degree or one.data
    said: dict[str, object] = {
        "data_parallel_replicate_degree": one.data // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if one.shard == 2 else "always",
        "tensor_parallel_degree": one.tensor,
        "enable_sequence_parallel": one.sequence_parallel or one.tensor == 1,
        "context_parallel_degree": one.context,
        "expert_parallel_degree": one.expert,
    }
    if len(plan.ranks()) > 1:
        said["pipeline_parallel_degree"] = len(plan.ranks())
        said["pipeline_parallel_microbatch_size"] = plan.micro_batch
    return said


def uncaptured(plan: Plan) -> bool:
    """Return whether CUDA graphs must be off: pipelines and exchanges of tokens are not captured."""
    return len(plan.ranks()) > 1 or plan.stages[0].strategy.expert > 1


def parts(result: Result) -> list[list[str]]:
    """Return the modules of every stage, ``module_fqns_per_model_part``."""
    graph = result.problem.graph
    return [[name for op in stage.ops for name in _fqn(graph, op)] for stage in result.plan.stages]


def _pipeline(result: Result, ordered: bool) -> dict[str, str]:
    """Return the lines of ``ParallelismConfig`` on the stages and their schedule; none without a pipeline."""
    if len(result.plan.ranks()) == 1:
        return {}
    rows = ",\n".join("            [" + ", ".join(f'"{name}"' for name in part) + "]" for part in parts(result))
    said = {
        "pipeline_parallel_schedule": f'"{degrees.SCHEDULES[result.plan.schedule]}"',
        "module_fqns_per_model_part": f"[\n{rows},\n        ]",
    }
    return said | ({"pipeline_parallel_schedule_csv": "order_file()"} if ordered else {})


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _fqn(graph: Graph, op: int) -> tuple[str, ...]:
    """Return the modules of a layer of ours."""
    kind = graph.ops[op].kind
    if kind == "embedding":
        return ("tok_embeddings",)
    return ("norm", "lm_head") if kind == "head" else (f"layers.{op - 1}",)


def _order(result: Result) -> list[str]:
    """Return the order of work as the lines of a constant and the function that puts it into a file; none where a name does."""
    if result.plan.schedule not in ("zb_h1", "zb_v") or len(result.plan.ranks()) == 1:
        return []
    rows = pytorch_schedule.rows(result)
    return [
        f'ORDER = """\\\n{rows}"""',
        "",
        "",
        "def order_file() -> str:",
        '    with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:',
        "        file.write(ORDER)",
        "    return file.name",
        "",
    ]
