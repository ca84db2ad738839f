"""What Megatron-LM is told of a model's architecture, for the families whose configurations map onto its options one to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.errors import ExportError
from meshwright.readers import Source, huggingface

__all__ = ["FAMILIES", "OTHER_SCRIPTS", "arguments"]

FAMILIES = ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""Values of ``model_type`` that are written out; others need the user's own options."""

OTHER_SCRIPTS = ("bert", "t5", "vit")
"""Families that are no language models of the kind ``pretrain_gpt.py`` trains."""


def arguments(spec: str, sequence_length: int) -> tuple[tuple[str, ...], ...]:
    """Return the options of a Hugging Face model, one tuple of words each; empty where its family is not written out.

    Parameters
    ----------
    spec : str
        A built-in name or a ``config.json``.
    sequence_length : int
        Tokens of a sample.

    Returns
    -------
    tuple of tuple of str
        Options and their values; what the configuration does not say (``rope_theta`` of the built-in models) is left to the user.

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
        return ()
    return _gpt2(fields, sequence_length) if family == "gpt2" else _llama_like(fields, str(family), sequence_length)


def _gpt2(fields: Mapping[str, Any], sequence_length: int) -> tuple[tuple[str, ...], ...]:
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


def _llama_like(fields: Mapping[str, Any], family: str, sequence_length: int) -> tuple[tuple[str, ...], ...]:
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
    for option, field in (("--rotary-base", "rope_theta"), ("--norm-epsilon", "rms_norm_eps")):
        if fields.get(field):
            options.append((option, f"{fields[field]:.12g}"))
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
