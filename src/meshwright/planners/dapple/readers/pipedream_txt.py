"""PipeDream's profile text (``graph.txt``), which DAPPLE's planner reads too: one measured layer or one edge per line."""

from __future__ import annotations

import math
import re
from graphlib import CycleError, TopologicalSorter

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.dapple.profile import PipeDreamProfile, ProfileNode, cleaned

__all__ = ["parse", "read", "recognises"]

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NODE = re.compile(r"^\S.* -- .*forward_compute_time=")
_EXPECTED_NODE = "node lines are 'ID -- DESCRIPTION -- " + ", ".join(f"{name}=NUMBER" for name in _FIELDS) + "[ -- stage_id=N]'"
_EXPECTED_EDGE = "edge lines are 'TAB ID -- ID'"


def recognises(source: Source) -> bool:
    """Return whether the first line with something on it is a layer with its forward time."""
    if source.text is None:
        return False
    first = next((line for line in source.text.splitlines() if line.strip()), "")
    return bool(_NODE.match(first))


def read(source: Source) -> ModelSpec:
    """Read a profile.

    `ModelSpec.instance` is the `PipeDreamProfile` as it stands in the file. `ModelSpec.graph` holds the layers that remain
    after cleaning, in a topological order, under their ids; the elements of an edge are its source's activations at four bytes
    each, for the whole profile batch.
    Raises `InputError` when a line does not parse; the message names file, line and what was expected.
    """
    where = str(source.path or source.spec)
    if source.text is None:
        raise InputError(f"{where}: is not a text file; a profile is text: {_EXPECTED_NODE}")
    batch = re.search(r"pbs-(\d{1,9})", source.path.name if source.path else "")
    profile = parse(source.text, where, profile_batch=int(batch[1]) if batch else 0)
    name = source.path.stem if source.path else source.spec
    return ModelSpec(name, "pipedream_txt", source.spec, _graph(profile, name, where), profile, costs="dapple", search="dapple")


def parse(text: str, where: str, *, profile_batch: int = 0) -> PipeDreamProfile:
    """Return the profile that a text holds.

    `profile_batch`: samples it was measured with; 0 where that is not known.
    Returns: nodes and edges in file order.
    Raises `InputError` when a line does not parse, a node is declared twice, or an edge names a node that no earlier line
    declares.
    """
    nodes: list[ProfileNode] = []
    ids: dict[str, int] = {}
    edges: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{where}: line {number}"
        if line[0] in " \t":
            edges.append(_edge(line, ids, place))
            continue
        node = _node(line, place)
        if node.name in ids:
            raise InputError(f"{place}: node '{node.name}' is declared a second time; ids must be unique")
        ids[node.name] = len(nodes)
        nodes.append(node)
    if not nodes:
        raise InputError(f"{where}: holds no layer; {_EXPECTED_NODE}")
    return PipeDreamProfile(tuple(nodes), tuple(edges), profile_batch)


def _edge(line: str, ids: dict[str, int], place: str) -> tuple[int, int]:
    """Read one edge line."""
    ends = line.strip().split(" -- ")
    if len(ends) != 2:
        raise InputError(f"{place}: {len(ends)} fields where an edge has 2: '{line.strip()[:80]}'; {_EXPECTED_EDGE}")
    for end in ends:
        if end not in ids:
            raise InputError(
                f"{place}: edge to or from '{end}', which no line before declares; declare nodes before their edges"
            )
    if ends[0] == ends[1]:
        raise InputError(f"{place}: edge from '{ends[0]}' to itself; layers cannot depend on themselves")
    return ids[ends[0]], ids[ends[1]]


def _node(line: str, place: str) -> ProfileNode:
    """Read one node line."""
    tokens = line.rstrip().split(" -- ")
    if len(tokens) not in (3, 4):
        raise InputError(
            f"{place}: {len(tokens)} fields separated by ' -- ' where a node has 3 or 4: '{line[:80]}'; {_EXPECTED_NODE}"
        )
    parts = tokens[2].split(", ")
    names = tuple(part.partition("=")[0] for part in parts)
    if names != _FIELDS:
        raise InputError(
            f"{place}: the third field is '{tokens[2][:120]}'; expected {', '.join(_FIELDS)} in this order, each NAME=NUMBER"
        )
    forward, backward, activation, parameter = (part.partition("=")[2] for part in parts)
    is_list = activation.startswith("[") and activation.endswith("]")
    sizes = activation[1:-1].split("; ") if is_list else [activation]
    stage = -1
    if len(tokens) == 4:
        match = re.fullmatch(r"stage_id=(\d{1,9}|None)", tokens[3])
        if match is None:
            raise InputError(f"{place}: the fourth field is '{tokens[3][:80]}'; expected stage_id=N with a whole number N")
        stage = -1 if match[1] == "None" else int(match[1])
    return ProfileNode(
        tokens[0],
        tokens[1],
        _number(forward, _FIELDS[0], place),
        _number(backward, _FIELDS[1], place),
        tuple(_number(size, _FIELDS[2], place) for size in sizes if size.strip()),
        is_list,
        _number(parameter, _FIELDS[3], place),
        stage,
    )


def _number(text: str, name: str, place: str) -> float:
    """Read one number of a node line."""
    try:
        value = float(text)
    except ValueError:
        more = " or a list [NUMBER; NUMBER]" if name == "activation_size" else ""
        raise InputError(f"{place}: {name} is '{text[:80]}'; expected a number{more}") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{place}: {name} is {text}; must be finite and >= 0")
    return value


def _graph(profile: PipeDreamProfile, name: str, where: str) -> Graph:
    """Return the layers that remain after cleaning, in a topological order that keeps the file's where it may."""
    clean = cleaned(profile)
    if not clean.nodes:
        raise InputError(
            f"{where}: no layer remains after inputs and trailing __getitem__ are removed; there is nothing to plan"
        )
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(clean.nodes)), ()))
    for source, target in clean.edges:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " -> ".join(clean.nodes[i].name for i in reversed(error.args[1]))
        raise InputError(f"{where}: the edges form a cycle: {cycle}") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        order.append(ready.pop(0))
        sorter.done(order[-1])
    rank = {old: new for new, old in enumerate(order)}
    return Graph(
        name,
        tuple(Op(clean.nodes[i].name, clean.nodes[i].description) for i in order),
        tuple(Edge(rank[a], rank[b], round(clean.nodes[a].output_bytes / 4)) for a, b in clean.edges),
        tokens_name="",
    )
