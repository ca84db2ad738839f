"""What follows the last backward pass: gradient reduction (partly beside it), weight update, gathering of weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.events.shared_events import Ends
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import PHASES
from meshwright.schedules import BACKWARD, BACKWARD_WEIGHT, Actions
from meshwright.sim.traffic import PARTS

__all__ = ["StepTail", "TailTasks", "ending", "followed", "items"]


@dataclass(frozen=True, slots=True, eq=False)
class TailTasks:
    """The end of a step before it is played: what every rank does, one after the other, in order of rank.

    Parameters
    ----------
    ends : Ends
        As the event loop takes it.
    stage, phase : ndarray, shape (n_items,), int64
        As in `meshwright.core.timeline.Timeline`.
    """

    ends: Ends
    stage: NDArray[np.int64]
    phase: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StepTail:
    """Spans of the end of a step, and when each rank is done.

    Parameters
    ----------
    stage, phase, rank : ndarray, shape (n_items,), int64
        As in `meshwright.core.timeline.Timeline`; a reduction occupies links only (rank -1).
    start_seconds, end_seconds : ndarray, shape (n_items,), float64
        When.
    rank_of_item : ndarray, shape (n_items,), int64
        Whose end it belongs to, reductions included.
    compute_end_seconds, reduce_end_seconds, rank_end_seconds : ndarray, shape (n_ranks,), float64
        When each rank ends its last task, its last reduction (or task), and everything.
    """

    stage: NDArray[np.int64]
    phase: NDArray[np.int64]
    rank: NDArray[np.int64]
    start_seconds: NDArray[np.float64]
    end_seconds: NDArray[np.float64]
    rank_of_item: NDArray[np.int64]
    compute_end_seconds: NDArray[np.float64]
    reduce_end_seconds: NDArray[np.float64]
    rank_end_seconds: NDArray[np.float64]


def items(slots: Actions, stage_costs: tuple[StageCost, ...]) -> TailTasks:
    """Return what every rank does at the end of the step.

    Gradients of a stage become ready evenly while its last backward task runs, and leave as they come: the share
    ``overlap_ratio`` of a reduction starts with that task, the rest with the rank's next task, or when it has none. Reductions
    of the stages of one rank follow each other on its links. Then come the weight update and the gathering of weights.

    Returns: in order of rank.

    Notes
    -----
    Real buckets are finite: the first becomes ready a little after the task starts and the last is exposed. Whoever sets
    ``overlap_ratio`` accounts for that.
    """
    n_stages = slots.n_stages
    reduce, gather = ((2 + PARTS.index(word)) * n_stages for word in ("reduce", "gather"))
    rows: list[tuple[str, int, float, int, int]] = []
    first = [0]
    for rank in range(slots.n_ranks):
        last = _last_tasks(slots, rank)
        upper = int(slots.first[rank + 1])
        for stage, task in last:
            beside = stage_costs[stage].reduce_seconds * stage_costs[stage].overlap_ratio
            rows.append(("reduce", stage, beside, reduce + stage, task))
            after = task + 1 if task + 1 < upper else -1
            rows.append(("reduce", stage, stage_costs[stage].reduce_seconds - beside, reduce + stage, after))
        stages = [int(stage) for stage in np.flatnonzero(slots.rank_of_stage == rank)]
        rows += [("optimizer", stage, stage_costs[stage].optimizer_seconds, -1, -1) for stage in stages]
        rows += [("gather", stage, stage_costs[stage].gather_seconds, gather + stage, -1) for stage in stages]
        rows = [row for row in rows if row[2] > 0.0]
        first.append(len(rows))
    ends = Ends(
        np.array(first, dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.float64),
        np.array([row[3] for row in rows], dtype=np.int64),
        np.array([row[4] for row in rows], dtype=np.int64),
    )
    for array in ends:
        array.setflags(write=False)
    return TailTasks(
        ends,
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([PHASES.index(row[0]) for row in rows], dtype=np.int64),
    )


def _last_tasks(slots: Actions, rank: int) -> list[tuple[int, int]]:
    """Return the stages of a rank with the last backward task of each, in order of these tasks."""
    lower, upper = int(slots.first[rank]), int(slots.first[rank + 1])
    phase, stage_of_task = slots.phase[lower:upper], slots.stage[lower:upper]
    last: dict[int, int] = {}
    n_own = int((slots.rank_of_stage == rank).sum())
    for place in np.flatnonzero((phase == BACKWARD) | (phase == BACKWARD_WEIGHT))[::-1].tolist():
        last.setdefault(int(stage_of_task[place]), lower + place)
        if len(last) == n_own:
            break
    return sorted(last.items(), key=lambda pair: pair[1])


def followed(
    slots: Actions, start: NDArray[np.float64], end: NDArray[np.float64], ends: Ends
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when the items start and end where nothing shares their links.

    `start`, `end`, shape (n_tasks,), float64: of each task, in seconds.
    """
    item_start, item_end = np.zeros(len(ends.seconds)), np.zeros(len(ends.seconds))
    compute_end = _compute_end(slots, end)
    for rank in range(slots.n_ranks):
        clock = 0.0
        for item in range(int(ends.first[rank]), int(ends.first[rank + 1])):
            trigger = int(ends.trigger[item])
            item_start[item] = max(clock, float(start[trigger]) if trigger >= 0 else compute_end[rank])
            clock = item_end[item] = item_start[item] + ends.seconds[item]
    return item_start, item_end


def _compute_end(slots: Actions, end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when each rank ends its last task; 0 for one that has none."""
    last = slots.first[1:] - 1
    return np.where(last >= slots.first[:-1], end[last], 0.0)


def ending(
    slots: Actions, end: NDArray[np.float64], kind: TailTasks, item_start: NDArray[np.float64], item_end: NDArray[np.float64]
) -> StepTail:
    """Return the end of the step as it was played.

    `end`, shape (n_tasks,), float64: of each task, in seconds.
    `item_start`, `item_end`, shape (n_items,), float64: when they were played.
    """
    rank_of_item = np.repeat(np.arange(slots.n_ranks), np.diff(kind.ends.first))
    reduces = kind.phase == PHASES.index("reduce")
    compute_end = _compute_end(slots, end)
    reduce_end, rank_end = compute_end.copy(), compute_end.copy()
    np.maximum.at(reduce_end, rank_of_item[reduces], item_end[reduces])
    np.maximum.at(rank_end, rank_of_item, item_end)
    return StepTail(
        kind.stage, kind.phase, np.where(reduces, -1, rank_of_item), item_start, item_end, rank_of_item,
        compute_end, reduce_end, rank_end,
    )  # fmt: skip
