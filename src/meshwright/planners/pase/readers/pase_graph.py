"""The five graphs PaSE was published with, by name: ``pase:alexnet``, ``pase:transformer``, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.pase.networks import NAMES, build
from meshwright.planners.pase.operators import PaseGraph

__all__ = ["EXAMPLE", "NAMES", "PaseInstance", "build", "graph_of", "read", "recognises"]

EXAMPLE = "pase:alexnet"


@dataclass(frozen=True, slots=True)
class PaseInstance:
    """One of the five graphs; built for a batch and a width when a search knows them.

    `graph`: one of `NAMES`.
    """

    graph: str


def recognises(source: Source) -> bool:
    """Return whether the name starts with ``pase:``."""
    return source.spec.startswith("pase:")


def read(source: Source) -> ModelSpec:
    """Return the graph, at its published batch of 128.

    Raises `UnknownNameError` when PaSE has no such graph.
    """
    name = source.spec.removeprefix("pase:")
    network = build(name)
    return ModelSpec(
        name=name, format="pase_graph", spec=source.spec, graph=graph_of(network), instance=PaseInstance(name),
        costs="pase", search="pase",
    )  # fmt: skip


def graph_of(network: PaseGraph) -> Graph:
    """Return the operators of a network as layers, with the tensors between them."""
    ops = tuple(Op(operator.name, operator.kind) for operator in network.operators)
    edges = tuple(Edge(source, target, math.prod(use.shape)) for source, target, use in network.edges())
    return Graph(network.name, ops, edges, tokens_name="")
