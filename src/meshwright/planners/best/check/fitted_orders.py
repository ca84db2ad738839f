"""Orders that are fitted to durations, and those that are given: what a split takes at least in all of them, for the check of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.plan import Plan
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best.check.step_ends import LastTraffic, RankEnd
from meshwright.planners.best.check.ways import Way
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

__all__ = ["RankTasks", "least_step", "longest_way", "play_rows"]


class RankTasks:
    """The tasks of one rank without its weight gradients, and what is known of them. Seconds are numbers, or ways that add up as these do.

    Parameters
    ----------
    tasks : sequence of tuple
        Stage, micro-batch and phase of each, in order.
    limit : int
        Activations that the rank may hold.
    """

    def __init__(self, tasks: Sequence[tuple[int, int, int]], limit: int) -> None:
        self.tasks, self.limit = tasks, limit
        self.starts: list[Any] = []
        self.passed: list[Any] = [0.0]  # seconds of the tasks before each, and of all so far
        self.gradients: list[Any] = [0.0]  # seconds of the first weight gradients whose input gradients have run
        self.n_behind: list[int] = []  # of each task, how many input gradients lie before it
        self.clock: Any = 0.0
        self._held = self._over = self._seen = 0
        self._best: Any = -math.inf

    def earliest(self, ready: Any) -> Any:
        """Return when the next task starts at the earliest.

        Lemma: beyond what the rank may hold, weight gradients must be over before a forward task, the first ones first. Those whose
        input gradients do not lie before some task run after its start, and so do all tasks from it on.
        """
        begin = max(ready, self.clock)
        if self.tasks[len(self.starts)][2] != FORWARD:
            return begin
        self._held += 1
        self._over = max(self._over, self._held - self.limit)
        while self._seen < len(self.starts) and self.n_behind[self._seen] <= self._over:
            behind = self.n_behind[self._seen]
            self._best = max(self._best, self.starts[self._seen] - self.passed[self._seen] - self.gradients[behind])
            self._seen += 1
        return max(begin, self._best + self.passed[-1] + self.gradients[self._over]) if self._over else begin

    def run(self, begin: Any, seconds: Any, weight_seconds: Any) -> Any:
        """Put down when the next task starts and return when it ends."""
        phase = self.tasks[len(self.starts)][2]
        self.n_behind.append(len(self.gradients) - 1)
        self.starts.append(begin)
        self.passed.append(self.passed[-1] + seconds)
        if phase == BACKWARD_INPUT:
            self.gradients.append(self.gradients[-1] + weight_seconds)
        self._held -= phase == BACKWARD
        self.clock = begin + seconds
        return self.clock


def play_rows(
    rows: Sequence[RankTasks],
    seconds: dict[int, Sequence[Any]],
    send_seconds: NDArray[np.float64],
    rank_of_stage: Sequence[int],
) -> None:
    """Give every task of some ranks its earliest start.

    Parameters
    ----------
    rows : sequence of RankTasks
        One for each rank.
    seconds : dict of int to sequence
        By phase, of a task of each stage: numbers, or `Way`.
    send_seconds : ndarray, shape (2, n_stages), float64
        What a stage sends to the next, and to the one before, alone on its links.
    rank_of_stage : sequence of int
        Where the stages are.
    """
    n_stages = len(rank_of_stage)
    arrived: dict[tuple[int, int], Any] = {(0, i): 0.0 for i in range(1 + max(i for row in rows for _, i, _ in row.tasks))}
    returned: dict[tuple[int, int], Any] = {}
    free: dict[tuple[int, int], Any] = {}
    waiting = True
    while waiting:
        waiting = False
        for row in rows:
            for stage, i, phase in row.tasks[len(row.starts) :]:
                if phase == FORWARD:
                    ready = arrived.get((stage, i))
                else:
                    ready = returned.get((stage, i)) if stage < n_stages - 1 else 0.0
                if ready is None:
                    break
                waiting = True
                end = row.run(row.earliest(ready), seconds[phase][stage], seconds[BACKWARD_WEIGHT][stage])
                target = stage + 1 if phase == FORWARD else stage - 1
                if not 0 <= target < n_stages:
                    continue
                channel = rank_of_stage[stage], rank_of_stage[target]
                if channel[0] != channel[1]:  # what one rank sends another goes one after the other
                    end = max(end, free.get(channel, 0.0)) + float(send_seconds[int(phase != FORWARD), stage])
                    free[channel] = end
                (arrived if phase == FORWARD else returned)[target, i] = end


def least_step(
    plan: Plan,
    stage_costs: Sequence[StageCost],
    send_seconds: NDArray[np.float64],
    again_of_stage: Sequence[float],
    again_of_rank: Sequence[float],
    last_reduced: Sequence[float] = (),
    last_traffic: LastTraffic | None = None,
) -> float:
    """Return what all plans with the split of a plan take at least, whatever order their schedule is fitted to; or in the one it has.

    Lemma: orders differ in where weight gradients run. Of each rank take any task: after its earliest start, with what must be
    recomputed and nothing waiting for a link, come that task, all later ones and the weight gradients of their input gradients; of
    what the rank recomputes beyond that of single stages, as much as of the stage with fewest tasks left; then its updates, and where
    weight gradients come last, what some stage's reduction takes longer than those.

    Parameters
    ----------
    plan : Plan
        It recomputes the least.
    stage_costs : sequence of StageCost
        What its stages do.
    send_seconds : ndarray, shape (2, n_stages), float64
        What each of them sends forward and backward, alone on its links.
    again_of_stage, again_of_rank : sequence of float
        Seconds of a micro-batch that the layers of each stage, and of all stages of each rank, must recompute.
    last_reduced : sequence of float
        What of each rank's reductions is known to follow its last task; empty for nothing.
    last_traffic : LastTraffic or None
        What the end of the step puts on links; None where that is left out.
    """
    rank_of_stage = plan.rank_of_stage()
    weight = np.array([load.backward_weight_seconds for load in stage_costs])
    both = np.array([load.backward_total_seconds for load in stage_costs]) + np.array(again_of_stage)
    seconds: dict[int, Sequence[Any]] = {
        FORWARD: [load.forward_total_seconds for load in stage_costs],
        BACKWARD_INPUT: np.maximum(both - weight, 0.0).tolist(), BACKWARD_WEIGHT: weight.tolist(), BACKWARD: both.tolist(),
    }  # fmt: skip
    rows = _rows(plan)
    play_rows(rows, seconds, send_seconds, rank_of_stage)
    longest = 0.0
    for rank, row in enumerate(rows):
        own = [i for i, of in enumerate(rank_of_stage) if of == rank]
        more = max(again_of_rank[rank] - sum(again_of_stage[i] for i in own), 0.0)
        left, n_left, latest = 0.0, dict.fromkeys(own, 0), 0.0
        for (stage, _, phase), start in zip(reversed(row.tasks), reversed(row.starts), strict=True):
            left += seconds[phase][stage] + (float(weight[stage]) if phase == BACKWARD_INPUT else 0.0)
            n_left[stage] += phase != FORWARD
            latest = max(latest, start + left + more * min(n_left.values()))
        longest = max(longest, latest + _end(row, [stage_costs[i] for i in own], last_reduced[rank] if last_reduced else 0.0))
    if last_traffic is None or last_traffic.is_empty:
        return longest
    return max(longest, last_traffic.least_step([_end_of(row, seconds) for row in rows]))


def _rows(plan: Plan) -> list[RankTasks]:
    """Return the tasks of every rank, and what it may hold."""
    n_ranks, module = len(plan.ranks()), schedules.load(plan.schedule)
    n_chunks = len(plan.stages) // n_ranks
    made = module.order(n_ranks, n_chunks, plan.n_microbatches, None)
    limits = module.in_flight(n_ranks, n_chunks, plan.n_microbatches).tolist()
    if not (made.phase == BACKWARD_WEIGHT).any():  # the order is given, and keeps to them
        limits = [len(made.phase)] * n_ranks
    every = list(zip(made.stage.tolist(), made.microbatch.tolist(), made.phase.tolist(), strict=True))
    return [
        RankTasks([task for task in every[start:stop] if task[2] != BACKWARD_WEIGHT], most)
        for start, stop, most in zip(made.first[:-1].tolist(), made.first[1:].tolist(), limits, strict=True)
    ]


def _end(row: RankTasks, loads: Sequence[StageCost], last_reduced: float) -> float:
    """Return what follows the tasks of a rank at least: what is left of its reductions, and its updates."""
    late = [max(load.reduce_seconds - load.backward_weight_seconds, 0.0) for load in loads]
    exposed = 0.0 if any(phase == BACKWARD for _, _, phase in row.tasks) else min(late)
    return max(exposed, last_reduced) + sum(load.optimizer_seconds + load.gather_seconds for load in loads)


def longest_way(
    plan: Plan, stage_costs: Sequence[StageCost], send_seconds: NDArray[np.float64], again: Sequence[float],
    last_reduced: Sequence[float],
) -> Way:  # fmt: skip
    """Return `least_step` by what every stage recomputes, nothing else, as a way: how often its backward passes lie on it.

    Lemma: the step ends with a sum of tasks and transfers each of which waits for the one before; whatever backward passes take, it
    ends no earlier than that sum says. A gradient of the input takes what the whole pass does but for the gradient of weights.

    Parameters
    ----------
    plan, stage_costs, send_seconds, last_reduced
        As in `least_step`.
    again : sequence of float
        Seconds of a micro-batch that the layers of each stage recompute.
    """
    rank_of_stage, unit = plan.rank_of_stage(), np.eye(len(stage_costs))
    whole = [Way(load.backward_total_seconds + more, one) for load, more, one in zip(stage_costs, again, unit, strict=True)]
    weight = [load.backward_weight_seconds for load in stage_costs]
    inputs = [Way(max(own.seconds - late, 0.0), own.times) for own, late in zip(whole, weight, strict=True)]
    forward = [load.forward_total_seconds for load in stage_costs]
    seconds: dict[int, Sequence[Any]] = {
        FORWARD: forward, BACKWARD: whole, BACKWARD_INPUT: inputs, BACKWARD_WEIGHT: weight
    }  # fmt: skip
    rows = _rows(plan)
    play_rows(rows, seconds, send_seconds, rank_of_stage)
    longest = Way(0.0, 0.0 * unit[0])
    for rank, row in enumerate(rows):
        left: Any = _end(
            row, [load for load, of in zip(stage_costs, rank_of_stage, strict=True) if of == rank], last_reduced[rank]
        )
        for (stage, _, phase), start in zip(reversed(row.tasks), reversed(row.starts), strict=True):
            left = left + seconds[phase][stage] + (weight[stage] if phase == BACKWARD_INPUT else 0.0)
            longest = max(longest, left + start)
    return longest


def _end_of(row: RankTasks, seconds: dict[int, Sequence[Any]]) -> RankEnd:
    """Return how the work of a rank ends at the earliest, by the earliest starts of its tasks.

    Lemma: a stage ends with a whole backward pass, its last one or later, or with a weight gradient, behind its last input gradient and its
    other weight gradients. Between the start of any task and that run all tasks up to the last input gradient (or those before
    the whole backward pass), and, of the stage's input gradients among them, all weight gradients but one.
    """
    weight = seconds[BACKWARD_WEIGHT]
    last = {stage: (place, phase) for place, (stage, _, phase) in enumerate(row.tasks) if phase != FORWARD}
    begins, over, left, longest = dict.fromkeys(last, 0.0), 0.0, 0.0, 0.0
    for stage, (_, phase) in last.items():
        longest = max(
            longest,
            float(seconds[BACKWARD][stage]) if phase == BACKWARD else 0.0,
            float(weight[stage]) if (any(task[0] == stage and task[2] == BACKWARD_INPUT for task in row.tasks)) else 0.0,
        )
    before, n_inputs = dict.fromkeys(last, 0.0), dict.fromkeys(last, 0)
    for place in reversed(range(len(row.tasks))):
        stage, _, phase = row.tasks[place]
        start, own = row.starts[place], float(seconds[phase][stage])
        left += own + (float(weight[stage]) if phase == BACKWARD_INPUT else 0.0)
        over = max(over, start + left)
        n_inputs[stage] += phase == BACKWARD_INPUT
        for other, (end, kind) in last.items():
            if place <= end:
                before[other] += own if place < end or kind == BACKWARD_INPUT else 0.0
                begins[other] = max(begins[other], start + before[other] + max(n_inputs[other] - 1, 0) * float(weight[other]))
    return RankEnd(begins, over - longest, over)
