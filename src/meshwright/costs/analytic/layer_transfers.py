"""Which collectives the operators of a layer cause, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape

__all__ = ["Transfer", "exchange_buffer_bytes", "gathered_bytes", "transfers"]


class Transfer(NamedTuple):
    """One collective inside a layer: cause, mesh axis, kind, size, the compute that it may run beside,
    and copies of every token in it.
    """

    cause: str
    axis: str
    kind: str
    n_bytes: float
    hidden_seconds: float = 0.0
    n_copies: int = 1


def transfers(
    body: tuple[Operator, ...], i: int, shape: Shape, training: MixedPrecision, times: list[OperatorSeconds]
) -> tuple[list[Transfer], list[Transfer]]:
    """Return the collectives that operator `i` causes, forward and backward, the latter only where there is a gradient."""
    forward, backward = _all_transfers(body, i, shape, training, times)
    operator = body[i]
    if operator.tensor_axis == "in" and shape.tensor > 1:
        opening = next((other for other in reversed(body[:i]) if other.tensor_axis == "out"), operator)
        reaches = {"all_gather": operator.has_backward}  # of the output's gradient; the rest is of the input's of the block
        return forward, [one for one in backward if reaches.get(one.kind, opening.input_gradient)]
    reached = not operator.frozen if operator.kind == "embedding" else operator.input_gradient
    return forward, backward if reached else []


def gathered_bytes(there: list[Transfer], shape: Shape) -> float:
    """Return what gathered inputs have beside the rank's own piece, which what puts it out keeps."""
    others = (shape.tensor - 1) / shape.tensor
    return others * sum(one.n_bytes for one in there if one.axis == "tensor" and one.kind == "all_gather")


def _all_transfers(
    body: tuple[Operator, ...], i: int, shape: Shape, training: MixedPrecision, times: list[OperatorSeconds]
) -> tuple[list[Transfer], list[Transfer]]:
    """Return the collectives that operator `i` causes where everything has a gradient."""
    operator, width = body[i], training.activation_bytes
    tokens = shape.tokens(operator)
    if operator.kind in ("attention", "causal_attention") and shape.context > 1:
        return _across_context(operator, shape, width, times[i])
    if operator.kind in ("dispatch", "combine") and shape.expert > 1:
        n_bytes = tokens * operator.size("top_k") * operator.size("hidden") * width / shape.split(operator)
        exchange = [Transfer("expert", "expert", "all_to_all", n_bytes, n_copies=operator.size("top_k"))]
        return exchange, exchange
    if shape.tensor == 1 or (operator.expert and shape.folded):
        return [], []
    if operator.tensor_axis == "in":
        n_bytes = tokens * operator.size("out") * width * operator.size("top_k")
        both = _block(n_bytes, shape)
        return both, both
    if operator.kind == "embedding" and operator.tensor_axis:
        n_bytes = tokens * operator.size("hidden") * width
        if shape.sequence_parallel:
            return [Transfer("tensor", "tensor", "reduce_scatter", n_bytes)], [
                Transfer("tensor", "tensor", "all_gather", n_bytes)
            ]
        return [Transfer("tensor", "tensor", "all_reduce", n_bytes)], []
    if operator.kind == "cross_entropy" and operator.tensor_axis:
        return [Transfer("tensor", "tensor", "all_reduce", 4.0 * tokens)] * 3, []
    if operator.tensor_axis in ("out", "vocabulary") and operator.kind == "matmul" and _is_open(body, i):
        n_bytes = tokens * operator.size("in") * width
        if shape.sequence_parallel:
            return (
                [Transfer("tensor", "tensor", "all_gather", n_bytes)],
                [Transfer("tensor", "tensor", "reduce_scatter", n_bytes)],
            )
        return [], [Transfer("tensor", "tensor", "all_reduce", n_bytes)]
    return [], []


def _block(n_bytes: float, shape: Shape) -> list[Transfer]:
    """Return the collectives of a column-split product, whatever follows, and the row-split product that closes it.

    Without sequence parallelism the partial sums are reduced forward and the gradients of the input backward; with it each
    reduction becomes a gathering before and a scattering after [Korthikanti et al., arXiv 2205.05198, Fig. 5]. Nothing hides
    them: Megatron runs part of the backward ones beside weight gradients, but measured runs show as much time as if it did not.
    The input gathered once more for the weight gradient does run beside the input's gradient and is not counted.
    """
    if not shape.sequence_parallel:
        return [Transfer("tensor", "tensor", "all_reduce", n_bytes)]
    return [Transfer("tensor", "tensor", "all_gather", n_bytes), Transfer("tensor", "tensor", "reduce_scatter", n_bytes)]


def _is_open(body: tuple[Operator, ...], i: int) -> bool:
    """Tell whether no row-split product closes the column-split product `i`: a head over the vocabulary."""
    return not any(operator.tensor_axis == "in" for operator in body[i + 1 :])


def _across_context(
    operator: Operator, shape: Shape, width: int, seconds: OperatorSeconds
) -> tuple[list[Transfer], list[Transfer]]:
    """Return the exchange over the context axis that attention needs, forward and backward.

    A ring passes keys and values on beside attention on the chunks already there. One chunk's attention has nothing to hide
    behind, hence ``(c - 1) / c``. Backward, keys and values go round again and their gradients with them. Gathered ones are
    gathered again for the backward pass, where gradients of all of them are scattered; what may run beside is attention on the
    rank's own chunk (`Framework.overlaps_gather` says whether it does). By all-to-all nothing hides: attention needs all that
    arrives, and what leaves is its result. By both, neighbours exchange heads before and after, and keys and values of a
    rank's heads go round between, over axes of their own.
    """
    n_bytes = _key_bytes(operator, shape, width)
    part = (shape.query_ranks - 1) / shape.query_ranks
    half = seconds.backward_input * part / 2.0
    heads, queries = (
        ("context", "context") if shape.query_ranks == 1 or shape.head_ranks == 1 else ("context_heads", "context_ring")
    )
    entering, leaving = _head_bytes(operator, shape, width)
    before, after = ([Transfer("context", heads, "all_to_all", n)] if shape.head_ranks > 1 else [] for n in (entering, leaving))
    if shape.query_ranks == 1:
        return before + after, after + before
    own = 1.0 / shape.query_ranks if shape.exchange == "all_gather" else part
    there = [Transfer("context", queries, "all_gather", n_bytes, seconds.forward * own)]
    back = [
        Transfer("context", queries, "all_gather", n_bytes, min(half, seconds.backward_input * own)),
        Transfer("context", queries, "reduce_scatter", n_bytes, half),
    ]
    return [*before, *there, *after], [*after, *back, *before]


def _key_bytes(operator: Operator, shape: Shape, width: int) -> float:
    """Return the bytes of the keys and values of a whole sequence, of the heads of one device while attention runs.

    In a ring, chunks that no query of a window sees need not go on; gathered ones are all gathered.
    """
    keys = operator.size("key_sequence", operator.size("sequence"))
    if shape.exchange == "all_gather" or operator.kind == "causal_attention":  # under a document mask all go round
        keys = max(keys, operator.size("sequence"))
    heads = max(1.0, operator.size("kv_heads", operator.size("heads")) / shape.split(operator) / shape.head_ranks)
    return shape.micro_batch * keys * heads * (operator.size("head") + operator.size("value", operator.size("head"))) * width


def _head_bytes(operator: Operator, shape: Shape, width: int) -> tuple[float, float]:
    """Return the bytes of a device's queries, keys and values, and of attention's output: what changes by all-to-all."""
    head, value = operator.size("head"), operator.size("value", operator.size("head"))
    heads = operator.size("heads") / shape.split(operator)
    queries = shape.tokens(operator)
    keys = shape.micro_batch * max(operator.size("key_sequence", 1), operator.size("sequence")) / shape.context
    key_heads = operator.size("kv_heads", operator.size("heads")) / shape.split(operator)
    entering = queries * heads * head + keys * key_heads * (head + value)
    return entering * width, queries * heads * value * width


def exchange_buffer_bytes(operator: Operator, shape: Shape, width: int) -> float:
    """Return what attention's exchange over a context axis holds while it runs, beside what it keeps.

    Gathered keys and values of the whole sequence stand beside their gradients in the backward pass; by all-to-all, what is
    sent beside what arrives: queries, keys and values, or their gradients. Buffers of a ring, of two chunks, are not counted.
    """
    if operator.kind not in ("attention", "causal_attention") or shape.context == 1:
        return 0.0
    if shape.head_ranks > 1:
        return max(_head_bytes(operator, shape, width))
    return 2.0 * _key_bytes(operator, shape, width) if shape.exchange == "all_gather" else 0.0
