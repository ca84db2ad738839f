"""From the validated content of a cluster file to a `Cluster`, and back."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base import units
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.clusters.file_fields import ClusterFile, KindEntry, NodeEntry
from meshwright.clusters.wires import check_count, device, device_names
from meshwright.core import connected
from meshwright.core.cluster import Cluster, Device, Host, Links

__all__ = ["assemble", "disassemble"]

_HOST = ("host_link", "host_memory", "host_memory_bandwidth")

ALGORITHMS = (
    "ring", "bidirectional_ring", "packed_rings", "tree", "halving_doubling", "hierarchical", "dimension_rings", "direct",
    "in_switch",
)  # fmt: skip
"""Algorithms of collectives that a cluster may name, as `meshwright.network.collectives` has them."""


def assemble(file: ClusterFile, place: str) -> Cluster:
    """Return the cluster that a file describes.

    Returns: devices in the order of the nodes.
    Raises `InputError` when a name is not known or used twice, a quantity does not parse, or devices cannot reach each other.
    """
    nodes = _named_nodes(file, place)
    check_count(sum(len(node.devices) for _, node in nodes), place)
    kinds, kind_of_device = _kinds(file, nodes, place)
    devices = [f"{name}/{i}" for name, node in nodes for i in range(len(node.devices))]
    switches = [name for name, node in nodes if node.switch is not None] + list(file.switches)
    ids: dict[str, int] = {}
    for i, name in enumerate(devices + switches):
        if name in ids:
            raise InputError(f"{place}: the name '{name}' is given twice; names of nodes and switches must be unique")
        ids[name] = i
    columns: list[tuple[int, int, float, float]] = []
    _inner_links(nodes, ids, columns, place)
    _outer_links(file, ids, columns, place)
    source, target, rate, latency = (
        (np.array(column) for column in zip(*columns, strict=True)) if columns else (np.zeros(0),) * 4
    )
    node_of_device = np.repeat(np.arange(len(nodes)), [len(node.devices) for _, node in nodes])
    links = Links(source.astype(np.int64), target.astype(np.int64), rate, latency)
    apart = connected.fault((links.source, links.target), len(devices), len(switches), forwards=file.forwards, names=devices)
    if apart:
        raise InputError(f"cluster {file.name or place}: {apart}")  # by the names of the file
    return Cluster(
        name=file.name or place,
        kinds=kinds,
        kind_of_device=kind_of_device,
        n_switches=len(switches),
        links=links,
        groups=np.stack([node_of_device, *_levels(file, nodes, node_of_device, place)]),
        forwards=file.forwards,
        reconfiguration_seconds=units.parse(file.reconfiguration, "seconds", place=f"{place}: reconfiguration"),
        source=file.source or place,
        launch_seconds=units.parse(file.launch, "seconds", place=f"{place}: launch"),
        reduces_in_switch=file.reduces_in_switch,
        algorithms=_algorithms(file, place),
        devices_per_host=file.devices_per_host,
    )


def _named_nodes(file: ClusterFile, place: str) -> list[tuple[str, NodeEntry]]:
    """Return every node by its name, those with a count repeated."""
    found = []
    for i, node in enumerate(file.nodes):
        if not node.name or any(sign in node.name for sign in "*?[]/"):
            raise InputError(f"{place}: nodes[{i}]: name is '{node.name}'; it must not be empty or have any of * ? [ ] /")
        found += [(node.name, node)] if node.count is None else [(f"{node.name}-{k}", node) for k in range(node.count)]
    return found


def _kinds(file: ClusterFile, nodes: list[tuple[str, NodeEntry]], place: str) -> tuple[tuple[Device, ...], NDArray[np.int64]]:
    """Return the kinds of device in use, in the order of the file, and that of each device."""
    own = {name: _kind(name, entry, f"{place}: kinds: {name}") for name, entry in file.kinds.items()}
    index: dict[str, int] = {}
    kinds: list[Device] = []
    of_device = []
    for name, node in nodes:
        for word in node.devices:
            if word not in index:
                if word not in own and word.lower().replace("_", "-") not in device_names():
                    raise UnknownNameError(f"device kind for node '{name}' in {place}", word, (*own, *device_names()))
                index[word] = len(kinds)
                kinds.append(own[word] if word in own else device(word))
            of_device.append(index[word])
    return tuple(kinds), np.array(of_device, dtype=np.int64)


def _kind(name: str, entry: KindEntry, place: str) -> Device:
    """Return one kind of device of the file."""
    if entry.builtin:
        alone = replace(entry, host_link=None, host_memory=None, host_memory_bandwidth=None, host_source="")
        if alone != KindEntry(builtin=entry.builtin):
            raise InputError(f"{place}: has builtin and figures; give one or the other")
        return replace(device(entry.builtin), host=_host(entry, place))
    if entry.flops is None or entry.memory is None or entry.memory_bandwidth is None:
        lacking = next(name for name in ("flops", "memory", "memory_bandwidth") if getattr(entry, name) is None)
        raise InputError(f"{place}: the field '{lacking}' is missing (or name a built-in device: builtin: h100-sxm-80gb)")
    if not entry.flops:
        raise InputError(f"{place}: flops is empty; give at least one precision, for example bf16: 100 TFLOP/s")
    peaks = tuple(
        (key, units.parse(text, "flops_per_second", place=f"{place}: flops: {key}", exclusive=True))
        for key, text in entry.flops.items()
    )
    return Device(
        name=name,
        flops_per_second=peaks,
        memory_bytes=units.parse(entry.memory, "bytes", place=f"{place}: memory", exclusive=True),
        memory_bytes_per_second=units.parse(
            entry.memory_bandwidth, "bytes_per_second", place=f"{place}: memory_bandwidth", exclusive=True
        ),
        launch_seconds=units.parse(entry.launch, "seconds", place=f"{place}: launch"),
        reserved_bytes=units.parse(entry.reserved, "bytes", place=f"{place}: reserved"),
        source=entry.source,
        n_multiprocessors=entry.multiprocessors,
        matmul_ratio=entry.matmul_ratio,
        attention_ratio=entry.attention_ratio,
        memory_ratio=entry.memory_ratio,
        fp8_ratio=entry.fp8_ratio,
        fp4_ratio=entry.fp4_ratio,
        issue_seconds=units.parse(entry.issue, "seconds", place=f"{place}: issue"),
        attention_of=tuple((entry.attention_of or {}).items()),
        host=_host(entry, place),
    )


def _host(entry: KindEntry, place: str) -> Host | None:
    """Return what a device of a kind has of its host; None where the file does not say."""
    told = [name for name in _HOST if getattr(entry, name) is not None]
    if not told:
        return None
    lacking = [name for name in _HOST if name not in told]
    if lacking:
        raise InputError(f"{place}: the field '{lacking[0]}' is missing; {', '.join(_HOST)} are told together")
    dimensions = ("bytes_per_second", "bytes", "bytes_per_second")
    link, memory, bandwidth = (
        units.parse(getattr(entry, name), dimension, place=f"{place}: {name}", exclusive=True)
        for name, dimension in zip(_HOST, dimensions, strict=True)
    )
    return Host(link, bandwidth, memory, entry.host_source)


def _algorithms(file: ClusterFile, place: str) -> tuple[str, ...]:
    """Return the algorithms of collectives that a file allows; raises `UnknownNameError` for one that there is not."""
    for name in file.algorithms:
        if name not in ALGORITHMS:
            raise UnknownNameError(f"{place}: algorithms: algorithm", name, ALGORITHMS)
    return tuple(file.algorithms)


def _inner_links(
    nodes: list[tuple[str, NodeEntry]], ids: dict[str, int], columns: list[tuple[int, int, float, float]], place: str
) -> None:
    """Add the links between devices and the switch of their node."""
    for name, node in nodes:
        if node.switch is None:
            continue
        link_place = f"{place}: switch of node '{name}'"
        rate = units.parse(node.switch.bandwidth, "bytes_per_second", place=f"{link_place}: bandwidth", exclusive=True)
        latency_seconds = units.parse(node.switch.latency, "seconds", place=f"{link_place}: latency")
        for i in range(len(node.devices)):
            ends = ids[f"{name}/{i}"], ids[name]
            columns += [(*ends, rate, latency_seconds), (*ends[::-1], rate, latency_seconds)]


def _outer_links(file: ClusterFile, ids: dict[str, int], columns: list[tuple[int, int, float, float]], place: str) -> None:
    """Add the links that the file lists."""
    for k, link in enumerate(file.links):
        link_place = f"{place}: links[{k}]"
        rate = units.parse(link.bandwidth, "bytes_per_second", place=f"{link_place}: bandwidth", exclusive=True)
        latency_seconds = units.parse(link.latency, "seconds", place=f"{link_place}: latency")
        froms, tos = _matching(link.from_, ids, f"{link_place}: from"), _matching(link.to, ids, f"{link_place}: to")
        n_before = len(columns)
        for a in froms:
            for b in tos:
                if a == b:
                    continue
                columns.append((a, b, rate, latency_seconds))
                if not link.one_way:
                    columns.append((b, a, rate, latency_seconds))
        if len(columns) == n_before:
            raise InputError(f"{link_place}: joins '{link.from_}' only to itself; name two different ends")


def _matching(text: str, ids: dict[str, int], place: str) -> list[int]:
    """Return the ids of what a name or a shell pattern means."""
    if text in ids:
        return [ids[text]]
    found = [i for name, i in ids.items() if _alike(name, text)] if any(sign in text for sign in "*?[") else []
    if not found:
        raise UnknownNameError(f"device or switch at {place}", text, list(ids)[:50])
    return found


def _alike(name: str, pattern: str) -> bool:
    """Return whether a name matches a shell pattern whose signs do not reach over a slash."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _levels(
    file: ClusterFile, nodes: list[tuple[str, NodeEntry]], node_of_device: NDArray[np.int64], place: str
) -> list[NDArray[np.int64]]:
    """Return the group of each device on every level above the nodes."""
    names = [name for name, _ in nodes]
    levels = []
    for k, level in enumerate(file.groups):
        group_of: dict[str, int] = {}
        for g, members in enumerate(level):
            for text in members:
                matched = [name for name in names if fnmatch.fnmatchcase(name, text)]
                if not matched:
                    raise UnknownNameError(f"node at {place}: groups[{k}][{g}]", text, names[:50])
                for name in matched:
                    if name in group_of:
                        raise InputError(f"{place}: groups[{k}][{g}]: node '{name}' is in two groups of one level")
                    group_of[name] = g
        missing = next((name for name in names if name not in group_of), None)
        if missing is not None:
            raise InputError(f"{place}: groups[{k}]: node '{missing}' is in no group; every level must have all nodes")
        levels.append(np.array([group_of[name] for name in names])[node_of_device])
    return levels


def disassemble(cluster: Cluster) -> dict[str, Any]:
    """Return the content of a cluster file, every link by name.

    `cluster`: nodes must be runs of neighbouring device ids.
    Raises `InputError` when the devices of a node are not neighbours in the numbering, or two kinds have the same name.
    """
    node = cluster.node_of_device
    first = np.flatnonzero(np.diff(node, prepend=node[0] - 1))
    if len(np.unique(node)) != len(first):
        raise InputError(f"cluster {cluster.name}: cannot be written: devices of a node are not numbered one after the other")
    kinds = [kind.name for kind in cluster.kinds]
    if len(set(kinds)) != len(kinds):
        raise InputError(f"cluster {cluster.name}: cannot be written: two kinds of device have the same name")
    ends = [*first.tolist(), cluster.n_devices]
    name_of = [f"node-{k}/{i}" for k in range(len(first)) for i in range(ends[k + 1] - ends[k])]
    switches = [f"switch-{i}" for i in range(cluster.n_switches)]
    name_of += switches
    links = cluster.links
    columns = (links.source, links.target, links.bytes_per_second, links.latency_seconds)
    return {
        "name": cluster.name,
        "source": cluster.source,
        "forwards": cluster.forwards,
        "reduces_in_switch": cluster.reduces_in_switch,
        "algorithms": list(cluster.algorithms),
        "devices_per_host": cluster.devices_per_host,
        "launch": cluster.launch_seconds,
        "reconfiguration": cluster.reconfiguration_seconds,
        "kinds": {name: _kind_entry(kind) for name, kind in zip(kinds, cluster.kinds, strict=True)},
        "nodes": [
            {"name": f"node-{k}", "devices": [kinds[i] for i in cluster.kind_of_device[ends[k] : ends[k + 1]]]}
            for k in range(len(first))
        ],
        "switches": switches,
        "links": [
            {"from": name_of[a], "to": name_of[b], "bandwidth": rate, "latency": latency, "one_way": True}
            for a, b, rate, latency in zip(*(column.tolist() for column in columns), strict=True)
        ],
        "groups": [
            [[f"node-{k}" for k in np.flatnonzero(level[first] == g)] for g in np.unique(level).tolist()]
            for level in cluster.groups[1:]
        ],
    }


def _kind_entry(kind: Device) -> dict[str, Any]:
    """Return the figures of a kind of device."""
    host = kind.host
    of_host = {} if host is None else {
        "host_link": host.link_bytes_per_second,
        "host_memory": host.memory_bytes,
        "host_memory_bandwidth": host.memory_bytes_per_second,
        "host_source": host.source,
    }  # fmt: skip
    return {
        **of_host,
        "flops": dict(kind.flops_per_second),
        "memory": kind.memory_bytes,
        "memory_bandwidth": kind.memory_bytes_per_second,
        "launch": kind.launch_seconds,
        "reserved": kind.reserved_bytes,
        "multiprocessors": kind.n_multiprocessors,
        "matmul_ratio": kind.matmul_ratio,
        "attention_ratio": kind.attention_ratio,
        "memory_ratio": kind.memory_ratio,
        "fp8_ratio": kind.fp8_ratio,
        "fp4_ratio": kind.fp4_ratio,
        "issue": kind.issue_seconds,
        "attention_of": dict(kind.attention_of),
        "source": kind.source,
    }
