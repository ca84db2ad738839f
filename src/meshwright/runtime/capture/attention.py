"""Attention written as products: scores, soft maximum, weighted values, recognised by their shapes and by who reads whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.runtime.capture.splits import Split
from meshwright.runtime.capture.trace import Trace, TracedOperator

__all__ = ["Attention", "find", "repeats"]

_BATCHED = ("bmm", "baddbmm")
_SOFT_MAXIMA = ("_softmax", "_safe_softmax")


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention that is not fused.

    `scores`, `softmax`, `values`: ids of the product of queries and keys, of the soft maximum, and of the product with the
    values.
    `dims` (tuple of (str, int)): as in `meshwright.core.graph.Operator`; windows of one sample count as more rows.
    """

    scores: int
    softmax: int
    values: int
    dims: tuple[tuple[str, int], ...]


def find(trace: Trace, ids: Sequence[int], splits: Mapping[int, Split]) -> list[Attention]:
    """Return every attention among the operators of a layer.

    `splits`: where columns that a tensor degree splits lie in results of the layer: in a soft maximum, these are heads.
    """
    first, last = ids[0], ids[-1]
    found = []
    for i in ids:
        if trace.operators[i].name not in _SOFT_MAXIMA:
            continue
        scores = _before(trace, i, first)
        values, on_left = _after(trace, i, last) if scores >= 0 else (-1, False)
        dims = _dims(trace, (scores, i, values), on_left, splits.get(i, ())) if values >= 0 else ()
        if dims:
            found.append(Attention(scores, i, values, dims))
    return found


def _is_core(operator: TracedOperator) -> bool:
    """Whether an operator multiplies one activation with another, many small ones at once."""
    return operator.name in _BATCHED and operator.trained and not any(operator.weights[-2:])


def _before(trace: Trace, i: int, first: int) -> int:
    """Return the product whose elements, scaled and masked, enter a soft maximum; -1 for none."""
    n_elements = trace.operators[i].inputs[0].n_elements
    while i >= first:
        operator = trace.operators[i]
        if _is_core(operator):
            return i
        if operator.forward_flops:
            return -1
        same = [
            source
            for tensor, source in operator.activations
            if source >= first and 2 * tensor.n_elements > n_elements and trace.operators[source].trained
        ]  # a little may be added (sinks) or left out
        i = same[0] if same else -1
    return -1


def _after(trace: Trace, softmax: int, last: int) -> tuple[int, bool]:
    """Return the product that the soft maximum's elements enter (-1 for none), and whether they stand on its left."""
    n_elements = trace.operators[softmax].outputs[0].n_elements
    carried = {softmax}
    for i in range(softmax + 1, last + 1):
        operator = trace.operators[i]
        if carried.isdisjoint(operator.sources):
            continue
        if _is_core(operator):
            return i, operator.sources[-2] in carried
        if not operator.forward_flops and operator.outputs and 2 * operator.outputs[0].n_elements > n_elements:
            carried.add(i)
    return -1, False


def _dims(trace: Trace, ids: tuple[int, int, int], on_left: bool, split: Split) -> tuple[tuple[str, int], ...]:
    """Return the sizes of an attention; none where the shapes are of something else."""
    product, softmax, mixing = (trace.operators[i] for i in ids)
    left, right = mixing.inputs[-2:]
    keys, value = (left.shape[-1], right.shape[-1]) if on_left else (right.shape[-2], left.shape[-2])
    weights = left if on_left else right
    n_scores, head = product.outputs[0].n_elements // trace.batch, product.inputs[-1].shape[-2]
    heads = math.prod(part.n for part in split if part.axis != -1) if split else _heads(softmax.outputs[0].shape, trace.batch)
    if weights.n_elements != product.outputs[0].n_elements or n_scores % (keys * heads):
        return ()
    made = product.inputs[-1].n_elements // (trace.batch * keys * head)
    key_heads = min(heads, max(1, made)) // repeats(trace, product.sources[-1])
    sizes = (n_scores // (keys * heads), keys, heads, key_heads if key_heads and heads % key_heads == 0 else heads, head, value)
    return tuple(zip(("sequence", "key_sequence", "heads", "kv_heads", "head", "value"), sizes, strict=True))


def _heads(shape: tuple[int, ...], batch: int) -> int:
    """Return the heads in scores that nothing splits: (batch, heads, rows, keys) or (all heads of the batch, rows, keys)."""
    if len(shape) < 3:
        return 1
    return max(1, shape[0] // batch) if len(shape) == 3 else math.prod(shape[1:-2])


def repeats(trace: Trace, source: int) -> int:
    """Return how often each head of the keys was repeated on the way from the product that made them.

    `source`: who made the keys that attention reads.
    """
    times = 1
    while source >= 0:
        operator = trace.operators[source]
        if operator.name == "expand":
            times *= max(1, operator.outputs[0].n_elements // max(1, operator.inputs[0].n_elements))
        if operator.forward_flops:
            break
        source = next((earlier for _, earlier in operator.activations if earlier >= 0), -1)
    return times
