"""What a split takes at least in every order that a zero-bubble schedule may be fitted to: weight gradients move, the rest does not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from meshwright.sim import transfers

__all__ = ["LeastRepeated", "least_seconds"]

_BACKWARD = ("backward_weight_seconds", "backward_total_seconds")


class LeastRepeated(NamedTuple):
    """What is recomputed of one micro-batch at least, in seconds.

    Parameters
    ----------
    of_stage : ndarray, shape (n_stages,), float64
        By the layers of each stage.
    of_rank : ndarray, shape (n_ranks,), float64
        By those of all stages of a rank; at least the sum of these.
    """

    of_stage: NDArray[np.float64]
    of_rank: NDArray[np.float64]


def least_seconds(
    problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...], repeated: LeastRepeated | None = None
) -> float:
    """Return a lower bound on the step of every plan with the split of a plan that recomputes nothing.

    Parameters
    ----------
    problem : Problem
        Where it runs.
    plan : Plan
        The split, on its devices, under a schedule that splits backward passes.
    stage_costs : tuple of StageCost
        What its stages do, nothing recomputed.
    repeated : LeastRepeated or None
        What other plans of the split recompute at least; None for nothing.

    Returns
    -------
    float

    Notes
    -----
    Lemma: on every rank all orders of the schedule have the same forward tasks, input gradients and whole backward passes in the same
    order (`schedules._fitted.shortest`), and hold no more activations than the schedule allows. With no weight gradients but those
    that must be over for that (`earliest` has the lemma), with the least that stages recompute and with transfers alone on their
    links, every task starts no later than in any of them: less is waited for, and nothing takes longer. From the start of any task
    a rank still runs that task and all later ones, the weight gradients of all input gradients among them, which follow these, and
    of what it recomputes at least beyond what its stages do by themselves no less than for the stage of which fewest are left. Then
    come its updates; before them, where weight gradients come last, what the reduction of a stage takes longer than those.
    """
    from meshwright._kernels.best import fitted_orders as kernel

    n_ranks, n_stages, module = len(plan.ranks()), len(stage_costs), schedules.load(plan.schedule)
    made = module.order(n_ranks, n_stages // n_ranks, plan.n_microbatches, None)
    limit = module.in_flight(n_ranks, n_stages // n_ranks, plan.n_microbatches)
    kept = made.phase != BACKWARD_WEIGHT
    stage, phase, first = made.stage[kept], made.phase[kept], np.concatenate(([0], np.cumsum(kept)))[made.first]
    again = np.zeros(n_stages) if repeated is None else repeated.of_stage
    weight, backward = (np.array([getattr(load, name) for load in stage_costs]) for name in _BACKWARD)
    seconds = np.zeros((4, n_stages))
    seconds[FORWARD] = [load.forward_total_seconds for load in stage_costs]
    seconds[BACKWARD_WEIGHT] = weight
    seconds[BACKWARD] = backward + again
    seconds[BACKWARD_INPUT] = np.maximum(backward + again - weight, 0.0)
    sends = transfers.transfers(problem, plan, stage_costs)
    orders = kernel.Skeleton(first, stage, made.microbatch[kept], phase, sends.channel, seconds, sends.seconds)
    start = kernel.earliest(orders, limit, plan.n_microbatches)
    own, most = seconds[phase, stage] + np.where(phase == BACKWARD_INPUT, weight[stage], 0.0), 0.0
    rank_of_stage = np.array(plan.rank_of_stage())
    of_rank = np.zeros(n_ranks) if repeated is None else repeated.of_rank
    more = np.maximum(of_rank - np.bincount(rank_of_stage, again, n_ranks), 0.0)
    for rank in range(n_ranks):
        tasks, stages = slice(int(first[rank]), int(first[rank + 1])), np.flatnonzero(rank_of_stage == rank)
        left = np.cumsum(own[tasks][::-1])[::-1]
        if more[rank] > 0.0:
            back = (phase[tasks] != FORWARD)[:, None] & (stage[tasks][:, None] == stages)
            left = left + more[rank] * np.cumsum(back[::-1], axis=0)[::-1].min(axis=1)
        end = _end_seconds([stage_costs[i] for i in stages], reduces=not (phase[tasks] == BACKWARD).any())
        most = max(most, float((start[tasks] + left).max()) + end)
    return most


def _end_seconds(loads: list[StageCost], *, reduces: bool) -> float:
    """Return what follows the tasks of a rank at least: updates, and where asked what a reduction outlasts its last task by."""
    exposed = min(max(load.reduce_seconds - load.backward_weight_seconds, 0.0) for load in loads) if reduces else 0.0
    return exposed + sum(load.optimizer_seconds + load.gather_seconds for load in loads)
