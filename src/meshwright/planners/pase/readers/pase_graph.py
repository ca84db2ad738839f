"""The five graphs PaSE was published with, by name (``pase:alexnet``, ...), and graphs of one's own in a JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.pase import own_graph
from meshwright.planners.pase.networks import NAMES, build
from meshwright.planners.pase.operators import PaseGraph

__all__ = ["EXAMPLE", "NAMES", "PaseInstance", "build", "graph_of", "read", "recognises"]

EXAMPLE = "pase:alexnet"


@dataclass(frozen=True, slots=True)
class PaseInstance:
    """One of the five graphs, or one of a file; built for a batch and a width when a search knows them.

    `graph`: one of `NAMES`, or the file.
    `written`: content of the file; empty for one of the five.
    """

    graph: str
    written: str = ""

    def built(self, batch: int = 128, model: int = 128) -> PaseGraph:
        """Return the operators.

        `batch`: samples of a step.
        `model`: scales every hidden width by ``model / 128``.
        Raises `InputError` when the file is wrong, or its widths should be scaled.
        """
        if not self.written:
            return build(self.graph, batch, model)
        if model != 128:
            raise InputError(f"--set model={model}: scales PaSE's own graphs only; widths of {self.graph} stand in the file")
        return own_graph.build(self.written, self.graph, batch)


def recognises(source: Source) -> bool:
    """Return whether the name starts with ``pase:``, or the content is a graph in our format for them."""
    if source.spec.startswith("pase:"):
        return True
    try:
        content = source.json
    except InputError:
        return False
    return isinstance(content, dict) and content.get("format") == own_graph.FORMAT


def read(source: Source) -> ModelSpec:
    """Return the graph, at the published batch of 128.

    Raises `UnknownNameError` when PaSE has no such graph.
    Raises `InputError` when a file is wrong.
    """
    if source.spec.startswith("pase:"):
        name = source.spec.removeprefix("pase:")
        instance = PaseInstance(name)
        network = instance.built()
    else:
        instance = PaseInstance(str(source.path), json.dumps(source.json))
        network = instance.built()
        name = network.name
    return ModelSpec(
        name=name, format="pase_graph", spec=source.spec, graph=graph_of(network), instance=instance,
        costs="pase", search="pase",
    )  # fmt: skip


def graph_of(network: PaseGraph) -> Graph:
    """Return the operators of a network as layers, with the tensors between them."""
    ops = tuple(Op(operator.name, operator.kind) for operator in network.operators)
    edges = tuple(Edge(source, target, math.prod(use.shape)) for source, target, use in network.edges())
    return Graph(network.name, ops, edges, tokens_name="")
