"""Seconds of a layer's operators in a program, and of its passes: what the device computes, and what the host issues."""

from __future__ import annotations

from meshwright.core.cluster import Device
from meshwright.core.graph import Operator
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape, operator_seconds, unfused_attention_seconds

__all__ = ["PASSES", "layer_passes", "n_kernels", "operator_times", "pass_seconds"]

PASSES = ("norm", "elementwise", "softmax", "dispatch", "combine")
"""Kinds of operators that move bytes and do little else."""

APART = 5
"""Kernels of a masked softmax that is not fused: widen to fp32, scale, mask, softmax proper, narrow; as many backward
(``forward_torch_softmax`` of Megatron-LM's ``fused_softmax.py``)."""

APART_BYTES = (32.0, 34.0)
"""Bytes of an element that they move more than the fused kernel in half precision: forward (6 + 8 + 8 + 8 + 6) - 4, backward
(6 + 12 + 8 + 8 + 6) - 6."""


def operator_times(
    body: tuple[Operator, ...], shape: Shape, device: Device, training: MixedPrecision, framework: Framework
) -> list[OperatorSeconds]:
    """Return the seconds of each operator; attention followed by a softmax of its own is not fused."""
    times = [
        unfused_attention_seconds(operator, shape, device, training)
        if operator.kind == "attention" and i + 1 < len(body) and body[i + 1].kind == "softmax"
        else operator_seconds(operator, shape, device, training, framework.attention)
        for i, operator in enumerate(body)
    ]
    slower = [_slower(operator, shape, framework) for operator in body]
    times = [
        seconds if factor == 1.0 else OperatorSeconds(*(part * factor for part in seconds))
        for seconds, factor in zip(times, slower, strict=True)
    ]
    for i, n in enumerate(n_kernels(body, shape, framework)):
        if n > 1:
            elements = shape.tokens(body[i]) / shape.split(body[i]) * body[i].size("hidden")
            rate = device.memory_bytes_per_second * device.memory_ratio / framework.compute_ratio
            more = [elements * n_bytes / rate for n_bytes in APART_BYTES]
            times[i] = OperatorSeconds(
                times[i].forward + more[0], times[i].backward_input + more[1] * body[i].has_backward, 0.0
            )
    return times


def n_kernels(body: tuple[Operator, ...], shape: Shape, framework: Framework) -> list[int]:
    """Return how many kernels each operator is: one, but for softmax apart (`Framework.n_softmax_heads`)."""
    counts = [1] * len(body)
    for i, operator in enumerate(body[1:], 1):
        if framework.n_softmax_heads and operator.kind == "softmax" and body[i - 1].kind == "attention":
            heads = shape.micro_batch * body[i - 1].size("heads") // (shape.split(body[i - 1]) * shape.head_ranks)
            counts[i] = APART if heads % framework.n_softmax_heads else 1
    return counts


def layer_passes(
    body: tuple[Operator, ...],
    times: list[OperatorSeconds],
    n_rerun: int,
    shape: Shape,
    device: Device,
    framework: Framework,
) -> list[float]:
    """Return the seconds of the forward pass, of the two parts of the backward pass, and of a forward pass of the first
    operators, of which no expert's product is left out.
    """
    issue_seconds = framework.compute_ratio * (framework.issue_seconds or device.issue_seconds)
    held = framework.compute_ratio * framework.expert_issue_seconds * _n_held_experts(body, shape)
    kernels = n_kernels(body, shape, framework)
    columns = [*zip(*times, strict=True), [seconds.forward for seconds in times[:n_rerun]]]
    counts = [sum(n for n, seconds in zip(kernels, column, strict=False) if seconds > 0.0) for column in columns]
    return [
        pass_seconds(sum(column) + n * device.launch_seconds, n * issue_seconds + held, framework)
        for column, n in zip(columns, counts, strict=True)
    ]


def pass_seconds(computed: float, issued: float, framework: Framework) -> float:
    """Return the seconds of a pass from what the device computes and what the host needs to issue it."""
    return computed + issued if framework.blocks_launches else max(computed, issued)


def _n_held_experts(body: tuple[Operator, ...], shape: Shape) -> float:
    """Return the experts that a device holds, counted at each of their products."""
    return sum(operator.size("experts") / shape.expert for operator in body if operator.kind == "grouped_matmul")


def _slower(operator: Operator, shape: Shape, framework: Framework) -> float:
    """Return how much longer than alone and fused an operator runs in a program.

    The last rank of a causal ring cut into plain chunks attends to all c chunks, an even share is (c + 1) / 2 of them.
    """
    if operator.kind == "causal_attention" and shape.query_ranks > 1:
        ring = 1.0 + framework.ring_imbalance_ratio * (shape.query_ranks - 1) / (shape.query_ranks + 1)
        return framework.compute_ratio * ring
    return framework.compute_ratio * (framework.memory_passes_ratio if operator.kind in PASSES else 1.0)
