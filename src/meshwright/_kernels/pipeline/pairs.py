"""Kernel: list the stages a pipeline may have (pairs of nested downsets), with the bytes that cross their borders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.arrays import copy, copy_rows
from meshwright._kernels.compiling import inlined, kernel, part

__all__ = ["Crossing", "Space", "StageNodes", "list_pairs", "stage_between"]

ONE = np.uint64(1)

WEIGHT, FAST_A, FAST_B, LOW_A, LOW_B, UNSUPPORTED = 1, 2, 3, 4, 5, 6
"""Columns of `Space.sums` after the first, which is seconds."""


class Space(NamedTuple):
    """Downsets with sums over their members.

    Parameters
    ----------
    words : ndarray, shape (n_sets, n_words), uint64
        Members as bits; sets by size, the empty set first, all nodes last.
    link_first, link : ndarray, shapes (n_sets + 1,) and (n_links,), int64 and int32
        Sets from which each set is reached by adding nodes: the stages above are found by following them down.
    sums : ndarray, shape (n_sets, n_degrees, 7), float64
        Seconds, weight bytes, memory per micro-batch and fixed of the cheapest choices, the same of the smallest, and the
        number of members that the degree does not support.
    work : ndarray, shape (n_sets, 4), float64
        Device-seconds, replica-seconds, device-bytes per micro-batch and fixed device-bytes that the members need at least.
    """

    words: NDArray[np.uint64]
    link_first: NDArray[np.int64]
    link: NDArray[np.int32]
    sums: NDArray[np.float64]
    work: NDArray[np.float64]


class Crossing(NamedTuple):
    """Edges and what they cost a stage that they enter (`into`) or leave (`out_of`), in seconds per micro-batch and degree."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    into: NDArray[np.float64]
    out_of: NDArray[np.float64]
    once: bool


class StageNodes(NamedTuple):
    """The nodes between two sets at one tensor degree t: bytes are ``a * y + b`` for y micro-batches in flight.

    Parameters
    ----------
    upper, lower, t : int
        Rows of the sets; position of the degree.
    free_bytes : float
        Bytes of a device that the nodes may take.
    weight : float
        Bytes of weights.
    fast_a, fast_b, low_a, low_b : float
        Bytes of the fastest choices, and of the smallest.
    """

    upper: int
    lower: int
    t: int
    free_bytes: float
    weight: float
    fast_a: float
    fast_b: float
    low_a: float
    low_b: float


@inlined
def stage_between(sums, upper, lower, t, free_bytes):
    """Return the stage between two sets: all sums are of what is in `upper` and not in `lower`."""
    return StageNodes(
        upper,
        lower,
        t,
        free_bytes,
        sums[upper, t, WEIGHT] - sums[lower, t, WEIGHT],
        sums[upper, t, FAST_A] - sums[lower, t, FAST_A],
        sums[upper, t, FAST_B] - sums[lower, t, FAST_B],
        sums[upper, t, LOW_A] - sums[lower, t, LOW_A],
        sums[upper, t, LOW_B] - sums[lower, t, LOW_B],
    )


@part
def _has(words, row, v):
    """Return whether node v is in the set."""
    return (words[row, v >> 6] >> np.uint64(v & 63)) & ONE != 0


@part
def _border_once(words, upper, lower, crossing, seconds):
    """Add what crosses the border of a stage, a tensor once however many of its consumers are on the other side."""
    n_edges = len(crossing.source)
    n_degrees = len(seconds)
    for t in range(n_degrees):
        seconds[t] = 0.0
        e = 0
        while e < n_edges:
            u = crossing.source[e]
            entering = 0.0
            leaving = 0.0
            inside = _has(words, upper, u) and not _has(words, lower, u)
            outside = not _has(words, upper, u)
            while e < n_edges and crossing.source[e] == u:
                v = crossing.target[e]
                below = _has(words, lower, v)
                if outside and not below and _has(words, upper, v):
                    entering = max(entering, crossing.into[e, t])
                if inside and below:
                    leaving = max(leaving, crossing.out_of[e, t])
                e += 1
            seconds[t] += entering + leaving


@kernel(allocates=True)
def list_pairs(space, crossing, degrees, next_replica, limits, capacity, max_steps):
    """List the pairs of nested sets between which a stage may lie in a plan no slower than a known one.

    Parameters
    ----------
    space : Space
        The sets.
    crossing : Crossing
        The edges, sorted by source.
    degrees : ndarray, shape (n_degrees,), int64
        Tensor degrees.
    next_replica : ndarray, shape (n + 1,), int64
        Smallest allowed number of replicas that is at least the position; 0 for none.
    limits : ndarray, shape (4,), float64
        Seconds of the known plan (infinite for none), memory, number of devices, largest sum of replicas.
    capacity : int
        Most pairs to list.
    max_steps : int
        Most pairs to look at.

    Returns
    -------
    n_pairs : int
        Number of pairs, or -1 when there are more than `capacity` or more steps than `max_steps`.
    first : ndarray, shape (n_sets + 1,), int64
        First pair of each upper set.
    lower : ndarray, shape (n_pairs,), int32
        The lower set of each pair.
    seconds : ndarray, shape (n_pairs, n_degrees), float64
        What crosses the stage's border, per micro-batch.
    """
    words, link_first, link, sums, work = space
    n_sets = len(words)
    n_degrees = len(degrees)
    threshold, memory, n_devices, n_replicas = limits[0], limits[1], limits[2], limits[3]
    most = len(next_replica) - 1
    first = np.zeros(n_sets + 1, np.int64)
    size = min(capacity, 1 << 16)
    lower = np.empty(size, np.int32)
    seconds = np.empty((size, n_degrees), np.float64)
    n_pairs = 0
    steps = 0
    stamp = np.zeros(n_sets, np.int32)
    stack = np.empty(n_sets, np.int32)
    cut_in = np.empty(n_degrees, np.float64)
    border = np.empty(n_degrees, np.float64)
    n_edges = len(crossing.source)
    out_of = np.zeros((n_sets, n_degrees), np.float64)
    for row in range(n_sets):
        for e in range(n_edges):
            if _has(words, row, crossing.target[e]) and not _has(words, row, crossing.source[e]):
                for t in range(n_degrees):
                    out_of[row, t] += crossing.out_of[e, t]
    entering = np.empty(n_edges, np.int64)
    last = n_sets - 1
    for upper in range(1, n_sets):
        first[upper] = n_pairs
        n_entering = 0
        cut_in[:] = 0.0
        for e in range(n_edges):
            if _has(words, upper, crossing.target[e]) and not _has(words, upper, crossing.source[e]):
                entering[n_entering] = e
                n_entering += 1
                for t in range(n_degrees):
                    cut_in[t] += crossing.into[e, t]
        # sets below, depth first over the links; a set that is too large for a stage ends its branch, as all below it are
        # larger
        stack[0] = upper
        height = 1
        stamp[upper] = upper
        while height:
            height -= 1
            at = stack[height]
            for f in range(link_first[at], link_first[at + 1]):
                below = link[f]
                if stamp[below] == upper:
                    continue
                stamp[below] = upper
                steps += 1
                possible = False
                for t in range(n_degrees):
                    if sums[upper, t, UNSUPPORTED] > sums[below, t, UNSUPPORTED]:
                        continue
                    held = sums[upper, t, LOW_A] - sums[below, t, LOW_A] + sums[upper, t, LOW_B] - sums[below, t, LOW_B]
                    if held <= memory * (1.0 + 1e-9) and (sums[upper, t, 0] - sums[below, t, 0]) <= threshold * most:
                        possible = True
                        break
                if not possible:
                    continue
                stack[height] = below
                height += 1
                if crossing.once:
                    _border_once(words, upper, below, crossing, border)
                else:
                    # edges into `upper` and out of `below`, less those that jump over the stage: they are in both
                    for t in range(n_degrees):
                        border[t] = cut_in[t] + out_of[below, t]
                    for j in range(n_entering):
                        e = entering[j]
                        if _has(words, below, crossing.target[e]):
                            for t in range(n_degrees):
                                border[t] -= crossing.into[e, t] + crossing.out_of[e, t]
                # with d replicas at degree t, d t devices and what the rest of the model needs must not be too many
                possible = False
                others = work[last, 0] - (work[upper, 0] - work[below, 0])
                other_replicas = work[last, 1] - (work[upper, 1] - work[below, 1])
                for t in range(n_degrees):
                    if sums[upper, t, UNSUPPORTED] > sums[below, t, UNSUPPORTED]:
                        continue
                    load = (border[t] + sums[upper, t, 0] - sums[below, t, 0]) / threshold
                    if load > most:
                        continue
                    d = next_replica[max(1, int(np.ceil(load * (1.0 - 1e-12))))]
                    if d == 0:
                        continue
                    if d * degrees[t] + others / threshold > n_devices + 1e-6:
                        continue
                    if d + other_replicas / threshold <= n_replicas + 1e-6:
                        possible = True
                        break
                if not possible:
                    continue
                if n_pairs == size:
                    if size == capacity:
                        return -1, first, lower[:0], seconds[:0]
                    size = min(2 * size, capacity)
                    longer = np.empty(size, np.int32)
                    copy(longer, lower, n_pairs)
                    lower = longer
                    wider = np.empty((size, n_degrees), np.float64)
                    copy_rows(wider, seconds, n_pairs)
                    seconds = wider
                lower[n_pairs] = below
                for t in range(n_degrees):
                    seconds[n_pairs, t] = max(border[t], 0.0)
                n_pairs += 1
        if steps > max_steps:
            return -1, first, lower[:0], seconds[:0]
    first[n_sets] = n_pairs
    return n_pairs, first, lower[:n_pairs], seconds[:n_pairs]
