"""Task graphs of FlexNet (FlatBuffers): one training step as tasks on servers, with the network it was planned for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Links
from meshwright.core.graph import Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.planners.topoopt.flatbuffer import Table, root

__all__ = ["TYPES", "FlexNetTask", "TaskGraph", "parse", "read", "recognises"]

TYPES = ("forward", "backward", "comm", "update", "barrier", "nominal_comm", "all_reduce")
"""What a task is; its code is the position."""

MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True)
class FlexNetTask:
    """One task.

    Parameters
    ----------
    kind : str
        One of `TYPES`.
    identity : int
        Its number in the file.
    device : int
        Number of its device in the file.
    milliseconds : tuple of float
        One number: how long it computes (for an all-reduce: inside its servers first).
    transfer_bytes : int
        What it sends.
    following : tuple of int
        Numbers of the tasks that wait for it; of an all-reduce: the servers that take part.
    """

    kind: str
    identity: int
    device: int
    milliseconds: tuple[float]
    transfer_bytes: int
    following: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """A task graph file.

    Parameters
    ----------
    n_gpus, n_servers, n_switches : int
        Devices of a server, servers, switches.
    bytes_per_millisecond : tuple of (float, float, float)
        Inside a server, of its memory, of one network interface.
    connections : tuple of (int, int, int)
        Two nodes and the number of links between.
    operators : tuple of str
        Names.
    tasks : tuple of FlexNetTask
        The tasks.
    devices : tuple of (int, int, int, int)
        Type, number, node, property of each device.
    routes : tuple of (int, int, tuple of tuple of int)
        Two nodes and the nodes of each path.
    rings : tuple of (int, tuple of tuple of int)
        Group size, and the jumps of each path from a member to the next.
    """

    n_gpus: int
    n_servers: int
    n_switches: int
    bytes_per_millisecond: tuple[float, float, float]
    connections: tuple[tuple[int, int, int], ...]
    operators: tuple[str, ...]
    tasks: tuple[FlexNetTask, ...]
    devices: tuple[tuple[int, int, int, int], ...]
    routes: tuple[tuple[int, int, tuple[tuple[int, ...], ...]], ...]
    rings: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]


def recognises(source: Source) -> bool:
    """Return whether the content is a buffer whose root table has tasks and nodes."""
    try:
        content = source.content
        if content is None or source.text is not None or len(content) < 64:
            return False
        table = root(content, source.spec)
        return table.integer(1, "<I") > 0 and bool(table.tables(8)[:1])
    except (InputError, MemoryError):
        return str(source.path or "").endswith(".fbuf")


def read(source: Source) -> ModelSpec:
    """Return the operators of a task graph, the graph itself, and its network.

    Raises `InputError` when the file is cut off, or a task names a device or a task that does not exist.
    """
    if source.content is None:
        raise InputError(f"{source.spec}: no such file")
    where = str(source.path)
    found = parse(source.content, where)
    names = Counter[str]()
    ops = []
    for name in found.operators or tuple(f"operator.{i}" for i in range(1)):
        names[name] += 1
        ops.append(Op(name if names[name] == 1 else f"{name}.{names[name]}", "operator"))
    counts = Counter(task.kind for task in found.tasks)
    note = "a task graph: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return ModelSpec(
        name=where, format="taskgraph_fbuf", spec=source.spec, graph=Graph(where, tuple(ops), tokens_name=""), instance=found,
        cluster=_cluster(found, where), notes=(note,),
    )  # fmt: skip


def parse(content: bytes, where: str) -> TaskGraph:
    """Return the content of a task graph file.

    Raises `InputError` when it is cut off, or a task names a device or a task that does not exist.
    """
    table = root(content, where)
    tasks = tuple(_task(entry, where) for entry in table.tables(8))
    if not tasks:
        raise InputError(f"{where}: has no tasks")
    graph = TaskGraph(
        n_gpus=table.integer(0, "<I"),
        n_servers=table.integer(1, "<I"),
        n_switches=table.integer(2, "<I"),
        bytes_per_millisecond=(float(table.scalar(3, "<f")), float(table.scalar(4, "<f")), float(table.scalar(5, "<f"))),
        connections=tuple((c.integer(0, "<I"), c.integer(1, "<I"), c.integer(2, "<I")) for c in table.tables(6)),
        operators=tuple(op.text(2) for op in table.tables(7)),
        tasks=tasks,
        devices=tuple(
            (d.integer(0, "<h"), d.integer(1, "<Q"), d.integer(2, "<Q"), d.integer(3, "<Q")) for d in table.tables(9)
        ),
        routes=tuple(
            (r.integer(0, "<I"), r.integer(1, "<I"), tuple(path.numbers(0, "I") for path in r.tables(2)))
            for r in table.tables(10)
        ),
        rings=tuple((r.integer(0, "<Q"), tuple(path.numbers(0, "i") for path in r.tables(1))) for r in table.tables(11)),
    )
    _check(graph, where)
    return graph


def _task(entry: Table, where: str) -> FlexNetTask:
    kind = entry.integer(0, "<h")
    if not 0 <= kind < len(TYPES):
        raise InputError(f"{where}: a task has type {kind}; types are 0..{len(TYPES) - 1}")
    return FlexNetTask(
        TYPES[kind], entry.integer(1, "<Q"), entry.integer(2, "<Q"), (float(entry.scalar(3, "<f")),), entry.integer(4, "<Q"),
        entry.numbers(5, "Q"),
    )  # fmt: skip


def _check(graph: TaskGraph, where: str) -> None:
    """Check that everything named exists."""
    known = {task.identity for task in graph.tasks}
    devices = {device[1] for device in graph.devices}
    n_nodes = graph.n_servers + graph.n_switches
    for task in graph.tasks:
        if devices and task.kind != "all_reduce" and task.device not in devices:
            raise InputError(f"{where}: task {task.identity} runs on device {task.device}, which the file does not list")
        for other in task.following:
            if task.kind == "all_reduce" and other >= n_nodes:
                raise InputError(
                    f"{where}: all-reduce {task.identity} names server {other}; servers are 0..{graph.n_servers - 1}"
                )
            if task.kind != "all_reduce" and other not in known:
                raise InputError(f"{where}: task {task.identity} is followed by task {other}, which the file does not list")
    for a, b, _ in graph.connections:
        if max(a, b) >= n_nodes:
            raise InputError(f"{where}: connection {a} - {b}: nodes are 0..{n_nodes - 1}")


def _cluster(graph: TaskGraph, where: str) -> Cluster | None:
    """Return the network, where the file says its speed."""
    from meshwright.clusters import wires

    rate = graph.bytes_per_millisecond[2] / MILLISECOND
    if rate <= 0 or not graph.connections:
        return None
    a, b, count = (np.array(column) for column in zip(*graph.connections, strict=True))
    fast = np.tile(count * rate, 2)
    links = Links(np.concatenate([a, b]), np.concatenate([b, a]), fast, np.zeros(len(fast)))
    n = graph.n_servers
    return Cluster(
        name=where, kinds=(wires.device("a100-sxm-40gb"),), kind_of_device=np.zeros(n, dtype=np.int64),
        n_switches=graph.n_switches,
        links=links, groups=np.arange(n)[None], source=f"{where}; one device stands for a server; its kind is assumed",
    )  # fmt: skip
