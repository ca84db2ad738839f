"""A frozen reference model beside the model that is trained: its forward pass, and the weights that it holds or borrows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.core.graph import Operator
from meshwright.core.stage_cost import StageCost
from meshwright.costs.analytic.layer import LayerWork

__all__ = ["with_reference", "with_reference_load"]


def with_reference(body: tuple[Operator, ...], work_of: Callable[[tuple[Operator, ...]], LayerWork]) -> LayerWork:
    """Return the work of a layer, with that of the reference's layer apart: it is never repeated, and its weights are gathered
    for a forward pass only.

    `work_of`: returns the work of operators.
    """
    other = tuple(operator for operator in body if operator.reference)
    if not other:
        return work_of(body)
    own = work_of(tuple(operator for operator in body if not operator.reference))
    borrowed = any(operator.n_borrowed_parameters for operator in other)
    return replace(own, reference=replace(work_of(tuple(map(_read, other))), borrowed=borrowed))


def _read(operator: Operator) -> Operator:
    """Return an operator with the weights that it reads, whoever has them."""
    n = operator.n_parameters + operator.n_borrowed_parameters
    return replace(operator, n_parameters=n, n_frozen_parameters=n, n_borrowed_parameters=0)


def with_reference_load(load: StageCost, other: StageCost, *, borrowed: bool) -> StageCost:
    """Return the load of a layer with that of the reference's: one after the other, so what is there for a while counts once.

    `borrowed`: whether the reference's weights are the layer's own.
    """
    forward = dict(load.forward_communication)
    for cause, seconds in other.forward_communication:
        forward[cause] = forward.get(cause, 0.0) + seconds
    return replace(
        load,
        forward_seconds=load.forward_seconds + other.forward_seconds,
        forward_communication=tuple(sorted(forward.items())),
        weight_bytes=load.weight_bytes + (0.0 if borrowed else other.weight_bytes),
        working_bytes=max(load.working_bytes, other.working_bytes),
        reserved_bytes=max(load.reserved_bytes, other.reserved_bytes),
        communication_bytes=max(load.communication_bytes, other.communication_bytes),
        model_flops=load.model_flops + other.model_flops,
    )
