"""A workload of the co-design studies: operators with per-sample shapes and weights, as a list in topological order."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op, Operator

__all__ = ["DATA", "KINDS", "Operation", "Workload", "flops", "graph_of"]

DATA = -1
"""The input of an operation that reads training data: no edge, no transfer."""

KINDS = (
    "linear", "conv2d", "pool2d", "embedding", "concat", "mha", "add", "mul", "relu", "flat", "softmax", "group_by", "layer",
)  # fmt: skip
"""Kinds of operation."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of a workload.

    Parameters
    ----------
    name : str
        Unique in its workload.
    kind : str
        One of `KINDS`.
    key : str
        Under which measured times are filed: ``Dense_1024_1024``. Keys omit the shape of the input.
    inputs : tuple of int
        Producers' positions; `DATA` for training data. Repeated producers are transferred once for each time they are named.
    shape : tuple of int
        Of the output per sample; features last for ``linear``, first for images.
    weights : tuple of int
        Elements of each weight tensor, biases included.
    bag : int
        Rows that an embedding adds up per sample.
    sample_flops : float
        Floating point operations of one sample's forward pass where the shapes do not tell (``layer``).
    """

    name: str
    kind: str
    key: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    weights: tuple[int, ...] = ()
    bag: int = 0
    sample_flops: float = 0.0

    @property
    def n_elements(self) -> int:
        """Output elements per sample."""
        return math.prod(self.shape)

    @property
    def n_features(self) -> int:
        """Size of the axis that tensor splits cut: the last of ``linear``, ``mha`` and ``embedding``."""
        return self.shape[-1]


@dataclass(frozen=True, slots=True)
class Workload:
    """Operators in topological order and the samples of one step.

    Parameters
    ----------
    name : str
        As in its file.
    global_batch : int
        Samples of one step over all servers.
    operations : tuple of Operation
        In topological order.
    element_bytes : int
        Of activations and of gradients that are all-reduced.
    state_bytes : int
        Held for every weight: itself, its gradient, what the optimizer keeps.
    """

    name: str
    global_batch: int
    operations: tuple[Operation, ...]
    element_bytes: int = 4
    state_bytes: int = 8

    def __post_init__(self) -> None:
        names = [operation.name for operation in self.operations]
        if len(set(names)) != len(names):
            raise InputError(f"workload {self.name}: two operators have the same name")
        for i, operation in enumerate(self.operations):
            for producer in operation.inputs:
                if not DATA <= producer < i:
                    raise InputError(f"workload {self.name}: operator {i}: input {producer}: must be an operator before it")

    @property
    def n_parameters(self) -> int:
        """Weights of all operators."""
        return sum(sum(operation.weights) for operation in self.operations)

    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Return, for every operator, those that read its output (once each), ascending."""
        found: list[list[int]] = [[] for _ in self.operations]
        for i, operation in enumerate(self.operations):
            for producer in sorted(set(operation.inputs) - {DATA}):
                found[producer].append(i)
        return tuple(tuple(readers) for readers in found)


def flops(operation: Operation) -> float:
    """Return floating point operations of one sample's forward pass (2 per multiply and add)."""
    if operation.sample_flops:
        return operation.sample_flops
    if operation.kind == "linear":
        return 2.0 * operation.weights[0] * math.prod(operation.shape[:-1])
    if operation.kind == "conv2d":
        return 2.0 * operation.weights[0] * math.prod(operation.shape[1:])
    if operation.kind == "mha":
        length, hidden = operation.shape
        return 2.0 * operation.weights[0] * length + 4.0 * length * length * hidden
    if operation.kind == "embedding":
        return float(max(operation.bag, 1) * operation.n_elements)
    return float(operation.n_elements)


def graph_of(workload: Workload) -> Graph:
    """Return the operators as layers, with the tensors between them."""
    ops = []
    for operation in workload.operations:
        dims = tuple((f"axis{i}", size) for i, size in enumerate(operation.shape))
        body = Operator(
            operation.name, "other", dims, n_parameters=sum(operation.weights), saved_elements=operation.n_elements,
            flops=flops(operation),
            moved_elements=2 * operation.n_elements + sum(operation.weights[:1]) * (operation.kind != "embedding"),
        )  # fmt: skip
        ops.append(Op(operation.name, operation.kind, (body,)))
    edges = tuple(
        Edge(producer, i, workload.operations[producer].n_elements)
        for i, operation in enumerate(workload.operations)
        for producer in dict.fromkeys(operation.inputs)
        if producer != DATA
    )
    return Graph(workload.name, tuple(ops), edges, tokens_name="")
