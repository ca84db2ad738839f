"""The plan as JSON: what ``plan --json`` prints and ``--out`` writes, and how it is read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshwright.base import fields, files
from meshwright.base.errors import InputError
from meshwright.clusters import stored
from meshwright.core import plan_fields
from meshwright.core.cluster import Cluster
from meshwright.core.formatting import fullest, peak_margin, shown_risk, step_interval, utilization, utilization_causal
from meshwright.core.interval import COVERAGE_RATIO
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import MixedPrecision, ModelSpec
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy

__all__ = [
    "FORMAT",
    "FROZEN",
    "RINGS",
    "as_json",
    "cluster_from_json",
    "interval_json",
    "plan_from_json",
    "stage_json",
    "trained_part",
    "training_from_json",
    "write",
]

FROZEN = RINGS = True
"""The file holds the whole plan, and what is trained by the model's name."""

FORMAT = "meshwright/plan/1"


def stage_json(result: Result, plan: Plan, i: int) -> dict[str, Any]:
    """Return stage `i` of a plan as JSON-ready values."""
    stage, graph = plan.stages[i], result.problem.graph
    strategy = stage.strategy
    entry: dict[str, Any] = {
        "ops": [graph.ops[op].name for op in stage.ops],
        "devices": list(stage.devices),
        "data": strategy.data,
        "tensor": strategy.tensor,
        "context": strategy.context,
        "expert": strategy.expert,
        "sequence_parallel": strategy.sequence_parallel,
        "shard": strategy.shard,
        "shard_degree": strategy.shard_degree,
        "recompute": list(stage.recompute),
        "ring": list(stage.ring),
    }
    if strategy.context > 1:
        entry["context_exchange"] = strategy.context_exchange
    if strategy.offload != "none":
        entry["offload"] = strategy.offload
    if stage.choices:
        entry["choices"] = list(stage.choices)
    if result.timeline is not None and plan is result.plan:
        rank, cluster = plan.rank_of_stage()[i], result.problem.cluster
        entry["peak_bytes"] = result.timeline.peak_bytes[rank]
        entry["allocated_bytes"] = result.timeline.allocated_bytes[rank]
        entry["reserved_bytes"] = result.timeline.reserved_bytes[rank]
        entry["free_bytes"] = None
        if cluster is not None:
            from meshwright.sim import fits

            entry["free_bytes"] = fits.tightest(cluster, plan.ranks()[rank]).memory_bytes - entry["peak_bytes"]
    return entry


def as_json(result: Result) -> dict[str, Any]:
    """Return the answer as the JSON object of ``plan --json``.

    Returns: JSON-ready values, all numbers in base units at full precision.
    """
    answer, problem = result.answer, result.problem
    entry: dict[str, Any] = {
        "format": FORMAT,
        "model": _model_json(problem.model_spec),
        "cluster": _cluster_json(result),
        "search": result.search,
        "settings": dict(result.settings),
        "costs": problem.costs,
        "memory_risk": problem.memory_risk,
        "for": problem.framework_asked or None,
        "framework": problem.framework.word or None,
        "runs_on": None,
        "seed": result.seed,
        "feasible": result.feasible,
        "objective": None if answer.objective is None else {"name": answer.objective.name, "value": answer.objective.value},
        "bound": None,
        "step_seconds": None,
        "samples_per_second": None,
        "tokens_per_second": None,
        "model_flops_utilization_ratio": None,
        "model_flops_utilization_causal_ratio": None,
        "stages": [],
        "schedule": None,
        "planning_seconds": result.planning_seconds,
        "iterations": None if answer.n_iterations < 0 else answer.n_iterations,
        "lengths": None,
        "notes": list(answer.notes),
    }
    if answer.bound is not None and answer.objective is not None:
        gap = answer.bound.gap_ratio(answer.objective)
        entry["bound"] = {"value": answer.bound.value, "gap_ratio": gap, "method": answer.bound.method}
    if answer.plan is None:
        entry |= {"missing_bytes": answer.missing_bytes, "nearest": answer.nearest or None}
        entry["infeasible_proven"] = answer.infeasible_proven
    else:
        entry |= _plan_json(result, answer.plan)
    entry |= _asked_json(result)
    entry["alternatives"] = [
        {
            "objective": {"name": other.objective.name, "value": other.objective.value},
            "why": other.why,
            "stages": [stage_json(result, other.plan, i) for i in range(len(other.plan.stages))],
            "schedule": _schedule_json(other.plan),
        }
        for other in answer.alternatives
    ]
    return entry | dict(answer.extra)


def _model_json(spec: ModelSpec) -> dict[str, Any]:
    """Return what it takes to read the model again."""
    part: dict[str, Any] = {"freeze": list(spec.freeze), "lora": spec.lora or None}
    part |= {"pairs_ratio": spec.pairs_ratio if spec.pairs_ratio != 1.0 else None, "objective": spec.objective}
    entry = {"name": spec.name, "spec": spec.spec, "format": spec.format, "n_parameters": spec.graph.n_parameters}
    return (
        entry | {"n_trained_parameters": spec.graph.n_trained_parameters} | {key: value for key, value in part.items() if value}
    )


def trained_part(entry: dict[str, Any]) -> tuple[tuple[str, ...], str, str]:
    """Return which part of the model of a plan file is trained, and for what: patterns of what is frozen, adapters and the
    objective, as told.

    `entry`: checked by `meshwright.core.plan_fields.check`.
    """
    return tuple(entry["model"].get("freeze", ())), entry["model"].get("lora", ""), entry["model"].get("objective", "")


def _cluster_json(result: Result) -> dict[str, Any] | None:
    """Return the cluster: its name, and what it takes to have it again.

    ``origin`` is ``name`` where the name says it all, ``question`` where the model's file or the settings hold the cluster,
    ``content`` where it is written out as in a cluster file, and ``elsewhere`` where it is none of these.
    """
    cluster, asked = result.problem.cluster, result.asked or result.problem
    if cluster is None:
        return None
    entry: dict[str, Any] = {"name": cluster.name, "n_devices": cluster.n_devices}
    if asked.cluster is None or asked.cluster is asked.model_spec.cluster:
        return entry | {"origin": "question"}
    if stored.is_named(cluster):
        return entry | {"origin": "name"}
    content = stored.content(cluster)
    return entry | ({"origin": "elsewhere"} if content is None else {"origin": "content", "content": content})


def cluster_from_json(entry: dict[str, Any], place: str) -> Cluster | str | None:
    """Return the cluster of a plan file: itself, its name, or None where the model's file or the settings hold it.

    Raises `InputError` when it is wrong, or lies elsewhere.
    """
    held = entry.get("cluster")
    if not held:
        return None
    origin = held.get("origin", "name")
    if origin == "question":
        return None
    if origin == "content":
        return stored.from_content(held.get("content"), f"{place}: cluster.content")
    if origin == "elsewhere":
        raise InputError(
            f"{place}: cluster '{held.get('name')}' was made in a program and lies in no file; name one: --cluster"
        )
    return str(held["name"])


def interval_json(result: Result) -> dict[str, Any]:
    """Return the fields on how far measured runs are from predictions; null where the model is not the one that was measured.

    `result`: a plan, played.
    Returns: ``step_interval`` and ``step_seconds_interval`` (the same ends, and what they rest on), ``peak_bytes_interval``.
    """
    steps, margin, peak = step_interval(result), peak_margin(result), fullest(result)
    entry: dict[str, Any] = {"step_interval": None, "step_seconds_interval": None, "peak_bytes_interval": None}
    if steps is not None:
        ends = {"coverage_ratio": COVERAGE_RATIO, "low_seconds": steps.low_seconds, "high_seconds": steps.high_seconds}
        entry["step_interval"] = ends
        entry["step_seconds_interval"] = ends | {"n_runs": steps.n_runs, "n_sets": steps.n_sets, "basis": steps.basis}
    if margin is not None and peak is not None:
        risk = shown_risk(result)
        entry["peak_bytes_interval"] = {
            "coverage_ratio": COVERAGE_RATIO,
            "low_bytes": margin.low_ratio * peak[0],
            "high_bytes": margin.high_ratio * peak[0],
            "most_ratio": 1.0 - risk,
            "most_bytes": margin.most_ratio(risk) * peak[0],
            "memory_bytes": peak[1],
            "memory_risk": result.problem.memory_risk,
            "basis": margin.words,
            "n_runs": margin.n_runs,
            "n_sets": margin.n_sets,
        }
    return entry


def _schedule_json(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.schedule,
        "n_microbatches": plan.n_microbatches,
        "micro_batch": plan.micro_batch,
        "global_batch": plan.global_batch,
    }


def _asked_json(result: Result) -> dict[str, Any]:
    """Return the part of the question that is no name: samples asked for, and what trains them."""
    asked, training = (result.asked or result.problem).batch, result.problem.training
    return {
        "batch": {
            "sequence_length": result.problem.graph.sequence_length,
            "asked_global_batch": asked.global_batch,
            "asked_micro_batch": asked.micro_batch,
        },
        "training": {name: getattr(training, name) for name in training.__dataclass_fields__},
    }


def training_from_json(entry: Mapping[str, Any]) -> MixedPrecision:
    """Return what trains the plan of a file: numbers and optimizer; those of today's default where the file says nothing.

    Raises `TypeError` or `ValueError` when a field is of the wrong kind.
    """
    known = MixedPrecision.__dataclass_fields__
    return MixedPrecision(**{key: value for key, value in entry.get("training", {}).items() if key in known})


def _plan_json(result: Result, plan: Plan) -> dict[str, Any]:
    """Return the fields that only a feasible answer has."""
    entry: dict[str, Any] = {
        "stages": [stage_json(result, plan, i) for i in range(len(plan.stages))],
        "schedule": _schedule_json(plan),
    }
    if result.timeline is not None:
        entry["step_seconds"] = result.timeline.step_seconds
        entry |= interval_json(result)
        entry["samples_per_second"] = plan.global_batch / result.timeline.step_seconds
        if result.problem.graph.sequence_length > 1:
            entry["tokens_per_second"] = entry["samples_per_second"] * result.problem.graph.n_tokens
        entry["model_flops_utilization_ratio"] = utilization(result)
        entry["model_flops_utilization_causal_ratio"] = utilization_causal(result)
        entry["causes"] = dict(result.timeline.causes)
    return entry


def plan_from_json(entry: dict[str, Any], names: dict[str, int], place: str) -> Plan:
    """Return the plan of a plan file.

    Raises `InputError` when a field is missing or of the wrong kind, or a layer is not in the model.
    """
    if not fields.of_format(entry, place, FORMAT, "a plan of ours").get("feasible"):
        raise InputError(f"{place}: holds the answer that nothing fits, so there is no plan to work with")
    plan_fields.check(entry, place)
    try:
        stages = []
        for i, stage in enumerate(entry["stages"]):
            unknown = [name for name in stage["ops"] if name not in names]
            if unknown:
                raise InputError(
                    f"{place}: stage {i}: the model has no layer '{unknown[0]}'; is this the plan of another model?"
                )
            strategy = Strategy(**{name: stage[name] for name in Strategy.__dataclass_fields__ if name in stage})
            ops, ring = tuple(names[name] for name in stage["ops"]), tuple(stage.get("ring", ()))
            choices = tuple(stage.get("choices", ()))
            stages.append(Stage(ops, tuple(stage["devices"]), strategy, tuple(stage["recompute"]), ring, choices))
            if ring and sorted(ring) != list(range(strategy.data)):
                raise InputError(f"{place}: stage {i}: ring {list(ring)} must name each of its {strategy.data} replicas once")
            if len(stage["devices"]) != strategy.n_devices:
                raise InputError(
                    f"{place}: stage {i}: {len(stage['devices'])} devices, but its degrees ask for {strategy.n_devices}"
                )
        schedule = entry["schedule"]
        return Plan(
            tuple(stages), schedule["n_microbatches"], schedule["micro_batch"], schedule["name"], schedule["global_batch"]
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None


def write(result: Result, path: str) -> None:
    """Write the answer to a file, whole or not at all."""
    files.write(path, json.dumps(as_json(result), indent=1) + "\n")
