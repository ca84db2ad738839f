"""The one judge of plan files: is it a legal plan of this problem, does it fit, and what is its value?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright import api, sim
from meshwright.base import fields, files
from meshwright.base.errors import InputError, MeshwrightError
from meshwright.core import plan_fields
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.suite import BenchProblem, Judged, questions
from meshwright.writers import plan_json

__all__ = ["judge"]

_ROUNDING = 1e-9
_LARGEST_FILE_BYTES = 2**28


def judge(question: BenchProblem, path: str) -> Judged:
    """Return what a plan file is worth.

    Parameters
    ----------
    question : BenchProblem
        What was asked.
    path : str
        What the planner wrote.

    Returns
    -------
    Judged
        A value, or the reason why the plan is refused. Of the file only the plan is believed, and the bound is handed on.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fields of other programs in a plan file are none of the judge's business
            return _judged(question, path)
    except MeshwrightError as error:
        return Judged(refusal=" ".join(str(error).replace(path, "the plan file").split())[:300])


def _judged(question: BenchProblem, path: str) -> Judged:
    held = files.read_bytes(path)
    if len(held) > _LARGEST_FILE_BYTES:
        raise InputError(f"the plan file has {len(held)} bytes; a plan of this problem has far fewer")
    entry = fields.of_format(files.read_json(path), path, plan_json.FORMAT, "a plan of ours")
    told = entry.pop("problem", question.id)
    if told != question.id:
        raise InputError(f"it is the plan of problem {told!r}, not of {question.id}")
    if not isinstance(entry.get("feasible"), bool):
        raise InputError("its field 'feasible' must be true or false")
    if not entry["feasible"]:
        return Judged(nothing=True)
    plan_fields.check(entry, path)
    problem = questions.posed(question)
    _same_question(problem, entry)
    plan = plan_json.plan_from_json(entry, {op.name: i for i, op in enumerate(problem.graph.ops)}, path)
    if question.objective == "largest_load":
        from meshwright.planners.parmesan.operators import costed

        problem = costed(problem)
    sim.check_plan(problem, plan)
    value = _VALUES[question.objective](question, problem, plan, entry)
    if not (math.isfinite(value) and value > 0.0):
        raise InputError(f"its value is {value!r}, which no plan has")
    objective, bound = entry.get("objective"), entry.get("bound")
    told = bound.get("value") if isinstance(bound, dict) else None
    proven = isinstance(objective, dict) and objective.get("name") == question.objective and isinstance(told, (int, float))
    return Judged(value, bound_value=float(told) if proven else None)  # type: ignore[arg-type]


def _same_question(problem: Problem, entry: Mapping[str, Any]) -> None:
    """Refuse the plan of another model, cluster or batch, as far as the file says which."""
    wanted = {"model": problem.model_spec.name, "cluster": problem.cluster.name if problem.cluster is not None else None}
    for name, ours in wanted.items():
        held = entry.get(name)
        told = held.get("name") if isinstance(held, dict) else None
        if told is not None and ours is not None and told != ours:
            raise InputError(f"it is a plan for {name} {told!r}, not for {ours!r}")
    batch, schedule = problem.batch.global_batch, entry.get("schedule")
    told = schedule.get("global_batch") if isinstance(schedule, dict) else None
    if batch and told != batch:
        raise InputError(f"its schedule.global_batch is {told!r}; {batch} was asked for")


def _step_seconds(question: BenchProblem, problem: Problem, plan: Plan, entry: Mapping[str, Any]) -> float:
    """Return the simulated step of a plan that fits."""
    _, timeline = api.evaluate(problem, plan)
    if timeline is None:
        raise InputError("the simulator cannot play it")
    over = sim.excess_bytes(problem, plan, timeline.peak_bytes)
    if over > 0.0:
        raise InputError(f"it does not fit: the fullest device lacks {over:.0f} bytes")
    return timeline.step_seconds


def _per_microbatch(question: BenchProblem, problem: Problem, plan: Plan, entry: Mapping[str, Any]) -> float:
    """Return Piper's objective of a plan that fits."""
    from meshwright.planners.piper.costs.piper import evaluate, stages_of
    from meshwright.planners.piper.problem import PiperInstance

    instance = problem.model_spec.instance
    assert isinstance(instance, PiperInstance)
    found = evaluate(instance, stages_of(instance, plan))
    if found.missing_bytes > 0.0:
        raise InputError(f"it does not fit: the fullest device lacks {found.missing_bytes:.0f} bytes")
    return found.seconds


def _largest_load(question: BenchProblem, problem: Problem, plan: Plan, entry: Mapping[str, Any]) -> float:
    """Return the largest load of the stages, by its definition."""
    from meshwright.planners.parmesan.operators import question as operators_of

    operators, n_stages = operators_of(problem).operators, int(question.settings["n_stages"])
    if len(plan.stages) > n_stages or any(stage.strategy.n_devices > 1 for stage in plan.stages):
        raise InputError(f"it must have at most {n_stages} stages of one device each")
    devices = {stage.devices[0] for stage in plan.stages}
    if len(devices) < len(plan.stages) or max(devices) >= n_stages:
        raise InputError(f"each stage must have an accelerator of its own, of those called 0 to {n_stages - 1}")
    stage_of = {op: i for i, stage in enumerate(plan.stages) for op in stage.ops}
    for u, v in operators.edges:
        if stage_of[u] > stage_of[v]:
            raise InputError(f"operator {u} lies behind operator {v}, which reads it")
    first: dict[int, int] = {}
    for op, kind in enumerate(operators.colocated):
        if stage_of[first.setdefault(kind, op)] != stage_of[op]:
            raise InputError(f"operators {first[kind]} and {op} must lie together")
    loads = [0.0] * len(plan.stages)
    for op, i in stage_of.items():
        loads[i] += float(operators.compute[op])
    for cost, pins in operators.nets:
        touched = {stage_of[pin] for pin in pins}
        for i in touched if len(touched) > 1 else ():
            loads[i] += cost
    return max(loads)


def _equivalents(question: BenchProblem, problem: Problem, plan: Plan, entry: Mapping[str, Any]) -> float:
    """Return the cost of the splits in the field ``shardings``, in PaSE's cost model: of its space, or data parallel."""
    from meshwright.planners.pase.layer_costs import configurations, data_parallel_splits
    from meshwright.planners.pase.question import PaseSettings, question_of
    from meshwright.planners.pase.tables import splits_cost

    asked = question_of(problem, PaseSettings(int(question.settings["n_processors"]), 0, 128, 10e12, 16e9), "bench")
    held, splits = entry.get("shardings"), []
    if not isinstance(held, dict):
        raise InputError("a plan of a graph of PaSE's has the field 'shardings': the parts of every axis by operator")
    for operator in asked.network.operators:
        parts = held.get(operator.name)
        whole = isinstance(parts, list) and all(type(part) is int and part >= 1 for part in parts)
        if not whole or len(parts) != len(operator.sizes):  # type: ignore[arg-type]
            raise InputError(f"shardings: {operator.name} must have {len(operator.sizes)} whole numbers from 1 on")
        if math.prod(parts) > asked.n_processors:  # type: ignore[arg-type]
            raise InputError(f"shardings: {operator.name} has {math.prod(parts)} parts; there are {asked.n_processors}")  # type: ignore[arg-type]
        row = np.array(parts, dtype=np.int64)
        allowed = np.vstack([configurations(operator, asked.n_processors), data_parallel_splits(operator, asked.n_processors)])
        if not (allowed == row).all(axis=1).any():
            raise InputError(f"shardings: {operator.name} may not be split into {parts}")
        splits.append(row)
    return float(splits_cost(asked.network, tuple(splits), asked.word_flop))


_VALUES: Mapping[str, Callable[[BenchProblem, Problem, Plan, Mapping[str, Any]], float]] = MappingProxyType({
    "step_seconds": _step_seconds, "seconds_per_microbatch": _per_microbatch, "largest_load": _largest_load,
    "flops_equivalent": _equivalents,
})  # fmt: skip
