"""What follows the last backward pass: gradient reduction (partly beside it), weight update, gathering of weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules import BACKWARD, BACKWARD_WEIGHT, Slots
from meshwright.table import StageLoad
from meshwright.timeline import PHASES

__all__ = ["Ending", "ending"]


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """Spans of the end of a step, and when each rank is done.

    Parameters
    ----------
    stage, phase, rank : tuple of int
        As in `meshwright.timeline.Timeline`; a reduction occupies links only (rank -1).
    start_seconds, end_seconds : tuple of float
        When.
    compute_end_seconds, reduce_end_seconds, rank_end_seconds : ndarray, shape (n_ranks,), float64
        When each rank ends its last task, its last reduction (or task), and everything.
    """

    stage: tuple[int, ...]
    phase: tuple[int, ...]
    rank: tuple[int, ...]
    start_seconds: tuple[float, ...]
    end_seconds: tuple[float, ...]
    compute_end_seconds: NDArray[np.float64]
    reduce_end_seconds: NDArray[np.float64]
    rank_end_seconds: NDArray[np.float64]


def ending(slots: Slots, start: NDArray[np.float64], end: NDArray[np.float64], loads: tuple[StageLoad, ...]) -> Ending:
    """Return the end of the step.

    Gradients of a stage become ready evenly while its last backward task runs, and leave as they come: the share
    ``overlap_ratio`` of a reduction starts with that task, the rest when the rank has nothing more to compute. Reductions of
    the stages of one rank follow each other on its links. Then come the weight update and the gathering of weights.

    Parameters
    ----------
    slots : Slots
        The order of work.
    start, end : ndarray, shape (n_tasks,), float64
        Of each task, in seconds.
    loads : tuple of StageLoad
        One per stage.

    Returns
    -------
    Ending
        Its spans, in order of rank.

    Notes
    -----
    Real buckets are finite: the first becomes ready a little after the task starts and the last is exposed. Whoever sets
    ``overlap_ratio`` accounts for that.
    """
    spans: list[tuple[int, str, int, float, float]] = []
    done = np.zeros((3, slots.n_ranks))
    for rank in range(slots.n_ranks):
        lower, upper = int(slots.first[rank]), int(slots.first[rank + 1])
        compute_end = float(end[upper - 1]) if upper > lower else 0.0
        reduced = _reductions(slots, rank, (start, end), loads, spans)
        clock = max(compute_end, reduced)
        done[0, rank], done[1, rank] = compute_end, clock
        stages = [int(stage) for stage in np.flatnonzero(slots.rank_of_stage == rank)]
        for phase in ("optimizer", "gather"):
            for stage in stages:
                seconds = getattr(loads[stage], f"{phase}_seconds")
                if seconds > 0.0:
                    spans.append((stage, phase, rank, clock, clock + seconds))
                    clock += seconds
        done[2, rank] = clock
    return Ending(
        stage=tuple(span[0] for span in spans),
        phase=tuple(PHASES.index(span[1]) for span in spans),
        rank=tuple(span[2] for span in spans),
        start_seconds=tuple(span[3] for span in spans),
        end_seconds=tuple(span[4] for span in spans),
        compute_end_seconds=done[0],
        reduce_end_seconds=done[1],
        rank_end_seconds=done[2],
    )


def _reductions(
    slots: Slots,
    rank: int,
    moments: tuple[NDArray[np.float64], NDArray[np.float64]],
    loads: tuple[StageLoad, ...],
    spans: list[tuple[int, str, int, float, float]],
) -> float:
    """Append the reductions of one rank to `spans`; return when the last one ends (0 where there is none)."""
    start, end = moments
    lower, upper = int(slots.first[rank]), int(slots.first[rank + 1])
    phase, stage_of_task = slots.phase[lower:upper], slots.stage[lower:upper]
    last: dict[int, int] = {}
    for place in np.flatnonzero((phase == BACKWARD) | (phase == BACKWARD_WEIGHT)).tolist():
        last[int(stage_of_task[place])] = lower + place
    free = 0.0
    by_time = sorted((task, stage) for stage, task in last.items() if loads[stage].reduce_seconds > 0.0)
    for task, stage in by_time:
        seconds = loads[stage].reduce_seconds * loads[stage].overlap_ratio
        if seconds > 0.0:
            begin = max(float(start[task]), free)
            free = begin + seconds
            spans.append((stage, "reduce", -1, begin, free))
    for _, stage in by_time:
        seconds = loads[stage].reduce_seconds * (1.0 - loads[stage].overlap_ratio)
        if seconds > 0.0:
            begin = max(float(end[upper - 1]), free)
            free = begin + seconds
            spans.append((stage, "reduce", -1, begin, free))
    return free
