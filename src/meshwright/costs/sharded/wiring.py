"""The operators of all layers as one graph: who reads whose output, inferred from the order and the names inside a layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.core.graph import Graph, Op, Operator

__all__ = ["Node", "Wire", "Wiring", "output_elements", "wire"]

_BRANCH_READERS = (
    ".query_down", ".query", ".key_value_down", ".router", ".dispatch", ".shared.in", ".shared.gate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of one layer; `unfused` marks attention whose scores go through memory."""

    name: str
    operator: Operator
    unfused: bool = False


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor from one operator to another: `n_elements` per sample."""

    source: int
    target: int
    n_elements: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """Operators in an order in which every wire points forward."""

    nodes: tuple[Node, ...]
    wires: tuple[Wire, ...]


def output_elements(operator: Operator) -> int:
    """Return the elements per sample that an operator hands on."""
    size, kind = operator.size, operator.kind
    if kind == "matmul":
        return size("sequence") * size("out")
    if kind == "grouped_matmul":
        return size("sequence") * size("top_k") * size("out")
    if kind in ("attention", "causal_attention"):
        return size("sequence") * size("heads") * size("value", size("head"))
    if kind in ("norm", "elementwise", "embedding", "combine"):
        return size("sequence") * size("hidden")
    if kind == "dispatch":
        return size("sequence") * size("top_k") * size("hidden")
    if kind == "cross_entropy":
        return size("sequence")
    if operator.moved_elements:
        return max(1, operator.moved_elements // 2)
    return math.prod(size for _, size in operator.dims)


def wire(graph: Graph) -> Wiring:
    """Return the operators of a model and the tensors between them.

    `graph`: layers with operators inside; a layer without any passes its input on.
    Returns: names are ``layer.operator``.

    Notes
    -----
    Inside a layer the operators stand in the order they run. Each reads the one before it and every output that nothing has
    read yet, with these exceptions: a residual sum also reads the stream that its branch left; a norm at the head of a branch
    reads the stream; products that start a branch (queries, keys, the router, shared experts) and the dispatch of tokens read
    the branch's norm; look-ups read nothing of the graph. Where several layers enter one, keys of cross attention read the
    second, or, without cross attention, the first operator reads all.
    """
    nodes: list[Node] = []
    wires: list[Wire] = []
    output: dict[int, int] = {}  # layer -> the operator whose output leaves it
    inputs: dict[int, list[int]] = {i: [] for i in range(len(graph.ops))}
    for edge in graph.edges:
        inputs[edge.target].append(edge.source)
    for layer in graph.topological_order():
        sources = [output[other] for other in inputs[layer] if other in output]
        last = _wire_layer(graph.ops[layer], sources, nodes, wires)
        if last >= 0:
            output[layer] = last
    return Wiring(tuple(nodes), tuple(dict.fromkeys(wires)))


def _wire_layer(op: Op, sources: list[int], nodes: list[Node], wires: list[Wire]) -> int:
    """Add the operators of one layer; return the one whose output leaves it (-1 for none)."""
    stream = sources[0] if sources else -1
    side = sources[1:]
    crosses = any(operator.name.endswith(".key_value") for operator in op.body)
    branch, previous, last_residual = stream, stream, ""
    unread: list[int] = []
    for i, operator in enumerate(op.body):
        node = len(nodes)
        unfused = operator.kind == "attention" and i + 1 < len(op.body) and op.body[i + 1].kind == "softmax"
        nodes.append(Node(f"{op.name}.{operator.name}", operator, unfused))
        prefix, _, word = operator.name.rpartition(".")
        starts = operator.kind == "norm" and word == "norm" and prefix != ""
        residual = word == "residual"
        if operator.kind == "embedding":
            read = []
        elif starts:
            read = [stream]
        elif operator.name.endswith(".key_value"):
            read = side[:1] or [stream]
        elif operator.name.endswith(_BRANCH_READERS):
            read = [branch] + (unread if operator.kind == "dispatch" else [])
        else:
            read = [*unread, *([previous] if not unread else []), *([stream] if residual else [])]
        if i == 0 and not crosses and operator.kind != "embedding":
            read = [*read, *side]
        for other in dict.fromkeys(read):
            if other >= 0:
                wires.append(Wire(other, node, output_elements(nodes[other].operator)))
        unread = [other for other in unread if other not in read] + [node]
        if starts:
            branch = node
            unread = [other for other in unread if other != stream]
        if residual:
            stream = branch = node
            unread, last_residual = [node], prefix
        elif starts and prefix == last_residual:
            stream = node  # the norm stands after the sum
        previous = node
    return previous if op.body else stream
