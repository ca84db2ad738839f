"""The best sharding of every operator of a model on a device mesh, as an answer: plan, table, DTensor placements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.sharded.choices import Choice, placement
from meshwright.costs.sharded.problem import ShardingProblem

__all__ = ["nearest_plan", "operator_rows", "placements"]


def _degree(choice: Choice) -> str:
    """Return which degree of a `Strategy` a choice comes under."""
    if choice.name in ("batch", "batch, weights sharded", "experts"):
        return "data"
    return "context" if choice.name == "sequence" else "tensor"


def _ways(sharding: ShardingProblem, labels: NDArray[np.int64]) -> list[tuple[Choice, ...]]:
    return [made.choices[label] for made, label in zip(sharding.menus, labels.tolist(), strict=True)]


def operator_rows(sharding: ShardingProblem, labels: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return per operator its split in words and its seconds.

    `labels`, shape (n_operators,), int64: the way chosen for each operator.
    Returns: ``operator``, ``split`` (such as ``batch/8 out/8``), ``compute_seconds``, ``communication_seconds``
    (collectives inside it and exposed gradient reduction) and ``resharding_seconds`` (of its inputs and their gradients).
    They add up to the step.
    """
    moved = [0.0] * len(sharding.menus)
    problem = sharding.problem
    for e, wire in enumerate(sharding.wiring.wires):
        row, column = problem.rows[e][labels[wire.source]], problem.columns[e][labels[wire.target]]
        moved[wire.target] += float(problem.table(e)[row, column])
    rows = []
    for v, way in enumerate(_ways(sharding, labels)):
        parts = [f"{c.name}/{axis.size}" for c, axis in zip(way, sharding.costs.axes, strict=True) if c.axes]
        rows.append(
            {
                "operator": sharding.wiring.nodes[v].name,
                "split": " ".join(parts) or "none",
                "compute_seconds": float(sharding.menus[v].compute_seconds[labels[v]]),
                "communication_seconds": float(sharding.menus[v].communication_seconds[labels[v]]),
                "resharding_seconds": moved[v],
            }
        )
    return rows


def placements(sharding: ShardingProblem, labels: NDArray[np.int64]) -> dict[str, dict[str, list[str]]]:
    """Return the DTensor placements of what each operator reads, writes and holds, one per mesh axis.

    `labels`, shape (n_operators,), int64: the way chosen for each operator.
    Returns: operator to ``input``, ``output`` and, where it has one, ``weight``: ``Shard(i)``, ``Replicate()`` or
    ``Partial()`` per axis. Activations are (batch, sequence, hidden); weights as PyTorch keeps them, (out, in) and
    (vocabulary, hidden).
    """
    found = {}
    for node, way in zip(sharding.wiring.nodes, _ways(sharding, labels), strict=True):
        entry = {
            "input": [placement(choice.read, read=True) for choice in way],
            "output": [placement(choice.written) for choice in way],
        }
        if node.operator.n_parameters:
            entry["weight"] = [_weight_placement(choice) for choice in way]
        found[node.name] = entry
    return found


def _weight_placement(choice: Choice) -> str:
    """Return how one mesh axis lays out an operator's weight."""
    if choice.weights == "shard" or choice.name in ("out", "vocabulary", "experts"):
        return "Shard(0)"
    if choice.name in ("in", "hidden") and choice.weights == "split":
        return "Shard(1)" if choice.name == "in" else "Shard(0)"
    return "Replicate()"


def nearest_plan(problem: Problem, sharding: ShardingProblem, labels: NDArray[np.int64]) -> tuple[Plan, bool]:
    """Return the plan of one stage whose degrees come nearest to the sharding, and whether it fits the devices' memory.

    `labels`, shape (n_operators,), int64: the way chosen for each operator.

    Returns `plan`: every mesh axis becomes data, context or tensor parallel, by what most of the compute on it splits; data
    parallel axes that shard weights become ZeRO-3, within groups where others replicate. Where that does not fit, all data
    ranks shard, then more is recomputed; `fits`: whether the plan fits by the analytic cost model.
    """
    nearest, devices = _nearest_strategy(sharding, labels)
    batch, how = sharding.costs.batch, sharding.costs.recompute
    sharded = replace(nearest, shard=3 if nearest.data * nearest.context > 1 else 0, shard_degree=0)
    tries = [(nearest, how), (sharded, how), (sharded, "selective"), (sharded, "full")]
    plans = []
    for strategy, recompute in tries:
        if batch % strategy.data or analytic.illegal(problem, strategy, batch // strategy.data):
            continue
        plan = _plan(problem, strategy, devices, recompute, batch)
        if _fits(problem, plan):
            return plan, True
        plans.append(plan)
    if plans:
        return plans[0], False
    strategy = _fallback(problem, batch, len(devices))
    plan = _plan(problem, strategy, sorted(devices), how, batch)
    return plan, _fits(problem, plan)


def _nearest_strategy(sharding: ShardingProblem, labels: NDArray[np.int64]) -> tuple[Strategy, list[int]]:
    """Return degrees by vote of the operators on every mesh axis, and the devices in mesh order data, context, tensor."""
    sizes = [axis.size for axis in sharding.costs.axes]
    votes: list[dict[str, float]] = [{"context": 0.0, "data": 0.0, "tensor": 0.0} for _ in sizes]
    weights: list[dict[str, int]] = [dict.fromkeys(("partial", "same", "shard", "split"), 0) for _ in sizes]
    experts = [False] * len(sizes)
    split_norms = [False] * len(sizes)
    for v, way in enumerate(_ways(sharding, labels)):
        operator = sharding.wiring.nodes[v].operator
        for d, choice in enumerate(way):
            votes[d][_degree(choice)] += float(sharding.menus[v].compute_seconds[labels[v]])
            weights[d][choice.weights] += operator.n_parameters
            experts[d] |= choice.name == "experts" and operator.kind == "grouped_matmul"
            split_norms[d] |= choice.name != "none" and operator.kind == "norm"
    kinds = [max(vote, key=vote.__getitem__) for vote in votes]
    degree = dict.fromkeys(("data", "context", "tensor"), 1)
    shards, expert = 1, 1
    for d, kind in enumerate(kinds):
        degree[kind] *= sizes[d]
        shards *= sizes[d] if kind == "data" and weights[d]["shard"] > weights[d]["partial"] else 1
        expert *= sizes[d] if kind != "tensor" and experts[d] else 1
    strategy = Strategy(
        degree["data"], degree["tensor"], degree["context"], expert=expert,
        sequence_parallel=degree["tensor"] > 1 and all(split_norms[d] for d, kind in enumerate(kinds) if kind == "tensor"),
        shard=3 if shards > 1 else 0, shard_degree=shards if 1 < shards < degree["data"] else 0,
    )  # fmt: skip
    order = [d for word in ("data", "context", "tensor") for d, kind in enumerate(kinds) if kind == word]
    return strategy, np.arange(int(np.prod(sizes))).reshape(sizes).transpose(order).ravel().tolist()


def _plan(problem: Problem, strategy: Strategy, devices: list[int], recompute: str, batch: int) -> Plan:
    n_ops = len(problem.graph.ops)
    stage = Stage(tuple(range(n_ops)), tuple(devices[: strategy.n_devices]), strategy, (recompute,) * n_ops)
    return Plan((stage,), n_microbatches=1, micro_batch=max(1, batch // strategy.data), global_batch=batch)


def _fits(problem: Problem, plan: Plan) -> bool:
    """Say whether a plan of one stage fits the memory of its devices."""
    peak_bytes = sim.simulate(problem, plan, analytic.stage_costs(problem, plan)).peak_bytes
    return sim.excess_bytes(problem, plan, peak_bytes) <= 0.0


def _fallback(problem: Problem, batch: int, n_devices: int) -> Strategy:
    """Return the most data parallel strategy of all devices that is legal, or of as many devices as one can use."""
    for data in range(n_devices, 0, -1):
        if n_devices % data or batch % data:
            continue
        for strategy in (Strategy(data, n_devices // data), Strategy(data)):
            if not analytic.illegal(problem, strategy, batch // data):
                return strategy
    return Strategy()
