"""The best sharding of every operator of any of our models on a device mesh, under the memory of its devices."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright import sim
from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.core.strategy import RECOMPUTE
from meshwright.costs.sharded.operator import MeshCosts
from meshwright.costs.sharded.problem import ShardingProblem, mesh_axes, mesh_shape, problem_of
from meshwright.costs.sharded.wiring import wire
from meshwright.network.numbering import unlike_links
from meshwright.planners.pase.our_answer import nearest_plan, operator_rows, placements
from meshwright.solvers.mapping.search import pair_seconds
from meshwright.solvers.pairwise.budget import Budgeted, solve_within

__all__ = ["MeshSettings", "on_mesh", "sharding_problem"]


def sharding_problem(problem: Problem, shape: tuple[int, ...] = (), recompute: str = "none") -> ShardingProblem:
    """Return a model on a mesh over all devices of its cluster, ready to solve.

    `problem`: a model whose layers hold operators, a cluster of one kind of device, and a batch.
    `shape`: the mesh, outermost first; empty for nodes by devices of a node.
    `recompute`: ``none``, ``selective`` or ``full``.
    Raises `InputError` when there is no cluster, no operator, several kinds of device, or the shape does not fit.
    """
    cluster = problem.required_cluster
    if problem.costs != "analytic":
        raise InputError(f"search pase: on a cluster it prices operators by --costs analytic, not by {problem.costs}")
    if not cluster.homogeneous:
        raise InputError(f"search pase: cluster {cluster.name} has several kinds of device; it shards over one kind only")
    if not any(op.body for op in problem.graph.ops):
        raise InputError(f"search pase: {problem.model_spec.spec} tells totals of layers only, not the operators inside them")
    if problem.batch.micro_batch:
        raise InputError("--micro-batch: the operators are sharded for one micro-batch of the whole batch; use --global-batch")
    axes = mesh_axes(cluster, mesh_shape(cluster, shape))
    batch = problem.batch.global_batch or cluster.n_devices
    return problem_of(wire(problem.graph), MeshCosts(axes, cluster.device(0), problem.training, batch, recompute))


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """Options on a mesh.

    `shape`: the mesh, outermost first; empty for nodes by devices of a node.
    `memory_bytes`: most bytes a device may hold; None for its own memory.
    `recompute`: ``none``, ``selective``, ``full``, or ``auto`` for the quickest of them that fits.
    `gap_ratio`: how far from proven best an answer under the memory limit may stay.
    """

    shape: tuple[int, ...] = ()
    memory_bytes: float | None = None
    recompute: str = "auto"
    gap_ratio: float = 1e-3


def on_mesh(problem: Problem, settings: MeshSettings, stop: Stop) -> tuple[Answer, Graph]:
    """Return the best sharding of every operator, and the graph of operators.

    `settings`: mesh, memory limit, recomputation.
    `stop`: its seconds limit branching under the memory limit; 20 by default. Asked to stop, every way to recompute is still
    looked at, without branching, so that the bound holds.

    Returns `answer`: one stage on all devices; shardings, DTensor placements and seconds by operator in `Answer.extra`;
    `graph`: operators and tensors, for drawing.
    """
    best: tuple[ShardingProblem, Budgeted] | None = None
    bound, missing, phases = math.inf, math.inf, {"tables": 0.0, "solve": 0.0}
    graph: Graph | None = None
    for recompute in RECOMPUTE if settings.recompute == "auto" else (settings.recompute,):
        started = time.perf_counter()
        sharding = sharding_problem(problem, settings.shape, recompute)
        graph = graph or _graph(problem, sharding)
        limit = _limit_bytes(problem, sharding, settings)
        costed = time.perf_counter()
        found = solve_within(
            sharding.problem,
            sharding.held_bytes,
            limit,
            seconds=stop.seconds or 20.0,
            n_branches=32,
            gap_ratio=settings.gap_ratio,
            cutoff_value=math.inf if best is None else best[1].value,
            asked=stop.is_asked,
        )
        phases["tables"] += costed - started
        phases["solve"] += time.perf_counter() - costed
        if found is None:
            least = float(np.minimum.reduceat(sharding.held_bytes, sharding.problem.first[:-1]).sum())
            missing = min(missing, least - limit)
            continue
        bound = min(bound, found.bound_value)
        if best is None or found.value < best[1].value:
            best = sharding, found
        if found.multiplier_ratio == 0.0:
            break  # the limit does not bind: recomputing only adds work
    assert graph is not None
    if best is None:
        # the operators' leanest shardings together exceed the memory, whatever is recomputed
        nearest = "more devices, or a smaller --global-batch"
        return Answer(None, missing_bytes=missing, nearest=nearest, infeasible_proven=True), graph
    return _answer(problem, *best, bound, phases, settings), graph


def _limit_bytes(problem: Problem, sharding: ShardingProblem, settings: MeshSettings) -> float:
    free = sim.free_bytes((sharding.costs.device,), problem.memory_ratio)
    return free if settings.memory_bytes is None else settings.memory_bytes


def _answer(
    problem: Problem,
    sharding: ShardingProblem,
    found: Budgeted,
    bound_value: float,
    phases: dict[str, float],
    settings: MeshSettings,
) -> Answer:
    """Put the answer together."""
    plan, fits = nearest_plan(problem, sharding, found.labels)
    shape = " x ".join(str(axis.size) for axis in sharding.costs.axes)
    notes = [f"sharded operator by operator on a mesh of {shape} devices; the simulator plays the nearest uniform degrees"]
    if not fits:
        notes.append("no uniform degrees near the sharding fit the memory; the sharding itself does")
    notes += unlike_links(problem.required_cluster, pair_seconds)
    return Answer(
        plan, Objective("seconds_per_step", found.value), Bound(min(bound_value, found.value), found.method),
        notes=tuple(notes),
        extra=_extra(sharding, found, phases),
        certificate=_certificate(problem, sharding, found, _limit_bytes(problem, sharding, settings)),
    )  # fmt: skip


def _extra(sharding: ShardingProblem, found: Budgeted, phases: dict[str, float]) -> dict[str, Any]:
    """Return what the answer says beyond the plan."""
    rows = operator_rows(sharding, found.labels)
    return {
        "device_mesh": [axis.size for axis in sharding.costs.axes],
        "recompute": sharding.costs.recompute,
        "shardings": {
            node.name: [choice.name for choice in made.choices[label]]
            for node, made, label in zip(sharding.wiring.nodes, sharding.menus, found.labels.tolist(), strict=True)
        },
        "placements": placements(sharding, found.labels),
        "operators": rows,
        "held_bytes": found.used_bytes,
        "phases_seconds": phases,
    }


def _graph(problem: Problem, sharding: ShardingProblem) -> Graph:
    """Return operators and tensors as a graph, for drawing."""
    ops = tuple(Op(node.name, node.operator.kind) for node in sharding.wiring.nodes)
    edges = tuple(Edge(wire.source, wire.target, wire.n_elements) for wire in sharding.wiring.wires)
    return Graph(problem.model_spec.name, ops, edges)


def _certificate(problem: Problem, sharding: ShardingProblem, found: Budgeted, limit_bytes: float) -> dict[str, Any]:
    """Return the certificate: the question, the ways chosen, their cost, the bound, and the messages that prove it."""
    bound = found.bound_value
    if found.multiplier_ratio > 0:
        bound = min(found.relaxed.bound_value - found.multiplier_ratio * limit_bytes, found.value)
    elif found.method == "highs":
        bound = found.relaxed.relaxation.bound_value
    return {
        "format": "meshwright/certificate/1",
        "kind": "sharding",
        "question": {
            "model": problem.model_spec.spec,
            "sequence_length": problem.batch.sequence_length,
            "cluster": problem.required_cluster.name,
            "mesh": [axis.size for axis in sharding.costs.axes],
            "batch": sharding.costs.batch,
            "precision": problem.training.precision,
            "recompute": sharding.costs.recompute,
            "memory_bytes": limit_bytes,
        },
        "shardings": [[c.name for c in made.choices[x]] for made, x in zip(sharding.menus, found.labels.tolist(), strict=True)],
        "value": found.value,
        "bound": bound,
        "multiplier": found.multiplier_ratio,
        "to_source": [message.tolist() for message in found.relaxed.relaxation.to_row],
        "to_target": [message.tolist() for message in found.relaxed.relaxation.to_column],
    }
