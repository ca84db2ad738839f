"""What a step takes at least on so many devices of a kind, whatever the plan: what sizes are left out by."""

from __future__ import annotations

from meshwright.core.cluster import Device
from meshwright.core.flops import forward_flops
from meshwright.core.graph import Graph, Operator
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.costs.analytic.passes import PASSES
from meshwright.costs.analytic.roofline import (
    ATTENTION_BACKWARD_FLOPS,
    ATTENTION_BACKWARD_RATIO,
    Shape,
    operator_seconds,
    wide_precision,
)

__all__ = ["device_seconds", "least_state_bytes"]


def device_seconds(graph: Graph, device: Device, training: MixedPrecision, framework: Framework) -> float:
    """Return the seconds that devices of a kind compute for one sample at least, all together.

    Parameters
    ----------
    graph : Graph
        The model.
    device : Device
        What computes.
    training : MixedPrecision
        Precision of products.
    framework : Framework
        What carries the plan out.

    Raises
    ------
    InputError
        When the device has no such precision.

    Notes
    -----
    *Lemma.* A step of B samples on n devices takes at least ``B w / n`` seconds, w being this number; that is at least ``B w``
    device-seconds, whatever n is. *Proof.* Every operator of every sample runs on some device, in whole or in parts. Parts of
    a product have at least its operations together (they are rounded up), and none runs faster than the share of the peak that
    large products reach, or fused attention does: tiles, waves, alignment, head sizes and memory only lengthen them
    (`meshwright.costs.analytic.roofline`). Parts of what is bound by memory move at least its bytes together. So the devices
    compute B w seconds together, the busiest of n devices at least the mean of that, and the step lasts at least as long.

    *Monotone.* With a goodput that does not rise with n (more parts fail), the bound on days falls with n and the bound on
    device-hours does not: sizes of a kind too small for a time limit are those below one size, sizes too dear for a budget
    those above one.
    """
    per_body: list[float] = []
    total = 0.0
    for i, op in enumerate(graph.ops):
        alike = 0 <= op.like < i
        per_body.append(per_body[op.like] if alike else sum(_least(one, device, training, framework) for one in op.body))
        total += per_body[i]
    return total


def _least(operator: Operator, device: Device, training: MixedPrecision, framework: Framework) -> float:
    """Seconds of one operator for one sample."""
    flops, wide = forward_flops(operator), wide_precision(training)
    passes = 1.0 + float(operator.input_gradient) + float(operator.n_trained_parameters > 0)
    if operator.kind == "attention":  # may be carried out as two products, at their rate
        rate = device.peak(wide) * max(device.attention(framework.attention), device.matmul_ratio)
        return framework.compute_ratio * flops / rate * (1.0 + 2.0 * operator.has_backward)
    if operator.kind == "causal_attention":
        backward = ATTENTION_BACKWARD_FLOPS / ATTENTION_BACKWARD_RATIO
        rate = device.peak(wide) * device.attention(framework.attention)
        return framework.compute_ratio * flops / rate * (1.0 + backward * operator.has_backward)
    if operator.kind in ("matmul", "grouped_matmul"):
        rate = device.peak(training.precision) * device.achieved(training.precision)
        return framework.compute_ratio * flops / rate * passes
    if operator.kind in ("convolution", "other"):
        return framework.compute_ratio * flops / (device.peak(wide) * device.matmul_ratio) * passes
    slower = framework.memory_passes_ratio if operator.kind in PASSES else 1.0
    return framework.compute_ratio * slower * sum(operator_seconds(operator, Shape(), device, training, framework.attention))


def least_state_bytes(graph: Graph, training: MixedPrecision) -> float:
    """Return the bytes that all devices together hold at least: weights and optimizer state of what is trained, once.

    Parameters
    ----------
    graph : Graph
        The model.
    training : MixedPrecision
        How numbers are held.
    """
    return float(graph.n_trained_parameters * (training.weight_bytes + training.optimizer_bytes))
