"""What Megatron-LM is told of a model's architecture, for the families whose configurations map onto its options one to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import ExportError
from meshwright.core.graph import Graph
from meshwright.core.source import Source
from meshwright.models import dense_families
from meshwright.models.config import ModelConfig
from meshwright.models.readers import huggingface

__all__ = ["FAMILIES", "OTHER_SCRIPTS", "arguments"]

FAMILIES = ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""Values of ``model_type`` that are written out; others need the user's own options."""

OTHER_SCRIPTS = ("bert", "t5", "vit")
"""Families that are no language models of the kind ``pretrain_gpt.py`` trains."""


Options = tuple[tuple[str, ...], ...]


def arguments(spec: str, graph: Graph) -> tuple[Options, tuple[str, ...]]:
    """Return the options of a Hugging Face model, and what they leave out.

    `spec`: a built-in name or a ``config.json``.

    Returns
    -------
    options : tuple of tuple of str
        Options and their values; empty where the family is not written out.
    notes : tuple of str
        What the configuration does not say (``rope_theta`` of the built-in models) or the options do not.

    Raises
    ------
    ExportError
        When it is no model for ``pretrain_gpt.py``.
    """
    source = Source(spec)
    fields: Mapping[str, Any]
    if source.path is not None:
        fields = source.json if isinstance(source.json, dict) else {}
    else:
        fields = huggingface.configuration(spec) if spec in huggingface.names() else {}
    family = fields.get("model_type")
    if family in OTHER_SCRIPTS:
        raise ExportError(f"megatron_args: pretrain_gpt.py trains decoders, and {spec} is of the family {family}")
    if family not in FAMILIES:
        return (), ()
    if family == "gpt2":
        return _gpt2(fields, graph.sequence_length), ()
    rope, notes = _rope(fields)
    notes += tuple(
        f"the configuration's {field} is not written: add what it means in Megatron-LM's options"
        for field in ("attention_bias", "mlp_bias")
        if fields.get(field)
    )
    windows = dense_families.layer_windows(ModelConfig(spec, fields), int(fields["num_hidden_layers"]))
    if any(0 < window < graph.sequence_length for window in windows):
        notes += ("the configuration's sliding windows are not written: attention is full",)
    return (*_llama_like(fields, str(family), graph.sequence_length), *rope, *_expert_layers(graph)), notes


def _rope(fields: Mapping[str, Any]) -> tuple[Options, tuple[str, ...]]:
    """Return the options of rotary positions, whose fields lie in ``rope_parameters`` since transformers 5,
    and what they leave out.
    """
    new, old = fields.get("rope_parameters") or {}, fields.get("rope_scaling") or {}
    base = fields.get("rope_theta") or new.get("rope_theta")
    scaling = old or new
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    options: list[tuple[str, ...]] = [("--rotary-base", f"{base:.12g}")] if base else []
    notes: tuple[str, ...] = () if base else ("the configuration has no rope_theta: add --rotary-base where it is not 10000",)
    if kind == "llama3":
        options.append(("--use-rope-scaling", "--rope-scaling-factor", f"{scaling.get('factor', 8.0):.12g}"))
    elif kind != "default":
        notes += (f"the configuration scales rotary positions by '{kind}', which is not written: positions are not scaled",)
    return tuple(options), notes


def _expert_layers(graph: Graph) -> Options:
    """Return which layers have experts, where not all do."""
    layers = [int(op.kind == "moe") for op in graph.ops if op.kind not in ("embedding", "head")]
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
    experts = int(fields.get("num_local_experts") or fields.get("num_experts") or 0)
    width = (
        fields.get("moe_intermediate_size") if experts and fields.get("moe_intermediate_size") else fields["intermediate_size"]
    )
    options: list[tuple[str, ...]] = [
        ("--num-layers", str(fields["num_hidden_layers"])),
        ("--hidden-size", str(hidden)),
        ("--ffn-hidden-size", str(fields["intermediate_size"])),
        ("--num-attention-heads", str(heads)),
        ("--kv-channels", str(fields.get("head_dim") or hidden // heads)),
        ("--seq-length", str(sequence_length)),
        ("--max-position-embeddings", str(max(sequence_length, int(fields.get("max_position_embeddings") or 0)))),
        ("--vocab-size", str(fields["vocab_size"])),
        ("--position-embedding-type", "rope"),
        ("--normalization", "RMSNorm"),
        ("--swiglu",),
        ("--disable-bias-linear",),
        ("--attention-dropout", "0", "--hidden-dropout", "0"),
    ]
    if fields.get("rms_norm_eps"):
        options.append(("--norm-epsilon", f"{fields['rms_norm_eps']:.12g}"))
    if groups < heads:
        options.append(("--group-query-attention", "--num-query-groups", str(groups)))
    if family == "qwen2":
        options.append(("--add-qkv-bias",))
    if family.startswith("qwen3"):
        options.append(("--qk-layernorm",))
    if not fields.get("tie_word_embeddings", False):
        options.append(("--untie-embeddings-and-output-weights",))
    if experts:
        options += [
            ("--num-experts", str(experts)),
            ("--moe-ffn-hidden-size", str(width)),
            ("--moe-router-topk", str(fields.get("num_experts_per_tok") or 2)),
            ("--moe-token-dispatcher-type", "alltoall"),
            ("--moe-grouped-gemm",),
        ]
    return tuple(options)
