"""One training step, played: order of work, traffic, end of step, memory, causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright import schedules
from meshwright._kernels.events import order as events
from meshwright._kernels.events import shared_events
from meshwright.base.errors import InputError
from meshwright.base.identity import locked
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import PHASES, Timeline
from meshwright.schedules import Actions, Durations, Room
from meshwright.sim import causes, fits, memory, pairs, sharing, tasks, transfers
from meshwright.sim.end_of_step import StepTail, ending, followed, items
from meshwright.sim.links import busiest
from meshwright.sim.traffic import Traffic, traffic
from meshwright.sim.transfers import Transfers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["device_causes", "estimate", "least_seconds", "order", "play", "played_seconds", "simulate", "step_seconds"]


def simulate(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> Timeline:
    """Play one training step of a plan.

    Parameters
    ----------
    problem : Problem
        Where it runs; without a cluster transfers between stages take no time.
    plan : Plan
        The plan; all data-parallel replicas behave alike, so that one pipeline is played.
    stage_costs : tuple of StageCost
        What each stage does and holds.

    Returns
    -------
    Timeline
        When everything happens, the memory over time, and where the seconds went.

    Raises
    ------
    InputError
        When the plan does not go with the cluster, the loads or its own schedule, or its step takes no time.
    """
    tasks.check_plan(problem, plan)
    tasks.check_loads(plan, stage_costs)
    sends, collectives = transfers.transfers(problem, plan, stage_costs), traffic(problem, plan, stage_costs)
    context, room = fits.context_bytes(problem, plan), fits.room(problem, plan, stage_costs)
    timeline = play(plan, stage_costs, sends, collectives, context, room, problem)
    if timeline.step_seconds <= 0.0:
        raise InputError(f"a step of this plan of {problem.graph.name} takes 0 s: its layers must have times above 0")
    return timeline


def device_causes(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> tuple[tuple[str, float], ...]:
    """Return where the seconds of a step go, the mean over all devices of the cluster.

    Parameters
    ----------
    problem, plan, stage_costs
        As of `simulate`.

    Returns
    -------
    tuple of (str, float)
        Seconds by cause as in `meshwright.core.timeline.Timeline.causes`, adding up to the step; a device that the plan leaves
        idle counts as ``imbalance``.
    """
    sends, collectives = transfers.transfers(problem, plan, stage_costs), traffic(problem, plan, stage_costs)
    slots, moments, end, together = _played(
        plan, stage_costs, sends, collectives, fits.room(problem, plan, stage_costs), problem
    )  # fmt: skip
    counts = [len(devices) for devices in plan.ranks()]
    n_devices = sum(counts) if problem.cluster is None else problem.cluster.n_devices
    found: dict[str, float] = {}
    for rank, count in enumerate(counts):
        for name, seconds in causes.causes(slots, moments, end, stage_costs, plan.n_microbatches, together, rank):
            found[name] = found.get(name, 0.0) + seconds * count / n_devices
    if n_devices > sum(counts):
        idle = float(end.rank_end_seconds.max()) * (n_devices - sum(counts)) / n_devices
        found["imbalance"] = found.get("imbalance", 0.0) + idle
    return tuple(found.items())


def least_seconds(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> float:
    """Return the seconds of a step if collectives had links of their own: never more than `simulate` says, and quicker.

    Raises `InputError` when the plan's stages do not go with its schedule.
    """
    return played_seconds(
        plan, stage_costs, transfers.transfers(problem, plan, stage_costs), fits.room(problem, plan, stage_costs)
    )


def order(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> Actions:
    """Return the order of tasks that `simulate` plays.

    Parameters
    ----------
    problem : Problem
        Where it runs.
    plan : Plan
        The plan.
    stage_costs : tuple of StageCost
        What each stage does.

    Raises
    ------
    InputError
        When the plan's stages do not go with its schedule.
    """
    sends = transfers.transfers(problem, plan, stage_costs)
    return tasks.order(plan, tasks.times(stage_costs, sends.seconds[0, :-1], fits.room(problem, plan, stage_costs)))


def play(
    plan: Plan,
    stage_costs: tuple[StageCost, ...],
    sends: Transfers,
    collectives: Traffic | None = None,
    context_bytes: tuple[float, ...] | None = None,
    room: Room | None = None,
    problem: Problem | None = None,
) -> Timeline:
    """Play one training step with known traffic; what `simulate` does once it has checked its arguments.

    Parameters
    ----------
    plan : Plan
        The plan.
    stage_costs : tuple of StageCost
        What each stage does and holds.
    sends : Transfers
        What stages send each other.
    collectives : Traffic or None
        What they put on links beside; None where that is not known, and collectives take their seconds whatever else happens.
    context_bytes : tuple of float or None
        What the device of each rank keeps for itself; None for what the loads say.
    room : Room or None
        Memory that orders fitted to durations keep to; None where it is not known.
    problem : Problem or None
        Whose links the collectives use, for what pairs of tasks put on them; None where nothing is known of links.

    Returns
    -------
    Timeline
        When everything happens, the memory over time, and where the seconds went.

    Raises
    ------
    InputError
        When the plan's stages do not go with its schedule.
    """
    slots, moments, end, together = _played(plan, stage_costs, sends, collectives, room, problem)
    step_seconds = float(end.rank_end_seconds.max())
    held = memory.memory(slots, moments.start, moments.end, stage_costs, context_bytes, together.first)
    spans = _spans(slots, moments, end)
    link_bytes = sharing.carried_bytes(sends, collectives, plan.n_microbatches)
    return Timeline(
        step_seconds=step_seconds,
        stage=spans["stage"],
        microbatch=spans["microbatch"],
        phase=spans["phase"],
        rank=spans["rank"],
        start_seconds=spans["start_seconds"],
        end_seconds=spans["end_seconds"],
        peak_bytes=held.peak_bytes,
        memory_seconds=held.seconds,
        memory_bytes=held.bytes,
        memory_causes=held.causes,
        causes=causes.causes(slots, moments, end, stage_costs, plan.n_microbatches, together),
        allocated_bytes=held.allocated_bytes,
        reserved_bytes=held.reserved_bytes,
        link_busy_ratio=busiest(link_bytes, sends.link_bytes_per_second, step_seconds),
        link_bytes=link_bytes,
    )


def played_seconds(plan: Plan, stage_costs: tuple[StageCost, ...], sends: Transfers, room: Room | None = None) -> float:
    """Return the seconds of a step with known transfers: what `play` says, without its memory, causes and spans.

    Parameters
    ----------
    plan : Plan
        The plan.
    stage_costs : tuple of StageCost
        What each stage does.
    sends : Transfers
        What stages send each other.
    room : Room or None
        As in `play`.

    Returns
    -------
    float
        Seconds from the first task to the end of the step.

    Raises
    ------
    InputError
        When the plan's stages do not go with its schedule.
    """
    return float(_played(plan, stage_costs, sends, None, room)[2].rank_end_seconds.max())


def estimate(plan: Plan, stage_costs: tuple[StageCost, ...], transfer_seconds: NDArray[np.float64]) -> float:
    """Return the seconds of a step with given transfers: what `simulate` says where nothing shares a link, but quicker.

    `transfer_seconds`, shape (n_stages - 1,), float64: from each stage to the next, and back.
    Returns: seconds from the first task to the end of the step.
    Raises `InputError` when the plan's stages do not go with its schedule.
    """
    sends = transfers.fixed(np.array(plan.rank_of_stage()), transfer_seconds)
    return float(_played(plan, stage_costs, sends, None)[2].rank_end_seconds.max())


def step_seconds(
    schedule: str,
    n_ranks: int,
    n_chunks: int,
    n_microbatches: int,
    forward_seconds: NDArray[np.float64],
    backward_input_seconds: NDArray[np.float64],
    backward_weight_seconds: NDArray[np.float64],
    transfer_seconds: NDArray[np.float64],
) -> float:
    """Return the seconds from the first forward to the last backward task of a pipeline whose transfers share no links.

    Parameters
    ----------
    schedule : str
        As typed: ``1f1b``.
    n_ranks, n_chunks, n_microbatches : int
        Pipeline ranks, stages per rank, micro-batches per step.
    forward_seconds, backward_input_seconds, backward_weight_seconds : ndarray, shape (n_ranks * n_chunks,), float64
        Tasks of each stage for one micro-batch.
    transfer_seconds : ndarray, shape (n_ranks * n_chunks - 1,), float64
        From each stage to the next, and back.

    Returns
    -------
    float
        Seconds; without gradient reduction and weight update (`estimate` has them).

    Raises
    ------
    InputError
        When the schedule is unknown or cannot run so many stages per rank.
    """
    stage_times = Durations(forward_seconds, backward_input_seconds, backward_weight_seconds, transfer_seconds)
    slots = schedules.ordered(schedule, n_ranks, n_chunks, n_microbatches, stage_times)
    sends = transfers.fixed(slots.rank_of_stage, transfer_seconds)
    loads = tuple(
        StageCost(*own)
        for own in zip(forward_seconds.tolist(), backward_input_seconds.tolist(), backward_weight_seconds.tolist(), strict=True)
    )
    together = pairs.of_order(slots, loads)
    return float(_alone(slots, tasks.task_seconds(stage_times), sends, schedule, together).end.max())


class _Played(NamedTuple):
    """What was played: the order of work, when tasks and transfers ran, the end of the step, pairs of tasks."""

    slots: Actions
    moments: events.TaskTimes
    end: StepTail
    pairs: pairs.TaskPairs


def _played(
    plan: Plan,
    stage_costs: tuple[StageCost, ...],
    sends: Transfers,
    collectives: Traffic | None,
    room: Room | None = None,
    problem: Problem | None = None,
) -> _Played:
    """Play a step: event by event where traffic shares links, as a longest path where none does."""
    stage_times = tasks.times(stage_costs, sends.seconds[0, :-1], room)
    slots = tasks.order(plan, stage_times)
    kind = items(slots, stage_costs)
    task_seconds = tasks.task_seconds(stage_times)
    together = pairs.of_order(slots, stage_costs)
    if collectives is not None:
        if (slots.phase == schedules.BACKWARD_INPUT).any():
            collectives = collectives.before_weights(task_seconds[schedules.BACKWARD_INPUT], task_seconds[schedules.BACKWARD])
        # what runs beside a task may need longer than the task although only the task uses its links
        beside = collectives.seconds[2:4]
        task_seconds = np.maximum(task_seconds, np.stack((beside[0], beside[1], np.zeros(len(stage_costs)), beside[1])))
        if problem is not None:
            together, collectives = pairs.with_pairs(problem, plan, stage_costs, slots, together, collectives)
    flows = sharing.flows(sends, collectives, slots.rank_of_stage)
    if flows is None:
        moments = _alone(slots, task_seconds, sends, plan.schedule, together)
        tail = ending(slots, moments.end, kind, *followed(slots, moments.start, moments.end, kind.ends))
        return _Played(slots, moments, tail, together)
    status, moments, item_start, item_end = shared_events.play(
        *_arguments(slots, task_seconds, sends, together), flows, kind.ends, slots.rank_of_stage, slots.n_microbatches
    )
    _check(status, plan.schedule)
    moments = events.TaskTimes(*moments)
    return _Played(slots, moments, ending(slots, moments.end, kind, item_start, item_end), together)


def _alone(
    slots: Actions, task_seconds: NDArray[np.float64], sends: Transfers, schedule: str, together: pairs.TaskPairs | None = None
) -> events.TaskTimes:
    """Run the order of work where nothing shares a link."""
    status, moments = events.play(*_arguments(slots, task_seconds, sends, together), slots.n_microbatches)
    _check(status, schedule)
    return events.TaskTimes(*moments)


def _arguments(
    slots: Actions, task_seconds: NDArray[np.float64], sends: Transfers, together: pairs.TaskPairs | None = None
) -> tuple[events.Orders, events.Seconds]:
    """Return the order of work and its seconds as kernels take them."""
    orders = events.Orders(slots.first, slots.stage, slots.microbatch, slots.phase, sends.channel)
    seconds = events.Seconds(np.ascontiguousarray(task_seconds), sends.seconds)
    if together is None or not len(together.first):
        return orders, seconds
    return (
        orders._replace(paired=locked(together.of_tasks(len(slots.stage)))),
        seconds._replace(paired=locked(together.seconds.ravel())),
    )


def _check(status: int, schedule: str) -> None:
    """Refuse an order of work that cannot go on."""
    if status:
        raise InputError(f"schedule {schedule}: its order of work deadlocks: some task waits for one that never runs")


def _spans(slots: Actions, moments: events.TaskTimes, end: StepTail) -> dict[str, NDArray[Any]]:
    """Return the columns of the spans: tasks, transfers, end of step; in order of start, then as listed here."""
    rank = np.repeat(np.arange(slots.n_ranks), np.diff(slots.first))
    sent = np.flatnonzero(moments.send_end > moments.end)
    n_last = len(end.stage)
    columns = {
        "stage": (slots.stage, slots.stage[sent], end.stage),
        "microbatch": (slots.microbatch, slots.microbatch[sent], np.full(n_last, -1)),
        "phase": (slots.phase, np.full(len(sent), PHASES.index("send")), end.phase),
        "rank": (rank, np.full(len(sent), -1), end.rank),
        "start_seconds": (moments.start, moments.send_start[sent], end.start_seconds),
        "end_seconds": (moments.end, moments.send_end[sent], end.end_seconds),
    }
    joined = {name: np.concatenate([np.asarray(part) for part in parts]) for name, parts in columns.items()}
    by_start = np.argsort(joined["start_seconds"], kind="stable")
    result = {}
    for name, column in joined.items():
        result[name] = column[by_start].astype(np.float64 if name.endswith("_seconds") else np.int64)
        result[name].setflags(write=False)
    return result
