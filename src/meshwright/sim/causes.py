"""Where the seconds of a step went, seen from one pipeline rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.events.order import TaskTimes
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import PHASES
from meshwright.schedules import BACKWARD_WEIGHT, FORWARD, Actions
from meshwright.sim.end_of_step import StepTail
from meshwright.sim.pairs import TaskPairs

__all__ = ["causes"]


def causes(
    slots: Actions,
    moments: TaskTimes,
    end: StepTail,
    stage_costs: tuple[StageCost, ...],
    n_microbatches: int,
    together: TaskPairs | None = None,
    rank: int | None = None,
) -> tuple[tuple[str, float], ...]:
    """Return the seconds of the step by cause; they add up to its length.

    `rank`: of whom; None for the rank that finishes last. What another one waits at the end of the step counts too.

    Returns: ``compute``, ``recompute``, the causes of blocking communication, ``contention`` (by how much shared links
    lengthen the tasks), ``reduce`` (its exposed part), ``optimizer``, ``gather``, ``transfer``, ``imbalance`` and
    ``bubble`` of that rank (the lowest of several that finish last). A wait counts as ``transfer`` as far as what was
    waited for was already under way; of the other waits, ``imbalance`` are the seconds by which the busiest rank has more
    to do, and ``bubble`` the rest. What pairs of tasks hide of all-to-alls (`together`) is not in ``expert``; by how much
    these slow the compute beside them is.
    """
    step_seconds = float(end.rank_end_seconds.max())
    if rank is None:
        rank = int(np.argmax(end.rank_end_seconds))
    seconds: dict[str, float] = dict.fromkeys(("compute", "recompute"), 0.0)
    for stage in np.flatnonzero(slots.rank_of_stage == rank):
        load = stage_costs[stage]
        pure = load.forward_seconds + load.backward_input_seconds + load.backward_weight_seconds
        parts = [("compute", pure), ("recompute", load.recompute_seconds)]
        for name, value in (*parts, *load.forward_communication, *load.backward_communication):
            seconds[name] = seconds.get(name, 0.0) + n_microbatches * value
    hidden = 0.0 if together is None else together.hidden_seconds(rank, slots, stage_costs)
    if hidden:
        seconds["expert"] = seconds.get("expert", 0.0) - hidden
    tasks = slice(int(slots.first[rank]), int(slots.first[rank + 1]))
    longer = float((moments.end[tasks] - moments.start[tasks]).sum()) - sum(seconds.values())
    if longer > 1e-9 * step_seconds:
        seconds["contention"] = longer
    for name in ("gather", "optimizer"):
        mine = (end.rank_of_item == rank) & (end.phase == PHASES.index(name))
        seconds[name] = seconds.get(name, 0.0) + float((end.end_seconds[mine] - end.start_seconds[mine]).sum())
    seconds["reduce"] = float(end.reduce_end_seconds[rank] - end.compute_end_seconds[rank])
    released = moments.end if together is None else together.released(moments.end)
    seconds["transfer"] = _waited_for_transfers(slots, moments, rank, released)
    rest = step_seconds - sum(seconds.values())
    busy = np.add.reduceat(np.append(moments.end - moments.start, 0.0), slots.first[:-1]) * (np.diff(slots.first) > 0)
    uneven = min(float(busy.max() - busy[rank]), rest)
    if uneven > 1e-9 * step_seconds:
        seconds["imbalance"] = uneven
        rest -= uneven
    seconds["bubble"] = rest if rest > 1e-12 * step_seconds else 0.0
    # What rounding leaves over goes to compute, so that the sum is the step.
    seconds["compute"] += step_seconds - sum(seconds.values())
    known = (
        "compute", "recompute", "offload", "tensor", "context", "expert", "gather", "contention", "imbalance", "bubble",
        "transfer", "reduce", "optimizer",
    )  # fmt: skip
    names = [*(name for name in known if name in seconds), *sorted(set(seconds) - set(known))]
    return tuple((name, seconds[name]) for name in names)


def _waited_for_transfers(slots: Actions, moments: TaskTimes, rank: int, released: NDArray[np.float64]) -> float:
    """Return for how long a rank stood still while what it waited for was on its way."""
    lower, upper = int(slots.first[rank]), int(slots.first[rank + 1])
    if upper == lower:
        return 0.0
    shape = (slots.n_stages + 1, slots.n_microbatches)
    forward, backward = np.full(shape, -1), np.full(shape, -1)
    tasks = np.arange(len(slots.stage))
    goes_forward = slots.phase == FORWARD
    goes_back = ~goes_forward & (slots.phase != BACKWARD_WEIGHT)
    forward[slots.stage[goes_forward] + 1, slots.microbatch[goes_forward]] = tasks[goes_forward]
    backward[slots.stage[goes_back], slots.microbatch[goes_back]] = tasks[goes_back]
    stage, microbatch, phase = (array[lower:upper] for array in (slots.stage, slots.microbatch, slots.phase))
    sender = np.where(phase == FORWARD, forward[stage, microbatch], backward[stage + 1, microbatch])
    sender = np.where(phase == BACKWARD_WEIGHT, -1, sender)
    idle = moments.start[lower:upper] - np.concatenate(([0.0], moments.end[lower : upper - 1]))
    under_way = np.minimum(moments.start[lower:upper], moments.send_end[sender]) - released[sender]
    waited = np.where((sender >= 0) & (idle > 0.0), np.minimum(idle, np.maximum(under_way, 0.0)), 0.0)
    return float(waited.sum())
