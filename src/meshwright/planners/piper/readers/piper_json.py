"""Reader of Piper's JSON: layers with measured choices per tensor degree, edges, devices, memory and batch."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.piper.problem import Counting, PiperChoice, PiperEdge, PiperInstance, PiperNode, grow, names

__all__ = ["flat_cluster", "graph_of", "read", "recognises", "with_limits"]

LARGEST = 10_000
"""Most devices, and largest tensor degree, that the format allows."""

SMALLEST = 1e-9
"""Smallest memory and bandwidth that the format allows."""

MOST = 1e100
"""Largest time and number of bytes: sums of larger ones, over the smallest bandwidth, would not be numbers any more."""

LONG_SECONDS = 100.0
"""A micro-batch that takes longer on one device is told: times are perhaps no seconds."""

_TOP = ("maxMemoryPerDevice", "maxDevices", "mbsInBatch", "maxBatchSize", "bandwidth", "nodes", "edges", "name")
_NODE = ("id", "name", "TMPCs")
_CHOICE = ("id", "timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB", "syncTimeFw", "syncTimeBw")
_EDGE = ("sourceId", "destId", "communicationCost")


def recognises(source: Source) -> bool:
    """Return whether the content is a JSON object with Piper's own field names."""
    content = source.json
    if not isinstance(content, dict):
        return False
    nodes = content.get("nodes")
    has_choices = isinstance(nodes, list) and any(isinstance(node, dict) and "TMPCs" in node for node in nodes)
    return has_choices or "maxMemoryPerDevice" in content


def read(source: Source) -> ModelSpec:
    """Read a Piper file; ``FILE#layers=64,max_devices=512`` changes what it says.

    The content becomes a `PiperInstance`, a graph of its layers, and the flat cluster it describes.
    Raises `InputError` when anything is missing, of the wrong kind or out of range; the message names node and field.

    Notes
    -----
    After ``#`` stand ``layers`` (repeat transformer layers until there are so many), ``max_devices``, ``n_microbatches``,
    ``bandwidth``, ``memory`` (in place of the file's) and the fields of `Counting`. A search writes there what its options
    changed, so that a plan file says which question it answers.
    """
    place = str(source.path or source.spec)
    content = source.json
    instance = _instance(content, place)
    name = Path(place).stem
    if source.fragment:
        instance = _changed(instance, source.fragment, f"{place}#{source.fragment}")
        name += f" with {source.fragment.replace(',', ', ')}"
    try:
        graph = graph_of(instance, name)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    cluster = flat_cluster(instance)
    return ModelSpec(
        name, "piper_json", source.spec, graph, instance, cluster, costs="piper", search="piper", notes=_warnings(instance)
    )


def _changed(instance: PiperInstance, fragment: str, place: str) -> PiperInstance:
    """Return the instance with what stands after ``#`` in the file's name."""
    limits = {
        "max_devices": "n_devices",
        "n_microbatches": "n_microbatches",
        "bandwidth": "bandwidth",
        "memory": "memory_bytes",
    }
    flags = {field.name: field.type for field in dataclasses.fields(Counting)}
    for part in fragment.split(","):
        key, _, text = part.partition("=")
        if key not in ("layers", *limits, *flags):
            raise UnknownNameError(f"change in {place}", key, ("layers", *limits, *flags))
        if flags.get(key) == "bool":
            if text not in ("true", "false"):
                raise InputError(f"{place}: {key} is '{text}'; it must be true or false")
            instance = replace(instance, counting=replace(instance.counting, **{key: text == "true"}))
            continue
        whole = key in ("layers", "max_devices", "n_microbatches", "node_size")
        try:
            value: Any = int(text) if whole else float(text)
        except ValueError:
            raise InputError(f"{place}: {key} is '{text}'; it must be a {'whole ' if whole else ''}number") from None
        if not (math.isfinite(value) and value >= (1 if whole else SMALLEST)):
            raise InputError(f"{place}: {key} is {text}; it must be finite and at least {1 if whole else SMALLEST}")
        if key == "layers":
            instance = grow(instance, value)
        elif key in limits:
            instance = with_limits(instance, **{limits[key]: value})
        else:
            instance = replace(instance, counting=replace(instance.counting, **{key: value}))
    return instance


def _warnings(instance: PiperInstance) -> tuple[str, ...]:
    """Name the nodes that cannot run on one device, and times that are hardly seconds."""
    notes = []
    lacking = [str(node.id) for node in instance.nodes if not node.at(1)]
    if lacking:
        some = ", ".join(lacking[:8]) + (", ..." if len(lacking) > 8 else "")
        notes.append(f"nodes without a choice at tensor degree 1: {some}")
    sample = sum(min(choice.seconds for choice in node.at(1)) for node in instance.nodes if node.at(1))
    if sample > LONG_SECONDS:
        notes.append(
            f"times are taken as seconds, and one micro-batch takes {sample:.4g} of them on one device: the format names no "
            "unit; where the file has milliseconds, steps are a thousand times shorter, and transfers, in bytes per second, "
            "count for too little"
        )
    return tuple(notes)


def graph_of(instance: PiperInstance, name: str) -> Graph:
    """Return the layers of an instance as a graph (two bytes per element, as measured in the published files).

    Raises `InputError` when the edges form a cycle.
    """
    ops = tuple(Op(unique, node.name or "layer") for unique, node in zip(names(instance), instance.nodes, strict=True))
    edges = tuple(Edge(edge.source, edge.target, round(edge.bytes / 2)) for edge in instance.edges)
    return Graph(name, ops, edges, tokens_name="")


def flat_cluster(instance: PiperInstance) -> Cluster:
    """Return the instance's devices behind one switch, every link at its bandwidth."""
    n = instance.n_devices
    import numpy as np

    devices = np.arange(n, dtype=np.int64)
    switch = np.full(n, n, dtype=np.int64)
    kind = Device("device of a Piper file", (), instance.memory_bytes, 0.0, launch_seconds=0.0, source="the file itself")
    links = Links(
        np.concatenate([devices, switch]),
        np.concatenate([switch, devices]),
        np.full(2 * n, instance.bandwidth),
        np.zeros(2 * n),
    )
    return Cluster(f"flat:{n}", (kind,), np.zeros(n, dtype=np.int64), 1, links, devices[None, :], source="the Piper file")


def _instance(content: dict[str, Any], place: str) -> PiperInstance:
    """Check the whole object and return its content."""
    fields.entry(content, place, _TOP, ("maxMemoryPerDevice", "maxDevices", "bandwidth", "nodes", "edges"))
    batches = {name: fields.whole(content[name], f"{place}: {name}", minimum=1) for name in _TOP[2:4] if name in content}
    if not batches:
        raise InputError(
            f"{place}: the field mbsInBatch (or maxBatchSize) is missing; it is the number of micro-batches, at least 1"
        )
    if len(set(batches.values())) > 1:
        raise InputError(
            f"{place}: mbsInBatch is {batches['mbsInBatch']} but maxBatchSize is {batches['maxBatchSize']}; "
            "they are two names of one number: keep one"
        )
    entries, links = (fields.items(content[name], f"{place}: {name}", at_least=1) for name in ("nodes", "edges"))
    position = _positions(entries, place)
    edges = _edges(links, position, place)
    ids = [str(node_id) for node_id in position]
    tails: list[dict[str, int]] = [{} for _ in ids]
    heads: list[dict[str, int]] = [{} for _ in ids]
    for edge in edges:
        heads[edge.source][ids[edge.target]] = edge.target
        tails[edge.target][ids[edge.source]] = edge.source
    nodes = tuple(_node(entry, tails[i], heads[i], place) for i, entry in enumerate(entries))
    return PiperInstance(
        nodes,
        edges,
        fields.whole(content["maxDevices"], f"{place}: maxDevices", minimum=1, maximum=LARGEST),
        next(iter(batches.values())),
        fields.number(content["bandwidth"], f"{place}: bandwidth", minimum=SMALLEST),
        fields.number(content["maxMemoryPerDevice"], f"{place}: maxMemoryPerDevice", minimum=SMALLEST),
    )


def _positions(entries: list[Any], place: str) -> dict[int, int]:
    """Return the position of every node id."""
    position: dict[int, int] = {}
    for i, entry in enumerate(entries):
        entry_place = f"{place}: nodes[{i}]"
        node_id = fields.whole(fields.entry(entry, entry_place, _NODE, ("id", "TMPCs"))["id"], f"{entry_place}: id")
        if node_id in position:
            raise InputError(f"{entry_place}: the id {node_id} is that of nodes[{position[node_id]}] too; ids must be unique")
        position[node_id] = i
    return position


def _edges(entries: list[Any], position: dict[int, int], place: str) -> tuple[PiperEdge, ...]:
    """Return the edges by position of their ends."""
    edges = []
    seen: set[tuple[int, int]] = set()
    for i, entry in enumerate(entries):
        entry_place = f"{place}: edges[{i}]"
        fields.entry(entry, entry_place, _EDGE, _EDGE)
        ends = []
        for name in ("sourceId", "destId"):
            node_id = fields.whole(entry[name], f"{entry_place}: {name}")
            if node_id not in position:
                raise InputError(f"{entry_place}: {name} is {node_id}, but no node has that id")
            ends.append(position[node_id])
        entry_place += f" ({entry['sourceId']} -> {entry['destId']})"
        if ends[0] == ends[1]:
            raise InputError(f"{entry_place}: leads from a node to itself, which is a cycle; remove it")
        if (ends[0], ends[1]) in seen:
            raise InputError(f"{entry_place}: is given twice; add up the bytes and keep one")
        seen.add((ends[0], ends[1]))
        n_bytes = fields.number(entry["communicationCost"], f"{entry_place}: communicationCost", minimum=0, maximum=MOST)
        edges.append(PiperEdge(ends[0], ends[1], n_bytes))
    return tuple(edges)


def _node(entry: dict[str, Any], tails: dict[str, int], heads: dict[str, int], place: str) -> PiperNode:
    """Return one node with its choices."""
    entry_place = f"{place}: node {entry['id']}"
    name = fields.text(entry.get("name", ""), f"{entry_place}: name")
    menu = []
    for key, entries in fields.entry(entry["TMPCs"], f"{entry_place}: TMPCs").items():
        if not re.fullmatch(r"[1-9][0-9]{0,4}", key) or int(key) > LARGEST:
            raise InputError(
                f"{entry_place}: TMPCs has the key '{key}'; keys are tensor degrees, whole numbers from 1 to {LARGEST}"
            )
        spot = f"{entry_place}: TMPCs: {key}"
        listed = fields.items(entries, spot, of="choices")
        choices = tuple(_choice(choice, tails, heads, f"{spot}[{j}]") for j, choice in enumerate(listed))
        ids = [choice.id for choice in choices]
        for choice_id in ids:
            if ids.count(choice_id) > 1:
                raise InputError(f"{spot}: two choices have the id '{choice_id}'; ids must differ")
        menu.append((int(key), choices))
    return PiperNode(int(entry["id"]), name, tuple(sorted(menu)))


def _choice(entry: Any, tails: dict[str, int], heads: dict[str, int], place: str) -> PiperChoice:
    """Return one choice of one node at one degree."""
    fields.entry(entry, place, (*_CHOICE, "name"), _CHOICE)
    choice_id = fields.text(entry["id"], f"{place}: id", at_least=1)
    place += f" ('{choice_id}')"
    seconds, weight, activation, static = (
        fields.number(entry[name], f"{place}: {name}", minimum=0, maximum=MOST) for name in _CHOICE[1:5]
    )
    return PiperChoice(
        choice_id,
        seconds,
        weight,
        activation,
        static,
        _sync(entry["syncTimeFw"], tails, f"{place}: syncTimeFw", "tails of its incoming"),
        _sync(entry["syncTimeBw"], heads, f"{place}: syncTimeBw", "heads of its outgoing"),
    )


def _sync(table: Any, keys: dict[str, int], place: str, which: str) -> tuple[tuple[int, float], ...]:
    """Return sync bytes by position of the neighbour; the keys must be exactly the neighbours."""
    for key in fields.entry(table, place):
        if key not in keys:
            allowed = ", ".join(sorted(keys)) or "none"
            raise InputError(f"{place} has the key '{key}'; the keys are exactly the {which} edges: {allowed}")
    for key in keys:
        if key not in table:
            raise InputError(f"{place} lacks the key '{key}'; the keys are exactly the {which} edges")
    return tuple(
        sorted((keys[key], fields.number(value, f"{place}: {key}", minimum=0, maximum=MOST)) for key, value in table.items())
    )


def with_limits(
    instance: PiperInstance, *, n_devices: int = 0, n_microbatches: int = 0, bandwidth: float = 0.0, memory_bytes: float = 0.0
) -> PiperInstance:
    """Return the instance with other limits; 0 keeps the file's own.

    Raises `InputError` when one is out of the format's range.
    """
    if n_devices > LARGEST:
        raise InputError(f"max_devices is {n_devices}; it must be at least 1 and at most {LARGEST}")
    return replace(
        instance,
        n_devices=n_devices or instance.n_devices,
        n_microbatches=n_microbatches or instance.n_microbatches,
        bandwidth=bandwidth or instance.bandwidth,
        memory_bytes=memory_bytes or instance.memory_bytes,
    )
