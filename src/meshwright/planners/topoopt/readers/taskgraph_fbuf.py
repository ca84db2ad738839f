"""Task graphs of FlexNet (FlatBuffers): one training step as tasks on servers, with the network it was planned for."""

from __future__ import annotations

from collections import Counter

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Links
from meshwright.core.graph import Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source
from meshwright.core.timeline import PlayedGraph
from meshwright.planners.topoopt.task_graphs.flatbuffer import Table, root
from meshwright.planners.topoopt.task_graphs.graph import MILLISECOND, TYPES, FlexNetTask, TaskGraph

__all__ = ["parse", "play", "read", "recognises"]


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
    place = str(source.path)
    found = parse(source.content, place)
    names = Counter[str]()
    ops = []
    for name in found.operators or tuple(f"operator.{i}" for i in range(1)):
        names[name] += 1
        ops.append(Op(name if names[name] == 1 else f"{name}.{names[name]}", "operator"))
    counts = Counter(task.kind for task in found.tasks)
    note = "a task graph: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return ModelSpec(
        name=place, format="taskgraph_fbuf", spec=source.spec, graph=Graph(place, tuple(ops), tokens_name=""), instance=found,
        cluster=_cluster(found, place), notes=(note,),
    )  # fmt: skip


def play(model_spec: ModelSpec, cluster: Cluster | None = None, seed: int = 0) -> PlayedGraph:
    """Play the training step that a file holds, on a cluster or on the network of the file.

    Parameters
    ----------
    model_spec : ModelSpec
        As `read` returns it.
    cluster : Cluster, optional
        Where; server i of the file is its device i. The file's own network otherwise, with the rings that the file names.
    seed : int
        Of the draw among the shortest paths of each transfer.

    Returns
    -------
    PlayedGraph
        How long it took and what was busy.

    Raises
    ------
    InputError
        When the file names no network and none is given, or `meshwright.planners.topoopt.task_graphs.played.play` refuses.
    """
    from meshwright.planners.topoopt.task_graphs import played

    graph, place = model_spec.instance, cluster or model_spec.cluster
    assert isinstance(graph, TaskGraph)
    if place is None:
        raise InputError(f"{model_spec.name}: holds no network with a speed; name a cluster with --cluster")
    return played.play(graph, place, seed, has_rings=cluster is None)


def parse(content: bytes, place: str) -> TaskGraph:
    """Return the content of a task graph file.

    Raises `InputError` when it is cut off, or a task names a device or a task that does not exist.
    """
    table = root(content, place)
    tasks = tuple(_task(entry, place) for entry in table.tables(8))
    if not tasks:
        raise InputError(f"{place}: has no tasks")
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
    _check(graph, place)
    return graph


def _task(entry: Table, place: str) -> FlexNetTask:
    kind = entry.integer(0, "<h")
    if not 0 <= kind < len(TYPES):
        raise InputError(f"{place}: a task has type {kind}; types are 0..{len(TYPES) - 1}")
    return FlexNetTask(
        TYPES[kind], entry.integer(1, "<Q"), entry.integer(2, "<Q"), (float(entry.scalar(3, "<f")),), entry.integer(4, "<Q"),
        entry.numbers(5, "Q"),
    )  # fmt: skip


def _check(graph: TaskGraph, place: str) -> None:
    """Check that everything named exists."""
    known = {task.identity for task in graph.tasks}
    devices = {device[1] for device in graph.devices}
    n_nodes = graph.n_servers + graph.n_switches
    for task in graph.tasks:
        if devices and task.kind != "all_reduce" and task.device not in devices:
            raise InputError(f"{place}: task {task.identity} runs on device {task.device}, which the file does not list")
        for other in task.following:
            if task.kind == "all_reduce" and other >= n_nodes:
                raise InputError(
                    f"{place}: all-reduce {task.identity} names server {other}; servers are 0..{graph.n_servers - 1}"
                )
            if task.kind != "all_reduce" and other not in known:
                raise InputError(f"{place}: task {task.identity} is followed by task {other}, which the file does not list")
    for a, b, _ in graph.connections:
        if max(a, b) >= n_nodes:
            raise InputError(f"{place}: connection {a} - {b}: nodes are 0..{n_nodes - 1}")


def _cluster(graph: TaskGraph, place: str) -> Cluster | None:
    """Return the network, where the file says its speed."""
    import numpy as np

    from meshwright.clusters import wires

    rate = graph.bytes_per_millisecond[2] / MILLISECOND
    if rate <= 0 or not graph.connections:
        return None
    a, b, count = (np.array(column) for column in zip(*graph.connections, strict=True))
    fast = np.tile(count * rate, 2)
    links = Links(np.concatenate([a, b]), np.concatenate([b, a]), fast, np.zeros(len(fast)))
    n = graph.n_servers
    return Cluster(
        name=place, kinds=(wires.device("a100-sxm-40gb"),), kind_of_device=np.zeros(n, dtype=np.int64),
        n_switches=graph.n_switches,
        links=links, groups=np.arange(n)[None], source=f"{place}; one device stands for a server; its kind is assumed",
    )  # fmt: skip
