"""Writer of Piper's JSON: an instance as it was read, or a model of ours priced layer by layer, for the original program."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from meshwright import sim
from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.profiled.readers.profile_json import Profile
from meshwright.planners.piper.measured import piper_instance
from meshwright.planners.piper.menu import RECOMPUTES, VANILLA
from meshwright.planners.piper.problem import Counting, PiperChoice, PiperEdge, PiperInstance, PiperNode

__all__ = ["instance_json", "instance_of_model", "write"]


MOST_DEVICES, MOST_CHOICES = 10_000, 2
"""What the original program accepts."""


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the question of a result as a Piper file, whole or not at all.

    `result` is of a Piper file, with the options given, of a measured profile, or of a model of ours on a cluster, whose layers
    are priced by the analytic cost model at the micro-batch of the plan. Returns what the original program will not do with the
    file.
    Raises `ExportError` when the model has no costs, no two layers exchange anything (the format needs an edge), or costs are
    counted in a way that the format has no field for.
    """
    instance = result.problem.model_spec.instance
    notes: list[str] = []
    if isinstance(instance, Profile):
        instance = piper_instance(result.problem, result.answer.plan.micro_batch if result.answer.plan is not None else 1)
    if not isinstance(instance, PiperInstance):
        plan = result.answer.plan
        instance = instance_of_model(result.problem, plan.micro_batch if plan is not None else 1)
        if result.problem.cluster is not None and result.problem.cluster.n_devices > MOST_DEVICES:
            notes.append(f"the format ends at {MOST_DEVICES} devices, the cluster has {result.problem.cluster.n_devices}")
    elif instance.counting != Counting():
        asked = [name for name in Counting.__dataclass_fields__ if getattr(instance.counting, name)]
        raise ExportError(
            f"piper_json: has no field for {', '.join(asked)}, which the plan counts; plan without to have what the original "
            "counts"
        )
    else:
        kept = {
            key: value for key, value in result.settings.items() if key in ("data_parallel", "tensor_parallel", "recompute")
        }
        notes += [f"{key}={value} is no part of the file: give it again when planning" for key, value in kept.items()]
    crowded = sum(len(choices) > MOST_CHOICES for node in instance.nodes for _, choices in node.choices)
    if crowded:
        notes.append(
            f"{crowded} lists of choices have more than {MOST_CHOICES}, which the original program refuses and ours accepts"
        )
    files.write(path, json.dumps(instance_json(instance), indent=1) + "\n")
    return tuple(notes)


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

    `problem`: a model with operators on a cluster.
    Raises `ExportError` when the model has no operators or no edges, or there is no cluster.

    Notes
    -----
    Piper reduces gradients with 4 (d - 1) / d of its weight bytes, a ring with 2 (d - 1) / d of the gradients': half of the
    gradient bytes are written as weight bytes. One bandwidth serves all links: the slowest link's. Working memory is needed
    once per stage, whatever its layers: that of the repeated layers is taken off the devices' memory, what a layer needs beyond
    it is fixed memory of that layer.
    """
    graph, cluster = problem.graph, problem.cluster
    if cluster is None or not any(op.body for op in graph.ops):
        raise ExportError("piper_json: needs a model with operators on a cluster, or an instance read from such a file")
    if not graph.edges:
        raise ExportError("piper_json: the format needs at least one edge, and the model has none")
    node_size = int(np.bincount(cluster.node_of_device).max())
    widths = [2**i for i in range(node_size.bit_length()) if 2**i <= min(node_size, cluster.n_devices)]
    strategies = [Strategy(tensor=width, sequence_parallel=width > 1) for width in widths]
    strategies = [strategy for strategy in strategies if not analytic.illegal(problem, strategy, micro_batch)]
    if not strategies:
        raise ExportError(f"piper_json: no tensor degree is legal for {graph.name} at {micro_batch} samples a micro-batch")
    rows = analytic.rows(problem)
    tables = [(s.tensor, analytic.row_costs(problem, s, range(s.n_devices), micro_batch)) for s in strategies]
    repeated = {row for row, count in Counter(rows).items() if count > 1} or set(rows)
    working = max(load.working_bytes for _, table in tables for (row, _), load in table.items() if row in repeated)
    memory = sim.free_bytes(cluster.kinds, problem.memory_ratio) - working
    if memory <= 0.0:
        raise ExportError(f"piper_json: a device cannot hold the working memory of one layer of {graph.name}")
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
                held = load.static_bytes + max(0.0, load.working_bytes - working)
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
        min(cluster.n_devices, MOST_DEVICES),
        max(1, total // micro_batch),
        float(cluster.links.bytes_per_second.min(initial=1e18)),
        memory,
    )
