"""What each way to split an operator over a device mesh costs: compute, the collectives inside it, and memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Device
from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.device_mesh import bucket_seconds
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape, operator_seconds, unfused_attention_seconds
from meshwright.costs.sharded.choices import SEQUENCE, Choice, choices
from meshwright.costs.sharded.wiring import Node
from meshwright.network import Axis

__all__ = ["MeshCosts", "OperatorChoices", "menu"]


@dataclass(frozen=True, slots=True, eq=False)
class MeshCosts:
    """What costs depend on besides the operator.

    `axes`: mesh axes, outermost first.
    `device`: kind of device.
    `training`: precision and bytes.
    `batch`: samples of one micro-batch on the whole mesh.
    `recompute`: what the backward pass computes again instead of having kept it: ``none``, ``selective`` (operators marked so),
    ``full`` (all but the residual stream).
    `reduced_later`: mesh axes over which gradients are summed once a step by the stage, with its data axis: not charged here.
    """

    axes: tuple[Axis, ...]
    device: Device
    training: MixedPrecision
    batch: int
    recompute: str = "none"
    reduced_later: tuple[int, ...] = ()

    def repeats(self, operator: Operator) -> bool:
        """Return whether an operator's forward pass is repeated and what it saves is dropped."""
        if self.recompute == "full":
            return not operator.name.endswith("residual")
        return self.recompute == "selective" and operator.selective


@dataclass(frozen=True, slots=True, eq=False)
class OperatorChoices:
    """Every way to split one operator over the mesh.

    `choices`: per way, the choice of each mesh axis.
    `forward_seconds`, `backward_seconds`, shape (n_ways,), float64: compute; what is repeated counts as backward.
    `forward_communication_seconds`, `backward_communication_seconds`, shape (n_ways,), float64: collectives inside the
    operator, exposed gathering of weights, and exposed reduction of gradients.
    `parameters`, shape (n_ways,), float64: weights on one device, before sharding over a batch axis.
    `state_bytes`, shape (n_ways,), float64: weights, gradients and optimizer state on one device.
    `saved_bytes`, shape (n_ways,), float64: kept from forward to backward on one device.
    """

    choices: tuple[tuple[Choice, ...], ...]
    forward_seconds: NDArray[np.float64]
    backward_seconds: NDArray[np.float64]
    forward_communication_seconds: NDArray[np.float64]
    backward_communication_seconds: NDArray[np.float64]
    parameters: NDArray[np.float64]
    state_bytes: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]

    @property
    def compute_seconds(self) -> NDArray[np.float64]:
        """Forward and backward compute of each way."""
        return self.forward_seconds + self.backward_seconds

    @property
    def communication_seconds(self) -> NDArray[np.float64]:
        """Collectives of each way, forward and backward."""
        return self.forward_communication_seconds + self.backward_communication_seconds

    @property
    def held_bytes(self) -> NDArray[np.float64]:
        """Memory of each way on one device."""
        return self.state_bytes + self.saved_bytes


def menu(node: Node, costs: MeshCosts) -> OperatorChoices:
    """Return every legal way to split an operator over the mesh, with its costs.

    Returns: a way is legal when every size is divided without remainder; sizes other than samples, heads and experts may
    leave one where the last device lacks less than a hundredth (vocabularies are padded by that much).
    """
    own = choices(node.operator)
    per_axis = [own if axis.size > 1 else own[-1:] for axis in costs.axes]
    ways, columns = [], []
    for way in itertools.product(*per_axis):
        local = _local(node.operator, way, costs)
        if local is not None:
            ways.append(way)
            columns.append(_column(node, *local, way, costs))
    return OperatorChoices(tuple(ways), *(np.array(column) for column in zip(*columns, strict=True)))


def _column(node: Node, local: Operator, batch: int, way: Sequence[Choice], costs: MeshCosts) -> tuple[float, ...]:
    """Return the figures of one way, in the order of `OperatorChoices`."""
    seconds = _compute(node, local, batch, costs)
    forward, *backward = (max(part, costs.device.launch_seconds) if part > 0.0 else 0.0 for part in seconds)
    inside, inside_back = _inside(node.operator, local, batch, way, seconds, costs)
    gather, reduce = _weights(local, way, seconds, costs)
    state, saved = _held_bytes(node.operator, local, way, costs)
    repeated = forward if costs.repeats(node.operator) else 0.0
    repeated_inside = inside if costs.repeats(node.operator) else 0.0
    return (
        forward, sum(backward) + repeated, inside + gather, inside_back + repeated_inside + reduce,
        float(local.n_parameters), state, 0.0 if costs.repeats(node.operator) else saved,
    )  # fmt: skip


def _local(operator: Operator, way: Sequence[Choice], costs: MeshCosts) -> tuple[Operator, int] | None:
    """Return the share of one device and its samples; None where something does not divide."""
    sizes = dict(operator.dims)
    batch, whole = costs.batch, 1
    parameters = operator.n_parameters
    for choice, axis in zip(way, costs.axes, strict=True):
        n = axis.size
        for name in choice.axes:
            if name == "batch":
                if batch % n:
                    return None
                batch //= n
                continue
            if sizes.get(name, 1) % n and (name in ("heads", "experts") or sizes.get(name, 1) < 100 * n):
                return None
            sizes[name] = -(-sizes[name] // n)
        if choice.name == "heads" and sizes.get("kv_heads", n) > 1:
            if sizes["kv_heads"] % n and n % sizes["kv_heads"]:
                return None
            sizes["kv_heads"] = max(1, sizes["kv_heads"] // n)
        if choice.weights == "split":
            parameters = -(-parameters // n)
        whole *= n if choice.axes and choice.axes != ("batch",) else 1
    local = replace(
        operator, dims=tuple(sizes.items()), tensor_axis="", n_parameters=parameters,
        flops=operator.flops / whole, moved_elements=operator.moved_elements // whole,
    )  # fmt: skip
    return local, batch


def _compute(node: Node, local: Operator, batch: int, costs: MeshCosts) -> OperatorSeconds:
    """Return the seconds of a device's share."""
    seconds = unfused_attention_seconds if node.unfused else operator_seconds
    return seconds(local, Shape(micro_batch=batch), costs.device, costs.training)


def _inside(
    operator: Operator, local: Operator, batch: int, way: Sequence[Choice], seconds: OperatorSeconds, costs: MeshCosts
) -> tuple[float, float]:
    """Return the seconds of collectives that a split needs inside the operator, forward and backward."""
    forward = backward = 0.0
    tokens = float(batch * local.size("sequence"))
    for choice, axis in zip(way, costs.axes, strict=True):
        if axis.size == 1:
            continue
        if operator.kind == "cross_entropy" and choice.name == "vocabulary":
            forward += 3.0 * axis.seconds("all_reduce", 4.0 * tokens)  # largest logit, sum of exponents, the target's logit
        if operator.kind == "norm" and choice.name == "hidden" and operator.tensor_axis != "hidden":
            statistics = axis.seconds("all_reduce", 8.0 * tokens)  # two fp32 figures per row
            forward, backward = forward + statistics, backward + statistics
        if operator.kind in ("attention", "causal_attention") and choice.read == SEQUENCE:
            there, back = _ring(local, batch, axis, seconds, costs)
            forward, backward = forward + there, backward + back
    return forward, backward


def _ring(local: Operator, batch: int, axis: Axis, seconds: OperatorSeconds, costs: MeshCosts) -> tuple[float, float]:
    """Return what is exposed of passing keys and values round, beside attention on the chunks already there."""
    heads = local.size("kv_heads", local.size("heads"))
    width = local.size("head") + local.size("value", local.size("head"))
    keys = batch * local.size("key_sequence", local.size("sequence"))
    n_bytes = float(keys * heads * width * costs.training.activation_bytes)
    hidden = (axis.size - 1) / axis.size
    gather, scatter = axis.seconds("all_gather", n_bytes), axis.seconds("reduce_scatter", n_bytes)
    forward = max(0.0, gather - seconds.forward * hidden)
    return forward, max(0.0, gather + scatter - seconds.backward_input * hidden)


def _weights(local: Operator, way: Sequence[Choice], seconds: OperatorSeconds, costs: MeshCosts) -> tuple[float, float]:
    """Return what is exposed of gathering sharded weights forward, and of that and reducing gradients backward.

    Gradients of one operator are reduced while the next ones run backward, which on average take as long as its own backward
    pass; weights gathered in advance likewise. What exceeds that is exposed.
    """
    if not local.n_parameters:
        return 0.0, 0.0
    training = costs.training
    reduce = gather = 0.0
    share = float(local.n_parameters)
    for choice, axis in zip(way, costs.axes, strict=True):
        if choice.weights == "shard":
            gather += bucket_seconds(axis, "all_gather", share * training.weight_bytes)
            reduce += bucket_seconds(axis, "reduce_scatter", share * training.gradient_bytes)
            share /= axis.size
    for d, (choice, axis) in enumerate(zip(way, costs.axes, strict=True)):
        if choice.weights == "partial" and axis.size > 1 and d not in costs.reduced_later:
            reduce += bucket_seconds(axis, "all_reduce", share * training.gradient_bytes)
    backward = seconds.backward_input + seconds.backward_weight
    return max(0.0, gather - seconds.forward), max(0.0, gather + reduce - backward)


def _held_bytes(operator: Operator, local: Operator, way: Sequence[Choice], costs: MeshCosts) -> tuple[float, float]:
    """Return what a device holds of an operator from one step to the next, and from forward to backward."""
    training = costs.training
    shards = math.prod(axis.size for choice, axis in zip(way, costs.axes, strict=True) if choice.weights == "shard")
    state = training.weight_bytes + training.gradient_bytes + training.optimizer_bytes
    saved = float(costs.batch * (operator.saved_elements * training.activation_bytes + operator.saved_extra_bytes))
    for choice, axis in zip(way, costs.axes, strict=True):
        splits_saved = choice.axes and not (
            operator.kind == "matmul" and choice.name == "in" and operator.saved_axis != "tensor"
        )
        saved /= axis.size if splits_saved else 1
    return local.n_parameters * state / shards, saved
