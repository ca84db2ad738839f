"""How long a step of virtual stages lasts at least: the loops of `planners.best.virtual`, which says why."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.arrays import total
from meshwright._kernels.compiling import kernel, part

__all__ = ["RankStages", "StackedLayers", "least_steps"]


class StackedLayers(NamedTuple):
    """The layers of a model on every class of ranks; rows of sums and of what is pinned are in the order of `_WORK`."""

    sums: np.ndarray  # (n_classes, 8, n_layers + 1): over the layers before each place, nothing recomputed
    pinned: np.ndarray  # (n_classes, 2, 8): what is pinned to the first and to the last stage
    reduce_seconds: np.ndarray  # (n_classes, n_layers)
    overhead: np.ndarray  # (n_classes, 3): bytes that any layer needs at least, and those of what is pinned to the ends
    saved: np.ndarray  # (n_classes, 2): bytes of a micro-batch that a layer gives up at most, by the weaker way first
    extra: np.ndarray  # (n_classes, 2): what this takes at least
    n_prices: np.ndarray  # (n_classes,)
    prices: np.ndarray  # (n_classes, most prices): seconds paid for a byte of a micro-batch
    worth: np.ndarray  # (n_classes, most prices, n_layers + 1): what recomputing earns at most at these prices


class RankStages(NamedTuple):
    """The virtual stages of a pipeline and what its ranks hold."""

    ends: np.ndarray  # (n_stages + 1,): layers before each stage
    own: np.ndarray  # (n_ranks, n_chunks): stages of each rank, rising
    of_rank: np.ndarray  # (n_ranks,): classes
    held: np.ndarray  # (n_ranks, n_moments, n_chunks): micro-batches of each stage
    at: np.ndarray  # (n_ranks, n_moments): which of the rank's stages is at work
    memory_bytes: np.ndarray  # (n_ranks,)
    again_seconds: np.ndarray  # (n_ranks,): of a micro-batch, recomputed at least


_WORK, _FORWARD, _BACKWARD, _INPUT, _STATIC, _KEPT, _REDUCE, _UPDATE, _TAKEN = range(9)


@part
def _excess(layers, stages, ends, rank, of):
    """Return by how much a rank exceeds its memory at its fullest moment at least, nothing recomputed, and that moment."""
    own, n_stages = layers.overhead[stages.of_rank[rank]], len(ends) - 1
    fullest, most, static = 0, -np.inf, 0.0
    n_chunks = stages.own.shape[1]
    for c in range(n_chunks):
        static += of[_STATIC, c]
    for k in range(stages.held.shape[1]):
        at = stages.at[rank, k]
        stage = stages.own[rank, at]
        n_bytes = own[0] if ends[stage + 1] > ends[stage] else 0.0
        if stage == 0:
            n_bytes = max(n_bytes, own[1])
        if stage == n_stages - 1:
            n_bytes = max(n_bytes, own[2])
        for c in range(n_chunks):
            n_bytes += stages.held[rank, k, c] * of[_KEPT, c]
        if n_bytes > most:
            fullest, most = k, n_bytes
    return static + most - stages.memory_bytes[rank], fullest


@part
def _extra(layers, stages, ends, rank, excess, held, taken, freed):
    """Return the least seconds of recomputation, in whole layers, that free some bytes; inf when all layers do not.

    Lemma (rearrangement): layers that recompute most free no more than as many of those that are held most often, and others
    no more than as many of those held most often of the rest, since the stronger way saves at least as much as the weaker one.
    `taken`, `freed`: room for every stage of the rank, and for every layer and one more.
    """
    kind, n_chunks = stages.of_rank[rank], stages.own.shape[1]
    extra, weak = layers.extra[kind], layers.saved[kind, 0]
    strong = max(layers.saved[kind, 1], weak)
    n_layers, most_held = 0, 1.0
    freed[0] = 0.0
    for c in range(n_chunks):
        taken[c] = 0.0
    for _ in range(n_chunks):
        fullest = -1
        for c in range(n_chunks):
            if taken[c] == 0.0 and (fullest < 0 or held[c] > held[fullest]):
                fullest = c
        taken[fullest] = 1.0
        stage = stages.own[rank, fullest]
        for _ in range(ends[stage], ends[stage + 1]):
            most_held = max(most_held, held[fullest])
            freed[n_layers + 1] = freed[n_layers] + held[fullest]
            n_layers += 1
    if excess > strong * freed[n_layers] * (1.0 + 1e-9):
        return np.inf
    least, n_both, room = np.inf, n_layers + 1, excess * (1.0 - 1e-9)
    for n_strong in range(n_layers + 1):
        while n_both > n_strong and strong * freed[n_strong] + weak * (freed[n_both - 1] - freed[n_strong]) >= room:
            n_both -= 1
        n_both = max(n_both, n_strong)
        if n_both <= n_layers:
            least = min(least, n_strong * extra[1] + (n_both - n_strong) * extra[0])
    for i in range(layers.n_prices[kind]):
        seconds = layers.prices[kind, i] * excess / most_held
        for c in range(n_chunks):
            stage = stages.own[rank, c]
            seconds -= layers.worth[kind, i, ends[stage + 1]] - layers.worth[kind, i, ends[stage]]
        least = max(least, seconds)
    return least


@part
def _least_step(layers, stages, ends, n_microbatches, split_backward, mixed_backward, enough, of, freed):
    """Return what a step lasts at least; inf where some rank does not fit its memory whatever is recomputed.

    What is longer than `enough` need not be told exactly: the first ranks may do. `of`, shape (9, n_chunks): room for the sums
    of every stage of a rank, and for `_extra`, as is `freed`.
    """
    n_ranks, n_chunks = stages.own.shape
    n_stages, m = len(ends) - 1, n_microbatches
    longest = there = back = first_end = 0.0
    for rank in range(n_ranks):
        kind = stages.of_rank[rank]
        last_reduce = np.inf
        for c in range(n_chunks):
            stage = stages.own[rank, c]
            start, stop = ends[stage], ends[stage + 1]
            for q in range(8):
                of[q, c] = layers.sums[kind, q, stop] - layers.sums[kind, q, start]
                if stage == 0:
                    of[q, c] += layers.pinned[kind, 0, q]
                if stage == n_stages - 1:
                    of[q, c] += layers.pinned[kind, 1, q]
            largest = 0.0
            for i in range(start, stop):
                largest = max(largest, layers.reduce_seconds[kind, i])
            last_reduce = min(last_reduce, largest)
        seconds, update, reduced = total(of[_WORK]), total(of[_UPDATE]), total(of[_REDUCE])
        excess, fullest = _excess(layers, stages, ends, rank, of)
        if excess > 0.0:
            extra = _extra(layers, stages, ends, rank, excess, stages.held[rank, fullest], of[_TAKEN], freed)
            seconds += max(extra, stages.again_seconds[rank])
        if seconds == np.inf:
            return np.inf
        # backward passes of the stages from each one on, the last task of that stage left out
        later, done = 0.0, np.inf
        for c in range(n_chunks - 1, -1, -1):
            if split_backward:
                later += m * of[_INPUT, c]
                last = of[_INPUT, c] if mixed_backward else 0.0  # the last task may be a whole backward pass
                done = min(done, later + (m - 1.0) * (of[_BACKWARD, c] - of[_INPUT, c]) - last)
            else:
                later += m * of[_BACKWARD, c]
                done = min(done, later - of[_BACKWARD, c])
        end = update + last_reduce
        if rank == 0:
            first_end = end
        most = max(m * seconds + end, m * total(of[_FORWARD]) + done + reduced + update)
        if not split_backward:  # otherwise weight gradients may be what a rank does last, and nobody waits for those
            most = max(most, m * seconds + back + first_end)
        longest = max(longest, there + most)
        if longest > enough:
            return longest
        there += of[_FORWARD, 0]
        back += of[_BACKWARD, 0]
    return longest


def least_steps(
    layers: StackedLayers,
    stages: RankStages,
    ends: np.ndarray,
    n_microbatches: float,
    split_backward: bool,
    mixed_backward: bool,
    only_least: bool,
) -> np.ndarray:
    """Return `_least_step` of every row of `ends`, shape (n_spreads, n_stages + 1); those of `stages` are not used.

    `only_least`: whether the least of all is of interest only; then the others may be too small, but not below it.
    """
    found, of, freed = np.empty(len(ends)), np.empty((9, stages.own.shape[1])), np.empty(layers.sums.shape[2])
    _least_steps(layers, stages, ends, n_microbatches, split_backward, mixed_backward, only_least, of, freed, found)
    return found


@kernel
def _least_steps(layers, stages, ends, n_microbatches, split_backward, mixed_backward, only_least, of, freed, found):
    """Fill `found` with `least_steps`; `of`, `freed`: room for `_least_step`."""
    least, enough = np.inf, np.inf
    for i in range(len(ends)):
        if only_least:
            enough = least
        found[i] = _least_step(layers, stages, ends[i], n_microbatches, split_backward, mixed_backward, enough, of, freed)
        least = min(least, found[i])
