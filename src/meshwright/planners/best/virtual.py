"""What virtual stages cost at least: layers are spread over them in one way, only what they recompute is open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.space import Config

__all__ = ["bound", "spread"]


def bound(costs: Costs, config: Config, n_microbatches: int, light: bool) -> float:
    """Return a proven lower bound on the simulated step of virtual stages, whose layers `spread` puts in one way.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    config : Config
        The configuration.
    n_microbatches : int
        Micro-batches of a step.
    light : bool
        Whether to leave out what happens between replicas.

    Returns
    -------
    float
        Seconds; inf when no recomputation makes it fit.

    Notes
    -----
    * A rank works for all micro-batches from the first arrival at its first stage on; then it ends its own step, or, where
      backward passes are whole, the last micro-batch returns to the first rank, which ends the step.
    * The reductions of a rank follow each other. The first one starts with the last task of the stage that is through first:
      by then all forward passes are done, and the backward passes of that stage and of later ones (of weights: all but one).
    * At each of the moments of `Costs.peaks` a rank holds the activations of every stage as often as that says. What exceeds its
      memory at the fullest one must be recomputed, and a layer frees at most its savings as often as its stage is held then; so
      many layers free no more than those that are held most often, and nothing fits where all of them free too little. Every byte
      costs at least the best price of any layer.
    """
    from meshwright._kernels.best import virtual_stages as kernel

    mesh, peaks = config.mesh, costs.peaks(config, n_microbatches)
    ends, own = _virtual_stages(costs, config.schedule, mesh.pipeline, config.chunks)
    of_rank = costs.classes(config, light=light).of_rank
    stages = kernel.RankStages(ends, own, of_rank, peaks.held, peaks.at, costs.memory_bytes(config))
    return float(kernel.least_step(costs.stacked(config, light=light), stages, float(n_microbatches), config.split_backward))


def _virtual_stages(costs: Costs, schedule: str, n_ranks: int, n_chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many layers are before each virtual stage, and the stages of each rank in order, a row per rank."""
    key = (schedule, n_ranks, n_chunks)
    if key not in costs.virtual_stages:
        counts = np.array(spread(len(costs.chain.layers), n_ranks, n_chunks))
        rank_of_stage = schedules.load(schedule).placement(n_ranks, n_chunks)
        ends = np.concatenate(([0], np.cumsum(counts)))
        costs.virtual_stages[key] = ends, np.argsort(rank_of_stage, kind="stable").reshape(n_ranks, n_chunks)
    return costs.virtual_stages[key]


def spread(n_layers: int, n_ranks: int, n_chunks: int) -> tuple[int, ...]:
    """Return how many layers each virtual stage gets: the quotient, and one more for some of them.

    What is left over goes to middle stages first, rank by rank, since the ends also hold embedding and head.
    """
    n_stages = n_ranks * n_chunks
    counts = [n_layers // n_stages] * n_stages
    for stage in [*range(1, n_stages - 1), *sorted({0, n_stages - 1})][: n_layers - sum(counts)]:
        counts[stage] += 1
    return tuple(counts)
