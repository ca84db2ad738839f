"""Reader of operator and layer graphs for device placement (``dnn_partitioning_json``):
nodes with times on accelerator and host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source

__all__ = ["PlacementEdge", "PlacementGraph", "PlacementNode", "read", "recognises"]

_TOP = ("maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges")


@dataclass(frozen=True, slots=True)
class PlacementNode:
    """One node, in the file's own units.

    Parameters
    ----------
    id : int
        As in the file.
    name : str
        As in the file; the id where the name is absent or not unique.
    supported : bool
        Whether an accelerator can run it.
    host_cost, accelerator_cost : float
        Time on a host device and on an accelerator, in the file's time unit.
    backward : bool
        Whether it belongs to the backward pass.
    colour : int or None
        Nodes of one colour class stay on one device.
    bytes : float
        Memory on the accelerator.
    """

    id: int
    name: str
    supported: bool
    host_cost: float
    accelerator_cost: float
    backward: bool
    colour: int | None
    bytes: float


@dataclass(frozen=True, slots=True)
class PlacementEdge:
    """A tensor from one node to another, by position in `PlacementGraph.nodes`; `cost` moves it to or from host memory."""

    source: int
    target: int
    cost: float
    bytes: float


@dataclass(frozen=True, slots=True)
class PlacementGraph:
    """The content of a file, in its own units.

    Parameters
    ----------
    memory_bytes : float
        Limit of one accelerator.
    n_accelerators, n_hosts : int
        Devices of each kind (``maxFPGAs``, ``maxCPUs``).
    nodes : tuple of PlacementNode
        In the order of the file.
    edges : tuple of PlacementEdge
        In the order of the file.
    """

    memory_bytes: float
    n_accelerators: int
    n_hosts: int
    nodes: tuple[PlacementNode, ...]
    edges: tuple[PlacementEdge, ...]


def recognises(source: Source) -> bool:
    """Return whether the content is a JSON object with the format's limits, nodes and edges."""
    content = source.json
    return (
        isinstance(content, dict)
        and "nodes" in content
        and "edges" in content
        and ("maxFPGAs" in content or "maxSizePerFPGA" in content)
    )


def read(source: Source) -> ModelSpec:
    """Read a placement graph.

    The graph has every node and every edge of the file; `ModelSpec.instance` is a `PlacementGraph` in the file's own units.
    Raises `InputError` when a field is missing, unknown or of the wrong kind, an id repeats or is unknown, a number is negative
    or not finite, edges out of one node differ in cost, or the edges form a cycle.

    References
    ----------
    .. [1] J. Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020: the format
       published with the paper.
    """
    content = source.json
    instance = _instance(content, str(source.path or source.spec))
    name = source.path.stem if source.path is not None else source.spec
    ops = tuple(Op(node.name, "backward" if node.backward else "forward") for node in instance.nodes)
    edges = tuple(Edge(edge.source, edge.target) for edge in instance.edges)
    try:
        graph = Graph(name=name, ops=ops, edges=edges, tokens_name="")
    except InputError as error:
        raise InputError(f"{source.path}: {error}") from None
    return ModelSpec(
        name=name, format="dnn_partitioning_json", spec=source.spec, graph=graph, instance=instance, costs="partition",
        search="partition",
    )  # fmt: skip


def _instance(content: dict[str, Any], path: str) -> PlacementGraph:
    """Check the whole file and return it."""
    fields.entry(content, path, _TOP, _TOP)
    entries = fields.items(content["nodes"], f"{path}: nodes", at_least=1)
    links = fields.items(content["edges"], f"{path}: edges")
    memory_bytes = _number(content, "maxSizePerFPGA", path)
    n_accelerators, n_hosts = (_whole(content, key, path, minimum=0) for key in ("maxFPGAs", "maxCPUs"))
    nodes = _nodes(entries, path)
    edges = _edges(links, nodes, path)
    return PlacementGraph(memory_bytes, n_accelerators, n_hosts, nodes, edges)


def _nodes(entries: list[Any], path: str) -> tuple[PlacementNode, ...]:
    """Read the nodes; names that are absent or repeat are replaced by the id."""
    known = ("id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "colorClass", "size", "name", "layerId")
    names: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            names[entry["name"]] = names.get(entry["name"], 0) + 1
    nodes: list[PlacementNode] = []
    seen: dict[int, int] = {}
    for i, entry in enumerate(entries):
        place = f"{path}: nodes[{i}]"
        fields.entry(entry, place, known, ("id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "size"))
        number = _whole(entry, "id", place)
        if number in seen:
            raise InputError(f"{place}: the id {number} is that of nodes[{seen[number]}] too; ids must be unique")
        seen[number] = i
        colour = entry.get("colorClass")
        if colour is not None:
            colour = _whole(entry, "colorClass", place)
        name = "" if entry.get("name") is None else fields.text(entry["name"], f"{place}: name")
        if not name:
            name = str(number)
        elif names[name] > 1:
            name = f"{name}#{number}"
        node = PlacementNode(
            number, name, _flag(entry, "supportedOnFpga", place), _number(entry, "cpuLatency", place),
            _number(entry, "fpgaLatency", place), _flag(entry, "isBackwardNode", place), colour, _number(entry, "size", place),
        )  # fmt: skip
        nodes.append(node)
    return tuple(nodes)


def _edges(entries: list[Any], nodes: tuple[PlacementNode, ...], path: str) -> tuple[PlacementEdge, ...]:
    """Read the edges; the cost belongs to the source, so all edges out of one node must agree."""
    index = {node.id: i for i, node in enumerate(nodes)}
    cost_of: dict[int, float] = {}
    edges: list[PlacementEdge] = []
    for i, entry in enumerate(entries):
        place = f"{path}: edges[{i}]"
        fields.entry(entry, place, ("sourceId", "destId", "cost", "size"), ("sourceId", "destId", "cost"))
        source, target = (_whole(entry, key, place) for key in ("sourceId", "destId"))
        for key, end in (("sourceId", source), ("destId", target)):
            if end not in index:
                raise InputError(f"{place}: '{key}' is {end}, but no node has this id")
        if source == target:
            raise InputError(f"{place}: goes from node {source} to itself; edges must form no cycle")
        cost = _number(entry, "cost", place)
        if cost_of.setdefault(source, cost) != cost:
            raise InputError(
                f"{place}: 'cost' is {cost:g}, but another edge out of node {source} has {cost_of[source]:g}; "
                "the cost belongs to the output of the source and must be the same on all its edges"
            )
        n_bytes = _number(entry, "size", place) if "size" in entry else 0.0
        edges.append(PlacementEdge(index[source], index[target], cost, n_bytes))
    return tuple(edges)


def _number(entry: dict[str, Any], key: str, place: str) -> float:
    """Return a number that is not negative."""
    return fields.number(entry[key], f"{place}: {key}", minimum=0)


def _whole(entry: dict[str, Any], key: str, place: str, minimum: int | None = None) -> int:
    """Return a whole number, which programs that write the format also spell ``3.0``."""
    return fields.whole(entry[key], f"{place}: {key}", minimum=minimum, or_float=True)


def _flag(entry: dict[str, Any], key: str, place: str) -> bool:
    """Return a yes or no, written as true/false or 1/0."""
    if entry[key] not in (0, 1):
        raise InputError(f"{place}: {key} is {fields.show(entry[key])}; it must be true, false, 0 or 1")
    return bool(entry[key])
