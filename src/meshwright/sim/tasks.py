"""From a plan and its loads to arrays: who runs what in which order, and how long each task takes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import OFFLOAD, RECOMPUTE, is_recompute, repeats_dispatch
from meshwright.schedules import Actions, Durations, Room

__all__ = ["MOST_TASKS", "check_loads", "check_plan", "order", "task_seconds", "times"]

MOST_TASKS = 10**7
"""Tasks of a step that can be simulated: forward and backward passes of a micro-batch through a stage."""


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuse a plan that cannot be played on the problem's cluster, before anything is computed from it.

    Raises `InputError` when there are no stages or micro-batches, a stage has no devices or unknown ones, a device belongs to
    two different groups, a layer of the model is in no stage, in two, unknown, or before one that it reads from, or
    micro-batches do not make the batch.
    """
    if not plan.stages:
        raise InputError("the plan has no stages, so there is nothing to simulate")
    for name in ("n_microbatches", "micro_batch", "global_batch"):
        count = getattr(plan, name)
        if not isinstance(count, int) or not 1 <= count <= 10**9:
            raise InputError(f"the plan's {name} is {count!r}; it must be a whole number between 1 and {10**9}")
    n_tasks = 2 * len(plan.stages) * plan.n_microbatches
    if n_tasks > MOST_TASKS:
        raise InputError(
            f"the plan has {len(plan.stages)} stages and {plan.n_microbatches} micro-batches, {n_tasks} tasks a step; "
            f"at most {MOST_TASKS} can be simulated: give larger micro-batches"
        )
    if not isinstance(plan.schedule, str):
        raise InputError(f"the plan's schedule is {plan.schedule!r}; name one of {', '.join(schedules.words())}")
    owner: dict[int, int] = {}
    groups: dict[tuple[int, ...], int] = {}
    for i, stage in enumerate(plan.stages):
        _check_mesh(i, stage)
        if stage.devices in groups:
            continue
        _check_devices(problem, i, stage.devices)
        group = groups.setdefault(stage.devices, i)
        for device in stage.devices:
            if owner.setdefault(device, group) != group:
                raise InputError(
                    f"stage {i}: device {device} also works for a stage on other devices; "
                    "two stages have the same devices (virtual stages) or none in common"
                )
    _check_layers(problem.graph, plan)
    _check_recompute(problem, plan)
    wrong = plan.contradiction(rounded=getattr(registry.load("costs", problem.costs, "cost model"), "ROUNDS", False))
    if wrong:
        raise InputError(wrong)


def _check_recompute(problem: Problem, plan: Plan) -> None:
    """Refuse a stage with more or fewer words than layers, and choices that the cost model does not read."""
    read = getattr(registry.load("costs", problem.costs, "cost model"), "CHOICES", False)
    for i, stage in enumerate(plan.stages):
        if len(stage.recompute) not in (0, len(stage.ops)):
            n = len(stage.recompute)
            raise InputError(f"stage {i}: recompute has {n} words for {len(stage.ops)} layers; give one for each, or none")
        again = next((word for word in stage.recompute if repeats_dispatch(word)), "")
        if again and schedules.in_pairs(plan.schedule):
            raise InputError(
                f"stage {i}: recompute is '{again}' under schedule {plan.schedule}; layers whose all-to-alls of experts run "
                "beside another micro-batch do not repeat them: recompute less, or take interleaved_1f1b"
            )
        if OFFLOAD in stage.recompute and (len(plan.stages) > 1 or plan.schedule != "1f1b"):
            raise InputError(
                f"stage {i}: recompute is '{OFFLOAD}' in a plan of {len(plan.stages)} stages under {plan.schedule}; "
                "activations on the host are priced with one stage under 1f1b: leave the pipeline out, or the word"
            )
        other = next((word for word in stage.recompute if word not in ("none", OFFLOAD)), "")
        if OFFLOAD in stage.recompute and other:
            raise InputError(
                f"stage {i}: recompute is '{OFFLOAD}' of some layers and '{other}' of others; beside layers whose "
                "activations are on the host the others keep theirs: none"
            )
        if stage.choices and not read:
            raise InputError(
                f"stage {i}: names choices of its layers ('{stage.choices[0]}', ...), which the cost model {problem.costs} "
                "does not know: plan with the cost model of the file that lists them, or remove the field choices"
            )
        if len(stage.choices) not in (0, len(stage.ops)):
            n = len(stage.choices)
            raise InputError(f"stage {i}: choices has {n} ids for {len(stage.ops)} layers; give one for each, or none")


def _check_mesh(i: int, stage: Stage) -> None:
    """Refuse degrees and recomputation that do not exist."""
    for name in ("data", "tensor", "context", "expert"):
        degree = getattr(stage.strategy, name)
        if not isinstance(degree, int) or degree < 1:
            raise InputError(f"stage {i}: its {name} degree is {degree!r}; it must be a whole number from 1 on")
    if stage.strategy.shard not in (0, 1, 2, 3):
        raise InputError(f"stage {i}: its shard is {stage.strategy.shard!r}; it must be 0, 1, 2 or 3")
    for kind in stage.recompute:
        if not is_recompute(kind):
            known = ", ".join(RECOMPUTE)
            raise InputError(f"stage {i}: recompute is {kind!r}; it must be one of {known}, or a setting of a framework")


def _check_layers(graph: Graph, plan: Plan) -> None:
    """Refuse a plan that does not have every layer of the model in exactly one stage."""
    stage_of: dict[int, int] = {}
    rule = f"a plan of {graph.name} has each of its {len(graph.ops)} layers in exactly one stage"
    for i, stage in enumerate(plan.stages):
        for op in stage.ops:
            if not isinstance(op, int) or not 0 <= op < len(graph.ops):
                raise InputError(f"stage {i}: {op!r} is no layer; {rule}, by their ids from 0 on")
            if op in stage_of:
                place = f"twice in stage {i}" if stage_of[op] == i else f"in two stages, {stage_of[op]} and {i}"
                raise InputError(f"layer '{graph.ops[op].name}' is {place}; {rule}")
            stage_of[op] = i
    lost = [op.name for v, op in enumerate(graph.ops) if v not in stage_of]
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise InputError(f"layer '{lost[0]}'{more} is in no stage; {rule}")
    _check_sequence(graph, plan, stage_of)


def _check_sequence(graph: Graph, plan: Plan, stage_of: dict[int, int]) -> None:
    """Refuse a layer before one that it reads from: in an earlier stage, or earlier in its own.

    Layers of kind ``backward``, which operator graphs of a whole step have, go through the stages the other way.
    """
    place = {op: k for stage in plan.stages for k, op in enumerate(stage.ops)}
    for edge in graph.edges:
        a, b = edge.source, edge.target
        if stage_of[a] == stage_of[b]:
            if place[a] > place[b]:
                raise InputError(
                    f"stage {stage_of[b]}: layer '{graph.ops[b].name}' is before '{graph.ops[a].name}', which it reads from; "
                    "a stage has its layers in topological order"
                )
        elif stage_of[a] > stage_of[b] and graph.ops[b].kind != "backward":
            raise InputError(
                f"layer '{graph.ops[b].name}' of stage {stage_of[b]} reads from '{graph.ops[a].name}' of stage {stage_of[a]}; "
                "stages are in pipeline order, so that layers read from their own stage and from earlier ones"
            )


def check_loads(plan: Plan, stage_costs: tuple[StageCost, ...]) -> None:
    """Refuse loads that do not go with the plan.

    Raises `InputError` when they are not one per stage, or a number is not finite and at least 0.
    """
    if len(stage_costs) != len(plan.stages):
        raise InputError(f"the plan has {len(plan.stages)} stages, but {len(stage_costs)} loads were given; give one per stage")
    for i, load in enumerate(stage_costs):
        for name in StageCost.__dataclass_fields__:
            value = getattr(load, name)
            if name == "collectives":
                value = tuple((name, one.seconds + one.n_bytes * one.n_times) for one in value)
            parts = value if isinstance(value, tuple) else ((name, value),)
            for _, part in parts:
                if not (np.isfinite(part) and part >= 0.0):
                    raise InputError(f"stage {i}: {name} is {value}; it must be finite and at least 0")
        if load.overlap_ratio > 1.0:
            raise InputError(f"stage {i}: overlap_ratio is {load.overlap_ratio}; it must be between 0 and 1")


def _check_devices(problem: Problem, i: int, devices: tuple[int, ...]) -> None:
    """Refuse devices that the cluster does not have, none at all, and a device named twice."""
    if not devices:
        raise InputError(f"stage {i} names no devices; name at least one")
    for device in devices:
        if not isinstance(device, int):
            raise InputError(f"stage {i}: {device!r} is not a device; ids are whole numbers from 0 on")
    if len(set(devices)) != len(devices):
        raise InputError(f"stage {i} names a device twice: {list(devices)}")
    lowest, highest = min(devices), max(devices)
    if lowest < 0:
        raise InputError(f"stage {i}: device {lowest} is not a device; ids start at 0")
    if problem.cluster is not None and highest >= problem.cluster.n_devices:
        raise InputError(
            f"stage {i}: there is no device {highest}; the cluster {problem.cluster.name} has {problem.cluster.n_devices} "
            f"(0..{problem.cluster.n_devices - 1}); give one with more devices"
        )


def times(stage_costs: tuple[StageCost, ...], transfer_seconds: NDArray[np.float64], room: Room | None = None) -> Durations:
    """Return how long the tasks of each stage take, blocking communication and recomputation included.

    Parameters
    ----------
    stage_costs : tuple of StageCost
        One per stage.
    transfer_seconds : ndarray, shape (n_stages - 1,), float64
        From each stage to the next.
    room : Room or None
        Memory that the order should keep to (`meshwright.sim.fits.room`); None where it is not known.
    """
    weight = np.array([load.backward_weight_seconds for load in stage_costs])
    return Durations(
        forward_seconds=np.array([load.forward_total_seconds for load in stage_costs]),
        # The weight gradient alone may be delayed: recomputation and communication come with the input gradient.
        backward_input_seconds=np.maximum(np.array([load.backward_total_seconds for load in stage_costs]) - weight, 0.0),
        backward_weight_seconds=weight,
        transfer_seconds=transfer_seconds,
        room=room,
    )


def order(plan: Plan, stage_times: Durations) -> Actions:
    """Return the order of work that the plan's schedule gives each rank.

    Parameters
    ----------
    plan : Plan
        Its stages name the devices; stages on the same devices are virtual stages of one rank.
    stage_times : Durations
        Durations, for schedules that are fitted to them.

    Returns
    -------
    Actions
        The order.

    Raises
    ------
    InputError
        When there is no such schedule, or it would place the stages on other ranks than the plan does.
    PluginError
        As `meshwright.schedules.ordered`.
    """
    ranks = plan.rank_of_stage()
    n_ranks = max(ranks) + 1
    n_chunks, rest = divmod(len(ranks), n_ranks)
    expected = schedules.load(plan.schedule).placement(n_ranks, n_chunks)
    if rest or tuple(expected) != ranks:
        raise InputError(
            f"schedule {plan.schedule}: the plan's {len(ranks)} stages lie on pipeline ranks {list(ranks)}; the schedule needs "
            "the "
            f"same number of stages on every rank, in the order {[int(rank) for rank in expected]}"
        )
    return schedules.ordered(plan.schedule, n_ranks, n_chunks, plan.n_microbatches, stage_times)


def task_seconds(stage_times: Durations) -> NDArray[np.float64]:
    """Return the seconds of a task by phase and stage; shape (4, n_stages), float64."""
    both = stage_times.backward_input_seconds + stage_times.backward_weight_seconds
    return np.stack(
        (stage_times.forward_seconds, stage_times.backward_input_seconds, stage_times.backward_weight_seconds, both)
    )
