"""What virtual stages cost at least: layers are spread over them in one way, only what they recompute is open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import Digest, StageSums, stage_sums
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
      many layers free no more than those that are held most often. Every byte costs at least the best price of any layer.
    """
    m = float(n_microbatches)
    digests = costs.digests(config, light=light)
    of_rank = costs.classes(config, light=light).of_rank
    counts, own = _virtual_stages(costs, config.schedule, config.mesh.pipeline, config.chunks)
    of = stage_sums(digests, counts, of_rank, own)
    seconds = of.work_seconds.sum(axis=1)
    excess, held = _excess(costs, config, n_microbatches, digests, of_rank, of)
    places = np.concatenate(([0], np.cumsum(counts)))
    for rank in np.flatnonzero(excess > 0.0):
        at = digests[of_rank[rank]]
        times = np.sort(np.repeat(held[rank], counts[own[rank]]))[::-1]  # of every layer
        extra = _least_extra(float(excess[rank]), times, at.saved_bytes, at.extra_seconds)
        if not costs.chain.equal:
            worth = at.relief.worth_seconds
            earned = (worth[:, places[own[rank] + 1]] - worth[:, places[own[rank]]]).sum(axis=1)
            by_price = at.relief.seconds_per_byte * excess[rank] / times.max(initial=1.0) - earned
            extra = max(extra, by_price.max(initial=0.0))
        seconds[rank] += extra
    update, work = of.update_seconds.sum(axis=1), m * seconds
    end = update + of.largest_reduce_seconds.min(axis=1)
    split_backward = config.split_backward
    # backward passes of the stages from each one on, the last task of that stage left out
    later = m * np.cumsum((of.input_seconds if split_backward else of.backward_seconds)[:, ::-1], axis=1)[:, ::-1]
    done = later + (m - 1) * of.weight_seconds if split_backward else later - of.backward_seconds
    reduced = m * of.forward_seconds.sum(axis=1) + done.min(axis=1) + of.reduce_seconds.sum(axis=1) + update
    there = np.concatenate(([0.0], np.cumsum(of.forward_seconds[:-1, 0])))
    ends = [work + end, reduced]
    if not split_backward:  # otherwise weight gradients may be what a rank does last, and nobody waits for those
        ends.append(work + np.concatenate(([0.0], np.cumsum(of.backward_seconds[:-1, 0]))) + end[0])
    return float((there + np.max(ends, axis=0)).max())


def _excess(
    costs: Costs, config: Config, n_microbatches: int, digests: list[Digest], of_rank: NDArray[np.int64], of: StageSums
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return by how much each rank at least exceeds its memory at its fullest moment with nothing recomputed, and how often it
    holds each of its stages then.
    """
    counts, own = _virtual_stages(costs, config.schedule, config.mesh.pipeline, config.chunks)
    peaks, rank = costs.peaks(config, n_microbatches), np.arange(len(of_rank))
    overhead = np.array([digest.overhead_bytes.min() for digest in digests])[of_rank][:, None] * (counts[own] > 0)
    last = int(np.flatnonzero(own[:, -1] == len(counts) - 1)[0])  # the rank of the last stage
    overhead[0, 0] = max(overhead[0, 0], digests[of_rank[0]].prefix.overhead_bytes)
    overhead[last, -1] = max(overhead[last, -1], digests[of_rank[last]].suffix.overhead_bytes)
    held = (peaks.held @ of.activation_bytes[:, :, None])[:, :, 0] + overhead[rank[:, None], peaks.at]
    fullest = np.argmax(held, axis=1)
    excess = of.static_bytes.sum(axis=1) + held[rank, fullest] - costs.memory_bytes(config)
    return excess, peaks.held[rank, fullest]


def _least_extra(
    excess_bytes: float, times: NDArray[np.float64], saved_bytes: NDArray[np.float64], extra_seconds: NDArray[np.float64]
) -> float:
    """Return the least seconds of recomputation, in whole layers, that free some bytes; inf when all layers together do not.

    Layers are held `times`, falling; either way to recompute (the weaker one first) frees its savings as often of each.
    """
    freed = np.concatenate(([0.0], np.cumsum(times)))
    n_strong = np.arange(len(freed))
    rest = np.maximum(excess_bytes - saved_bytes[1] * freed, 0.0)
    n_weak = np.searchsorted(saved_bytes[0] * freed * (1.0 + 1e-9), rest)
    seconds = n_strong * extra_seconds[1] + n_weak * extra_seconds[0]
    return float(np.where(n_strong + n_weak < len(freed), seconds, np.inf).min())


def _virtual_stages(costs: Costs, schedule: str, n_ranks: int, n_chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the layers of each virtual stage, and the stages of each rank in order, a row per rank."""
    key = (schedule, n_ranks, n_chunks)
    if key not in costs.virtual_stages:
        counts = np.array(spread(len(costs.chain.layers), n_ranks, n_chunks))
        rank_of_stage = schedules.load(schedule).placement(n_ranks, n_chunks)
        costs.virtual_stages[key] = counts, np.argsort(rank_of_stage, kind="stable").reshape(n_ranks, n_chunks)
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
