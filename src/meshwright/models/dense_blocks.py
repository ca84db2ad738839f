"""Operators of a dense transformer layer: attention with grouped heads, feed-forward, norms and residual sums.

What is kept for the backward pass is booked once, at the operator that makes it: products book their outputs where something
needs them, norms and activation functions their output (the next product's input), a residual sum the stream that it reads (the
norm's input lives there), the product after attention its input. Statistics of norms (a few bytes per token) are left out, as
in [1]_.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.graph import Operator

__all__ = ["Block", "Body", "attention", "core", "cross_attention", "feed_forward", "layer", "norm", "product", "residual"]

Body = tuple[Operator, ...]
"""The operators of a layer."""

_MASK_BYTES = 1  # of one element of a drop-out mask
_STATISTIC_BYTES = 4  # one fp32 log-sum-exp per query and head (flash attention)


@dataclass(frozen=True, slots=True)
class Block:
    """Sizes and switches of one layer.

    `sequence`, `hidden`, `heads`, `kv_heads`, `head`, `width`: tokens per sample, width of the residual stream, query heads,
    key and value heads, size of a head, width of the feed-forward network.
    `key_sequence`: tokens that keys and values come from; 0 for `sequence`. Used by cross attention.
    `window`: sliding window of attention in tokens; 0 for none.
    `chunk`: tokens of the chunks that attention stays in (Llama 4); 0 for none.
    `causal`: whether a token sees only those before it.
    `gated`: whether the feed-forward network has a gate beside its first product (SwiGLU, GeGLU).
    `norm_weights`: weights of a norm per hidden element: 1 for RMSNorm, 2 for LayerNorm.
    `query_bias`, `output_bias`, `feed_forward_bias`: whether the products have biases.
    `sinks`: whether every query head has a weight that attention may go to instead of to a token (GPT-OSS).
    `head_norms`: whether queries and keys are normalised per head.
    `n_head_norm_parameters`: weights of those norms; 0 for those of one head of queries and one of keys.
    `rotary`: whether queries and keys are rotated by position.
    `post_norms`: whether the outputs of attention and feed-forward are normalised as well (Gemma 2).
    `pre_norms`: whether the streams into both branches are normalised (not in OLMo 2).
    `norm_after`: whether the norm stands after the residual sum instead of before the branch (BERT).
    `parallel`: whether attention and feed-forward read the same stream and are summed once (GPT-NeoX).
    `one_norm`: whether both then read the same norm (Falcon 7B, Cohere).
    `dropout`, `inner_dropout`, `attention_dropout`: whether elements are dropped at the ends of both branches, after the
    activation function, and of attention probabilities.
    `fused`: whether attention is one flash-attention kernel; otherwise scores are kept as in [1]_ and selective recomputation
    drops them.
    """

    sequence: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    width: int
    key_sequence: int = 0
    window: int = 0
    chunk: int = 0
    causal: bool = True
    gated: bool = True
    norm_weights: int = 1
    query_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    sinks: bool = False
    head_norms: bool = False
    n_head_norm_parameters: int = 0
    rotary: bool = True
    post_norms: bool = False
    pre_norms: bool = True
    norm_after: bool = False
    parallel: bool = False
    one_norm: bool = False
    dropout: bool = False
    inner_dropout: bool = False
    attention_dropout: bool = False
    fused: bool = True


def layer(block: Block) -> tuple[Operator, ...]:
    """Return the operators of one dense layer."""
    if block.parallel:
        return _parallel(block)
    return attention(block) + feed_forward(block)


def product(name: str, sequence: int, n_in: int, n_out: int, *, axis: str, bias: bool = False, saved: int = 0) -> Operator:
    """Return a matrix product of activations with weights.

    `sequence`, `n_in`, `n_out`: rows per sample, columns in and out.
    `axis`: axis that the tensor degree splits: ``out``, ``in``, ``sequence`` or empty.
    `saved`: elements per row kept for the backward pass.
    """
    return Operator(
        name,
        "matmul",
        (("sequence", sequence), ("in", n_in), ("out", n_out)),
        tensor_axis=axis,
        n_parameters=n_in * n_out + (n_out if bias else 0),
        saved_elements=sequence * saved,
        saved_axis="tensor" if axis in ("in", "out") else "sequence",
    )


def norm(name: str, block: Block, *, saved: int = 1, selective: bool = True) -> Operator:
    """Return a norm of the residual stream that keeps `saved` tensors of its width."""
    return Operator(
        name,
        "norm",
        (("sequence", block.sequence), ("hidden", block.hidden)),
        tensor_axis="sequence",
        n_parameters=block.norm_weights * block.hidden,
        saved_elements=saved * block.sequence * block.hidden,
        saved_axis="sequence",
        selective=selective and block.fused,
    )


def residual(name: str, block: Block, *, inputs: int = 2, saved: int = 1) -> Operator:
    """Return a residual sum, with the drop-out before it, that keeps the stream it reads and the mask."""
    elements = block.sequence * block.hidden
    return Operator(
        name,
        "elementwise",
        (("sequence", block.sequence), ("hidden", block.hidden), ("inputs", inputs)),
        tensor_axis="sequence",
        saved_elements=saved * elements,
        saved_extra_bytes=_MASK_BYTES * elements * (inputs - 1) if block.dropout else 0,
        saved_axis="sequence",
    )


def attention(block: Block) -> tuple[Operator, ...]:
    """Return the attention half of a layer: norm, projections, core, output projection, residual sum."""
    return _surrounded("attention", block, _attention_branch("attention", block))


def feed_forward(block: Block, name: str = "mlp") -> tuple[Operator, ...]:
    """Return the feed-forward half of a layer."""
    return _surrounded(name, block, feed_forward_branch(name, block))


def cross_attention(block: Block) -> tuple[Operator, ...]:
    """Return attention from a decoder's stream to an encoder's output of `block.key_sequence` tokens.

    The encoder's output is kept once, by the encoder's last norm.
    """
    name, keys = "cross_attention", block.key_sequence
    n_query, n_key = block.heads * block.head, block.kv_heads * block.head
    branch = (
        product(f"{name}.query", block.sequence, block.hidden, n_query, axis="out", bias=block.query_bias, saved=n_query),
        product(f"{name}.key_value", keys, block.hidden, 2 * n_key, axis="out", bias=block.query_bias, saved=2 * n_key),
        *core(name, block, block.head, block.head),
        product(f"{name}.output", block.sequence, n_query, block.hidden, axis="in", bias=block.output_bias, saved=n_query),
    )
    return _surrounded(name, block, branch)


def feed_forward_branch(name: str, block: Block) -> tuple[Operator, ...]:
    """Return the products and the activation function between a norm and a residual sum."""
    branches = 2 if block.gated else 1
    width, sequence, bias = block.width, block.sequence, block.feed_forward_bias
    inner = branches * width
    return (
        product(f"{name}.in", sequence, block.hidden, inner, axis="out", bias=bias, saved=inner),
        activation(f"{name}.activation", sequence, width, branches, block),
        product(f"{name}.out", sequence, width, block.hidden, axis="in", bias=bias),
    )


def activation(name: str, rows: int, width: int, branches: int, block: Block) -> Operator:
    """Return an activation function (of `branches` inputs) that keeps its output for the next product."""
    return Operator(
        name,
        "elementwise",
        (("sequence", rows), ("hidden", width), ("inputs", branches)),
        tensor_axis="hidden",
        saved_elements=rows * width,
        saved_extra_bytes=_MASK_BYTES * rows * width if block.inner_dropout else 0,
        selective=block.fused,
    )


def core(name: str, block: Block, head: int, value: int) -> tuple[Operator, ...]:
    """Return attention proper: scores, soft maximum and weighted values, fused into one kernel or not.

    `name`: prefix of the operators' names.
    `block`: sizes; of a window or chunks only the mean number of keys per query counts.
    `head`, `value`: sizes of a query and key head and of a value head.
    """
    sequence, keys, causal = block.sequence, block.key_sequence or block.sequence, block.causal
    if block.window and block.window < keys and block.fused:
        seen = block.window * sequence - (block.window * (block.window - 1) // 2 if causal else 0)
        keys, causal = max(1, round(seen / sequence)), False
    if block.chunk and block.chunk < keys and block.fused:
        whole, rest = divmod(sequence, block.chunk)
        seen = (whole * block.chunk * (block.chunk + 1) + rest * (rest + 1)) // 2
        keys, causal = max(1, round(seen / sequence)), False
    sizes = (sequence, keys, block.heads, block.kv_heads, head, value)
    dims = tuple(zip(("sequence", "key_sequence", "heads", "kv_heads", "head", "value"), sizes, strict=True))
    sinks = block.heads if block.sinks else 0
    if block.fused:
        kind = "causal_attention" if causal else "attention"
        kept = _STATISTIC_BYTES * block.heads * sequence
        return (Operator(f"{name}.core", kind, dims, "heads", n_parameters=sinks, saved_extra_bytes=kept),)
    square = block.heads * sequence * keys
    dropped = 1 if block.attention_dropout else 0
    scores = (("sequence", sequence), ("hidden", block.heads * keys))
    # the square is computed in full and masked; kept: soft maximum's output, and with drop-out its mask and its output [1]
    return (
        Operator(f"{name}.core", "attention", dims, "heads", n_parameters=sinks, selective=True),
        Operator(
            f"{name}.softmax", "softmax", scores, "hidden", saved_elements=square * (1 + dropped),
            saved_extra_bytes=_MASK_BYTES * square * dropped, selective=True,
        ),
    )  # fmt: skip


def _attention_branch(name: str, block: Block) -> tuple[Operator, ...]:
    """Projections, rotation, head norms, core and output projection."""
    n_query, n_key = block.heads * block.head, block.kv_heads * block.head
    n_out = n_query + 2 * n_key
    branch = [
        product(f"{name}.query_key_value", block.sequence, block.hidden, n_out, axis="out", bias=block.query_bias, saved=n_out)
    ]
    rotated = (("sequence", block.sequence), ("hidden", n_query + n_key))
    if block.head_norms:
        n_weights = block.n_head_norm_parameters or 2 * block.norm_weights * block.head
        branch.append(
            Operator(
                f"{name}.head_norms", "norm", rotated, "hidden", n_parameters=n_weights,
                saved_elements=block.sequence * (n_query + n_key), selective=block.fused,
            )
        )  # fmt: skip
    if block.rotary:
        branch.append(Operator(f"{name}.rotary", "elementwise", (*rotated, ("inputs", 1)), "hidden"))
    branch += core(name, block, block.head, block.head)
    branch.append(
        product(f"{name}.output", block.sequence, n_query, block.hidden, axis="in", bias=block.output_bias, saved=n_query)
    )
    return tuple(branch)


def _surrounded(name: str, block: Block, branch: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Put the norms and the residual sum around a branch."""
    first, last = norm(f"{name}.norm", block), residual(f"{name}.residual", block)
    if block.norm_after:
        return (*branch, last, first)
    if block.post_norms:
        before = (first,) if block.pre_norms else ()
        return (*before, *branch, norm(f"{name}.post_norm", block, selective=False), last)
    return (first, *branch, last)


def _parallel(block: Block) -> tuple[Operator, ...]:
    """Attention and feed-forward beside each other, summed once."""
    return (
        norm("attention.norm", block),
        *_attention_branch("attention", block),
        *(() if block.one_norm else (norm("mlp.norm", block),)),
        *feed_forward_branch("mlp", block),
        residual("residual", block, inputs=3),
    )
