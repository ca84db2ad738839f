"""Dense decoder-only families that differ from Llama in norms, biases and gates only: each said once, as what is different."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.models import dense_blocks, ends
from meshwright.models.config import ModelConfig
from meshwright.models.dense_blocks import Block
from meshwright.models.dense_families import drops, even_head, layer_windows, llama_block, n_layers, vocabulary

__all__ = ["FAMILIES", "TIED", "bloom", "falcon", "gptj", "phi", "variant"]


@dataclass(frozen=True, slots=True)
class _Variant:
    """What is different from Llama.

    `norm_weights`, `gated`, `parallel`, `one_norm`, `pre_norms`, `post_norms`: as of `Block`.
    `biases`: the flag for biases of queries, keys and values, of attention's output, and of the feed-forward network, each with
    its default; an empty name: the default always holds.
    `head_norms`: whether queries and keys pass norms with weights for every head.
    `head_norm_flag`: what switches them on, off where absent; empty: always on.
    `head_size`: of a head where no ``head_dim`` is given; 0: the hidden size shared out.
    `refused`: flags that change the layer in a way that is not read.
    """

    norm_weights: int = 1
    gated: bool = True
    parallel: bool = False
    one_norm: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    biases: tuple[tuple[str, bool], ...] = (("attention_bias", False), ("attention_bias", False), ("mlp_bias", False))
    head_norms: bool = False
    head_norm_flag: str = ""
    head_size: int = 0
    refused: tuple[str, ...] = ()


_NONE = ("", False)
_VARIANTS: tuple[tuple[str, _Variant], ...] = (
    ("arcee", _Variant(gated=False)),
    ("cohere", _Variant(parallel=True, one_norm=True, head_norms=True, head_norm_flag="use_qk_norm",
                        biases=(("attention_bias", False), ("attention_bias", False), _NONE))),
    ("cohere2", _Variant(parallel=True, one_norm=True, biases=(("attention_bias", False), ("attention_bias", False), _NONE))),
    ("ernie4_5", _Variant(biases=(("use_bias", False),) * 3, head_size=128)),
    ("glm", _Variant(biases=(("attention_bias", False), _NONE, _NONE), head_size=128)),
    ("glm4", _Variant(post_norms=True, biases=(("attention_bias", False), _NONE, _NONE), head_size=128)),
    ("granite", _Variant()),
    ("helium", _Variant(biases=(("attention_bias", False), _NONE, ("mlp_bias", False)), head_size=128)),
    ("nemotron", _Variant(norm_weights=2, gated=False)),
    ("olmo", _Variant(norm_weights=0, biases=(("attention_bias", False), ("attention_bias", False), _NONE))),
    ("olmo2", _Variant(pre_norms=False, post_norms=True, head_norms=True,
                       biases=(("attention_bias", False), ("attention_bias", False), _NONE))),
    ("seed_oss", _Variant(biases=(("attention_bias", True), ("attention_out_bias", False), ("mlp_bias", False)),
                          head_size=128)),
    ("smollm3", _Variant()),
    ("stablelm", _Variant(norm_weights=2, biases=(("use_qkv_bias", False), _NONE, _NONE),
                          refused=("qk_layernorm", "use_parallel_residual"))),
    ("starcoder2", _Variant(norm_weights=2, gated=False, biases=(("use_bias", True),) * 3)),
)  # fmt: skip

TIED = ("cohere", "cohere2", "ernie4_5", "granite", "smollm3", "starcoder2")
"""Families whose head and word table share weights where the configuration does not say."""


def variant(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a family of `_VARIANTS`.

    Raises `InputError` when a field is missing or wrong, or asks for a layer that is not read.
    """
    family = config.text("model_type", "family of the model", "")
    what = dict(_VARIANTS)[family]
    for flag in what.refused:
        if config.flag(flag, "a layer of another kind", False):
            raise InputError(
                f"{config.place}: {flag} is true; {family} is read without it. 'meshwright capture' takes any module"
            )
    if what.head_size and not config.given("head_dim"):
        config = config.changed(head_dim=what.head_size)
    query, output, inner = (
        config.flag(flag, "whether products have biases", default) if flag else default for flag, default in what.biases
    )
    block = replace(
        llama_block(config, sequence, fused), norm_weights=what.norm_weights, gated=what.gated, parallel=what.parallel,
        one_norm=what.one_norm, pre_norms=what.pre_norms, post_norms=what.post_norms, query_bias=query, output_bias=output,
        feed_forward_bias=inner,
    )  # fmt: skip
    if what.head_norms and (not what.head_norm_flag or config.flag(what.head_norm_flag, "norms of heads", False)):
        block = replace(block, head_norms=True, n_head_norm_parameters=(block.heads + block.kv_heads) * block.head)
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", family in TIED)
    windows = layer_windows(config, n_layers(config))
    bodies = {window: dense_blocks.layer(replace(block, window=window)) for window in dict.fromkeys(windows)}
    return _whole(config, name, [bodies[window] for window in windows], block, tied=tied)


def falcon(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a Falcon model: one key head (7B), grouped heads and a norm for each branch (40B), or GPT-like."""
    heads = config.integer("num_attention_heads|n_head", "heads of a layer")
    newer = _is(config, "new_decoder_architecture", False)
    hidden = config.integer("hidden_size", "width of the residual stream")
    parallel = newer or _is(config, "parallel_attn", True)
    kv_heads = heads if not _is(config, "multi_query", True) else 1
    kv_heads = config.integer("num_kv_heads|n_head_kv", "key heads of a layer", heads) if newer else kv_heads
    config.accounts_for("parallel_attn", "num_kv_heads", "n_head_kv", "num_ln_in_parallel_attn")  # of one of the two
    bias = _is(config, "bias", False)
    one_norm = parallel and config.integer("num_ln_in_parallel_attn", "norms of a layer", 2 if newer else 1) == 1
    block = Block(
        sequence, hidden, heads, kv_heads, even_head(config, hidden, heads),
        config.integer("ffn_hidden_size", "width of the feed-forward network", 4 * hidden), gated=False, norm_weights=2,
        query_bias=bias, output_bias=bias, feed_forward_bias=bias, parallel=parallel, one_norm=one_norm,
        rotary=not _is(config, "alibi", False), fused=fused,
    )  # fmt: skip
    body = dense_blocks.layer(block)
    return _whole(config, name, [body] * n_layers(config, "num_hidden_layers|n_layer"), block, tied=_tied(config, True))


def bloom(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a BLOOM model: GPT-2's layer without a table of positions, a norm behind the word table."""
    hidden = config.integer("hidden_size|n_embed", "width of the residual stream")
    heads = config.integer("n_head|num_attention_heads", "heads of a layer")
    config.accounts_for("pretraining_tp")  # of the run that trained it; counts with slow_but_exact only
    block = Block(
        sequence, hidden, heads, heads, even_head(config, hidden, heads), 4 * hidden, gated=False, norm_weights=2,
        query_bias=True, output_bias=True, feed_forward_bias=True, rotary=False, fused=fused,
        dropout=drops(config, "hidden_dropout"), attention_dropout=drops(config, "attention_dropout"),
    )  # fmt: skip
    bodies = [dense_blocks.layer(block)] * n_layers(config, "n_layer|num_hidden_layers")
    graph = _whole(config, name, bodies, block, tied=_tied(config, True))
    first = graph.ops[0]
    behind = dense_blocks.norm("norm", block, saved=1, selective=False)
    return replace(graph, ops=(replace(first, body=(*first.body, behind)), *graph.ops[1:]))


def phi(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a Phi-1 or Phi-2 model: both branches beside each other behind one norm, biases everywhere."""
    block = replace(
        llama_block(config, sequence, fused), gated=False, norm_weights=2, query_bias=True, output_bias=True,
        feed_forward_bias=True, parallel=True, one_norm=True,
    )  # fmt: skip
    if _is(config, "qk_layernorm", False):
        block = replace(block, head_norms=True, n_head_norm_parameters=4 * block.head)
    bodies = [dense_blocks.layer(block)] * n_layers(config)
    return _whole(config, name, bodies, block, tied=_tied(config, False), head_bias=True)


def gptj(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a GPT-J model: both branches beside each other behind one norm, attention without biases."""
    hidden = config.integer("n_embd|hidden_size", "width of the residual stream")
    heads = config.integer("n_head|num_attention_heads", "heads of a layer")
    block = Block(
        sequence, hidden, heads, heads, even_head(config, hidden, heads),
        config.integer("n_inner", "width of the feed-forward network", 4 * hidden), gated=False, norm_weights=2,
        feed_forward_bias=True, parallel=True, one_norm=True, fused=fused,
    )  # fmt: skip
    bodies = [dense_blocks.layer(block)] * n_layers(config, "n_layer|num_hidden_layers")
    return _whole(config, name, bodies, block, tied=_tied(config, False), head_bias=True)


FAMILIES: tuple[tuple[str, Callable[[ModelConfig, str, int, bool], Graph]], ...] = (
    ("bloom", bloom), ("falcon", falcon), ("gptj", gptj), ("phi", phi), *((family, variant) for family, _ in _VARIANTS),
)  # fmt: skip
"""How each family is read."""


def _is(config: ModelConfig, name: str, default: bool) -> bool:
    return config.flag(name, "a switch of the layer", default)


def _tied(config: ModelConfig, default: bool) -> bool:
    return config.flag("tie_word_embeddings", "whether head and word table share weights", default)


def _whole(
    config: ModelConfig, name: str, bodies: list[dense_blocks.Body], block: Block, *, tied: bool, head_bias: bool = False
) -> Graph:
    """Put word table and head around layers."""
    words = vocabulary(config)
    layers = [(f"layers.{i}", "attention_mlp", body) for i, body in enumerate(bodies)]
    everything = [
        ("embed", "embedding", ends.embedding(block, words)), *layers,
        ("head", "head", ends.head(block, words, bias=head_bias)),
    ]  # fmt: skip
    return ends.chain(name, everything, block, shared=words * block.hidden if tied else 0)
