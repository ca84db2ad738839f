"""Llama 4's language model: chunked attention with full attention between, experts in every n-th layer beside a shared one."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.models import dense_blocks, dense_families, mixture_blocks, mixture_families
from meshwright.models.config import ModelConfig

__all__ = ["llama4"]


def llama4(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a Llama 4 model (its text part).

    Layers see chunks of the sample, apart from every fourth (``no_rope_layer_interval``), which sees all of it. Queries and
    keys are normalised without weights. Every token visits a shared expert and ``num_experts_per_tok`` routed ones.
    Raises `InputError` when a field is missing or wrong, or lists do not have one entry for each layer.
    """
    layers = dense_families.n_layers(config)
    block = dense_families.llama_block(config, sequence, fused)
    dense = replace(block, width=config.integer("intermediate_size_mlp", "width of a feed-forward network without experts"))
    # no weights, and little work
    config.accounts_for("use_qk_norm", "attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor")
    experts = replace(
        mixture_families.experts_of(config, "num_local_experts", block.width), shared_width=block.width
    )  # fmt: skip
    chunks, sparse = _chunks(config, layers), _sparse(config, layers)
    bodies = {}
    for kind in dict.fromkeys(zip(chunks, sparse, strict=True)):
        chunk, routes = kind
        seen = replace(block if routes else dense, chunk=chunk)
        half = mixture_blocks.expert_feed_forward(seen, experts) if routes else dense_blocks.feed_forward(seen)
        bodies[kind] = dense_blocks.attention(seen) + half
    return mixture_families.assembled(config, name, [bodies[kind] for kind in zip(chunks, sparse, strict=True)], block, experts)


def _chunks(config: ModelConfig, layers: int) -> tuple[int, ...]:
    """Return the chunk of every layer in tokens, 0 for full attention."""
    chunk = config.integer("attention_chunk_size", "chunk of attention in tokens", 0, minimum=0, maximum=10**9)
    kinds = config.words("layer_types", "kind of attention of each layer")
    rotated = config.whole_numbers("no_rope_layers", "1 for a layer with rotation and chunks, 0 for one without")
    every = config.integer("no_rope_layer_interval", "every how many layers one sees the whole sample", 4)
    for words, field in ((kinds, "layer_types"), (rotated, "no_rope_layers")):
        if words and len(words) != layers:
            raise InputError(f"{config.place}: {field} has {len(words)} entries; it must have one for each of {layers} layers")
    if kinds and not {"chunked_attention", "full_attention"} >= set(kinds):
        raise InputError(f"{config.place}: layer_types holds other words than chunked_attention and full_attention")
    if kinds:
        return tuple(chunk if kind == "chunked_attention" else 0 for kind in kinds)
    flags = rotated or tuple(int((i + 1) % every != 0) for i in range(layers))
    return tuple(chunk if flag else 0 for flag in flags)


def _sparse(config: ModelConfig, layers: int) -> tuple[bool, ...]:
    """Return for every layer whether it has experts."""
    step = config.integer("interleave_moe_layer_step", "every how many layers one has experts", 1)
    listed = config.whole_numbers("moe_layers", "layers with experts") or tuple(range(step - 1, layers, step))
    if any(i >= layers for i in listed):
        raise InputError(f"{config.place}: moe_layers names layer {max(listed)}; there are {layers}, counted from 0")
    return tuple(i in listed for i in range(layers))
