"""Writer of Piper's JSON: an instance as it was read, or a model of ours priced layer by layer, for the original program."""

from __future__ import annotations

import json
from typing import Any

from meshwright import _files
from meshwright.costs import analytic
from meshwright.costs._piper_menu import RECOMPUTES, VANILLA
from meshwright.errors import ExportError
from meshwright.problem import Problem
from meshwright.readers._piper_instance import PiperChoice, PiperEdge, PiperInstance, PiperNode
from meshwright.readers.profile_json import Profile
from meshwright.result import Result
from meshwright.strategy import Strategy
from meshwright.writers._measured import piper_instance

__all__ = ["instance_json", "instance_of_model", "write"]


def write(result: Result, path: str) -> None:
    """Write the question of a result as a Piper file, whole or not at all.

    Parameters
    ----------
    result : Result
        The problem read from a Piper file, with the options given; a measured profile; or a model of ours on a cluster, whose layers
        are priced by the analytic cost model at the micro-batch of the plan.
    path : str
        The file.

    Raises
    ------
    ExportError
        When the model has no costs, or no two layers exchange anything (the format needs an edge).
    InputError
        When the file cannot be written.
    """
    instance = result.problem.reading.instance
    if isinstance(instance, Profile):
        instance = piper_instance(result.problem, result.plan.micro_batch if result.feasible else 1)
    if not isinstance(instance, PiperInstance):
        plan = result.answer.plan
        instance = instance_of_model(result.problem, plan.micro_batch if plan is not None else 1)
    _files.write(path, json.dumps(instance_json(instance), indent=1) + "\n")


def instance_json(instance: PiperInstance) -> dict[str, Any]:
    """Return an instance as the format's JSON object; reading it back gives the same instance."""
    ids = [node.id for node in instance.nodes]
    nodes = []
    for node in instance.nodes:
        menu = {}
        for degree, choices in node.choices:
            menu[str(degree)] = [
                {
                    "id": choice.id,
                    "timePerSample": choice.seconds,
                    "parameterSize": choice.weight_bytes,
                    "memoryUsageA": choice.activation_bytes,
                    "memoryUsageB": choice.static_bytes,
                    "syncTimeFw": {str(ids[u]): value for u, value in choice.sync_forward},
                    "syncTimeBw": {str(ids[x]): value for x, value in choice.sync_backward},
                }
                for choice in choices
            ]
        nodes.append({"id": node.id, "name": node.name, "TMPCs": menu})
    return {
        "maxMemoryPerDevice": instance.memory_bytes,
        "maxDevices": instance.n_devices,
        "mbsInBatch": instance.n_microbatches,
        "bandwidth": instance.bandwidth,
        "nodes": nodes,
        "edges": [
            {"sourceId": ids[edge.source], "destId": ids[edge.target], "communicationCost": edge.bytes}
            for edge in instance.edges
        ],
    }


def instance_of_model(problem: Problem, micro_batch: int) -> PiperInstance:
    """Return a model of ours in Piper's terms, with two choices per layer and tensor degree.

    Parameters
    ----------
    problem : Problem
        A model with operators on a cluster.
    micro_batch : int
        Samples of a micro-batch.

    Returns
    -------
    PiperInstance
        The instance.

    Raises
    ------
    ExportError
        When the model has no operators or no edges, or there is no cluster.

    Notes
    -----
    Piper reduces gradients with 4 (d - 1) / d of its weight bytes, a ring with 2 (d - 1) / d of the gradients': half of the
    gradient bytes are written as weight bytes. One bandwidth serves all links: the slowest link's.
    """
    graph, cluster = problem.graph, problem.cluster
    if cluster is None or not any(op.body for op in graph.ops):
        raise ExportError("piper_json: needs a model with operators on a cluster, or an instance read from such a file")
    if not graph.edges:
        raise ExportError("piper_json: the format needs at least one edge, and the model has none")
    node_size = max(list(cluster.node_of_device).count(group) for group in set(cluster.node_of_device.tolist()))
    widths = [2**i for i in range(node_size.bit_length()) if 2**i <= min(node_size, cluster.n_devices)]
    strategies = [Strategy(tensor=width, sequence_parallel=width > 1) for width in widths]
    strategies = [strategy for strategy in strategies if not analytic.illegal(problem, strategy, micro_batch)]
    rows = analytic.rows(problem)
    tables = [(s.tensor, analytic.row_loads(problem, s, range(s.n_devices), micro_batch)) for s in strategies]
    tails: list[list[int]] = [[] for _ in rows]
    heads: list[list[int]] = [[] for _ in rows]
    for edge in graph.edges:
        tails[edge.target].append(edge.source)
        heads[edge.source].append(edge.target)
    nodes = []
    for v, row in enumerate(rows):
        forward, backward = tuple((u, 0.0) for u in sorted(tails[v])), tuple((x, 0.0) for x in sorted(heads[v]))
        menu = []
        for degree, table in tables:
            entries = []
            for name, word in ((VANILLA, "none"), (RECOMPUTES, "full")):
                load = table[row, word]
                seconds = load.forward_total_seconds + load.backward_total_seconds
                held = load.static_bytes + load.working_bytes
                entries.append(
                    PiperChoice(name, seconds, load.gradient_bytes / 2.0, load.activation_bytes, held, forward, backward)
                )
            menu.append((degree, tuple(entries)))
        nodes.append(PiperNode(v, graph.ops[v].name, tuple(menu)))
    width = problem.training.activation_bytes
    edges = tuple(PiperEdge(e.source, e.target, float(e.n_elements) * micro_batch * width) for e in graph.edges)
    total = problem.batch.global_batch or micro_batch
    return PiperInstance(
        tuple(nodes),
        edges,
        min(cluster.n_devices, 10_000),
        max(1, total // micro_batch),
        float(cluster.links.bytes_per_second.min()),
        min(kind.memory_bytes - kind.reserved_bytes for kind in cluster.kinds),
    )
