"""Layers of a language model as a workload: whole layers, split along samples, in bf16 with mixed-precision Adam."""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.core.flops import forward_flops
from meshwright.core.problem import ModelSpec
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload

__all__ = ["workload"]

ELEMENT_BYTES, STATE_BYTES = 2, 18


def workload(model_spec: ModelSpec, batch: int) -> Workload:
    """Return the layers of a model as operators.

    `model_spec`: a model whose layers are known down to their operators.
    `batch`: samples of one step.
    Returns: one operator of kind ``layer`` for each layer, tables among them: their gradients are all-reduced like others.
    Raises `InputError` when the content says nothing about what layers compute.
    """
    graph = model_spec.graph
    if model_spec.instance is not None or not all(op.body for op in graph.ops):
        raise InputError(
            f"model {model_spec.spec}: format {model_spec.format} does not say what its operators compute and hold; "
            "codesign needs a workload (workloads.json#NAME, topoopt:NAME) or a language model"
        )
    inputs: list[list[int]] = [[] for _ in graph.ops]
    elements = [1] * len(graph.ops)
    for edge in graph.edges:
        inputs[edge.target].append(edge.source)
        elements[edge.source] = max(edge.n_elements, elements[edge.source])  # whoever reads a part of it
    order = graph.topological_order()
    place = {op: at for at, op in enumerate(order)}
    made = []
    for op in order:
        layer = graph.ops[op]
        flops = sum(forward_flops(operator) for operator in layer.body)
        weights = (layer.n_parameters,) if layer.n_parameters else ()
        producers = tuple(sorted(place[p] for p in inputs[op])) or (DATA,)
        made.append(
            Operation(layer.name, "layer", layer.name, producers, (elements[op],), weights, sample_flops=max(flops, 1.0))
        )
    return Workload(model_spec.name, batch, tuple(made), ELEMENT_BYTES, STATE_BYTES)
