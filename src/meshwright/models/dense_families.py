"""Dense decoder-only families: from the fields of their configurations to layers."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Operator
from meshwright.models import dense_blocks, ends
from meshwright.models.config import ModelConfig
from meshwright.models.dense_blocks import Block

__all__ = [
    "LARGEST_DEPTH",
    "even_head",
    "gpt2",
    "gpt_neox",
    "layer_windows",
    "llama_block",
    "llama_like",
    "n_layers",
    "opt",
    "vocabulary",
]

LARGEST_DEPTH = 10_000
"""More layers than any model has; keeps a slip of the keyboard from filling the memory."""


def n_layers(config: ModelConfig, name: str = "num_hidden_layers") -> int:
    """Return the number of layers."""
    return config.integer(name, "number of layers", maximum=LARGEST_DEPTH)


def vocabulary(config: ModelConfig) -> int:
    """Return the number of rows of the word table (Gemma 3's own files leave it out: its family's default counts)."""
    default = 262208 if config.text("model_type", "family of the model", "").startswith("gemma3") else None
    return config.integer("vocab_size", "rows of the word embedding table", default, maximum=10**9)


def llama_block(config: ModelConfig, sequence: int, fused: bool) -> Block:
    """Return the layer of a Llama-like model: RMSNorm, rotated grouped heads, gated feed-forward.

    Raises `InputError` when a field is missing or wrong, or heads do not divide.
    """
    family = config.text("model_type", "family of the model", "llama")
    hidden, heads, kv_heads, head = attention_sizes(config)
    gemma, qwen2 = family.startswith("gemma"), family in ("qwen2", "qwen2_moe")
    attention_bias = config.flag("attention_bias", "whether attention products have biases", False)
    return Block(
        sequence, hidden, heads, kv_heads, head,
        config.integer("intermediate_size", "width of the feed-forward network"),
        query_bias=qwen2 or attention_bias,
        output_bias=attention_bias,
        feed_forward_bias=config.flag("mlp_bias", "whether feed-forward products have biases", False),
        head_norms=family in ("qwen3", "qwen3_moe", "gemma3_text", "gemma3"),
        post_norms=gemma and family != "gemma",
        dropout=drops(config, "resid_pdrop|residual_dropout|hidden_dropout"),
        attention_dropout=drops(config, "attention_dropout"),
        fused=fused,
    )  # fmt: skip


def attention_sizes(config: ModelConfig) -> tuple[int, int, int, int]:
    """Return hidden size, query heads, key-value heads and head size of a Llama-like configuration.

    Raises `InputError` when heads do not divide.
    """
    hidden = config.integer("hidden_size", "width of the residual stream")
    heads = config.integer("num_attention_heads", "query heads of a layer")
    kv_heads = config.integer("num_key_value_heads", "key and value heads of a layer", heads)
    if heads % kv_heads:
        raise InputError(
            f"{config.place}: num_key_value_heads is {kv_heads}, which does not divide num_attention_heads {heads}; "
            "every key head must serve the same number of query heads"
        )
    return hidden, heads, kv_heads, config.integer("head_dim", "size of a head", even_head(config, hidden, heads))


def layer_windows(config: ModelConfig, layers: int) -> tuple[int, ...]:
    """Return the sliding window of every layer in tokens, 0 for full attention.

    Raises `InputError` when ``layer_types`` has another length or an unknown entry.
    """
    family = config.text("model_type", "family of the model", "llama")
    window = config.integer("sliding_window", "sliding window of attention in tokens", 0, minimum=0, maximum=10**9)
    if family.startswith("qwen") and not config.flag("use_sliding_window", "whether windows are used", False):
        window = 0
    kinds = config.words("layer_types", "kind of attention of each layer")
    patterns = "sliding_window_pattern|_sliding_window_pattern|layer_switch"
    if kinds or not window:
        config.accounts_for("max_window_layers", *patterns.split("|"))
    if kinds:
        if len(kinds) != layers:
            raise InputError(
                f"{config.place}: layer_types has {len(kinds)} entries; it must have one for each of {layers} layers"
            )
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise InputError(
                    f"{config.place}: layer_types holds '{kind}'; only full_attention and sliding_attention are supported"
                )
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if family in ("gemma2", "gpt_oss"):  # every second layer is local, beginning with the first
        return tuple(window if i % 2 == 0 else 0 for i in range(layers))
    if family.startswith("gemma3") or family == "cohere2":
        usual = 4 if family == "cohere2" else 6
        pattern = config.integer(patterns, "every how many layers one is global", usual)
        return tuple(window if (i + 1) % pattern else 0 for i in range(layers))
    if family.startswith("qwen"):
        full = config.integer("max_window_layers", "layers with full attention before the windows begin", layers, minimum=0)
        return tuple(window if i >= full else 0 for i in range(layers))
    return (window,) * layers


def llama_like(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a dense Llama-like model (Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3)."""
    block = llama_block(config, sequence, fused)
    words = vocabulary(config)
    family = config.text("model_type", "family of the model", "llama")
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", family.startswith("gemma"))
    windows = layer_windows(config, n_layers(config))
    bodies = {window: dense_blocks.layer(replace(block, window=window)) for window in dict.fromkeys(windows)}
    layers = [(f"layers.{i}", "attention_mlp", bodies[window]) for i, window in enumerate(windows)]
    return _between_ends(name, layers, block, ends.embedding(block, words), words, tied)


def gpt2(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a GPT-2-like model: learned positions, LayerNorm, biases, GELU (GPT-3 and Megatron's GPT as well)."""
    hidden = config.integer("n_embd|hidden_size", "width of the residual stream")
    heads = config.integer("n_head|num_attention_heads", "heads of a layer")
    block = Block(
        sequence, hidden, heads, heads, config.integer("head_dim", "size of a head", even_head(config, hidden, heads)),
        config.integer("n_inner", "width of the feed-forward network", 4 * hidden),
        gated=False, norm_weights=2, query_bias=True, output_bias=True, feed_forward_bias=True, rotary=False,
        dropout=drops(config, "resid_pdrop", 0.1), attention_dropout=drops(config, "attn_pdrop", 0.1), fused=fused,
    )  # fmt: skip
    words = vocabulary(config)
    body = dense_blocks.layer(block)
    layers = [(f"layers.{i}", "attention_mlp", body) for i in range(n_layers(config, "n_layer|num_hidden_layers"))]
    positions = max(sequence, config.integer("n_positions|n_ctx", "rows of the position table", maximum=10**9))
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", True)
    return _between_ends(name, layers, block, ends.embedding(block, words, positions), words, tied)


def gpt_neo(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a GPT-Neo model: GPT-2's layer without biases of queries, keys and values, windows in some layers.

    Raises `InputError` when a field is missing or wrong, or there is not one kind of attention for each layer.
    """
    hidden = config.integer("hidden_size", "width of the residual stream")
    heads = config.integer("num_heads|num_attention_heads", "heads of a layer")
    block = Block(
        sequence, hidden, heads, heads, even_head(config, hidden, heads),
        config.integer("intermediate_size", "width of the feed-forward network", 4 * hidden),
        gated=False, norm_weights=2, output_bias=True, feed_forward_bias=True, rotary=False,
        dropout=drops(config, "resid_dropout"), attention_dropout=drops(config, "attention_dropout"), fused=fused,
    )  # fmt: skip
    words, layers = vocabulary(config), n_layers(config, "num_layers|num_hidden_layers")
    if config.given("attention_layers"):
        config.accounts_for("attention_types")  # from which they follow
    kinds = config.words("attention_layers", "kind of attention of each layer") or ("global", "local") * layers
    window = config.integer("window_size", "sliding window of attention in tokens", 256, maximum=10**9)
    if len(kinds) < layers or not {"global", "local"} >= set(kinds):
        raise InputError(f"{config.place}: attention_layers must say global or local for each of {layers} layers")
    bodies = {kind: dense_blocks.layer(replace(block, window=window if kind == "local" else 0)) for kind in ("global", "local")}
    named = [(f"layers.{i}", "attention_mlp", bodies[kinds[i]]) for i in range(layers)]
    positions = max(sequence, config.integer("max_position_embeddings", "rows of the position table", maximum=10**9))
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", True)
    return _between_ends(name, named, block, ends.embedding(block, words, positions), words, tied)


def gpt_neox(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a GPT-NeoX model: rotated heads, LayerNorm, biases, both branches in parallel."""
    hidden = config.integer("hidden_size", "width of the residual stream")
    heads = config.integer("num_attention_heads", "heads of a layer")
    attention_bias = config.flag("attention_bias", "whether attention products have biases", True)
    block = Block(
        sequence, hidden, heads, heads, even_head(config, hidden, heads),
        config.integer("intermediate_size", "width of the feed-forward network"),
        gated=False, norm_weights=2, query_bias=attention_bias, output_bias=attention_bias, feed_forward_bias=True,
        parallel=config.flag("use_parallel_residual", "whether both branches read the same stream", True),
        dropout=drops(config, "hidden_dropout"), attention_dropout=drops(config, "attention_dropout"), fused=fused,
    )  # fmt: skip
    words = vocabulary(config)
    body = dense_blocks.layer(block)
    layers = [(f"layers.{i}", "attention_mlp", body) for i in range(n_layers(config))]
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", False)
    return _between_ends(name, layers, block, ends.embedding(block, words), words, tied)


def opt(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of an OPT model: GPT-2's layer with a narrower word table where configured, ReLU."""
    hidden = config.integer("hidden_size", "width of the residual stream")
    heads = config.integer("num_attention_heads", "heads of a layer")
    before = config.flag("do_layer_norm_before", "whether norms stand before the branches", True)
    block = Block(
        sequence, hidden, heads, heads, even_head(config, hidden, heads),
        config.integer("ffn_dim", "width of the feed-forward network"),
        gated=False, norm_weights=2, query_bias=True, output_bias=True, feed_forward_bias=True, rotary=False,
        norm_after=not before, dropout=drops(config, "dropout", 0.1),
        attention_dropout=drops(config, "attention_dropout"), fused=fused,
    )  # fmt: skip
    words, width = vocabulary(config), config.integer("word_embed_proj_dim", "width of the word table", hidden)
    # OPT's position table has two rows that no token uses
    positions = 2 + max(sequence, config.integer("max_position_embeddings", "rows of the position table", maximum=10**9))
    body = dense_blocks.layer(block)
    layers = [(f"layers.{i}", "attention_mlp", body) for i in range(n_layers(config))]
    tail = ends.head(block, words, final_norm=before)
    if width != hidden:
        out = dense_blocks.product("projection", sequence, hidden, width, axis="sequence", saved=hidden)
        tail = (*tail[:-2], out, *ends.head(replace(block, hidden=width), words, final_norm=False))
    everything = [
        ("embed", "embedding", ends.embedding(block, words, positions, width=width)),
        *layers,
        ("head", "head", tail),
    ]
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", True)
    return ends.chain(name, everything, block, shared=words * width if tied else 0)


def _between_ends(
    name: str,
    layers: list[tuple[str, str, tuple[Operator, ...]]],
    block: Block,
    first: tuple[Operator, ...],
    words: int,
    tied: bool,
) -> Graph:
    """Put embedding and head around layers."""
    everything = [("embed", "embedding", first), *layers, ("head", "head", ends.head(block, words))]
    return ends.chain(name, everything, block, shared=words * block.hidden if tied else 0)


def even_head(config: ModelConfig, hidden: int, heads: int) -> int:
    """Return the size of a head where heads share the hidden size evenly.

    Raises `InputError` when they cannot and no ``head_dim`` says otherwise.
    """
    if hidden % heads and not config.given("head_dim"):
        raise InputError(
            f"{config.place}: hidden size {hidden} cannot be divided into {heads} heads; change one, or give head_dim"
        )
    return max(1, hidden // heads)


def drops(config: ModelConfig, name: str, default: float = 0.0) -> bool:
    """Whether a drop-out probability is above zero."""
    return config.ratio(name, "drop-out probability", default) > 0
