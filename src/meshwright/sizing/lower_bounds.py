"""What a step takes at least on so many devices of a kind, whatever the plan: what sizes are left out by."""

from __future__ import annotations

from meshwright.core.cluster import Device
from meshwright.core.flops import forward_flops
from meshwright.core.graph import Graph, Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.roofline import ATTENTION_BACKWARD_FLOPS, ATTENTION_BACKWARD_RATIO, wide_precision

__all__ = ["device_seconds", "least_state_bytes"]


def device_seconds(graph: Graph, device: Device, training: MixedPrecision) -> float:
    """Return the seconds that one device computes for one sample at least, products and attention only.

    Parameters
    ----------
    graph : Graph
        The model.
    device : Device
        What computes.
    training : MixedPrecision
        Precision of products.

    Raises
    ------
    InputError
        When the device has no such precision.

    Notes
    -----
    *Lemma.* A step of B samples on n devices takes at least ``B w / n`` seconds, w being this number; that is at least ``B w``
    device-seconds, whatever n is. *Proof.* Every product of every sample is computed on some device, in whole or in parts
    whose operations add up to at least its own (parts are rounded up); no product runs faster than the share of the peak that
    large products reach, no attention faster than fused attention does (`meshwright.costs.analytic.roofline`: tiles, waves,
    alignment, head sizes and memory only lengthen them). So the devices compute B w seconds together, the busiest of n
    devices at least the mean of that, and the step lasts at least as long as its busiest device computes.

    *Monotone.* With a goodput that does not rise with n (more parts fail), the bound on days falls with n and the bound on
    device-hours does not: sizes of a kind too small for a time limit are those below one size, sizes too dear for a budget
    those above one.
    """
    matmul = 1.0 / (device.peak(training.precision) * device.achieved(training.precision))
    wide = device.peak(wide_precision(training))
    best_attention = max([device.attention_ratio, *(ratio for _, ratio in device.attention_of)])
    attention, other = 1.0 / (wide * best_attention), 1.0 / (wide * device.matmul_ratio)
    per_body: list[float] = []
    total = 0.0
    for i, op in enumerate(graph.ops):
        alike = 0 <= op.like < i
        per_body.append(per_body[op.like] if alike else sum(_seconds(one, matmul, attention, other) for one in op.body))
        total += per_body[i]
    return total


def _seconds(operator: Operator, matmul: float, attention: float, other: float) -> float:
    """Seconds of one operator for one sample, from seconds per floating point operation; 0 for what only moves data."""
    flops = forward_flops(operator)
    if operator.kind in ("attention", "causal_attention"):
        backward = ATTENTION_BACKWARD_FLOPS / ATTENTION_BACKWARD_RATIO
        return flops * attention * (1.0 + backward * operator.has_backward)
    if operator.kind in ("matmul", "grouped_matmul"):
        return flops * matmul * (1.0 + float(operator.input_gradient) + float(operator.n_trained_parameters > 0))
    if operator.kind in ("convolution", "other"):
        return flops * other * (1.0 + float(operator.input_gradient) + float(operator.n_trained_parameters > 0))
    return 0.0


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
