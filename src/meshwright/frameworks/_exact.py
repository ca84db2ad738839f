"""What all configurations share: a plan is told exactly or refused, in words; the plan of one mesh is put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from meshwright import frameworks
from meshwright.base import fields, files, yaml_text
from meshwright.base.errors import ExportError, InputError
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.launch import hosts_of
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import MixedPrecision, ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy

__all__ = [
    "DECODERS",
    "ENDS",
    "NO_TENSOR_PLAN",
    "TWINS",
    "check",
    "decoder",
    "environment",
    "family",
    "launch_sizes",
    "layer_words",
    "none_on_host",
    "one_mesh",
    "predicted",
    "read_text",
    "refused",
    "table",
    "torchrun",
    "unsaid",
    "whole",
    "without_tensor_plan",
    "yaml_entries",
]  # fmt: skip

ENDS = ("embedding", "head")
"""Layers that recompute nothing and lie at the ends of the model in every framework's configuration."""

DECODERS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "gpt2": ("transformer.h", "GPT2Block"), "gpt_neo": ("transformer.h", "GPTNeoBlock"),
    "gpt_neox": ("gpt_neox.layers", "GPTNeoXLayer"), "opt": ("model.decoder.layers", "OPTDecoderLayer"),
    "llama": ("model.layers", "LlamaDecoderLayer"), "mistral": ("model.layers", "MistralDecoderLayer"),
    "mixtral": ("model.layers", "MixtralDecoderLayer"), "phi3": ("model.layers", "Phi3DecoderLayer"),
    "qwen2": ("model.layers", "Qwen2DecoderLayer"), "qwen2_moe": ("model.layers", "Qwen2MoeDecoderLayer"),
    "qwen3": ("model.layers", "Qwen3DecoderLayer"), "qwen3_moe": ("model.layers", "Qwen3MoeDecoderLayer"),
    "gemma": ("model.layers", "GemmaDecoderLayer"), "gemma2": ("model.layers", "Gemma2DecoderLayer"),
    "gemma3_text": ("model.layers", "Gemma3DecoderLayer"), "gpt_oss": ("model.layers", "GptOssDecoderLayer"),
    "arcee": ("model.layers", "ArceeDecoderLayer"), "bloom": ("transformer.h", "BloomBlock"),
    "cohere": ("model.layers", "CohereDecoderLayer"), "cohere2": ("model.layers", "Cohere2DecoderLayer"),
    "ernie4_5": ("model.layers", "Ernie4_5DecoderLayer"), "falcon": ("transformer.h", "FalconDecoderLayer"),
    "glm": ("model.layers", "GlmDecoderLayer"), "glm4": ("model.layers", "Glm4DecoderLayer"),
    "glm4_moe": ("model.layers", "Glm4MoeDecoderLayer"), "gptj": ("transformer.h", "GPTJBlock"),
    "granite": ("model.layers", "GraniteDecoderLayer"), "helium": ("model.layers", "HeliumDecoderLayer"),
    "llama4_text": ("model.layers", "Llama4TextDecoderLayer"), "nemotron": ("model.layers", "NemotronDecoderLayer"),
    "olmo": ("model.layers", "OlmoDecoderLayer"), "olmo2": ("model.layers", "Olmo2DecoderLayer"),
    "phi": ("model.layers", "PhiDecoderLayer"), "seed_oss": ("model.layers", "SeedOssDecoderLayer"),
    "smollm3": ("model.layers", "SmolLM3DecoderLayer"), "stablelm": ("model.layers", "StableLmDecoderLayer"),
    "starcoder2": ("model.layers", "Starcoder2DecoderLayer"),
    "deepseek_v2": ("model.layers", "DeepseekV2DecoderLayer"), "deepseek_v3": ("model.layers", "DeepseekV3DecoderLayer"),
})  # fmt: skip
"""Where transformers' causal language models of a ``model_type`` keep their layers, and the class of these."""


NO_TENSOR_PLAN = ("bloom", "falcon", "gpt2", "gpt_neo", "gpt_oss", "gptj", "opt", "stablelm")
"""Families of `DECODERS` whose configuration in transformers 5.23 has no ``base_model_tp_plan``; GPT-J's has from 5.24 on."""


TWINS: Mapping[str, str] = MappingProxyType({"kimi_k2": "deepseek_v3"})
"""Families that transformers does not have, and one of its own with the same layers: configurations say that one."""


def unsaid(limits: FrameworkLimits, plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan a framework cannot run, or no configuration can say: sentences without a full stop."""
    found = list(exceeded(limits, plan, problem.graph, problem.training.precision, problem.training.optimizer))
    graph = problem.graph
    for i, stage in enumerate(plan.stages):
        for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True):
            if graph.ops[op].kind in ENDS and word != "none":
                found.append(f"stage {i} recomputes the {graph.ops[op].kind}; it recomputes layers only")
    order = [op for stage in plan.stages for op in stage.ops]
    if order != sorted(order):
        found.append("layers or stages that do not follow each other through the model")
    one = plan.stages[0].strategy
    if one.data * one.context == 1 and one.shard:
        found.append(f"sharding level {one.shard} over a single rank; that is level 0")
    over_all = one.shard_degree == one.data or (one.shard_degree == 1 and one.context == 1)
    if one.shard_degree and (over_all or not one.shard):
        found.append(f"a sharding degree of {one.shard_degree} that says nothing; that is 0")
    if (
        len({stage.strategy for stage in plan.stages}) == 1
        and plan.global_batch != plan.n_microbatches * plan.micro_batch * one.data
    ):
        found.append(f"a global batch of {plan.global_batch}, which its micro-batches do not make")
    usual = MixedPrecision.of(problem.training.precision).updated_by(problem.training.optimizer)
    found += [
        f"{name.replace('_', ' ')} {getattr(problem.training, name)}; it has {getattr(usual, name)}"
        for name in ("activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes", "state_bytes")
        if getattr(problem.training, name) != getattr(usual, name)
    ]
    return tuple(dict.fromkeys(found))


def refused(name: str, reasons: Sequence[str]) -> ExportError:
    """Return the error of a plan that a framework cannot run, or that cannot be told it."""
    return ExportError(
        f"{name}: cannot run this plan: {'; '.join(reasons)}. {frameworks.searched(name)}, 'meshwright run' runs this one"
    )


def check(name: str, reasons: Sequence[str]) -> None:
    """Raise `ExportError` where there are reasons why a framework cannot run a plan."""
    if reasons:
        raise refused(name, reasons)


def family(spec: ModelSpec) -> str:
    """Return the ``model_type`` of a model of a Hugging Face configuration, that of the `TWINS`; empty for others."""
    from meshwright.models.readers import huggingface

    own = str(huggingface.said_of(spec.spec).get("model_type") or "") if spec.format == "huggingface" else ""
    return TWINS.get(own, own)


def without_tensor_plan(limits: FrameworkLimits, spec: ModelSpec) -> FrameworkLimits:
    """Return limits without a tensor axis for a family of `NO_TENSOR_PLAN`."""
    if family(spec) not in NO_TENSOR_PLAN:
        return limits
    return replace(limits, degrees=tuple(axis for axis in limits.degrees if axis != "tensor"))


def none_on_host(name: str, path: str, entry: str) -> InputError:
    """Return the error of a file whose run holds on the host what plans of its framework do not; `entry`: what says so."""
    return InputError(
        f"{path}: {entry}: plans of {name} hold nothing on the host; leave it out, or plan for megatron, whose plans do "
        "(--for megatron --set offload=optimizer)"
    )


def decoder(name: str, problem: Problem) -> dict[str, Any]:
    """Return the configuration of a model that transformers builds as a causal language model.

    Raises
    ------
    ExportError
        When it is none, or has layers that transformers leaves out.
    """
    from meshwright.models.readers import huggingface

    spec = problem.model_spec
    if spec.format != "huggingface":
        raise ExportError(f"{name}: a model read from {spec.format}; models are told by their Hugging Face configuration")
    fields = huggingface.said_of(spec.spec)
    family = str(fields.get("model_type"))
    if family in TWINS:
        family = TWINS[family]
        fields = {**fields, "model_type": family}
    if family not in DECODERS:
        raise ExportError(
            f"{name}: {spec.spec} is of the family {family}, which is not written out; {', '.join(sorted(DECODERS))} are"
        )
    if any(op.name.startswith("mtp.") for op in problem.graph.ops):
        raise ExportError(
            f"{name}: transformers leaves out the layers of {spec.spec} that predict further tokens; plan with "
            "num_nextn_predict_layers 0"
        )
    return fields


def launch_sizes(name: str, result: Result) -> tuple[int, int]:
    """Return on how many hosts a plan runs and how many of its devices each has.

    Raises
    ------
    ExportError
        When hosts take part with different numbers of devices.
    """
    try:
        hosts = hosts_of(result.plan, result.problem.cluster)
    except ExportError as error:
        raise refused(name, [str(error)]) from None
    return len(hosts.devices), hosts.per_host


def torchrun(name: str, result: Result, words: str) -> str:
    """Return the command that starts a program with torchrun on one host; `words`: the program and its arguments.

    Hosts have the rank that they are given: a rendezvous would number them as they come.
    Raises `ExportError` as `launch_sizes`.
    """
    nodes, per_node = launch_sizes(name, result)
    return (
        f'torchrun --nnodes {nodes} --nproc-per-node {per_node} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" '
        f'--master-port "$MASTER_PORT" {words} "$@"'
    )


def environment(framework: Framework) -> tuple[tuple[str, str, str], ...]:
    """Return what a framework's memory was priced with and no configuration says, as `StartCommand.environment`."""
    if not framework.expandable_segments:
        return ()
    why = f"the plan's memory was priced with PyTorch's expandable segments, as {framework.name}'s own launch script sets them"
    return (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", why),)


def predicted(result: Result) -> str:
    """Return what a step is said to take, to end a sentence; empty where the cost model cannot tell."""
    return "" if result.timeline is None else f", {result.timeline.step_seconds:.4g} s a step predicted"


def layer_words(graph: Graph, word: str) -> tuple[str, ...]:
    """Return one setting of recomputation for all layers but the ends of the model."""
    return tuple("none" if op.kind in ENDS else word for op in graph.ops)


def one_mesh(place: str, graph: Graph, strategy: Strategy, words: Sequence[str], counts: tuple[int, int]) -> Plan:
    """Return the plan of one stage on devices in order.

    `counts`: micro-batches of a step and samples of each. Raises `InputError` when the model does not have as many layers as
    there are words.
    """
    if len(words) != len(graph.ops):
        raise InputError(
            f"{place}: speaks of {len(words) - 2} layers, but {graph.name} has {len(graph.ops) - 2}: another model?"
        )
    stage = Stage(tuple(range(len(graph.ops))), tuple(range(strategy.n_devices)), strategy, tuple(words))
    return Plan((stage,), counts[0], counts[1], "1f1b", counts[0] * counts[1] * strategy.data)


def read_text(path: str) -> str:
    """Return what a file holds; raises `InputError` when it cannot be read."""
    return files.read_text(path)


def table(entry: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    """Return a table of a configuration, empty where it is left out. Raises `InputError` when it is something else."""
    return fields.entry(entry.get(name) or {}, f"{place}: {name}")


def yaml_entries(text: str, place: str, program: str) -> dict[str, Any]:
    """Return what a YAML configuration of a program holds. Raises `InputError` when it is none, or a key stands twice."""
    content = yaml_text.load(text, place)
    if not isinstance(content, dict):
        raise InputError(f"{place}: is no configuration of {program}: it holds no entries")
    return content


def whole(entry: Mapping[str, Any], name: str, place: str, default: int = 0, *, least: int = 1) -> int:
    """Return a whole number of a configuration; a default of 0 stands for none. Raises `InputError` when it is wrong."""
    value = entry.get(name, default or None)
    if value is None:
        raise InputError(f"{place}: {name} is missing")
    return fields.whole(value, f"{place}: {name}", minimum=least, maximum=10**9)
