"""Pipelines of partitions mapped onto devices: the stage graph of a partition, the plan of a mapping,
its simulated throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright import sim
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.base.units import format_bytes
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.planners.parmesan.operators import Question
from meshwright.sim import engine, transfers
from meshwright.solvers.mapping.problem import Mapping, StageGraph

__all__ = [
    "MOST_UNEQUAL",
    "EvaluatedPlan",
    "evaluate_plan",
    "fitting",
    "idle",
    "memory_limits",
    "one_batch",
    "own_excess_bytes",
    "own_limit",
    "plan_of",
    "plan_on",
    "shapes",
    "stage_graph",
]

MOST_UNEQUAL = 64
"""Devices up to which stages may have unequally many replicas; beyond, the patterns are too many to cut and map."""

_ROUNDING = 1e-12  # share of a limit by which sums in another order may exceed it
_KEPT = 6  # plans that fit: the answer and its runners-up


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedPlan:
    """A plan with its simulated step; `label` says how it came about."""

    plan: Plan
    step_seconds: float
    label: str

    @property
    def seconds_per_sample(self) -> float:
        """What plans of different global batches are compared by."""
        return self.step_seconds / self.plan.global_batch


def shapes(problem: Problem, n_stages: int, *, whole_batch: bool = True) -> tuple[tuple[int, int], ...]:
    """Return the numbers of stages and replicas to try: all that use every device, or those of a given number of stages.

    Where a global batch is asked for, a shape has the most replicas that split it into whole micro-batches, unless
    `whole_batch` is false because a later step shares replicas out anew.

    Raises `InputError` when there is no cluster, or it has fewer devices than stages, or the model has fewer operators, or the
    micro-batch does not divide the global batch.
    """
    n_ops = len(problem.graph.ops)
    if problem.cluster is None:
        raise InputError("a mapping needs devices: name a cluster, for example --cluster parmesan-two-level:16")
    n = problem.cluster.n_devices
    if n_stages > n_ops:
        raise InputError(
            f"--set n_stages={n_stages}: {problem.model_spec.name} has only {n_ops} operators; give at most as many"
        )
    if n_stages > n:
        raise InputError(
            f"--set n_stages={n_stages}: cluster {problem.cluster.name} has only {n} devices; give at most as many"
        )
    stages = (n_stages,) if n_stages else tuple(s for s in range(1, n + 1) if n % s == 0 and s <= n_ops)
    asked, micro_batch = problem.batch.global_batch, problem.batch.micro_batch or 1
    if not asked or not whole_batch:
        return tuple((s, n // s) for s in stages)
    slots = asked // micro_batch
    return tuple((s, max(r for r in range(1, n // s + 1) if slots % r == 0)) for s in stages)


def one_batch(problem: Problem, n_microbatches: int, usual: int) -> None:
    """Refuse a number of micro-batches beside a global batch, which decides it.

    Raises `InputError` when both are given.
    """
    if problem.batch.global_batch and n_microbatches != usual:
        raise InputError(
            f"--set n_microbatches={n_microbatches}: the global batch of {problem.batch.global_batch} decides it; give only "
            "one of them"
        )


def idle(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return a note on devices that a plan leaves idle; nothing where it uses all."""
    n, used = problem.required_cluster.n_devices, sum(len(stage.devices) for stage in plan.stages)
    return (
        ()
        if used == n
        else (
            f"{n - used} of {n} devices are not used: stages have equally many replicas of whole micro-batches, and none where "
            "a "
            "further cut would transfer more than it saves",
        )
    )


def stage_graph(
    posed: Question, groups: tuple[tuple[int, ...], ...], n_replicas: int, *, n_microbatches: int = 1, both: float = 2.0
) -> StageGraph:
    """Return the stages of a partition as a graph to be mapped.

    `groups`: operators of each stage.
    `n_microbatches`: micro-batches over which the gradient reduction of a step is spread; 1 to count it whole, as the
    published mapper does.
    `both`: how often each tensor travels: 2 where the gradient returns and is no tensor of its own.
    Returns: times in seconds.
    """
    operators = posed.operators
    stage_of = {op: s for s, group in enumerate(groups) for op in group}
    volume: dict[tuple[int, int], float] = {}
    for _, pins in operators.nets:
        here = stage_of[pins[0]]
        for there in sorted({stage_of[pin] for pin in pins} - {here}):
            pair = (min(here, there), max(here, there))
            volume[pair] = volume.get(pair, 0.0) + both * float(posed.output_bytes[pins[0]])
    compute = np.array([operators.compute[list(group)].sum() for group in groups]) * posed.unit_seconds
    reduced = np.array([posed.weight_bytes[list(group)].sum() for group in groups]) / n_microbatches
    return StageGraph(compute, tuple((a, b, n) for (a, b), n in sorted(volume.items())), reduced, n_replicas)


def plan_of(problem: Problem, groups: tuple[tuple[int, ...], ...], mapping: Mapping, n_microbatches: int) -> Plan:
    """Return the plan of a mapped partition; empty stages and their devices are left out."""
    rings = tuple(_ring(mapping.rings[s].tolist()) for s in range(len(groups)))
    return plan_on(problem, groups, [tuple(int(d) for d in mine) for mine in mapping.devices], n_microbatches, rings)


def plan_on(
    problem: Problem,
    groups: tuple[tuple[int, ...], ...],
    devices: Sequence[tuple[int, ...]],
    n_microbatches: int,
    rings: tuple[tuple[int, ...], ...] = (),
) -> Plan:
    """Return the plan of a partition whose stages lie on equally many devices each; empty stages are left out."""
    rank = {op: i for i, op in enumerate(problem.graph.topological_order())}
    n_replicas = len(devices[0])
    stages = tuple(
        Stage(
            tuple(sorted(group, key=rank.__getitem__)), devices[s], Strategy(data=n_replicas), ("none",) * len(group),
            rings[s] if rings else (),
        )
        for s, group in enumerate(groups) if group
    )  # fmt: skip
    micro_batch = problem.batch.micro_batch or 1
    if problem.batch.global_batch:
        n_microbatches = max(1, problem.batch.global_batch // (micro_batch * n_replicas))
    return Plan(stages, n_microbatches, micro_batch, "gpipe", n_microbatches * micro_batch * n_replicas)


def _ring(order: list[int]) -> tuple[int, ...]:
    """Return the order of a ring from replica 0 on, the lower neighbour first;
    nothing where it is the order of the replicas.
    """
    n, start = len(order), order.index(0)
    turned = [order[(start + k) % n] for k in range(n)]
    if n > 2 and turned[-1] < turned[1]:
        turned = [0, *reversed(turned[1:])]
    return () if turned == list(range(n)) else tuple(turned)


def evaluate_plan(problem: Problem, plan: Plan, label: str, *, copies_beside_compute: bool = True) -> EvaluatedPlan:
    """Return a plan with its simulated step.

    `copies_beside_compute`: whether transfers run beside compute; otherwise both ends wait for them.
    """
    stage_costs = registry.load("costs", problem.costs, "cost model").stage_costs(problem, plan)
    sends = transfers.transfers(problem, plan, stage_costs)
    if not copies_beside_compute:
        # in a forward pass a stage receives and sends, in a backward pass too
        forward = sends.seconds[0] + np.roll(sends.seconds[0], 1)
        backward = sends.seconds[1] + np.roll(sends.seconds[1], -1)
        stage_costs = tuple(
            replace(
                load, output_bytes=0.0,
                forward_communication=(*load.forward_communication, ("transfer", float(forward[i]))),
                backward_communication=(*load.backward_communication, ("transfer", float(backward[i]))),
            )
            for i, load in enumerate(stage_costs)
        )  # fmt: skip
        sends = transfers.fixed(np.array(plan.rank_of_stage()), np.zeros(len(stage_costs) - 1))
    return EvaluatedPlan(plan, engine.played_seconds(plan, stage_costs, sends), label)


def memory_limits(problem: Problem, posed: Question) -> tuple[float, ...]:
    """Return the limits to cut stages under, in bytes of the static state and one micro-batch on one device.

    Infinity alone where every device could hold all operators. Else what is free on each kind of device, and no more than the
    file's own limit, the most first: which stage lies on which device is decided later. Before them infinity for models, whose
    state can be sharded and whose activations can be recomputed later.
    """
    assert problem.cluster is not None
    of_kinds = {sim.free_bytes((kind,), problem.memory_ratio) for kind in problem.cluster.kinds}
    free = sorted({min(limit, posed.own_memory_bytes) for limit in of_kinds}, reverse=True)
    if float(posed.operators.memory.sum()) <= free[-1]:
        return (math.inf,)
    return tuple(free) if problem.costs == "partition" else (math.inf, *free)


def own_excess_bytes(posed: Question, plan: Plan) -> float:
    """Return by how many bytes the operators of a plan's fullest stage exceed the file's own limit; 0 where it has none.

    Parameters
    ----------
    posed : Question
        The operators.
    plan : Plan
        Stages of them.
    """
    held = max(math.fsum(posed.operators.memory[list(stage.ops)].tolist()) for stage in plan.stages)
    return max(0.0, held - posed.own_memory_bytes * (1.0 + _ROUNDING))


def own_limit(problem: Problem, posed: Question) -> str:
    """Return what to say of the file's own memory limit where nothing fits; empty where no device has more than it."""
    if all(sim.free_bytes((kind,), problem.memory_ratio) <= posed.own_memory_bytes for kind in problem.required_cluster.kinds):
        return ""
    return f"; the file limits a device to {format_bytes(posed.own_memory_bytes)} (maxSizePerFPGA), whatever is free on it"


def fitting(problem: Problem, posed: Question, judged: Sequence[EvaluatedPlan]) -> tuple[tuple[EvaluatedPlan, ...], float]:
    """Return the quickest plans that fit into memory, and by how many bytes the nearest of the others exceeds its fullest
    device.

    Parameters
    ----------
    problem : Problem
        The question.
    posed : Question
        Its operators, which the file's own limit is about.
    judged : sequence of Judged
        Plans in any order; none where no partition keeps the memory limits.

    Returns
    -------
    fits : tuple of Judged
        The first few, quickest first; empty where none fits.
    missing_bytes : float
        Infinite where all that were looked at fit.
    """
    module = registry.load("costs", problem.costs, "cost model")
    kept: list[EvaluatedPlan] = []
    missing = float("inf")
    for one in sorted(judged, key=lambda one: one.seconds_per_sample):
        peaks = sim.simulate(problem, one.plan, module.stage_costs(problem, one.plan)).peak_bytes
        over = max(sim.excess_bytes(problem, one.plan, peaks), own_excess_bytes(posed, one.plan))
        if over > 0.0:
            missing = min(missing, over)
        else:
            kept.append(one)
            if len(kept) == _KEPT:
                break
    return tuple(kept), missing
