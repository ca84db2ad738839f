"""``--search partition``: the least largest stage load over all convex partitions of an operator graph, with proof."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from meshwright import sim
from meshwright.base import options, units
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective, Result
from meshwright.planners.parmesan.check import partition as check_partition
from meshwright.planners.parmesan.check import unlike as check_unlike
from meshwright.planners.parmesan.device_kinds import Kinds, kinds_of
from meshwright.planners.parmesan.on_unlike import partition_answer
from meshwright.planners.parmesan.operators import Question, costed, question
from meshwright.planners.parmesan.readers.dnn_partitioning_json import PlacementGraph
from meshwright.solvers.pairwise.certificate import Verdict
from meshwright.solvers.partition import operator_stages
from meshwright.solvers.partition.operator_stages import OperatorStages
from meshwright.solvers.partition.unlike import DeviceKind

__all__ = ["Params", "check_plan", "search"]

_UNSUPPORTED = "no accelerator supports some operators: --set n_cpus=1 lets a host device run them"


@dataclass(frozen=True, slots=True)
class Params:
    """Options.

    Parameters
    ----------
    n_stages : int
        Accelerators in the chain; 0 for the file's own number, or one for each device of the cluster.
    bandwidth : float
        Of the links between stages, in bytes per second; 0 for the file's own transfer times or the cluster's links.
    memory_limit : str
        Of one accelerator: ``file`` for the file's own and what is free on the device, ``none`` for no limit, or a quantity.
    n_cpus : int
        Host devices that may take stages too, where the file has host times.
    """

    n_stages: int = field(default=0, metadata={"minimum": 0})
    bandwidth: float = field(default=0.0, metadata={"unit": "bytes_per_second"})
    memory_limit: str = "file"
    n_cpus: int = field(default=0, metadata={"minimum": 0})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Partition the operators of a problem into consecutive stages.

    `problem` is a placement graph, a PipeDream profile, or a model on a cluster; `seed` is of the noisy starting orders, the
    proven value does not depend on it; `stop` is not used: the search ends by itself. The objective is the largest load in the
    file's own unit of time; the bound is exact wherever the windows close.
    Raises `InputError` when more stages than operators are asked for, or an option does not apply.

    References
    ----------
    .. [1] J. Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020.
    .. [2] L. Liu et al., Parmesan, IEEE TCAD 2024, section III: the same objective as its first phase.

    Notes
    -----
    Memory by the published rule: a stage holds the sum of its operators' bytes, and no more than the file's limit of one
    accelerator. On a cluster it holds no more than `meshwright.sim.free_bytes` of its device either. Where devices differ,
    each stage takes its operators' times and the memory of the device it lies on, and the order of the devices is part of the
    search.
    """
    posed = question(problem, params.bandwidth)
    n_stages = _n_stages(problem, params, posed)
    if params.n_cpus and not isinstance(problem.model_spec.instance, PlacementGraph):
        raise InputError(f"--set n_cpus={params.n_cpus}: {problem.model_spec.spec} has no times on host devices; leave it at 0")
    if params.n_cpus and problem.cluster is not None:
        raise InputError(
            f"--set n_cpus={params.n_cpus}: cluster {problem.cluster.name} has no host devices; leave --cluster out, or n_cpus"
        )
    kinds = _kinds(problem, params, posed)
    if kinds is not None and kinds.unlike:
        return partition_answer(problem, posed, kinds, n_stages, seed)
    limit_bytes = _limit(params, posed) if kinds is None else kinds.kinds[0].free_bytes
    found = operator_stages.cut(posed.operators, n_stages, n_hosts=params.n_cpus, memory_limit_bytes=limit_bytes, seed=seed)
    if not found.partition.feasible:
        return _nothing(posed, found, n_stages, limit_bytes)
    return _answer(problem, posed, found)


def check_plan(result: Result, entry: dict[str, Any], place: str) -> Verdict:
    """Check what a plan file of this search claims, without its solver.

    Returns: whether the largest load is what it says, and no partition has less than its bound.
    Raises `InputError` when a field is missing or of the wrong kind.
    """
    params = options.parse(Params, dict(result.settings), "search partition")
    assert result.plan is not None
    n = len(result.problem.graph.ops)
    try:
        value = float(entry["objective"]["value"])
        bound_value = float(entry["bound"]["value"]) if entry.get("bound") else 0.0
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    posed = question(result.problem, params.bandwidth)
    kinds, groups = _kinds(result.problem, params, posed), tuple(stage.ops for stage in result.plan.stages)
    n_stages = _n_stages(result.problem, params, posed)
    if result.timeline is not None and params.memory_limit == "file":
        missing = sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes)
        if missing > 0.0:
            return Verdict(
                False, value, math.nan, f"the plan does not fit: its fullest device lacks {missing!r} bytes in the simulator"
            )
    if kinds is not None and kinds.unlike:
        of = tuple(kinds.kind_of(stage.devices[0]) for stage in result.plan.stages)
        unlike_claim = check_unlike.ClaimedUnlikePartition(groups, of, n_stages, value, bound_value)
        return check_unlike.check(posed.operators, kinds.kinds, unlike_claim)
    limit = _limit(params, posed) if kinds is None else kinds.kinds[0].free_bytes
    claim = check_partition.ClaimedPartition(
        groups, tuple(kinds is None and stage.devices[0] >= n for stage in result.plan.stages), n_stages, params.n_cpus,
        limit, value, bound_value,
    )  # fmt: skip
    verdict = check_partition.check(posed.operators, claim)
    if verdict.valid or params.n_cpus or not math.isfinite(limit):
        return verdict
    # its bound may hold because of the memory limit: the check on kinds of device counts memory, of one kind too
    alike = DeviceKind(posed.operators.compute, limit, n_stages)
    of_one = check_unlike.ClaimedUnlikePartition(groups, (0,) * len(groups), n_stages, value, bound_value)
    return check_unlike.check(posed.operators, (alike,), of_one)


def _n_stages(problem: Problem, params: Params, posed: Question) -> int:
    """Return the number of accelerators."""
    n_ops = len(problem.graph.ops)
    if params.n_stages > n_ops:
        raise InputError(
            f"--set n_stages={params.n_stages}: {problem.model_spec.name} has only {n_ops} operators; give at most as many "
            "stages"
        )
    if problem.cluster is not None and params.n_stages > problem.cluster.n_devices:
        raise InputError(
            f"--set n_stages={params.n_stages}: cluster {problem.cluster.name} has only {problem.cluster.n_devices} devices; "
            "give at most as many"
        )
    if params.n_stages:
        return params.n_stages
    if posed.n_stages or params.n_cpus:
        return min(posed.n_stages, n_ops)
    if problem.cluster is not None:
        return min(problem.cluster.n_devices, n_ops)
    raise InputError("--set n_stages: say how many stages (the input names neither a number of accelerators nor a cluster)")


def _kinds(problem: Problem, params: Params, posed: Question) -> Kinds | None:
    """Return the kinds of device of the cluster with what they may hold; None without a cluster."""
    if problem.cluster is None:
        return None
    if params.memory_limit == "file":
        return kinds_of(problem, posed)
    return kinds_of(problem, posed, limit_bytes=_limit(params, posed))


def _limit(params: Params, posed: Question) -> float:
    """Return the memory limit of one accelerator that no cluster is known of, in bytes."""
    if params.memory_limit == "file":
        return posed.own_memory_bytes
    if params.memory_limit == "none":
        return math.inf
    return units.parse(params.memory_limit, "bytes", place="--set memory_limit (of search partition)")


def _nothing(posed: Question, found: OperatorStages, n_stages: int, limit_bytes: float) -> Answer:
    """Say that nothing fits, and what is missing."""
    if not math.isfinite(limit_bytes):
        return Answer(None, nearest=_UNSUPPORTED, infeasible_proven=found.partition.exact)
    if not found.partition.exact:
        return Answer(
            None,
            nearest="",
            infeasible_proven=False,
            notes=("no partition within the memory limit was found; that there is none is not proven",),
        )
    needed = operator_stages.least_memory(posed.operators, n_stages)
    if not math.isfinite(needed):
        return Answer(None, nearest=_UNSUPPORTED, infeasible_proven=True)
    missing = max(needed - limit_bytes, 0.0)
    nearest = f"accelerators with {units.format_bytes(needed)} each, or more of them"
    return Answer(None, missing_bytes=missing, nearest=nearest, infeasible_proven=True)


def _answer(problem: Problem, posed: Question, found: OperatorStages) -> Answer:
    """Return the plan with its objective and bound."""
    graph, result = problem.graph, found.partition
    rank = {op: i for i, op in enumerate(graph.topological_order())}
    stages: list[Stage] = []
    loads: list[float] = []
    hosts: list[int] = []
    accelerators = n_hosts = 0
    for group, host, load in zip(found.groups, result.hosts, result.loads, strict=True):
        if not group:
            continue
        if host:
            device = len(graph.ops) + n_hosts
            hosts.append(len(stages))
            n_hosts += 1
        else:
            device = accelerators
            accelerators += 1
        ops = tuple(sorted(group, key=rank.__getitem__))
        stages.append(Stage(ops, (device,), recompute=("none",) * len(ops)))
        loads.append(load)
    micro_batch = problem.batch.micro_batch or 1
    global_batch = problem.batch.global_batch or micro_batch
    plan = Plan(tuple(stages), max(global_batch // micro_batch, 1), micro_batch, "1f1b", global_batch)
    method = "exact" if result.exact else "windows"
    return Answer(
        plan,
        Objective(posed.objective, result.value),
        Bound(result.bound_value, method) if result.bound_value > 0 else None,
        notes=_notes(problem, posed, found, hosts),
        problem=costed(problem),
        extra={"loads": loads, "host_stages": hosts, "n_units": len(found.units), "n_ideals": result.n_ideals},
    )


def _notes(problem: Problem, posed: Question, found: OperatorStages, hosts: list[int]) -> tuple[str, ...]:
    """Say what a reader would otherwise wonder about."""
    notes = list(posed.notes)
    empty = sum(not group for group in found.groups)
    if empty:
        notes.append(
            f"{empty} of {len(found.groups)} devices stay empty: using them would make the largest load larger, because of "
            "what a "
            "further cut would transfer, or there is nothing left to split"
        )
    if hosts:
        notes.append(f"stages on host devices: {', '.join(map(str, hosts))} (device ids from {len(problem.graph.ops)} on)")
    if isinstance(problem.model_spec.instance, PlacementGraph):
        notes.append("the file names no unit of time; the simulated step reads it as milliseconds")
    return tuple(notes)
