"""From loads of layers to the load of a stage, and from those of unlike devices to what all of them wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.stage_cost import StageCost

__all__ = ["combine", "slowest", "slowest_kind"]


def combine(stage_costs: Sequence[tuple[StageCost, int]], *, overlaps: bool = True) -> StageCost:
    """Return the load of a stage from those of its layers.

    `stage_costs`: loads of layers and how often each occurs; the last one is the stage's last layer.
    Returns: sums; working memory and what is reserved count once (the largest), and the tensor sent on is the last layer's.
    The gradient reduction of every layer but one runs beside the backward pass: the first layer's gradients are complete
    only at its end. Without `overlaps` all of it runs after that pass.
    """
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    sums = [0.0] * 13
    working = reserved = largest = communication = fragmentation = 0.0
    for load, count in stage_costs:
        if count <= 0:
            continue
        for cause, seconds in load.forward_communication:
            forward[cause] = forward.get(cause, 0.0) + seconds * count
        for cause, seconds in load.backward_communication:
            backward[cause] = backward.get(cause, 0.0) + seconds * count
        for i, value in enumerate(_summed(load)):
            sums[i] += value * count
        working = max(working, load.working_bytes)
        reserved = max(reserved, load.reserved_bytes)
        communication = max(communication, load.communication_bytes)
        fragmentation = max(fragmentation, load.fragmentation_ratio)
        largest = max(largest, load.reduce_seconds)
    reduce_seconds = sums[4]
    return StageCost(
        forward_seconds=sums[0],
        backward_input_seconds=sums[1],
        backward_weight_seconds=sums[2],
        recompute_seconds=sums[3],
        forward_communication=tuple(sorted(forward.items())),
        backward_communication=tuple(sorted(backward.items())),
        output_bytes=stage_costs[-1][0].output_bytes if stage_costs else 0.0,
        reduce_seconds=reduce_seconds,
        overlap_ratio=1.0 - largest / reduce_seconds if overlaps and reduce_seconds > 0.0 else 0.0,
        gather_seconds=sums[5],
        optimizer_seconds=sums[6],
        weight_bytes=sums[7],
        gradient_bytes=sums[8],
        optimizer_bytes=sums[9],
        activation_bytes=sums[10],
        working_bytes=working,
        reserved_bytes=reserved,
        model_flops=sums[11],
        communication_bytes=communication,
        fragmentation_ratio=fragmentation,
        output_gradient=any(load.output_gradient for load, count in stage_costs if count > 0) or not stage_costs,
        host_bytes=sums[12],
    )


def _summed(load: StageCost) -> tuple[float, ...]:
    """Return the figures of a layer that add up over layers."""
    return (
        load.forward_seconds, load.backward_input_seconds, load.backward_weight_seconds, load.recompute_seconds,
        load.reduce_seconds, load.gather_seconds, load.optimizer_seconds, load.weight_bytes, load.gradient_bytes,
        load.optimizer_bytes, load.activation_bytes, load.model_flops, load.host_bytes,
    )  # fmt: skip


def slowest(stage_costs: Sequence[StageCost]) -> StageCost:
    """Return the load of a stage whose devices differ: every time the slowest kind's, every size the largest.

    `stage_costs`: the same layer on each kind of device of the stage.
    """
    if len(stage_costs) == 1:
        return stage_costs[0]
    worst = slowest_kind(stage_costs)
    return replace(
        worst,
        optimizer_seconds=max(load.optimizer_seconds for load in stage_costs),
        reserved_bytes=max(load.reserved_bytes for load in stage_costs),
    )


def slowest_kind(stage_costs: Sequence[StageCost]) -> StageCost:
    """Return which of the same layer's loads, one for each kind of device, takes longest; the first of several."""
    return max(stage_costs, key=lambda load: load.forward_total_seconds + load.backward_total_seconds)
