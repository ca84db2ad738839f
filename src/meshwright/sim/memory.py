"""The memory of one device of every pipeline rank over time, and what its peak consists of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.core.stage_cost import StageCost
from meshwright.schedules import BACKWARD_INPUT, FORWARD, Actions

__all__ = ["Memory", "memory"]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Memory of one device of each rank, as the fields of the same names of `meshwright.core.timeline.Timeline`."""

    peak_bytes: tuple[float, ...]
    seconds: tuple[NDArray[np.float64], ...]
    bytes: tuple[NDArray[np.float64], ...]
    causes: tuple[tuple[tuple[str, float], ...], ...]

    @property
    def allocated_bytes(self) -> tuple[float, ...]:
        """Tensors at the peak."""
        return tuple(sum(n_bytes for cause, n_bytes in rank if cause not in ("allocator", "context")) for rank in self.causes)

    @property
    def reserved_bytes(self) -> tuple[float, ...]:
        """What the caching allocator has taken from the device."""
        return tuple(sum(n_bytes for cause, n_bytes in rank if cause != "context") for rank in self.causes)


def memory(
    slots: Actions,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    stage_costs: tuple[StageCost, ...],
    context_bytes: tuple[float, ...] | None = None,
    paired: NDArray[np.int64] | None = None,
) -> Memory:
    """Return the memory held over one step.

    Weights, gradients, optimizer state and what the process reserves are held all the time; an activation from the start of its
    forward task to the end of the last backward task that needs it; the working memory of a stage while one of its tasks runs.

    Parameters
    ----------
    slots : Actions
        The order of work.
    start, end : ndarray, shape (n_tasks,), float64
        Of each task, in seconds.
    stage_costs : tuple of StageCost
        One per stage.
    context_bytes : tuple of float or None
        What the device of each rank keeps for itself; None for what the loads reserve beside buffers of collectives.
    paired : ndarray, shape (n_pairs,), int64, or None
        Tasks that run beside the next one: both need their working memory while either runs.

    Returns
    -------
    Memory
        Over time, at its peak, and the causes of the peak.

    Notes
    -----
    Zero-bubble schedules free part of an activation after the input gradient; all of it is counted until the weight gradient,
    the safe side.
    """
    contexts = (None,) * slots.n_ranks if context_bytes is None else context_bytes
    working = np.array([load.working_bytes for load in stage_costs])[slots.stage]
    if paired is not None and len(paired):
        working[paired] = working[paired + 1] = working[paired] + working[paired + 1]
    parts = [_of_rank(slots, rank, start, end, stage_costs, contexts[rank], working) for rank in range(slots.n_ranks)]
    return Memory(
        peak_bytes=tuple(part[0] for part in parts),
        seconds=tuple(part[1] for part in parts),
        bytes=tuple(part[2] for part in parts),
        causes=tuple(part[3] for part in parts),
    )


def _of_rank(
    slots: Actions,
    rank: int,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    stage_costs: tuple[StageCost, ...],
    context: float | None,
    working_bytes: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64], NDArray[np.float64], tuple[tuple[str, float], ...]]:
    """Return peak, times, levels and causes of one rank."""
    tasks = slice(int(slots.first[rank]), int(slots.first[rank + 1]))
    stages = np.flatnonzero(slots.rank_of_stage == rank)
    held = {
        name: sum(getattr(stage_costs[stage], f"{name}_bytes") for stage in stages)
        for name in ("weight", "gradient", "optimizer")
    }
    communication = max(stage_costs[stage].communication_bytes for stage in stages)
    reserved = max(stage_costs[stage].reserved_bytes for stage in stages) if context is None else context + communication
    static = sum(held.values()) + reserved
    # Counts, not bytes, are summed up over time, so that the level returns to what it was, to the last bit.
    during = np.zeros(tasks.stop - tasks.start)
    after = np.zeros(tasks.stop - tasks.start)
    stage_of_task, phase = slots.stage[tasks], slots.phase[tasks]
    for stage in stages:
        mine = stage_of_task == stage
        taken = np.cumsum(mine & (phase == FORWARD))
        freed = np.cumsum(mine & (phase != FORWARD) & (phase != BACKWARD_INPUT))
        before = np.concatenate(([0], freed[:-1]))
        during += (taken - before) * stage_costs[stage].activation_bytes
        after += (taken - freed) * stage_costs[stage].activation_bytes
    working = working_bytes[tasks]
    level = static + np.stack((during + working, after), axis=1).ravel()
    moment = np.stack((start[tasks], end[tasks]), axis=1).ravel()
    fullest = int(np.argmax(during + working)) if len(during) else 0
    tensors = 1.0 / (1.0 + max(stage_costs[stage].fragmentation_ratio for stage in stages))
    causes = (
        ("weights", held["weight"]),
        ("gradients", held["gradient"]),
        ("optimizer", held["optimizer"]),
        ("activations", float(during[fullest]) * tensors),
        ("working", float(working[fullest]) * tensors),
        ("communication", communication),
        ("allocator", float(during[fullest] + working[fullest]) * (1.0 - tensors)),
        ("context", reserved - communication),
    )
    seconds, n_bytes = _changes(moment, level, static)
    return static + float(during[fullest] + working[fullest]), seconds, n_bytes, causes


def _changes(
    moment: NDArray[np.float64], level: NDArray[np.float64], static: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the moments at which the level differs from what it was, with the static level at time 0."""
    moment, level = np.concatenate(([0.0], moment)), np.concatenate(([static], level))
    last = np.concatenate((moment[1:] != moment[:-1], [True]))
    moment, level = moment[last], level[last]
    changed = np.concatenate(([True], level[1:] != level[:-1]))
    seconds, n_bytes = moment[changed], level[changed]
    seconds.setflags(write=False)
    n_bytes.setflags(write=False)
    return seconds, n_bytes
