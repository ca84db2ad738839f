"""Links that several ranks fill at the end of a step, for the check of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.sim import traffic

__all__ = ["LastTraffic", "RankEnd"]

_ROUNDING = 1e-6  # of links that are filled event by event


class RankEnd:
    """How the work of a rank ends at the earliest.

    Parameters
    ----------
    stages : dict of int to float
        Of each of its stages, when the last of its tasks that has gradients of weights starts.
    last : float
        When the last task of the rank starts.
    over : float
        When that is over.
    """

    def __init__(self, stages: dict[int, float], last: float, over: float) -> None:
        self.stages, self.over = stages, over
        self.last = max(last, *stages.values())


class LastTraffic:
    """What reductions and gathered weights of a plan put on links, in seconds of each link at full bandwidth.

    Parameters
    ----------
    problem : Problem
        Where it runs.
    plan : Plan
        The plan.
    stage_costs : sequence of StageCost
        What its stages do, with what they put on links.
    """

    def __init__(self, problem: Problem, plan: Plan, stage_costs: Sequence[StageCost]) -> None:
        last = tuple(
            replace(load, collectives=tuple(own for own in load.collectives if own.part == "reduce" or own.part == "gather"))
            for load in stage_costs
        )
        bandwidth = problem.required_cluster.links.bytes_per_second
        self.loads, self.rank_of_stage = last, plan.rank_of_stage()
        found = traffic.traffic(problem, plan, last)
        self.is_empty = found is None
        n_stages = len(last)
        self.of_stage = {word: np.zeros((n_stages, 0)) for word in ("reduce", "gather")}
        if found is None:
            return
        used = np.unique(np.concatenate([*found.links, np.empty(0, dtype=np.int64)]))  # all other links carry nothing
        for word in self.of_stage:
            part = traffic.PARTS.index(word)
            rows = np.zeros((n_stages, len(used)))
            for i in range(n_stages):
                flow = part * n_stages + i
                rows[i, np.searchsorted(used, found.links[flow])] = found.bytes[flow] / bandwidth[found.links[flow]]
                # the flow is told to take so long alone: what would need longer does not
                rows[i] /= (
                    max(1.0, float(rows[i].max(initial=0.0)) / found.seconds[part, i])
                    if found.seconds[part, i] > 0.0
                    else math.inf
                )
            self.of_stage[word] = rows

    def least_step(self, ends: Sequence[RankEnd]) -> float:
        """Return what a step takes at least.

        Lemma: take a moment and a link. Of each rank, reductions of stages whose last task with gradients of weights starts at that moment or
        later begin no earlier, and where its last task does, at least one of its reductions; weights are gathered after its last task, the
        part of a reduction that is left then, and its updates. All these pass the link after the moment, at its bandwidth at
        most. And the rank whose reduction passes last still updates and gathers.
        """
        if self.is_empty:
            return 0.0
        reduced, gathered = self.of_stage["reduce"], self.of_stage["gather"]
        of_rank = [[i for i, of in enumerate(self.rank_of_stage) if of == rank] for rank in range(len(ends))]
        update = [sum(self.loads[i].optimizer_seconds for i in own) for own in of_rank]
        gathers = [
            end.over + min(self.loads[i].reduce_seconds * (1.0 - self.loads[i].overlap_ratio) for i in own) + updated
            for end, own, updated in zip(ends, of_rank, update, strict=True)
        ]
        longest = 0.0
        for moment in {*gathers, *(end.last for end in ends), *(begin for end in ends for begin in end.stages.values())}:
            of_reductions, of_all, after = np.zeros(reduced.shape[1]), np.zeros(reduced.shape[1]), math.inf
            for end, own, updated, begin in zip(ends, of_rank, update, gathers, strict=True):
                late = [i for i in own if end.stages[i] >= moment]
                if late or end.last >= moment:
                    of_reductions += reduced[late].sum(axis=0) if late else reduced[own].min(axis=0)
                    after = min(after, updated + sum(self.loads[i].gather_seconds for i in own))
                if begin >= moment:
                    of_all += gathered[own].sum(axis=0)
            if after < math.inf:
                longest = max(longest, moment + float(of_reductions.max(initial=0.0)) + after)
            longest = max(longest, moment + float((of_all + of_reductions).max(initial=0.0)))
        return longest * (1.0 - _ROUNDING)
