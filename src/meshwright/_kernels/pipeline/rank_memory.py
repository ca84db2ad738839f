"""What a rank recomputes at least to hold some layers: the loops of `solvers.pipeline.rank_memory`, which says why."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part

__all__ = ["Holding", "least_again", "least_extra", "least_extra_of", "least_of"]

_MOST_CHOICES = 64  # choices of the layers of all sorts but one that are tried at most

_STATIC, _RESERVED, _KEPT, _WORKING, _EXTRA = 0, 1, 2, 5, 8
"""Columns of `Holding.sorts`: static bytes; those the process reserves, of which the largest counts; then, three each by what
is recomputed: activations of one micro-batch; bytes needed while the layer runs, of which the largest counts; seconds of one
micro-batch beyond those of nothing recomputed.
"""

_HELD, _ROOM, _PINNED_WORKING, _PINNED_RESERVED = range(4)
"""Columns of `Holding.ranks`: micro-batches in flight; bytes left by what is pinned; what that needs running; reserves."""


class Holding(NamedTuple):
    """What layers of a few sorts hold on a few classes of ranks, by three ways to recompute: none, the weaker, the stronger."""

    counts: np.ndarray  # (n_sorts, n_layers + 1), int64: layers of each sort before each place
    sorts: np.ndarray  # (n_classes, n_sorts, 11)
    of_rank: np.ndarray  # (n_ranks,), int64: classes
    ranks: np.ndarray  # (n_ranks, 4)


@kernel
def least_extra(excess, n_layers, saved, extra):
    """Least seconds of recomputation, in whole layers, that free `excess` bytes; inf when all layers together do not."""
    return least_extra_of(excess, n_layers, saved[0], saved[1], extra[0], extra[1])


@part
def least_extra_of(excess, n_layers, weak, strong, weak_extra, strong_extra):
    """Return `least_extra`; `weak`, `strong`: what a layer frees by either way."""
    best = np.inf
    for n_strong in range(n_layers + 1):
        rest = excess - n_strong * strong
        n_weak = 0
        if rest > 0.0:
            if weak <= 0.0:
                continue
            n_weak = int(np.ceil(rest / weak - 1e-9))
        if n_strong + n_weak <= n_layers:
            best = min(best, n_strong * strong_extra + n_weak * weak_extra)
    return best


@part
def _of_main(holding, rank, sort, n, kept, widest, room, seconds, best):
    """Return the least seconds where layers of one sort join others whose choice is known, if less than `best`.

    `kept`, `widest`, `seconds`: what the others keep of a micro-batch, need while they run, and recompute; `room`: for
    activations and work. For every number of layers that recompute by the stronger way, none, as few as are enough, or all
    others take the weaker.
    """
    held, own = holding.ranks[rank, _HELD], holding.sorts[holding.of_rank[rank], sort]
    for n_strong in range(n + 1):
        so_far, left = seconds + n_strong * own[_EXTRA + 2], n - n_strong
        if so_far >= best:
            break
        wide = max(widest, own[_WORKING + 2]) if n_strong > 0 else widest
        rest = kept + n_strong * own[_KEPT + 2]
        if held * (rest + left * own[_KEPT]) + (max(wide, own[_WORKING]) if left > 0 else wide) <= room:
            best = so_far
            continue
        if left == 0:
            continue
        saved = held * (own[_KEPT] - own[_KEPT + 1])
        if saved > 0.0:
            missing = held * (rest + left * own[_KEPT]) + max(wide, own[_WORKING], own[_WORKING + 1]) - room
            n_weak = max(np.ceil(missing / saved - 1e-9), 1.0)
            if n_weak < left:
                best = min(best, so_far + n_weak * own[_EXTRA + 1])
        if held * (rest + left * own[_KEPT + 1]) + max(wide, own[_WORKING + 1]) <= room:
            best = min(best, so_far + left * own[_EXTRA + 1])
    return best


@part
def least_of(holding, rank, first, last):
    """Return the least seconds of a micro-batch that a rank recomputes to hold layers first..last-1; inf where nothing fits.

    Where more choices than a few are open it says only whether the least of every figure fits.
    """
    own, held, n_sorts = holding.of_rank[rank], holding.ranks[rank, _HELD], holding.counts.shape[0]
    if n_sorts == 0:
        return 0.0
    static, reserved, kept, least_kept = 0.0, holding.ranks[rank, _PINNED_RESERVED], 0.0, 0.0
    widest = least_widest = holding.ranks[rank, _PINNED_WORKING]
    main, most = -1, 0
    for d in range(n_sorts):
        n = holding.counts[d, last] - holding.counts[d, first]
        if n == 0:
            continue
        if n > most:
            main, most = d, n
        figures = holding.sorts[own, d]
        static += n * figures[_STATIC]
        reserved = max(reserved, figures[_RESERVED])
        kept += n * figures[_KEPT]
        least_kept += n * min(figures[_KEPT], figures[_KEPT + 1], figures[_KEPT + 2])
        widest = max(widest, figures[_WORKING])
        least_widest = max(least_widest, min(figures[_WORKING], figures[_WORKING + 1], figures[_WORKING + 2]))
    room = holding.ranks[rank, _ROOM] - static - reserved
    room += 1e-9 * (abs(holding.ranks[rank, _ROOM]) + static + reserved)  # rounding
    if held * kept + widest <= room:
        return 0.0
    if held * least_kept + least_widest > room:
        return np.inf
    if main < 0:
        return np.inf
    n_choices = 1
    for d in range(n_sorts):
        n = holding.counts[d, last] - holding.counts[d, first]
        if d != main and n_choices <= _MOST_CHOICES:
            n_choices *= (n + 1) * (n + 2) // 2
    if n_choices > _MOST_CHOICES:
        return 0.0
    best = np.inf
    for choice in range(n_choices):
        code, kept, widest, seconds = choice, 0.0, holding.ranks[rank, _PINNED_WORKING], 0.0
        for d in range(n_sorts):
            n = holding.counts[d, last] - holding.counts[d, first]
            if d == main or n == 0:
                continue
            n_ways = (n + 1) * (n + 2) // 2
            at, code = code % n_ways, code // n_ways
            n_strong = 0
            while at > n - n_strong:
                at -= n - n_strong + 1
                n_strong += 1
            for way, count in ((0, n - n_strong - at), (1, at), (2, n_strong)):
                if count > 0:
                    kept += count * holding.sorts[own, d, _KEPT + way]
                    widest = max(widest, holding.sorts[own, d, _WORKING + way])
                    seconds += count * holding.sorts[own, d, _EXTRA + way]
        best = _of_main(holding, rank, main, most, kept, widest, room, seconds, best)
    return best


@kernel
def least_again(holding, rank, first, last):
    """Return `least_of`."""
    return least_of(holding, rank, first, last)
