"""What an expert would sweep by hand with Megatron-LM: powers of two, equal stages, one recomputation setting for all layers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer
from meshwright.planners.best import answer as joint
from meshwright.planners.best.limits import Limits, largest_degrees
from meshwright.planners.best.question import with_batch, within_limits

__all__ = ["FROZEN", "STATES", "STOPS_EARLY", "Params", "search"]

FROZEN = STATES = True

STOPS_EARLY = True


@dataclass(frozen=True, slots=True)
class Params:
    """How far the grid reaches.

    Parameters
    ----------
    largest_tensor : int
        Largest tensor degree; 0 for the devices of a node.
    """

    largest_tensor: int = field(default=0, metadata={"minimum": 0})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the best plan of a hand-made grid.

    Parameters
    ----------
    problem : Problem
        A model of ours on a cluster.
    params : Params
        How far the grid reaches.
    seed : int
        Not used: deterministic.
    stop : Stop
        `seconds` ends the sweep early; else the whole grid is swept.

    Returns
    -------
    Answer
        The best plan of the grid, without a bound: it says nothing about plans off the grid. None where no point of it is legal.

    Raises
    ------
    InputError
        When there is no cluster.

    Notes
    -----
    The grid: tensor degrees of powers of two inside a node with sequence parallelism; pipeline degrees that divide the layers
    and fill the devices; 1F1B, or interleaved with chunks that divide the layers; micro-batches 1, 2, 4; distributed optimizer;
    no context parallelism below 32,768 tokens; experts over up to 64 ranks.

    References
    ----------
    .. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
       section 3, takeaways 1 to 3.
    """
    notes: list[str] = []
    problem = with_batch(problem, "megatron_grid", notes)
    cluster = problem.required_cluster
    node = params.largest_tensor or int((cluster.node_of_device == cluster.node_of_device[0]).sum())
    powers = tuple(2**i for i in range(15))
    limits = Limits(
        tensor=tuple(degree for degree in powers if degree <= node),
        context=(1,) if problem.graph.sequence_length < 32768 else tuple(degree for degree in powers if degree <= 16),
        expert=tuple(degree for degree in powers if degree <= largest_degrees(problem.graph)["expert"] and degree <= 64),
        pipeline=powers,
        micro_batch=(problem.batch.micro_batch,) if problem.batch.micro_batch else (1, 2, 4),
        shard=(1,),
        context_exchange=("ring",),
        schedules=("1f1b", "interleaved_1f1b"),
        uniform=True,
    )
    return within_limits(joint.answer(problem, limits, replace(stop, n_iterations=10**6), tuple(notes)), "megatron_grid")
