"""Seconds of one operator, forward and backward, on one device of a mesh: roofline by kind of operator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.core.cluster import Device
from meshwright.core.flops import forward_flops
from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.products import Product, product_seconds

__all__ = ["OperatorSeconds", "Shape", "operand_bytes", "operator_seconds", "unfused_attention_seconds"]

ATTENTION_BACKWARD_FLOPS = 2.5
"""Fused attention recomputes its scores: five products backward for two forward (FlashAttention-2, arXiv 2307.08691, sec.
3.1).
"""

ATTENTION_BACKWARD_RATIO = 0.8
"""Rate of fused attention backward over forward: FlashAttention-2, Figs. 4 and 5, 0.85 on A100 at head size 128; 0.7 on B200
(SimuMax, measured)."""


HEAD_TILE = 8
"""Fused attention takes heads of a multiple of 8 elements; others are padded (FlashAttention-2's interface; PyTorch's
``scaled_dot_product_attention``)."""


def wide_precision(training: MixedPrecision) -> str:
    """Return the precision of products that stay out of fp8 and fp4: attention."""
    return "bf16" if training.precision in ("fp8", "mxfp8", "fp4") else training.precision


class OperatorSeconds(NamedTuple):
    """Seconds of one operator: forward, gradient of activations, gradient of weights."""

    forward: float
    backward_input: float
    backward_weight: float


@dataclass(frozen=True, slots=True)
class Shape:
    """The share of a layer that one device computes: degrees that split it, whether the tensor axis holds whole experts,
    how keys and values are exchanged over the context axis, over how many of its ranks heads are split, and samples.
    """

    micro_batch: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    folded: bool = False
    exchange: str = "ring"
    head_ranks: int = 1

    @property
    def query_ranks(self) -> int:
        """Over how many ranks of the context axis attention is split by queries, instead of by heads (all-to-all)."""
        return self.context // self.head_ranks

    def tokens(self, operator: Operator) -> float:
        """Return the positions of one micro-batch on one device before any split over the tensor axis."""
        return self.micro_batch * operator.size("sequence") / self.context

    def split(self, operator: Operator) -> int:
        """Return over how many ranks of the tensor axis the work of the operator is divided."""
        if operator.tensor_axis == "sequence" or operator.kind in ("dispatch", "combine"):
            return self.tensor if self.sequence_parallel else 1
        return self.tensor if operator.tensor_axis else 1


def operator_seconds(
    operator: Operator, shape: Shape, device: Device, training: MixedPrecision, attention: str = ""
) -> OperatorSeconds:
    """Return the seconds of one operator for one micro-batch on one device.

    `training`: precision: products run in it (fp8 casts cost memory traffic), the rest in the activations' own.
    `attention`: software of fused attention, as `Device.attention`.
    Returns: forward, gradient of activations, gradient of weights; 0 where there is none (frozen weights).
    """
    kind = operator.kind
    if kind in ("matmul", "grouped_matmul"):
        return _matmul(operator, shape, device, training)
    if kind in ("attention", "causal_attention"):
        return _attention(operator, shape, device, training, attention)
    if kind in ("convolution", "other"):
        return _other(operator, shape, device, training)
    forward, backward = _moved_bytes(operator, shape, training)
    rate = device.memory_bytes_per_second * device.memory_ratio
    backward *= operator.has_backward
    if kind == "embedding":
        return OperatorSeconds(forward / rate, 0.0, 0.0 if operator.frozen else backward / rate)
    return OperatorSeconds(forward / rate, backward / rate, 0.0)


def _matmul(operator: Operator, shape: Shape, device: Device, training: MixedPrecision) -> OperatorSeconds:
    """Three products: the output, the gradient of the input, the gradient of the weight (accumulated in memory)."""
    rows, n_products = shape.tokens(operator), 1.0
    inner, columns = float(operator.size("in")), float(operator.size("out"))
    if operator.kind == "grouped_matmul":
        n_products = operator.size("experts") / shape.expert
        rows = rows * operator.size("top_k") / n_products
    if operator.expert and shape.folded:
        rows /= shape.tensor
    elif operator.tensor_axis == "in":
        inner /= shape.tensor
    elif operator.tensor_axis == "sequence":
        rows /= shape.split(operator)
    else:
        columns /= shape.split(operator)
    n_aligned = math.gcd(math.ceil(inner), math.ceil(columns))  # positions are never what lies contiguous
    left, right, out = rows * inner, inner * columns, rows * columns
    cast, operand = operand_bytes(training)
    wide = training.activation_bytes

    def seconds(rows: float, columns: float, inner: float, moved_bytes: float) -> float:
        whole = Product(
            math.ceil(rows), math.ceil(columns), math.ceil(inner), math.ceil(n_products), moved_bytes * n_products, n_aligned
        )
        return product_seconds(whole, device, training.precision)

    forward = seconds(rows, columns, inner, (operand + cast) * (left + right) + wide * out)
    backward = seconds(rows, inner, columns, (operand + cast) * out + operand * right + wide * left)
    weight = seconds(inner, columns, rows, operand * (left + out) + 2.0 * training.gradient_bytes * right)
    widened = 0.0
    if operator.frozen_weight_bytes:  # read as held and written as used before each product (bitsandbytes: MatMul4Bit)
        rate = device.memory_bytes_per_second * device.memory_ratio
        widened = (operator.frozen_weight_bytes + training.weight_bytes) * right * n_products / rate
    return OperatorSeconds(
        forward + widened,
        backward + widened if operator.input_gradient else 0.0,
        weight if operator.n_trained_parameters else 0.0,
    )


def operand_bytes(training: MixedPrecision) -> tuple[float, float]:
    """Return bytes per element that casting an operand moves, and of the operand: read in 2 bytes, half of it fused into the
    producer.

    Notes
    -----
    Blocks of 32 share a scale in mxfp8 and lie along the inner dimension, so every operand is cast along its rows and its
    columns.
    """
    if training.precision == "fp8":
        return 1.5, 1.0
    if training.precision == "mxfp8":
        return 3.0, 1.0 + 1.0 / 32.0
    if training.precision == "fp4":
        return 1.25, 0.5625  # one scale of a byte for 16 elements
    return 0.0, float(training.activation_bytes)


def _attention(operator: Operator, shape: Shape, device: Device, training: MixedPrecision, software: str) -> OperatorSeconds:
    """Fused attention: scores stay on the chip; small heads use the matrix units less, odd ones are padded (`HEAD_TILE`)."""
    heads = operator.size("heads") / shape.split(operator)
    key_heads = max(1.0, operator.size("kv_heads", operator.size("heads")) / shape.split(operator))
    key_heads /= shape.head_ranks
    head, value = operator.size("head"), operator.size("value", operator.size("head"))
    tokens = shape.tokens(operator)  # with a share of the heads for all tokens the products are as many
    products = 2.0 * tokens * operator.size("key_sequence", operator.size("sequence")) * heads * (head + value)
    if operator.kind == "causal_attention":
        products *= 0.5
    precision = wide_precision(training)
    padded = -(-head // HEAD_TILE) * HEAD_TILE
    ratio = device.attention(software) * min(1.0, padded / (padded + 32.0) * 1.25) * head / padded
    compute = products / (device.peak(precision) * ratio)
    keys = shape.micro_batch * operator.size("key_sequence", operator.size("sequence"))
    if operator.kind == "causal_attention":  # under a document mask each query sees fewer, but all are read
        keys = max(keys, shape.micro_batch * operator.size("sequence"))
    moved = training.activation_bytes * (tokens * heads + keys * key_heads) * (head + value)
    memory = moved / (device.memory_bytes_per_second * device.memory_ratio)
    forward = max(compute, memory)
    backward = max(compute * ATTENTION_BACKWARD_FLOPS / ATTENTION_BACKWARD_RATIO, 2.5 * memory)
    return OperatorSeconds(forward, backward if operator.has_backward else 0.0, 0.0)


def unfused_attention_seconds(operator: Operator, shape: Shape, device: Device, training: MixedPrecision) -> OperatorSeconds:
    """Return the seconds of attention whose scores go through memory: two products per head, four backward.

    `operator`: of kind ``attention``; the softmax is an operator of its own.
    `shape`, `device`, `training`: as in `operator_seconds`.
    """
    heads = shape.micro_batch * operator.size("heads") / shape.split(operator) / shape.head_ranks
    rows = operator.size("sequence") / shape.query_ranks
    keys = float(operator.size("key_sequence", operator.size("sequence")))
    head, value = float(operator.size("head")), float(operator.size("value", operator.size("head")))
    precision, n_aligned = wide_precision(training), math.gcd(int(head), int(value), int(keys))

    def seconds(rows: float, columns: float, inner: float) -> float:
        moved = training.activation_bytes * heads * (rows * inner + inner * columns + rows * columns)
        return product_seconds(
            Product(math.ceil(rows), math.ceil(columns), math.ceil(inner), math.ceil(heads), moved, n_aligned),
            device,
            precision,
        )

    forward = seconds(rows, keys, head) + seconds(rows, value, keys)
    backward = seconds(rows, head, keys) + seconds(keys, head, rows) + seconds(rows, keys, value) + seconds(keys, value, rows)
    return OperatorSeconds(forward, backward if operator.has_backward else 0.0, 0.0)


def _other(operator: Operator, shape: Shape, device: Device, training: MixedPrecision) -> OperatorSeconds:
    """Return a plain roofline where only totals are known: the gradients of input and weight cost as much as forward each."""
    share = shape.micro_batch / shape.context / shape.split(operator)
    flops = forward_flops(operator) * share
    moved = training.activation_bytes * operator.moved_elements * share
    precision = wide_precision(training)
    compute = flops / (device.peak(precision) * device.matmul_ratio)
    seconds = max(compute, moved / (device.memory_bytes_per_second * device.memory_ratio))
    return OperatorSeconds(
        seconds, seconds if operator.input_gradient else 0.0, seconds if operator.n_trained_parameters else 0.0
    )


def _moved_bytes(operator: Operator, shape: Shape, training: MixedPrecision) -> tuple[float, float]:
    """Return the bytes that a memory-bound operator moves forward and backward."""
    width = training.activation_bytes
    positions = shape.tokens(operator) / shape.split(operator)
    if operator.moved_elements:
        moved = float(operator.moved_elements * width) * shape.micro_batch / shape.context / shape.split(operator)
        return moved, 1.5 * moved
    if operator.kind == "norm":
        elements = positions * operator.size("hidden") * width
        return 2.0 * elements, 3.0 * elements
    if operator.kind == "elementwise":
        elements, inputs = positions * operator.size("hidden") * width, operator.size("inputs")
        return (inputs + 1.0) * elements, (2.0 * inputs + 1.0) * elements
    if operator.kind == "embedding":
        elements = shape.tokens(operator) * operator.size("hidden")
        return 2.0 * elements * width, elements * (width + 2.0 * training.gradient_bytes)
    if operator.kind == "cross_entropy":
        logits = positions * operator.size("vocabulary")
        return logits * (width + 3.0 * 4.0), logits * (4.0 + 4.0 + width)  # fp32: widen, subtract the maximum, exponentiate
    if operator.kind == "softmax":
        return _softmax_bytes(operator, shape, width)
    if operator.kind in ("dispatch", "combine"):
        elements = positions * operator.size("top_k") * operator.size("hidden") * width
        return 2.0 * elements, 2.0 * elements
    elements = float(shape.micro_batch * width)
    for _, size in operator.dims:
        elements *= size
    elements /= shape.context * shape.split(operator)
    return 2.0 * elements, 3.0 * elements


def _softmax_bytes(operator: Operator, shape: Shape, width: int) -> tuple[float, float]:
    """Return the bytes of a softmax and, where a mask is kept, of the drop-out after it: a kernel of its own."""
    share = shape.micro_batch / shape.context / shape.split(operator)
    elements = share
    for _, size in operator.dims:
        elements *= size
    mask = operator.saved_extra_bytes * share
    dropped = 2.0 * elements * width + mask if mask else 0.0
    return 2.0 * elements * width + dropped, 3.0 * elements * width + dropped
