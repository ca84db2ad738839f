"""What a split takes at least in every order that a zero-bubble schedule may be fitted to: weight gradients move, the rest does not.
The same of orders that are given.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best.step_ends import EarliestEnds, LinkWork
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from meshwright.sim import transfers

__all__ = [
    "LeastRepeated", "StageSeconds", "TaskOrder", "end_seconds", "least_of_order", "least_seconds", "longest_way", "order_of",
    "seconds_of",
]  # fmt: skip

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
    problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...], repeated: LeastRepeated | None = None,
    on_links: LinkWork | None = None,
) -> float:  # fmt: skip
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
    on_links : LinkWork or None
        What the end of the step puts on links; None where that is left out.

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
    n_ranks, n_stages = len(plan.ranks()), len(stage_costs)
    again, of_rank = (np.zeros(n_stages), np.zeros(n_ranks)) if repeated is None else repeated
    order = order_of(plan.schedule, n_ranks, n_stages // n_ranks, plan.n_microbatches)
    seconds = seconds_of(stage_costs)
    more = np.maximum(of_rank - np.bincount(order.rank_of_stage, again, n_ranks), 0.0)
    sends, end = transfers.transfers(problem, plan, stage_costs), end_seconds(order, stage_costs)
    return least_of_order(order, seconds._replace(backward=seconds.backward + again), sends.seconds, more, end, on_links)


class TaskOrder(NamedTuple):
    """The tasks of a schedule without weight gradients that are tasks of their own, and what ranks may hold.

    Parameters
    ----------
    first, stage, microbatch, phase
        As `meshwright.schedules.Actions` has them.
    rank_of_stage : ndarray, shape (n_stages,), int64
        Where the stages are.
    channel : ndarray, shape (2, n_stages), int64
        As `meshwright.sim.transfers.channels` returns it.
    limit : ndarray, shape (n_ranks,), int64
        Activations that each rank may hold; as many as there are tasks where the order does not depend on it.
    n_microbatches : int
        Of the step.
    """

    first: NDArray[np.int64]
    stage: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    phase: NDArray[np.int64]
    rank_of_stage: NDArray[np.int64]
    channel: NDArray[np.int64]
    limit: NDArray[np.int64]
    n_microbatches: int


class StageSeconds(NamedTuple):
    """How long tasks of one micro-batch take at least: forward, backward as a whole, weight gradients; shape (n_stages,) each."""

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    weight: NDArray[np.float64]


def seconds_of(stage_costs: tuple[StageCost, ...]) -> StageSeconds:
    """Return how long the tasks of some stages take."""
    weight, backward = (np.array([getattr(load, name) for load in stage_costs]) for name in _BACKWARD)
    return StageSeconds(np.array([load.forward_total_seconds for load in stage_costs]), backward, weight)


def end_seconds(order: TaskOrder, stage_costs: tuple[StageCost, ...]) -> NDArray[np.float64]:
    """Return what follows the last task of each rank at least, by what its stages do; shape (n_ranks,)."""
    found = np.zeros(len(order.first) - 1)
    for rank in range(len(found)):
        own = slice(int(order.first[rank]), int(order.first[rank + 1]))
        reduces = not (order.phase[own] == BACKWARD).any()
        found[rank] = _end_seconds([stage_costs[i] for i in np.flatnonzero(order.rank_of_stage == rank)], reduces=reduces)
    return found


@lru_cache(maxsize=32)
def order_of(schedule: str, n_ranks: int, n_chunks: int, n_microbatches: int) -> TaskOrder:
    """Return the tasks of a schedule with so many ranks, stages of each, and micro-batches."""
    module = schedules.load(schedule)
    made = module.order(n_ranks, n_chunks, n_microbatches, None)
    kept = made.phase != BACKWARD_WEIGHT
    first = np.concatenate(([0], np.cumsum(kept)))[made.first]
    limit = np.full(n_ranks, len(kept))
    if not kept.all():
        limit = np.array(module.in_flight(n_ranks, n_chunks, n_microbatches))
    return TaskOrder(
        first, made.stage[kept], made.microbatch[kept], made.phase[kept], np.array(made.rank_of_stage),
        transfers.channels(made.rank_of_stage), limit, n_microbatches,
    )  # fmt: skip


def least_of_order(
    order: TaskOrder,
    stages: StageSeconds,
    send_seconds: NDArray[np.float64],
    more: NDArray[np.float64],
    end: NDArray[np.float64],
    on_links: LinkWork | None = None,
) -> float:
    """Return what a step takes at least whose tasks and transfers take at least so long: `least_seconds` has the lemma.

    Where all backward passes are whole the order is given: what a rank sends another leaves in the order of its tasks, so nothing starts
    earlier where anything takes longer, and the step is no shorter.

    Parameters
    ----------
    order : TaskOrder
        The tasks.
    stages : StageSeconds
        How long they take at least.
    send_seconds : ndarray, shape (2, n_stages), float64
        What each stage sends forward and backward, at least.
    more : ndarray, shape (n_ranks,), float64
        What is recomputed of a micro-batch at least beyond that, over all stages of a rank.
    end : ndarray, shape (n_ranks,), float64
        What follows the last task of each rank at least.
    on_links : LinkWork or None
        What all ranks put on links then, which begins no earlier than `_earliest_ends`; None where that is left out.
    """
    from meshwright._kernels.best import fitted_orders as kernel

    seconds = _by_phase(stages)
    orders = kernel.Skeleton(order.first, order.stage, order.microbatch, order.phase, order.channel, seconds, send_seconds)
    start, _ = kernel.earliest(orders, order.limit, order.n_microbatches)
    least = float(kernel.least_end(orders, start, order.rank_of_stage, more, end))
    return least if on_links is None else max(least, on_links.least_seconds(_earliest_ends(order, seconds, start)))


def longest_way(
    order: TaskOrder, stages: StageSeconds, send_seconds: NDArray[np.float64], end: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Return `least_of_order` where nothing more is recomputed, and how often a backward pass of each stage lies on the way that decides it.

    Lemma: the end is a sum along a way: from the first task on, to the next one that waits for it on its rank, on others, for the link
    or for memory. With any other seconds of backward passes the same way takes as much more as these, each as often as it
    lies on it, and the step is no shorter than any way. A backward pass that is one of gradients of inputs is what is left of it without
    those of weights, so no less than that.

    Parameters
    ----------
    order, stages, send_seconds, end
        As in `least_of_order`.

    Returns
    -------
    seconds : float
        Of the longest way.
    n_times : ndarray, shape (n_stages,), float64
        Backward passes of each stage on it.
    """
    from meshwright._kernels.best import fitted_orders as kernel

    own = (order.first, order.stage, order.microbatch, order.phase, order.channel)
    orders = kernel.Skeleton(*own, _by_phase(stages), send_seconds)
    start, origin = kernel.earliest(orders, order.limit, order.n_microbatches)
    n_times, seconds = kernel.last_way(orders, start, origin, end)
    return float(seconds), n_times


def _by_phase(stages: StageSeconds) -> NDArray[np.float64]:
    """Return what tasks of each phase take; shape (4, n_stages)."""
    seconds = np.zeros((4, len(stages.forward)))
    seconds[FORWARD], seconds[BACKWARD_WEIGHT], seconds[BACKWARD] = stages.forward, stages.weight, stages.backward
    seconds[BACKWARD_INPUT] = np.maximum(stages.backward - stages.weight, 0.0)
    return seconds


def _earliest_ends(order: TaskOrder, seconds: NDArray[np.float64], start: NDArray[np.float64]) -> EarliestEnds:
    """Return when the last tasks of stages and ranks start and end at the earliest, by when each task of the order does.

    Lemma: the last task of a stage that has gradients of weights is its last whole backward pass, or a weight gradient, which follows its
    last input gradient and all its other weight gradients. So from the start of any task of the rank up to it run the tasks from there
    to the last backward pass or input gradient of the stage, that one left out where it is whole, and the weight gradients of all but
    one of the stage's input gradients among them. Before the rank is through run all later tasks and all weight gradients of their
    input gradients; the last of all is no longer than the longest task that is the last one of some stage.
    """
    n_stages, n_ranks = len(order.rank_of_stage), len(order.first) - 1
    found = EarliestEnds(np.zeros(n_stages), np.zeros(n_ranks), np.zeros(n_ranks))
    for rank in range(n_ranks):
        own = slice(int(order.first[rank]), int(order.first[rank + 1]))
        stage, phase, begin = order.stage[own], order.phase[own], start[own]
        takes = seconds[phase, stage]
        weights = np.where(phase == BACKWARD_INPUT, seconds[BACKWARD_WEIGHT, stage], 0.0)
        longest = 0.0
        for i in np.flatnonzero(order.rank_of_stage == rank).tolist():
            last = int(np.flatnonzero((stage == i) & (phase != FORWARD))[-1])
            left = np.cumsum(takes[last::-1])[::-1] - (takes[last] if phase[last] == BACKWARD else 0.0)
            n_inputs = np.cumsum(((stage == i) & (phase == BACKWARD_INPUT))[last::-1])[::-1]
            of_stage = begin[: last + 1] + left + np.maximum(n_inputs - 1, 0) * seconds[BACKWARD_WEIGHT, i]
            found.of_stage[i] = of_stage.max()
            longest = max(
                longest,
                float(takes[last]) if phase[last] == BACKWARD else 0.0,
                float(seconds[BACKWARD_WEIGHT, i]) if n_inputs[0] else 0.0,
            )
        found.over[rank] = (begin + np.cumsum((takes + weights)[::-1])[::-1]).max()
        found.last_of_rank[rank] = found.over[rank] - longest
    return found


def _end_seconds(loads: list[StageCost], *, reduces: bool) -> float:
    """Return what follows the tasks of a rank at least: updates, and where asked what a reduction outlasts its last task by."""
    exposed = min(max(load.reduce_seconds - load.backward_weight_seconds, 0.0) for load in loads) if reduces else 0.0
    return exposed + sum(load.optimizer_seconds + load.gather_seconds for load in loads)
