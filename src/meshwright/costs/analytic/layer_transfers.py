"""Which collectives the operators of a layer cause, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape

__all__ = ["Transfer", "transfers"]


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


def _all_transfers(
    body: tuple[Operator, ...], i: int, shape: Shape, training: MixedPrecision, times: list[OperatorSeconds]
) -> tuple[list[Transfer], list[Transfer]]:
    """Return the collectives that operator `i` causes where everything has a gradient."""
    operator, width = body[i], training.activation_bytes
    tokens = shape.tokens(operator)
    if operator.kind in ("attention", "causal_attention") and shape.context > 1:
        return _ring(operator, shape, width, times[i])
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


def _ring(operator: Operator, shape: Shape, width: int, seconds: OperatorSeconds) -> tuple[list[Transfer], list[Transfer]]:
    """Return the passing round of keys and values, beside attention on the chunks already there.

    One chunk's attention has nothing to hide behind, hence ``(c - 1) / c``. Backward, keys and values go round again and their
    gradients with them.
    """
    keys = shape.micro_batch * operator.size("key_sequence", operator.size("sequence"))
    heads = max(1.0, operator.size("kv_heads", operator.size("heads")) / shape.split(operator))
    n_bytes = keys * heads * (operator.size("head") + operator.size("value", operator.size("head"))) * width
    part = (shape.context - 1) / shape.context
    half = seconds.backward_input * part / 2.0
    return (
        [Transfer("context", "context", "all_gather", n_bytes, seconds.forward * part)],
        [
            Transfer("context", "context", "all_gather", n_bytes, half),
            Transfer("context", "context", "reduce_scatter", n_bytes, half),
        ],
    )
