"""Families with encoders: BERT (words, both directions), ViT (patches of an image), T5 (encoder and decoder)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Operator
from meshwright.models import dense_blocks, dense_families, ends
from meshwright.models.config import ModelConfig
from meshwright.models.dense_blocks import Block

__all__ = ["bert", "t5", "vit", "vit_sequence"]


def bert(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a BERT model with its pre-training heads: masked words, and with a pooler the next sentence.

    Raises `InputError` when a field is missing or wrong.
    """
    block = _encoder_block(config, sequence, fused, norm_after=True)
    words, hidden = dense_families.vocabulary(config), block.hidden
    kinds = config.integer("type_vocab_size", "rows of the table of sentence kinds", 2)
    positions = max(sequence, config.integer("max_position_embeddings", "rows of the position table", maximum=10**9))
    first = (
        ends.lookup("words", words, sequence, hidden, split=True),
        ends.lookup("positions", positions, sequence, hidden, split=False),
        ends.lookup("sentence_kinds", kinds, sequence, hidden, split=False),
        replace(dense_blocks.residual("sum", block, inputs=3), saved_extra_bytes=sequence * hidden if block.dropout else 0),
        dense_blocks.norm("norm", block),
    )
    transform = replace(
        dense_blocks.product("transform", sequence, hidden, hidden, axis="sequence", bias=True, saved=hidden),
        saved_axis="sequence",
    )
    tail = (
        transform,
        dense_blocks.norm("transform_norm", block, saved=2),
        *ends.head(block, words, final_norm=False, bias=True),
        *_sentence_head(config, hidden),
    )
    body = dense_blocks.layer(block)
    layers = [(f"layers.{i}", "attention_mlp", body) for i in range(dense_families.n_layers(config))]
    everything = [("embed", "embedding", first), *layers, ("head", "head", tail)]
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", True)
    return ends.chain(name, everything, block, shared=words * hidden if tied else 0)


def vit_sequence(config: ModelConfig) -> tuple[int, int]:
    """Return the number of patches of an image, and of tokens (with the class token).

    Raises `InputError` when patches do not tile the image.
    """
    image = config.integer("image_size", "side of an image in pixels")
    patch = config.integer("patch_size", "side of a patch in pixels")
    if image % patch:
        raise InputError(f"{config.place}: image_size {image} cannot be tiled by patches of patch_size {patch}")
    return (image // patch) ** 2, (image // patch) ** 2 + 1


def vit(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a vision transformer with its classifier, or as ``ViTModel`` with its pooler; a sample is an image.

    Raises `InputError` when a field is missing or wrong.
    """
    patches, sequence = vit_sequence(config)
    block = _encoder_block(config, sequence, fused, norm_after=False)
    hidden, patch = block.hidden, config.integer("patch_size", "side of a patch in pixels")
    pixels = config.integer("num_channels", "colours of a pixel", 3) * patch * patch
    project = dense_blocks.product("patches", patches, pixels, hidden, axis="sequence", bias=True, saved=pixels)
    table = ends.lookup("positions", sequence, sequence, hidden, split=False)
    first = (
        project,
        replace(table, n_parameters=table.n_parameters + hidden),  # and the class token
        replace(dense_blocks.residual("sum", block), saved_elements=0),
    )
    tail = (dense_blocks.norm("norm", block, saved=2, selective=False), *_image_head(config, hidden))
    body = dense_blocks.layer(block)
    layers = [(f"layers.{i}", "attention_mlp", body) for i in range(dense_families.n_layers(config))]
    graph = ends.chain(name, [("embed", "embedding", first), *layers, ("head", "head", tail)], block)
    return replace(graph, tokens_name="")


def t5(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """Return the graph of a T5 model; encoder and decoder see the same number of tokens unless ``_target_sequence_length`` is
    given.

    The tables of relative positions, read by every layer, are held by the embedding.

    Raises `InputError` when a field is missing or wrong.
    """
    config.accounts_for("is_encoder_decoder", "is_gated_act", "dense_act_fn")  # what it is; parts of feed_forward_proj
    heads, head = config.integer("num_heads", "heads of a layer"), config.integer("d_kv", "size of a head")
    feed_forward = config.text("feed_forward_proj", "kind of feed-forward network", "relu")
    dropped = config.ratio("dropout_rate", "drop-out probability", 0.1) > 0
    encoder = Block(
        sequence, config.integer("d_model", "width of the residual stream"), heads, heads, head,
        config.integer("d_ff", "width of the feed-forward network"), causal=False, gated=feed_forward.startswith("gated"),
        rotary=False, dropout=dropped, inner_dropout=dropped, attention_dropout=dropped, fused=fused,
    )  # fmt: skip
    target = config.integer("_target_sequence_length", "tokens of the decoder per sample", sequence, maximum=10**9)
    decoder = replace(encoder, sequence=target, causal=True)
    across = replace(decoder, causal=False, key_sequence=sequence)
    words, hidden = dense_families.vocabulary(config), encoder.hidden
    n_encoder = config.integer("num_layers", "layers of the encoder", maximum=dense_families.LARGEST_DEPTH)
    n_decoder = config.integer("num_decoder_layers", "layers of the decoder", n_encoder, maximum=dense_families.LARGEST_DEPTH)
    in_body = dense_blocks.layer(encoder)
    out_body = dense_blocks.attention(decoder) + dense_blocks.cross_attention(across) + dense_blocks.feed_forward(decoder)
    buckets = config.integer("relative_attention_num_buckets", "rows of the table of relative positions", 32)
    both = replace(encoder, sequence=sequence + target)
    first = tuple(
        replace(part, n_parameters=part.n_parameters + 2 * buckets * heads) if part.name == "words" else part
        for part in ends.embedding(both, words)
    )
    middle = (dense_blocks.norm("norm", encoder, saved=2, selective=False),)
    made = ends.ops(
        [
            ("embed", "embedding", first),
            *((f"encoder.{i}", "attention_mlp", in_body) for i in range(n_encoder)),
            ("encoder.norm", "norm", middle),
            *((f"decoder.{i}", "attention_mlp", out_body) for i in range(n_decoder)),
            ("head", "head", ends.head(decoder, words)),
        ]
    )
    last, source, answer = n_encoder + 1, sequence * hidden, target * hidden
    edges = [Edge(i, i + 1, source) for i in range(last)]
    edges += [Edge(0, last + 1, answer)]
    edges += [Edge(i, i + 1, answer) for i in range(last + 1, last + 1 + n_decoder)]
    edges += [Edge(last, i, source) for i in range(last + 1, last + 1 + n_decoder)]
    tied = config.flag("tie_word_embeddings", "whether head and word table share weights", True)
    shared = words * hidden if tied else 0
    return Graph(name, made, tuple(edges), sequence, shared, shared=ends.tied(made, shared))


def _encoder_block(config: ModelConfig, sequence: int, fused: bool, *, norm_after: bool) -> Block:
    """The layer of BERT and ViT: LayerNorm, biases, GELU, every token sees every other."""
    hidden = config.integer("hidden_size", "width of the residual stream")
    heads = config.integer("num_attention_heads", "heads of a layer")
    default = 0.1 if norm_after else 0.0
    return Block(
        sequence, hidden, heads, heads, dense_families.even_head(config, hidden, heads),
        config.integer("intermediate_size", "width of the feed-forward network"), causal=False, gated=False, norm_weights=2,
        query_bias=config.flag("qkv_bias", "whether queries, keys and values have biases", True), output_bias=True,
        feed_forward_bias=True, rotary=False, norm_after=norm_after,
        dropout=config.ratio("hidden_dropout_prob", "drop-out probability", default) > 0,
        attention_dropout=config.ratio("attention_probs_dropout_prob", "drop-out probability", default) > 0, fused=fused,
    )  # fmt: skip


def _image_head(config: ModelConfig, hidden: int) -> tuple[Operator, ...]:
    """Pooler of the class token where the configuration is that of the bare ``ViTModel``, otherwise a classifier."""
    labels = config.fields.get("id2label")
    classes = config.integer("num_labels", "classes", len(labels) if isinstance(labels, dict) and labels else 1000)
    if "ViTModel" in config.words("architectures", "classes of the model"):
        return (dense_blocks.product("pooler", 1, hidden, hidden, axis="sequence", bias=True, saved=hidden),)
    return (
        dense_blocks.product("classifier", 1, hidden, classes, axis="sequence", bias=True),
        Operator("loss", "cross_entropy", (("sequence", 1), ("vocabulary", classes)), saved_extra_bytes=4 * classes),
    )


def _sentence_head(config: ModelConfig, hidden: int) -> tuple[Operator, ...]:
    """Pooler of the first token and the choice whether the sentences follow each other; only BertForPreTraining has it."""
    if "BertForPreTraining" not in config.words("architectures", "classes of the model"):
        return ()
    return (
        dense_blocks.product("pooler", 1, hidden, hidden, axis="sequence", bias=True, saved=hidden),
        dense_blocks.product("next_sentence", 1, hidden, 2, axis="sequence", bias=True),
    )
