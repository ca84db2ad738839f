"""From a traced operator to one of our `Operator`s: its kind and iteration space per sample."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright.flops import forward_flops
from meshwright.graph import Operator
from meshwright.runtime.capture.trace import Trace, TracedOperator

__all__ = ["MEMORY_BOUND", "moved_elements", "operator_of"]

MEMORY_BOUND = ("elementwise", "other")
"""Kinds that compilers fuse with their neighbours."""

_NORMS = ("native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
          "cudnn_batch_norm", "batch_norm", "_batch_norm_with_update")  # fmt: skip
_PER_CHANNEL = ("native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "batch_norm",
                "_batch_norm_with_update")  # fmt: skip

Dims = tuple[tuple[str, int], ...]


def operator_of(i: int, trace: Trace, name: str, axis: str, n_parameters: int, sequence: int) -> Operator:
    """Return one traced operator as an `Operator`.

    Parameters
    ----------
    i : int
        Id of the operator.
    trace : Trace
        Its trace.
    name : str
        The name it gets.
    axis : str
        The axis that a tensor degree splits.
    n_parameters : int
        Weights that it is the first of its layer to read.
    sequence : int
        Tokens per sample of the model; tells how many experts a token visits.

    Returns
    -------
    Operator
        ``dims`` where the kind has any; where they do not tell the FLOPs that were traced, these are set as well.
    """
    operator = trace.operators[i]
    kind, dims = _space(operator, trace.batch, sequence)
    if operator.name.startswith("_scaled_dot_product"):
        dims = _grouped_heads(trace, operator, dims)
    batch = _samples(operator, trace.batch)
    moved = 0
    if kind in ("other", "convolution", "pooling"):
        moved = moved_elements(operator) // batch
    made = Operator(
        name, kind, dims, axis if kind != "convolution" else "", n_parameters, kind == "grouped_matmul",
        saved_elements=operator.saved_bytes // trace.item_bytes // trace.batch,
        saved_extra_bytes=operator.saved_other_bytes // trace.batch,
        saved_axis={"out": "sequence", "sequence": "sequence", "": ""}.get(axis, "tensor"), moved_elements=moved,
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
    if name.startswith("_scaled_dot_product"):
        return _attention_space(operator, batch)
    if name == "embedding":
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


def _attention_space(operator: TracedOperator, batch: int) -> tuple[str, Dims]:
    """Return the space of fused attention; windows of one sample count as more rows."""
    query, key, value = (tensor.shape for tensor in operator.inputs[:3])
    rows = max(1, query[0] * query[2] // batch)
    sizes = (rows, key[2], query[1], key[1], query[3], value[3])
    dims = tuple(zip(("sequence", "key_sequence", "heads", "kv_heads", "head", "value"), sizes, strict=True))
    return "causal_attention" if operator.causal else "attention", dims


def _grouped_heads(trace: Trace, operator: TracedOperator, dims: Dims) -> Dims:
    """Count key heads as the product made them, before each was repeated for the query heads that share it."""
    sizes = dict(dims)
    source = operator.sources[1]
    while source >= 0 and trace.operators[source].name not in ("mm", "addmm"):
        source = next((earlier for _, earlier in trace.operators[source].activations if earlier >= 0), -1)
    columns = trace.operators[source].outputs[0].shape[-1] if source >= 0 else 0
    made = columns // sizes["head"]
    if columns % sizes["head"] or not 0 < made < sizes["heads"] or sizes["heads"] % made:
        return dims
    return tuple((axis, made if axis == "kv_heads" else size) for axis, size in dims)
