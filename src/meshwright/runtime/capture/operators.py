"""From a traced operator to one of our `Operator`s: its kind and iteration space per sample."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright.core.flops import forward_flops
from meshwright.core.graph import Operator
from meshwright.runtime.capture.attention import repeats
from meshwright.runtime.capture.trace import Trace, TracedOperator

__all__ = ["LOOK_UPS", "MEMORY_BOUND", "moved_elements", "operator_of"]

MEMORY_BOUND = ("elementwise", "other")
"""Kinds that compilers fuse with their neighbours."""

LOOK_UPS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")
"""Operators that read rows of a table of weights."""

_NORMS = ("native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
          "cudnn_batch_norm", "batch_norm", "_batch_norm_with_update")  # fmt: skip
_PER_CHANNEL = ("native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "batch_norm",
                "_batch_norm_with_update")  # fmt: skip

Dims = tuple[tuple[str, int], ...]


def operator_of(i: int, trace: Trace, name: str, axis: str, weights: tuple[int, int], sequence: int) -> Operator:
    """Return one traced operator as an `Operator`.

    `weights`: those that it is the first of its layer to read, and how many of them are frozen.
    `sequence`: tokens per sample of the model; tells how many experts a token visits.
    Returns: ``dims`` where the kind has any; where they do not tell the FLOPs that were traced, these are set as well.
    """
    operator = trace.operators[i]
    n_parameters, n_frozen = weights
    if operator.name.startswith("_scaled_dot_product"):
        kind, dims = "causal_attention" if operator.causal else "attention", _attention_space(trace, operator)
    else:
        kind, dims = _space(operator, trace.batch, sequence)
    batch = _samples(operator, trace.batch)
    moved = 0
    if kind in ("other", "convolution", "pooling"):
        moved = moved_elements(operator) // batch
    elif operator.name in LOOK_UPS[1:]:  # many rows are read for each that is written
        moved = (operator.inputs[1].n_elements * operator.inputs[0].shape[-1] + operator.outputs[0].n_elements) // batch
    made = Operator(
        name, kind, dims, axis if kind != "convolution" else "", n_parameters, kind == "grouped_matmul",
        saved_elements=operator.saved_bytes // trace.item_bytes // trace.batch,
        saved_extra_bytes=operator.saved_other_bytes // trace.batch,
        saved_axis={"out": "sequence", "sequence": "sequence", "": ""}.get(axis, "tensor"), moved_elements=moved,
        n_frozen_parameters=n_frozen, input_gradient=operator.input_gradient,
    )  # fmt: skip
    traced = operator.forward_flops / trace.batch
    if traced and abs(forward_flops(made) - traced) > 1e-6 * traced:
        return replace(made, flops=traced)
    return made


def moved_elements(operator: TracedOperator) -> int:
    """Return the elements that an operator reads and writes."""
    return sum(tensor.n_elements for tensor in (*operator.inputs, *operator.outputs))


def _samples(operator: TracedOperator, batch: int) -> int:
    """Return the samples in an operator's result: all of them, or one where it does not grow with the batch."""
    shape = operator.outputs[0].shape if operator.outputs else ()
    return batch if shape and shape[0] % batch == 0 and shape[0] > 1 else 1


def _space(operator: TracedOperator, batch: int, sequence: int) -> tuple[str, Dims]:
    """Return kind and iteration space."""
    name = operator.name
    samples = _samples(operator, batch)
    out = operator.outputs[0].shape if operator.outputs else ()
    elements = math.prod(out)
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        return "matmul", _product_dims(operator, samples)
    if name == "_grouped_mm":
        rows, inner = operator.inputs[0].shape[-2:]
        n_experts, _, columns = operator.inputs[1].shape
        top_k = max(1, rows // (batch * sequence))
        space = (max(1, rows // (batch * top_k)), top_k, n_experts, inner, columns)
        return "grouped_matmul", tuple(zip(("sequence", "top_k", "experts", "in", "out"), space, strict=True))
    if name in LOOK_UPS:
        rows, hidden = operator.inputs[0].shape
        return "embedding", (("sequence", max(1, elements // hidden // samples)), ("vocabulary", rows), ("hidden", hidden))
    if name in _NORMS:
        hidden = out[1] if name in _PER_CHANNEL else out[-1]
        return "norm", (("sequence", max(1, elements // hidden // samples)), ("hidden", hidden))
    if name in ("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"):
        weight = operator.inputs[1].shape
        sizes = (math.prod(out[2:]), weight[1], out[1], math.prod(weight[2:]))
        return "convolution", tuple(zip(("sequence", "in", "out", "kernel"), sizes, strict=True))
    if name in ("_softmax", "_safe_softmax", "_log_softmax") and out:
        word = "vocabulary" if name == "_log_softmax" else "hidden"
        kind = "cross_entropy" if name == "_log_softmax" else "softmax"
        return kind, (("sequence", max(1, elements // out[-1] // samples)), (word, out[-1]))
    if "pool" in name:
        return "pooling", (("sequence", math.prod(out[2:])), ("hidden", out[1] if len(out) > 1 else 1))
    full = [tensor for tensor, _ in operator.activations if tensor.n_elements == elements]
    if full and elements > 1 and not operator.forward_flops:
        hidden = out[-1]
        return "elementwise", (("sequence", max(1, elements // hidden // samples)), ("hidden", hidden), ("inputs", len(full)))
    return "other", ()


def _product_dims(operator: TracedOperator, samples: int) -> Dims:
    """Return rows per sample, and columns in and out, of a product; weights may stand on either side."""
    left, right = operator.inputs[-2], operator.inputs[-1]
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if operator.weights[-2] and not operator.weights[-1]:
        rows, columns = columns, rows
    if len(left.shape) == 3:
        rows *= left.shape[0]
    return (("sequence", max(1, rows // samples)), ("in", inner), ("out", columns))


def _attention_space(trace: Trace, operator: TracedOperator) -> Dims:
    """Return the space of fused attention; windows of one sample count as more rows."""
    query, key, value = (tensor.shape for tensor in operator.inputs[:3])
    heads = query[-3] if len(query) > 3 else 1
    key_heads = min(heads, key[-3] if len(key) > 3 else 1) // repeats(trace, operator.sources[1])
    sizes = (
        max(1, math.prod(query[:-1]) // heads // trace.batch), key[-2], heads,
        key_heads if key_heads and heads % key_heads == 0 else heads, query[-1], value[-1],
    )  # fmt: skip
    return tuple(zip(("sequence", "key_sequence", "heads", "kv_heads", "head", "value"), sizes, strict=True))
