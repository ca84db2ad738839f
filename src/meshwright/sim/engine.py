"""One training step, played: order of work, transfers, end of step, memory, causes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright._kernels import events, shared_events
from meshwright.errors import InputError
from meshwright.plan import Plan
from meshwright.problem import Problem
from meshwright.schedules import Slots, Times
from meshwright.sim import causes, memory, tasks, transfers
from meshwright.sim.end_of_step import Ending, ending
from meshwright.sim.links import busiest
from meshwright.sim.transfers import Transfers
from meshwright.table import StageLoad
from meshwright.timeline import PHASES, Timeline

__all__ = ["estimate", "play", "played_seconds", "simulate", "step_seconds"]


def simulate(problem: Problem, plan: Plan, loads: tuple[StageLoad, ...]) -> Timeline:
    """Play one training step of a plan.

    Parameters
    ----------
    problem : Problem
        Where it runs; without a cluster transfers between stages take no time.
    plan : Plan
        The plan; all data-parallel replicas behave alike, so that one pipeline is played.
    loads : tuple of StageLoad
        What each stage does and holds.

    Returns
    -------
    Timeline
        When everything happens, the memory over time, and where the seconds went.

    Raises
    ------
    InputError
        When the plan does not go with the cluster, the loads or its own schedule.
    """
    tasks.check_plan(problem, plan)
    tasks.check_loads(plan, loads)
    return play(plan, loads, transfers.transfers(problem, plan, loads))


def play(plan: Plan, loads: tuple[StageLoad, ...], sends: Transfers) -> Timeline:
    """Play one training step with known transfers; what `simulate` does once it has checked its arguments.

    Parameters
    ----------
    plan : Plan
        The plan.
    loads : tuple of StageLoad
        What each stage does and holds.
    sends : Transfers
        What stages send each other.

    Returns
    -------
    Timeline
        When everything happens, the memory over time, and where the seconds went.

    Raises
    ------
    InputError
        When the plan's stages do not go with its schedule.
    """
    stage_times = tasks.times(loads, sends.seconds[0, :-1])
    slots = tasks.order(plan, stage_times)
    moments = _moments(slots, stage_times, sends, plan.schedule)
    end = ending(slots, moments.start, moments.end, loads)
    held = memory.memory(slots, moments.start, moments.end, loads)
    spans = _spans(slots, moments, end)
    return Timeline(
        step_seconds=float(end.rank_end_seconds.max()),
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
        causes=causes.causes(slots, moments, end, loads, plan.n_microbatches),
        link_busy_ratio=busiest(slots, moments, sends, float(end.rank_end_seconds.max())),
        allocated_bytes=held.allocated_bytes,
        reserved_bytes=held.reserved_bytes,
    )


def played_seconds(plan: Plan, loads: tuple[StageLoad, ...], sends: Transfers) -> float:
    """Return the seconds of a step with known transfers: what `play` says, without its memory, causes and spans.

    Parameters
    ----------
    plan : Plan
        The plan.
    loads : tuple of StageLoad
        What each stage does.
    sends : Transfers
        What stages send each other.

    Returns
    -------
    float
        Seconds from the first task to the end of the step.

    Raises
    ------
    InputError
        When the plan's stages do not go with its schedule.
    """
    stage_times = tasks.times(loads, sends.seconds[0, :-1])
    slots = tasks.order(plan, stage_times)
    moments = _moments(slots, stage_times, sends, plan.schedule)
    return float(ending(slots, moments.start, moments.end, loads).rank_end_seconds.max())


def estimate(plan: Plan, loads: tuple[StageLoad, ...], transfer_seconds: NDArray[np.float64]) -> float:
    """Return the seconds of a step with given transfers: what `simulate` says where no two transfers share a link, but quicker.

    Parameters
    ----------
    plan : Plan
        The plan.
    loads : tuple of StageLoad
        What each stage does.
    transfer_seconds : ndarray, shape (n_stages - 1,), float64
        From each stage to the next, and back.

    Returns
    -------
    float
        Seconds from the first task to the end of the step.

    Raises
    ------
    InputError
        When the plan's stages do not go with its schedule.
    """
    stage_times = tasks.times(loads, transfer_seconds)
    slots = tasks.order(plan, stage_times)
    moments = _moments(slots, stage_times, transfers.fixed(slots.rank_of_stage, transfer_seconds), plan.schedule)
    return float(ending(slots, moments.start, moments.end, loads).rank_end_seconds.max())


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
    stage_times = Times(forward_seconds, backward_input_seconds, backward_weight_seconds, transfer_seconds)
    slots = schedules.load(schedule).order(n_ranks, n_chunks, n_microbatches, stage_times)
    sends = transfers.fixed(slots.rank_of_stage, transfer_seconds)
    return float(_moments(slots, stage_times, sends, schedule).end.max())


def _moments(slots: Slots, stage_times: Times, sends: Transfers, schedule: str) -> events.Moments:
    """Run the order of work: event by event where transfers share links, as a longest path where none do."""
    orders = events.Orders(slots.first, slots.stage, slots.microbatch, slots.phase, sends.channel)
    seconds = events.Seconds(tasks.task_seconds(stage_times), sends.seconds)
    flows = sends.shared()
    if flows is None:
        status, moments = events.play(orders, seconds, slots.n_microbatches)
    else:
        status, moments = shared_events.play(orders, seconds, flows, slots.rank_of_stage, slots.n_microbatches)
    if status:
        raise InputError(f"schedule {schedule}: its order of work deadlocks: some task waits for one that never runs")
    return events.Moments(*moments)


def _spans(slots: Slots, moments: events.Moments, end: Ending) -> dict[str, NDArray]:
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
