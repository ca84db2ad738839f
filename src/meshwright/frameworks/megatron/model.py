"""What Megatron-LM is told of a model's architecture, for the families whose configurations map onto its options one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.base.errors import ExportError
from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec
from meshwright.frameworks.megatron import families, positions
from meshwright.frameworks.megatron.families import LATENT
from meshwright.models import dense_families, llama_variants
from meshwright.models.config import ModelConfig
from meshwright.models.readers import huggingface

__all__ = [
    "FAMILIES",
    "OTHER_SCRIPTS",
    "arguments",
    "layer_windows",
    "limits_for",
    "no_decoder",
    "refusal",
    "windows_in_parts",
]

FAMILIES = tuple(sorted(("gpt2", *families.FAMILIES)))
"""Values of ``model_type`` that are written out; others are refused."""

OTHER_SCRIPTS = ("bert", "t5", "vit")
"""Families that are no language models of the kind ``pretrain_gpt.py`` trains."""


Options = tuple[tuple[str, ...], ...]


def arguments(spec: str, graph: Graph) -> tuple[Options, tuple[str, ...]]:
    """Return the options of a Hugging Face model, and what they leave out.

    `spec`: a built-in name or a ``config.json``.

    Returns
    -------
    options : tuple of tuple of str
        Options and their values.
    notes : tuple of str
        What the configuration does not say, or the options do not.

    Raises
    ------
    ExportError
        When the family, or something in its configuration, is not written out.
    """
    fields = huggingface.said_of(spec)
    family = fields.get("model_type")
    reason = refusal(spec)
    if reason:
        raise ExportError(f"megatron: {reason}")
    if family == "gpt2":
        return _gpt2(fields, graph.sequence_length), ()
    rope, notes = positions.options(fields, str(family))
    tokens = layer_windows(fields, spec)
    options = (
        *_llama_like(fields, str(family), graph.sequence_length), *rope, *families.rotary(fields, str(family)),
        *families.no_positions(fields, str(family), len(tokens)), *families.windows(tokens, graph.sequence_length),
        *_expert_layers(graph),
    )  # fmt: skip
    return options, notes


def layer_windows(fields: Mapping[str, Any], spec: str) -> tuple[int, ...]:
    """Return the sliding window of every layer in tokens, 0 for none."""
    return dense_families.layer_windows(ModelConfig(spec, fields), int(fields["num_hidden_layers"]))


def no_decoder(spec: str) -> str:
    """Return that a model is none that ``pretrain_gpt.py`` trains, without a full stop; empty where it may be one."""
    family = huggingface.said_of(spec).get("model_type")
    return f"pretrain_gpt.py trains decoders, and {spec} is of the family {family}" if family in OTHER_SCRIPTS else ""


def windows_in_parts(plan: Plan, spec: str, sequence_length: int) -> str:
    """Return that no ring splits sliding windows over a context axis, without a full stop; empty where none has to."""
    if all(stage.strategy.context == 1 or "ring" not in stage.strategy.context_exchange for stage in plan.stages):
        return ""
    fields = huggingface.said_of(spec)
    if fields.get("model_type") not in families.FAMILIES:
        return ""
    if not any(0 < window < sequence_length for window in layer_windows(fields, spec)):
        return ""
    return (
        "sliding windows under a context degree, which Transformer Engine's ring attention (--cp-comm-type p2p) does not have"
    )


def limits_for(limits: FrameworkLimits, spec: ModelSpec) -> FrameworkLimits:
    """Return limits with what Megatron-Core does not split of a model: experts with biases [1]_.

    References
    ----------
    .. [1] megatron/core/transformer/transformer_config.py, ``__post_init__``: "Bias in Moe is only supported when ETP==1".
    """
    told = spec.format == "huggingface" and bool(spec.spec)
    return replace(limits, split_experts=False) if told and _experts_have_biases(spec.spec) else limits


def _experts_have_biases(spec: str) -> bool:
    return huggingface.said_of(spec).get("model_type") == "gpt_oss"


def biased_experts(plan: Plan, spec: str) -> tuple[str, ...]:
    """Return that experts with biases are split over a tensor axis, without a full stop; empty where they are not."""
    limits = FrameworkLimits(split_experts=not _experts_have_biases(spec))
    return tuple(dict.fromkeys(why for stage in plan.stages for why in limits.unpaired(stage.strategy)))


def missing_module(plan: Plan, spec: str) -> str:
    """Return that a plan recomputes a module that the model has not and Megatron-Core stops at [1]_, without a full stop.

    References
    ----------
    .. [1] megatron/core/transformer/transformer_config.py, ``__post_init__``: ``recompute_modules``.
    """
    words = {part for stage in plan.stages for word in stage.recompute for part in word.split("+")}
    fields = huggingface.said_of(spec)
    if "mla_up_proj" in words and fields.get("model_type") not in LATENT:
        return "recomputation of mla_up_proj, which is of latent attention"
    experts = any(fields.get(name) for name in ("num_local_experts", "num_experts", "n_routed_experts"))
    return "recomputation of moe_act, which is of mixtures of experts" if "moe_act" in words and not experts else ""


def told_by_none(plan: Plan, spec: str, sequence_length: int) -> tuple[str, ...]:
    """Return what of a plan Megatron-Core does not run with a model, sentences without a full stop."""
    found = (windows_in_parts(plan, spec, sequence_length), *biased_experts(plan, spec), missing_module(plan, spec))
    return tuple(one for one in found if one)


def refusal(spec: str) -> str:
    """Return why a model's architecture cannot be told, without a full stop; empty where it can."""
    family = huggingface.said_of(spec).get("model_type")
    if family in OTHER_SCRIPTS:
        return no_decoder(spec)
    unlike = positions.refusal(huggingface.said_of(spec), str(family)) if family in families.FAMILIES else ""
    if unlike:
        return f"{spec}: {unlike}"
    if family not in FAMILIES:
        return f"{spec} is of the family {family}, whose architecture is not written out; {', '.join(FAMILIES)} are"
    return ""


def _latent(fields: Mapping[str, Any]) -> Options:
    """Return the options of latent attention."""
    options: list[tuple[str, ...]] = [
        ("--multi-latent-attention",),
        *((("--q-lora-rank", str(fields["q_lora_rank"])),) if fields.get("q_lora_rank") else ()),
        ("--kv-lora-rank", str(fields["kv_lora_rank"])),
        ("--qk-head-dim", str(fields["qk_nope_head_dim"])),
        ("--qk-pos-emb-head-dim", str(fields["qk_rope_head_dim"])),
        ("--v-head-dim", str(fields["v_head_dim"])),
    ]
    return tuple(options)


def _router(fields: Mapping[str, Any]) -> Options:
    """Return the options of routing by groups and scores of each expert, and of layers that predict further tokens."""
    options: list[tuple[str, ...]] = []
    groups = int(fields.get("n_group") or 1)
    if groups > 1:
        options.append(("--moe-router-num-groups", str(groups), "--moe-router-group-topk", str(fields["topk_group"])))
    if fields.get("routed_scaling_factor", 1.0) != 1.0:
        options.append(("--moe-router-topk-scaling-factor", f"{fields['routed_scaling_factor']:.12g}"))
    if fields.get("model_type") != "deepseek_v2":
        options.append(("--moe-router-score-function", "sigmoid"))
        options.append(("--moe-router-enable-expert-bias",))
    if fields.get("num_nextn_predict_layers"):
        options.append(("--mtp-num-layers", str(fields["num_nextn_predict_layers"])))
    return tuple(options)


def _expert_layers(graph: Graph) -> Options:
    """Return which layers have experts, where not all do."""
    own = [op for op in graph.ops if op.kind not in ("embedding", "head") and not op.name.startswith("mtp.")]
    layers = [int(op.kind == "moe") for op in own]
    return (("--moe-layer-freq", f"[{','.join(map(str, layers))}]"),) if 0 < sum(layers) < len(layers) else ()


def _gpt2(fields: Mapping[str, Any], sequence_length: int) -> Options:
    """Return the options of GPT-2: learned positions, biases, LayerNorm, GELU (Megatron-LM's defaults)."""
    hidden = int(fields["n_embd"])
    return (
        ("--num-layers", str(fields["n_layer"])),
        ("--hidden-size", str(hidden)),
        ("--ffn-hidden-size", str(fields.get("n_inner") or 4 * hidden)),
        ("--num-attention-heads", str(fields["n_head"])),
        ("--seq-length", str(sequence_length)),
        ("--max-position-embeddings", str(max(sequence_length, int(fields["n_positions"])))),
        ("--vocab-size", str(fields["vocab_size"])),
        *(() if fields.get("tie_word_embeddings", True) else (("--untie-embeddings-and-output-weights",),)),
    )


def _llama_like(fields: Mapping[str, Any], family: str, sequence_length: int) -> Options:
    """Return the options of Llama's relatives: rotary positions, RMSNorm, gated linear units, grouped queries, experts."""
    hidden, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
    groups = int(fields.get("num_key_value_heads") or heads)
    experts = int(fields.get("num_local_experts") or fields.get("num_experts") or fields.get("n_routed_experts") or 0)
    width = (
        fields.get("moe_intermediate_size") if experts and fields.get("moe_intermediate_size") else fields["intermediate_size"]
    )
    options: list[tuple[str, ...]] = [
        ("--num-layers", str(fields["num_hidden_layers"])),
        ("--hidden-size", str(hidden)),
        ("--ffn-hidden-size", str(fields["intermediate_size"])),
        ("--num-attention-heads", str(heads)),
        *((("--kv-channels", str(families.head_size(fields, family))),) if family not in LATENT else ()),
        ("--seq-length", str(sequence_length)),
        ("--max-position-embeddings", str(max(sequence_length, int(fields.get("max_position_embeddings") or 0)))),
        ("--vocab-size", str(fields["vocab_size"])),
        ("--position-embedding-type", positions.kind_of(fields, family)),
        ("--attention-dropout", "0", "--hidden-dropout", "0"),
        *families.layer(fields, family),
    ]
    if groups < heads and family not in LATENT:
        options.append(("--group-query-attention", "--num-query-groups", str(groups)))
    if family in LATENT:
        options += _latent(fields)
    if not fields.get("tie_word_embeddings", family in llama_variants.TIED):
        options.append(("--untie-embeddings-and-output-weights",))
    if experts:
        options += [
            ("--num-experts", str(experts)),
            ("--moe-ffn-hidden-size", str(width)),
            ("--moe-router-topk", str(fields.get("num_experts_per_tok") or 2)),
            ("--moe-token-dispatcher-type", "alltoall"),
            ("--moe-grouped-gemm",),
            *families.weighing(fields, family),
        ]
        shared = int(fields.get("shared_expert_intermediate_size") or 0)
        if family in (*LATENT, "glm4_moe"):
            options += _router(fields)
            shared = int(fields.get("n_shared_experts") or 0) * int(fields["moe_intermediate_size"])
        if shared:
            options.append(("--moe-shared-expert-intermediate-size", str(shared)))
        if shared and family == "qwen2_moe":
            options.append(("--moe-shared-expert-gate",))
    return tuple(options)
