"""Kernels: the cheapest blocks along paths of a pipeline's nodes at given prices, and sums over sets of nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.compiling import kernel

__all__ = ["Blocks", "NodePaths", "Nodes", "run", "sums_of_sets"]


class Nodes(NamedTuple):
    """Choices of node v are ``first[v]`` and on; `degree` is the position of each one's tensor degree.

    The stage of node v ends at slot ``least[v]`` or later and begins at slot ``most[v]`` or before.
    """

    first: NDArray[np.int64]
    degree: NDArray[np.int64]
    seconds: NDArray[np.float64]
    weight: NDArray[np.float64]
    per_microbatch: NDArray[np.float64]
    fixed: NDArray[np.float64]
    least: NDArray[np.int64]
    most: NDArray[np.int64]


class Blocks(NamedTuple):
    """Places a stage may take: its first and last slot from the end of the pipeline, its degree, and what follows from them."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    degree: NDArray[np.int64]
    share: NDArray[np.float64]
    reduce: NDArray[np.float64]
    spared: NDArray[np.float64]
    in_flight: NDArray[np.float64]
    move: NDArray[np.float64]


class NodePaths(NamedTuple):
    """Every node on one path: path p is ``order[start[p]:start[p + 1]]``, from the model's input on, and counts to
    ``group[p]``.

    Where the path leaves a block in front of position i, the one behind pays ``into[i, degree]`` seconds and the one in front
    ``out_of[i, degree]``.
    """

    order: NDArray[np.int64]
    start: NDArray[np.int64]
    group: NDArray[np.int64]
    into: NDArray[np.float64]
    out_of: NDArray[np.float64]


@kernel(allocates=True)
def run(nodes, blocks, paths, time_price, byte_price):
    """Return what every path costs where its nodes lie in blocks one behind the other, each block's nodes together.

    Parameters
    ----------
    nodes, blocks, paths : Nodes, Blocks, NodePaths
        The instance.
    time_price, byte_price : ndarray, shape (n_blocks,), float64
        Prices of a second of a block, and of a byte of each of its devices.

    Returns
    -------
    cost : ndarray, shape (n_groups,), float64
        Cheapest sums of prices, by group; infinite where no blocks take the nodes.
    ahead : ndarray, shape (n_nodes,), float64
        The cheapest sum of a node and all before it on its path.
    seconds, held : ndarray, shape (n_groups, n_blocks), float64
        What the paths take of each block there.
    """
    n_nodes, n_blocks = len(nodes.first) - 1, len(blocks.begin)
    n_paths, n_groups = len(paths.start) - 1, paths.group.max() + 1
    n_slots, longest = 0, 0
    for j in range(n_blocks):
        n_slots = max(n_slots, blocks.end[j])
    for p in range(n_paths):
        longest = max(longest, paths.start[p + 1] - paths.start[p])
    cost = np.zeros(n_groups)
    ahead = np.full(n_nodes, np.inf)
    seconds = np.zeros((n_groups, n_blocks))
    held = np.zeros((n_groups, n_blocks))
    origin = np.empty((longest, n_blocks), np.int32)  # the block of the node before
    chosen = np.empty((longest, n_blocks), np.int32)
    so_far, grown = np.empty(n_blocks), np.empty(n_blocks)
    cheapest = np.empty(n_slots + 2)  # of the blocks that begin at a slot or later, with what leaving them costs
    which = np.empty(n_slots + 2, np.int64)
    for p in range(n_paths):
        for i in range(paths.start[p], paths.start[p + 1]):
            v, row = paths.order[i], i - paths.start[p]
            for slot in range(n_slots + 2):
                cheapest[slot] = np.inf
                which[slot] = -1
            if row > 0:
                for j in range(n_blocks):
                    value = so_far[j] + time_price[j] * blocks.move[j] * paths.out_of[i, blocks.degree[j]]
                    if value < cheapest[blocks.begin[j]]:
                        cheapest[blocks.begin[j]] = value
                        which[blocks.begin[j]] = j
                for slot in range(n_slots, -1, -1):
                    if cheapest[slot + 1] < cheapest[slot]:
                        cheapest[slot] = cheapest[slot + 1]
                        which[slot] = which[slot + 1]
            for j in range(n_blocks):
                grown[j] = np.inf
                origin[row, j] = -1
                chosen[row, j] = -1
                if blocks.end[j] < nodes.least[v] or blocks.begin[j] > nodes.most[v]:
                    continue
                best = np.inf
                for c in range(nodes.first[v], nodes.first[v + 1]):
                    if nodes.degree[c] != blocks.degree[j]:
                        continue
                    time = nodes.seconds[c] * blocks.share[j] + nodes.weight[c] * blocks.reduce[j]
                    size = nodes.per_microbatch[c] * blocks.in_flight[j] + nodes.fixed[c] - nodes.weight[c] * blocks.spared[j]
                    value = time_price[j] * time + byte_price[j] * size
                    if value < best:
                        best = value
                        chosen[row, j] = c
                if row > 0:
                    entered = time_price[j] * blocks.move[j] * paths.into[i, blocks.degree[j]]
                    entered += cheapest[blocks.end[j] + 1]
                    if so_far[j] <= entered:
                        best += so_far[j]
                        origin[row, j] = j
                    else:
                        best += entered
                        origin[row, j] = which[blocks.end[j] + 1]
                grown[j] = best
            for j in range(n_blocks):
                so_far[j] = grown[j]
                ahead[v] = min(ahead[v], grown[j])
        g = paths.group[p]
        j = np.argmin(so_far)
        cost[g] += so_far[j]
        if so_far[j] == np.inf:
            continue
        for i in range(paths.start[p + 1] - 1, paths.start[p] - 1, -1):
            row = i - paths.start[p]
            c, before = chosen[row, j], origin[row, j]
            seconds[g, j] += nodes.seconds[c] * blocks.share[j] + nodes.weight[c] * blocks.reduce[j]
            held[g, j] += nodes.per_microbatch[c] * blocks.in_flight[j] + nodes.fixed[c] - nodes.weight[c] * blocks.spared[j]
            if row > 0 and before != j:
                seconds[g, j] += blocks.move[j] * paths.into[i, blocks.degree[j]]
                seconds[g, before] += blocks.move[before] * paths.out_of[i, blocks.degree[before]]
            if row > 0:
                j = before
    return cost, ahead, seconds, held


@kernel(allocates=True)
def sums_of_sets(words, value):
    """Return the sum of values over the members of every set.

    Parameters
    ----------
    words : ndarray, shape (n_sets, n_words), uint64
        Members as bits.
    value : ndarray, shape (n_nodes,), float64
        Of each node.

    Returns
    -------
    ndarray, shape (n_sets,), float64
        The sums.
    """
    n_sets, n_words = words.shape
    n = len(value)
    table = np.zeros((8 * n_words, 256))  # of every byte of a row, the sum of each of its 256 values
    for byte in range((n + 7) // 8):
        for bit in range(min(8, n - 8 * byte)):
            for low in range(1 << bit):
                table[byte, (1 << bit) + low] = table[byte, low] + value[8 * byte + bit]
    sums = np.zeros(n_sets)
    for row in range(n_sets):
        total = 0.0
        for w in range(n_words):
            some = words[row, w]
            if some != 0:
                for b in range(8):
                    total += table[8 * w + b, np.int64((some >> np.uint64(8 * b)) & np.uint64(255))]
        sums[row] = total
    return sums
