"""Answers on devices of unlike speed and memory: one stage on each device, the device of each stage chosen with the cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.base import units
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Bound, Objective
from meshwright.planners.parmesan.device_kinds import Kinds, kinds_of
from meshwright.planners.parmesan.operators import Question, costed
from meshwright.planners.parmesan.pipelines import plan_on
from meshwright.solvers.mapping.search import pair_seconds
from meshwright.solvers.partition.hypergraph import Operators
from meshwright.solvers.partition.unlike import UnlikeStages, cut_unlike, least_excess

__all__ = ["by_memory", "devices_of", "nearest_pipelines", "nothing_fits", "partition_answer", "pipelines_on_unlike"]

_MOST_STAGES = 8  # of the pipelines without replicas that are shorter than asked for
_ROUNDING = 1e-9  # relative


def partition_answer(problem: Problem, posed: Question, kinds: Kinds, n_stages: int, seed: int) -> Answer:
    """Return what ``--search partition`` answers.

    Parameters
    ----------
    problem : Problem
        With a cluster.
    posed : Question
        Its operators.
    kinds : Kinds
        Its devices.
    n_stages : int
        Most devices to use.
    seed : int
        As of `meshwright.solvers.partition.unlike.cut_unlike`.
    """
    found = cut_unlike(posed.operators, kinds.kinds, n_stages, seed=seed)
    if not found.groups:
        return _nothing(posed, kinds, n_stages, found, seed)
    rank = {op: i for i, op in enumerate(problem.graph.topological_order())}
    stages = tuple(
        Stage(tuple(sorted(group, key=rank.__getitem__)), (device,), recompute=("none",) * len(group))
        for group, device in zip(found.groups, devices_of(found, kinds), strict=True)
    )
    micro_batch = problem.batch.micro_batch or 1
    global_batch = problem.batch.global_batch or micro_batch
    plan = Plan(stages, max(global_batch // micro_batch, 1), micro_batch, "1f1b", global_batch)
    return Answer(
        plan,
        Objective(posed.objective, found.value),
        Bound(found.bound_value, "exact" if found.exact else "relaxation") if found.bound_value > 0 else None,
        notes=_notes(posed, kinds, found),
        problem=costed(problem),
        extra={"loads": list(found.loads), "host_stages": [], "n_units": found.n_units, "n_ideals": found.n_ideals},
    )


def devices_of(found: UnlikeStages, kinds: Kinds) -> tuple[int, ...]:
    """Return a device for each stage of a partition, the lowest ids of its kind first."""
    left = [iter(mine) for mine in kinds.devices]
    return tuple(next(left[kind]) for kind in found.kinds)


def _nothing(posed: Question, kinds: Kinds, n_stages: int, found: UnlikeStages, seed: int) -> Answer:
    """Say that nothing fits, or that nothing was found, and what is missing."""
    if not posed.operators.supported.all():
        nearest = "leave --cluster out and give n_cpus: no accelerator supports some operators"
        return Answer(None, nearest=nearest, infeasible_proven=True)
    missing = max(0.0, least_excess(posed.operators, kinds.kinds, n_stages, seed=seed))
    if not math.isfinite(missing):
        missing = 0.0
    nearest = f"devices with {units.format_bytes(missing)} more each, or more of them" if missing else ""
    return Answer(None, missing_bytes=missing, nearest=nearest, infeasible_proven=found.exact, notes=posed.notes)


def _notes(posed: Question, kinds: Kinds, found: UnlikeStages) -> tuple[str, ...]:
    """Say what a reader would otherwise wonder about."""
    notes = list(posed.notes)
    idle = sum(kind.n_devices for kind in kinds.kinds) - len(found.groups)
    if idle:
        notes.append(f"{idle} devices stay empty: using them would make the largest load no smaller")
    if posed.own_times:
        notes.append("the file's times are taken to hold on every kind of device of the cluster")
    if not found.exact:
        notes.append("the bound is that of devices that are each as quick and as large as the best of all kinds")
    return tuple(notes)


def pipelines_on_unlike(
    problem: Problem,
    posed: Question,
    shapes: Sequence[tuple[int, int]],
    n_microbatches: int,
    most_stages: int,
) -> list[tuple[str, Plan]]:
    """Return pipelines whose cut and devices are chosen together, one for each shape, and without replicas of fewer stages.

    Parameters
    ----------
    problem : Problem
        With a cluster.
    posed : Question
        Its operators.
    shapes : sequence of (int, int)
        Most stages, and replicas of each; the replicas of a stage are devices of one kind.
    n_microbatches : int
        Micro-batches of a step and replica, where no global batch is given.
    most_stages : int
        0 for as many as there are devices or operators.

    Returns
    -------
    list of (str, Plan)
        With labels; nothing where devices are alike.
    """
    kinds = kinds_of(problem, posed)
    if not kinds.unlike:
        return []
    n_devices, n_ops = sum(kind.n_devices for kind in kinds.kinds), len(problem.graph.ops)
    most = most_stages or min(n_devices, n_ops)
    found = []
    # without replicas, any number of stages: a further cut may cost more on the cluster's links than it saves
    tried = dict.fromkeys([*shapes, *((n, 1) for n in range(1, min(most, _MOST_STAGES) + 1)), (most, 1)])
    for operators, (n_stages, n_replicas) in itertools.product(_priced(problem, posed), tried):
        mine = [(k, replace(kind, n_devices=kind.n_devices // n_replicas)) for k, kind in enumerate(kinds.kinds)]
        mine = [(k, kind) for k, kind in mine if kind.n_devices]
        if not mine:
            continue
        cut = cut_unlike(operators, [kind for _, kind in mine], n_stages)
        if not cut.groups:
            continue
        devices = _devices_of(cut, kinds, [k for k, _ in mine], n_replicas)
        label = f"{len(cut.groups)} stages x {n_replicas}, cut for unlike devices"
        found.append((label, plan_on(problem, cut.groups, devices, n_microbatches)))
    return found


def _priced(problem: Problem, posed: Question) -> list[Operators]:
    """Return the operators with the tensors' own times, and with those of the slowest and the quickest pair of devices."""
    assert problem.cluster is not None
    seconds_per_byte = pair_seconds(problem.cluster)
    pairs = seconds_per_byte[~np.eye(len(seconds_per_byte), dtype=bool)]
    both = 1.0 if posed.objective == "largest_load" else 2.0
    rates = () if not len(pairs) else (float(pairs.max()), float(pairs.min()))
    return [
        posed.operators,
        *(
            replace(
                posed.operators,
                nets=tuple(
                    (both * float(posed.output_bytes[pins[0]]) * rate / posed.unit_seconds, pins)
                    for _, pins in posed.operators.nets
                ),
            )
            for rate in rates
        ),
    ]


def nearest_pipelines(
    problem: Problem, posed: Question, shapes: Sequence[tuple[int, int]], n_microbatches: int, most_stages: int
) -> list[tuple[str, Plan]]:
    """Return pipelines that exceed their devices by as little as any cut does, one for each number of replicas.

    Parameters
    ----------
    problem, posed, shapes, n_microbatches, most_stages
        As of `pipelines_on_unlike`.

    Returns
    -------
    list of (str, Plan)
        With labels. Where one fits, it is among them, as long as all cuts can be listed.

    Notes
    -----
    Plans of these searches keep all micro-batches of a step in flight, so what a stage holds is the sum of what its operators
    hold with that many; of models, whose state may be sharded later, with one.
    """
    kinds, n_ops = kinds_of(problem, posed), len(problem.graph.ops)
    most = most_stages or min(sum(kind.n_devices for kind in kinds.kinds), n_ops)
    found = []
    for n_replicas in sorted({1, *(n_replicas for _, n_replicas in shapes)}):
        mine = [(k, replace(kind, n_devices=kind.n_devices // n_replicas)) for k, kind in enumerate(kinds.kinds)]
        mine = [(k, kind) for k, kind in mine if kind.n_devices]
        if not mine:
            continue
        whole = plan_on(problem, (tuple(range(n_ops)),), [tuple(range(n_replicas))], n_microbatches)
        operators = replace(posed.operators, memory=_held_bytes(problem, posed, whole.n_microbatches))
        over = least_excess(operators, [kind for _, kind in mine], most)
        if not math.isfinite(over):
            continue
        # a little more than is missing: sums in another order may differ in the last digit
        more = over * (1 + _ROUNDING) if over > 0 else 0.0
        cut = cut_unlike(operators, [replace(kind, free_bytes=kind.free_bytes + more) for _, kind in mine], most)
        if cut.groups:
            devices = _devices_of(cut, kinds, [k for k, _ in mine], n_replicas)
            found.append(
                (
                    f"{len(cut.groups)} stages x {n_replicas}, cut by memory",
                    plan_on(problem, cut.groups, devices, n_microbatches),
                )
            )
    return found


def _held_bytes(problem: Problem, posed: Question, n_in_flight: int) -> NDArray[np.float64]:
    """Return what each operator holds with so many micro-batches in flight; what placement graphs say counts once."""
    memory = posed.operators.memory
    if problem.model_spec.format != "pipedream_txt":
        return memory
    activations: NDArray[np.float64] = np.maximum(memory - 2.0 * posed.weight_bytes, 0.0)
    held: NDArray[np.float64] = memory + (n_in_flight - 1) * activations
    return held


def _devices_of(cut: UnlikeStages, kinds: Kinds, kept: Sequence[int], n_replicas: int) -> list[tuple[int, ...]]:
    """Return devices of its kind for each replica of each stage, the lowest ids first; the cut's kinds are those kept."""
    taken = [0] * len(kinds.kinds)
    devices = []
    for at in cut.kinds:
        k = kept[at]
        devices.append(kinds.devices[k][taken[k] : taken[k] + n_replicas])
        taken[k] += n_replicas
    return devices


def by_memory(problem: Problem, held_bytes: NDArray[np.float64], n_replicas: int) -> NDArray[np.int64] | None:
    """Return devices of each stage so that the stages that hold most lie on the devices with most free; None where all have
    the same.

    Parameters
    ----------
    problem : Problem
        With a cluster.
    held_bytes : ndarray, shape (n_stages,), float64
        What a device of each stage holds.
    n_replicas : int
        Devices of each stage.

    Notes
    -----
    If any assignment fits, this one does: exchange a stage that holds more with one on devices with more free.
    """
    cluster = problem.cluster
    assert cluster is not None
    free = np.array([sim.free_bytes((kind,), problem.memory_ratio) for kind in cluster.kinds])[cluster.kind_of_device]
    if free.min() == free.max():
        return None
    devices = np.empty((len(held_bytes), n_replicas), dtype=np.int64)
    devices[np.argsort(-held_bytes, kind="stable")] = np.argsort(-free, kind="stable")[: devices.size].reshape(devices.shape)
    return devices


def nothing_fits(problem: Problem, posed: Question, most_stages: int) -> tuple[float, bool]:
    """Return by how many bytes operators exceed the devices at least, and whether it is proven that no pipeline of them fits.

    Parameters
    ----------
    problem : Problem
        With a cluster.
    posed : Question
        Its operators: what a stage holds at least, with one micro-batch in flight.
    most_stages : int
        Stages there may be; 0 for as many as there are devices or operators.
    """
    kinds = kinds_of(problem, posed).kinds
    most_stages = most_stages or min(sum(kind.n_devices for kind in kinds), len(problem.graph.ops))
    found = cut_unlike(posed.operators, kinds, most_stages)
    if found.groups:
        return 0.0, False
    return max(0.0, least_excess(posed.operators, kinds, most_stages)), found.exact
