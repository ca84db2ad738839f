"""Candidates of the joint partition and mapping: unequal devices, unequal replicas, ring orders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.core.cluster import Cluster
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.network.placement import orders
from meshwright.planners.parmesan.operators import Question, question
from meshwright.planners.parmesan.pipelines import EvaluatedPlan, evaluate_plan
from meshwright.solvers.partition.convex import partition
from meshwright.solvers.partition.hypergraph import Units

__all__ = ["device_orders", "slowness", "swapped", "unequal_plans"]

_MOST_STAGES = 4  # of unequal replicas; longer pipelines have too many patterns
_CUT = 200  # patterns of replicas whose partition is found
_PATTERNS = 12  # partitions that are mapped and simulated
_SWAPPED = 8  # shapes whose devices are exchanged
_TRIALS = 200  # plans simulated for one of them

Groups = tuple[tuple[int, ...], ...]
Laid = tuple[tuple[str, NDArray[np.int64]], ...]


def slowness(problem: Problem, posed: Question) -> NDArray[np.float64]:
    """Return how many times longer each device takes than the one the times were stated for; shape (n_devices,), float64.

    The cost model is asked once for each kind of device; files with times of their own hold on every device.
    """
    cluster = problem.required_cluster
    result = np.ones(cluster.n_devices)
    if cluster.homogeneous or problem.costs == "partition":
        return result
    reference = float(posed.operators.compute.sum())
    for kind in range(len(cluster.kinds)):
        alone = replace(cluster, kinds=(cluster.kinds[kind],), kind_of_device=np.zeros(cluster.n_devices, dtype=np.int64))
        total = float(question(replace(problem, cluster=alone)).operators.compute.sum())
        result[cluster.kind_of_device == kind] = total / reference if reference > 0 else 1.0
    return result


def device_orders(cluster: Cluster) -> Laid:
    """Return orders in which consecutive devices are filled: by number, by node, quick or large ones first and last."""
    found = [("numbering", np.arange(cluster.n_devices)), *orders(cluster)]
    found += [("fast_last", order[::-1].copy()) for name, order in found if name == "fast_first"]
    free = np.array([sim.free_bytes((kind,)) for kind in cluster.kinds])[cluster.kind_of_device]
    if free.min() < free.max():
        largest = np.argsort(-free, kind="stable")
        found += [("large_first", largest), ("large_last", largest[::-1].copy())]
    seen: dict[bytes, tuple[str, NDArray[np.int64]]] = {}
    for name, order in found:
        seen.setdefault(order.tobytes(), (name, order))
    return tuple(seen.values())


def _patterns(n_devices: int, most_stages: int) -> Iterator[tuple[int, ...]]:
    """Yield unequal numbers of replicas that use every device; each number divides the largest, powers of two first."""
    powers = [2**k for k in range(1, n_devices.bit_length()) if 2**k < n_devices]
    for largest in (powers, [n for n in range(3, n_devices) if n not in powers]):
        for n_stages, most in itertools.product(range(2, most_stages + 1), largest):
            parts = [part for part in range(1, most + 1) if most % part == 0]
            for pattern in itertools.product(parts, repeat=n_stages):
                if sum(pattern) == n_devices and max(pattern) == most and min(pattern) < most:
                    yield pattern


def unequal_plans(
    problem: Problem, units: Units, n_microbatches: int, laid: Laid, slower: NDArray[np.float64], limits: Sequence[float]
) -> Iterator[tuple[str, Plan]]:
    """Yield plans whose stages have unequally many replicas, the most promising patterns only.

    `n_microbatches`: micro-batches of a step and replica of the widest stage, where no global batch is given.
    `laid`: names of orders of the devices, and the orders, that stages are laid along.
    `slower`, shape (n_devices,), float64: how many times longer each device takes; see `slowness`.
    `limits`: bytes under which stages are cut.
    """
    promising: list[tuple[float, tuple[int, ...], Groups, list[str]]] = []
    micro_batch, asked = problem.batch.micro_batch or 1, problem.batch.global_batch
    patterns = (
        pattern
        for pattern in _patterns(problem.required_cluster.n_devices, min(_MOST_STAGES, len(problem.graph.ops)))
        if asked % (micro_batch * max(pattern)) == 0  # the widest stage splits the batch
    )
    for pattern in itertools.islice(patterns, _CUT):
        most = max(pattern)
        for waits, names in _waits(pattern, laid, slower).items():
            shares = most / np.array(pattern)
            scales = np.stack([shares * waits, shares])
            for limit in limits:
                cut = partition(
                    units,
                    len(pattern),
                    memory_limit_bytes=limit,
                    scales=scales,
                    n_ideals=2_000,
                    n_pairs=10_000_000,
                    programs=False,
                )
                if cut.feasible and all(cut.groups):
                    groups = tuple(tuple(sorted(op for unit in group for op in units.members[unit])) for group in cut.groups)
                    promising.append((cut.value / most, pattern, groups, names))
    order_of, rank = dict(laid), {op: i for i, op in enumerate(problem.graph.topological_order())}
    for _, pattern, groups, names in sorted(promising)[:_PATTERNS]:
        most, ends = max(pattern), np.cumsum((0, *pattern))
        slots = asked // (micro_batch * most) if asked else n_microbatches
        for order in (order_of[name] for name in names):
            stages = tuple(
                Stage(
                    tuple(sorted(group, key=rank.__getitem__)), tuple(int(d) for d in order[a:b]), Strategy(data=int(b - a)),
                    ("none",) * len(group),
                )
                for group, a, b in zip(groups, ends[:-1], ends[1:], strict=True)
            )  # fmt: skip
            label = f"{'-'.join(map(str, pattern))} replicas"
            yield label, Plan(stages, slots, micro_batch, "gpipe", slots * micro_batch * most)


def _waits(pattern: tuple[int, ...], laid: Laid, slower: NDArray[np.float64]) -> dict[tuple[float, ...], list[str]]:
    """Return how many times longer each stage's slowest device takes, and the orders of the devices for which that is so."""
    starts = np.cumsum((0, *pattern[:-1]))
    found: dict[tuple[float, ...], list[str]] = {}
    for name, order in laid:
        found.setdefault(tuple(np.maximum.reduceat(slower[order], starts).tolist()), []).append(name)
    return found


def swapped(problem: Problem, posed: Question, judged: Sequence[EvaluatedPlan]) -> list[EvaluatedPlan]:
    """Return the best plan of several shapes after exchanges of two devices, as long as the simulated step gets shorter.

    Parameters
    ----------
    problem : Problem
        The question.
    posed : Question
        Its operators.
    judged : sequence of Judged
        Plans; of each number of stages and replicas the best one counts, and of these the first few. Where devices have unlike
        memory, only plans whose operators fit on their devices.
    """
    cluster = problem.cluster
    assert cluster is not None
    unlike = len({sim.free_bytes((kind,)) for kind in cluster.kinds}) > 1

    def holds(stages: tuple[Stage, ...]) -> bool:
        memory = posed.operators.memory
        return all(
            float(memory[list(stage.ops)].sum()) <= sim.free_bytes(map(cluster.device, stage.devices), problem.memory_ratio)
            for stage in stages
        )

    best: dict[tuple[int, ...], EvaluatedPlan] = {}
    for one in sorted(judged, key=lambda one: one.seconds_per_sample):
        if unlike and not holds(one.plan.stages):
            continue
        best.setdefault(tuple(len(stage.devices) for stage in one.plan.stages), one)
    found: list[EvaluatedPlan] = []
    for start in list(best.values())[:_SWAPPED]:
        now, n_trials, improved = start, 0, True
        # idle devices may hold more, or have quicker links
        used = range(cluster.n_devices) if unlike else sorted({d for stage in now.plan.stages for d in stage.devices})
        while improved and n_trials < _TRIALS:
            improved = False
            for a, b in itertools.combinations(used, 2):
                exchange = {a: b, b: a}
                stages = tuple(
                    replace(stage, devices=tuple(exchange.get(device, device) for device in stage.devices))
                    for stage in now.plan.stages
                )
                if unlike and (stages == now.plan.stages or not holds(stages)):
                    continue
                trial = evaluate_plan(problem, replace(now.plan, stages=stages), f"{start.label}, devices exchanged")
                n_trials += 1
                if trial.step_seconds < now.step_seconds * (1 - 1e-9):
                    now, improved = trial, True
                if n_trials == _TRIALS:
                    break
        if now is not start:
            found.append(now)
    return found
