"""From a trace to our graph, at the level of layers or of single operators, with the totals of the module."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.runtime.capture import bodies
from meshwright.runtime.capture.segments import segments
from meshwright.runtime.capture.trace import Trace

__all__ = ["Captured", "Figures", "graph_of"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What was counted while tracing, per sample.

    `forward_flops`, `backward_flops`: of products, convolutions and attention; causal attention half of its square.
    `parameter_bytes`: weights, each in the type of the first.
    `output_bytes`: of the results that leave.
    `saved_bytes`: kept for the backward pass, as PyTorch's own operators keep it.
    `n_forward`, `n_backward`: operators that were dispatched.
    """

    forward_flops: float
    backward_flops: float
    parameter_bytes: int
    output_bytes: int
    saved_bytes: int
    n_forward: int
    n_backward: int


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured module.

    `graph`: layers or operators.
    `figures`: of every layer.
    `totals`: of the module, shared weights counted once.
    `level`: ``layers`` or ``operator``.
    `batch`: samples that were traced.
    `element_bytes`: bytes of an element of the weights.
    `notes`: what was assumed.
    """

    graph: Graph
    figures: tuple[Figures, ...]
    totals: Figures
    level: str
    batch: int
    element_bytes: int
    notes: tuple[str, ...]


def graph_of(trace: Trace, name: str, level: str, sequence_length: int, tokens_name: str) -> Captured:
    """Return the graph of a trace.

    `level`: ``layers`` (children of lists, and what stands around them) or ``operator`` (every computing operator).
    `sequence_length`: tokens per sample; 1 where samples are no sequences.
    `tokens_name`: ``tokens`` or empty.
    Returns: the graph. Parameters that no operator reads belong to the last layer whose path they share, as an operator
    without work.
    """
    parts = segments(trace)
    built = bodies.build(trace, parts, level, sequence_length)
    ops: list[Op] = []
    first: dict[tuple[str, tuple[Operator, ...]], int] = {}
    for layer in built:
        key = (layer.kind, layer.body)
        like = first.setdefault(key, len(ops))
        ops.append(Op(layer.name, layer.kind, ops[like].body if like < len(ops) else layer.body, like))
    owner = {i: position for position, layer in enumerate(built) for i in layer.operators}
    edges = _edges(trace, owner)
    n_parameters = sum(math.prod(shape) for shape in trace.parameters.values())
    shared = sum(op.n_parameters for op in ops) - n_parameters
    active = _active(ops, n_parameters)
    frozen = sum(math.prod(trace.parameters[key]) for key in trace.frozen)
    shared_frozen = sum(op.n_parameters - op.n_trained_parameters for op in ops) - frozen
    graph = Graph(name, tuple(ops), edges, sequence_length, shared, active, tokens_name, shared_frozen)
    figures = tuple(_figures(trace, layer.operators, op.n_parameters) for layer, op in zip(built, ops, strict=True))
    everything = tuple(range(len(trace.operators)))
    totals = replace(_figures(trace, everything, n_parameters), output_bytes=figures[-1].output_bytes)
    return Captured(graph, figures, totals, level, trace.batch, trace.item_bytes, trace.notes)


def producers(trace: Trace) -> list[int]:
    """Return for every operator the computing operator whose elements its result holds: itself, or what a view looks at."""
    found: list[int] = []
    for i, operator in enumerate(trace.operators):
        through = operator.view and operator.sources and operator.sources[0] >= 0
        found.append(found[operator.sources[0]] if through else i)
    return found


def _edges(trace: Trace, owner: dict[int, int]) -> tuple[Edge, ...]:
    """Return the tensors between layers: what depends on weights and is no whole number."""
    origin = producers(trace)
    sizes: dict[tuple[int, int], dict[int, int]] = {}
    for i, operator in enumerate(trace.operators):
        if i not in owner:
            continue
        for tensor, source in operator.activations:
            made_by = origin[source] if source >= 0 else -1
            if made_by in owner and owner[made_by] != owner[i]:
                between = sizes.setdefault((owner[made_by], owner[i]), {})
                between[made_by] = max(between.get(made_by, 0), tensor.n_elements)
    return tuple(Edge(u, v, sum(tensors.values()) // trace.batch) for (u, v), tensors in sorted(sizes.items()))


def _active(ops: list[Op], n_parameters: int) -> int:
    """Return the weights that a token meets: of experts only those it visits; 0 where all."""
    idle = 0
    for op in ops:
        for operator in op.body:
            if operator.expert:
                n_experts = operator.size("experts")
                idle += operator.n_parameters // n_experts * (n_experts - min(n_experts, operator.size("top_k")))
    return n_parameters - idle if idle else 0


def _figures(trace: Trace, ids: tuple[int, ...], n_parameters: int) -> Figures:
    """Add up operators."""
    rows = [trace.operators[i] for i in ids]
    outputs = rows[-1].outputs if rows else ()
    return Figures(
        forward_flops=sum(row.forward_flops for row in rows) / trace.batch,
        backward_flops=sum(row.backward_flops for row in rows) / trace.batch,
        parameter_bytes=n_parameters * trace.item_bytes,
        output_bytes=sum(tensor.n_elements for tensor in outputs[:1]) * trace.item_bytes // trace.batch,
        saved_bytes=sum(row.saved_bytes + row.saved_other_bytes for row in rows) // trace.batch,
        n_forward=sum(not row.view for row in rows),
        n_backward=sum(row.n_backward for row in rows),
    )
