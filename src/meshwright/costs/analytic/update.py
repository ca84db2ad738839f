"""What the update of weights holds and does where it depends on their shapes: 8-bit Adam, Adafactor, Muon."""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.core.cluster import Device
from meshwright.core.graph import Graph, Operator
from meshwright.core.optimizers import BLOCK, NEWTON_SCHULZ_STEPS, SMALLEST_QUANTISED, optimizer
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.products import Product, product_seconds
from meshwright.costs.analytic.roofline import Shape
from meshwright.models.weight_tensors import WeightTensor, weight_tensors

__all__ = ["EXCHANGED_BYTES", "UpdateWork", "newton_schulz_seconds", "shaped_update", "unknown_shape", "update_work"]

_WIDE_BYTES = 4  # state that is not quantised, scales, sums of rows and columns

EXCHANGED_BYTES = 2
"""Of an element of a matrix that is orthogonalised in bf16."""


class UpdateWork(NamedTuple):
    """What shapes of weights add to their update, on one device before any sharding over the data axis.

    `sharded_bytes`: state that ranks share out with the weights.
    `whole_bytes`: state that every rank holds, whatever is sharded.
    `moved_bytes`: memory traffic of the weights that a rank updates beside one reading and writing of all that is held.
    `seconds`: arithmetic, dealt to the ranks that share the state, a whole matrix to one of them.
    `n_exchanged`: weights whose update is computed elsewhere where state is shared out: sent there and back.
    """

    sharded_bytes: float = 0.0
    whole_bytes: float = 0.0
    moved_bytes: float = 0.0
    seconds: float = 0.0
    n_exchanged: float = 0.0

    def plus(self, other: UpdateWork) -> UpdateWork:
        """Return both together."""
        return UpdateWork(*(own + more for own, more in zip(self, other, strict=True)))


def unknown_shape(graph: Graph, training: MixedPrecision) -> str:
    """Return which trained weights have no known shape although the optimizer asks for it, in a sentence; empty for none."""
    if not optimizer(training.optimizer).shaped:
        return ""
    for op in graph.ops:
        for operator in op.body:
            if operator.n_trained_parameters and weight_tensors(op.body, operator) is None:
                return (
                    f"optimizer {training.optimizer}: what it keeps follows from the shapes of weights, and those of {op.name}."
                    f"{operator.name} ({operator.kind}) in {graph.name} are not known; take adam, sgd, sgd-momentum or lion"
                )
    return ""


def update_work(
    body: tuple[Operator, ...], shape: Shape, device: Device, training: MixedPrecision
) -> tuple[UpdateWork, UpdateWork]:
    """Return what shapes add to the update of a layer's dense and of its experts' weights; nothing where they do not matter.

    Notes
    -----
    Tensors split over the tensor axis are updated as the pieces that they are (Megatron-LM's ``--muon-tp-mode blockwise``).
    """
    dense = experts = UpdateWork()
    if not optimizer(training.optimizer).shaped:
        return dense, experts
    for operator in body:
        share = operator.n_trained_parameters / max(1, operator.n_parameters)
        for tensor in (weight_tensors(body, operator) or ()) if share else ():
            own = _tensor_work(_local(tensor, operator, shape), device, training)
            own = own if share == 1.0 else UpdateWork(*(share * figure for figure in own))
            if operator.expert:
                experts = experts.plus(own)
            else:
                dense = dense.plus(own)
    return dense, experts


def _local(tensor: WeightTensor, operator: Operator, shape: Shape) -> WeightTensor:
    """Return the piece of some tensors that one device holds."""
    count = math.ceil(tensor.count / (shape.expert if operator.expert else 1))
    rows, columns, axis = tensor.rows, tensor.columns, operator.tensor_axis
    if axis in ("", "sequence") or (operator.expert and shape.folded):
        return WeightTensor(rows, columns, count, tensor.hidden)
    if tensor.columns == 1 or axis in ("in", "vocabulary"):
        return WeightTensor(math.ceil(rows / shape.tensor), columns, count, tensor.hidden)
    return WeightTensor(rows, math.ceil(columns / shape.tensor), count, tensor.hidden)


def _tensor_work(tensor: WeightTensor, device: Device, training: MixedPrecision) -> UpdateWork:
    """Return what the update of some equal tensors adds."""
    kind, n, count = optimizer(training.optimizer), tensor.n_weights, tensor.count
    if kind.form == "blocks":
        if n < SMALLEST_QUANTISED:
            return UpdateWork(float(count * kind.n_moments * _WIDE_BYTES * n))
        return UpdateWork(float(count * kind.n_moments * (n * training.state_bytes + _WIDE_BYTES * -(-n // BLOCK))))
    if kind.form == "factored":
        if tensor.columns == 1:
            return UpdateWork(float(count * _WIDE_BYTES * n))
        # gradients are read for the squares' sums and for the root mean square of the update, weights for their own [alg. 4]
        again = 2.0 * training.gradient_bytes + max(_WIDE_BYTES, training.weight_bytes)
        return UpdateWork(
            whole_bytes=float(count * _WIDE_BYTES * (tensor.rows + tensor.columns)), moved_bytes=count * n * again
        )
    if not tensor.hidden:
        return UpdateWork(float(count * kind.n_moments * training.state_bytes * n))
    return UpdateWork(
        sharded_bytes=float(count * training.state_bytes * n),
        seconds=newton_schulz_seconds(tensor, device),
        n_exchanged=float(count * n),
    )


def newton_schulz_seconds(tensor: WeightTensor, device: Device) -> float:
    """Return the seconds of orthogonalising matrices in bf16, or in what the device has instead.

    Of a matrix X of m x n, m at most n, each step computes A = X X', B = A A and B X: 4 m m n + 2 m m m operations [1]_.

    References
    ----------
    .. [1] Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; torch.optim.Muon.
    """
    has = {name for name, _ in device.flops_per_second}
    precision = next((word for word in ("bf16", "fp16", "fp32") if word in has), "bf16")
    m, n = sorted((tensor.rows, tensor.columns))
    moved = float(EXCHANGED_BYTES * tensor.count)
    step = (
        Product(m, m, n, tensor.count, moved * (2 * m * n + m * m)),
        Product(m, m, m, tensor.count, moved * 3 * m * m),
        Product(m, n, m, tensor.count, moved * (m * m + 3 * m * n)),
    )
    return NEWTON_SCHULZ_STEPS * sum(product_seconds(one, device, precision) for one in step)


def shaped_update(updates: tuple[UpdateWork, UpdateWork], n_shards: tuple[int, int]) -> tuple[float, float]:
    """Return the memory traffic and the arithmetic that shapes of weights add to a device's update.

    Matrices are taken to be dealt evenly: of a stage with fewer matrices than ranks, or with one that is much larger than
    others, the rank with the most takes longer.
    """
    both = list(zip(updates, n_shards, strict=True))
    return sum(one.moved_bytes / size for one, size in both), sum(one.seconds / size for one, size in both)
