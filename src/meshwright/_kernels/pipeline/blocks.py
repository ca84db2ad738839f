"""Kernels: the cheapest block and choice of every node of a pipeline at given prices, and sums over sets of nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.compiling import kernel

__all__ = ["Blocks", "Nodes", "place", "sums_of_sets"]


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


@kernel
def place(nodes, blocks, time_price, byte_price):
    """Return what every node costs at its cheapest, and where that is.

    Parameters
    ----------
    nodes, blocks : Nodes, Blocks
        The instance.
    time_price, byte_price : ndarray, shape (n_blocks,), float64
        Prices of a second of a block, and of a byte of each of its devices.

    Returns
    -------
    cost : ndarray, shape (n_nodes,), float64
        Cheapest sum of prices; infinite where no block takes the node.
    block : ndarray, shape (n_nodes,), int64
        Where; -1 for nowhere.
    seconds, held : ndarray, shape (n_nodes,), float64
        What the node takes there.
    """
    n_nodes, n_blocks = len(nodes.first) - 1, len(blocks.begin)
    cost = np.full(n_nodes, np.inf)
    block = np.full(n_nodes, -1, np.int64)
    seconds = np.zeros(n_nodes)
    held = np.zeros(n_nodes)
    for v in range(n_nodes):
        for j in range(n_blocks):
            if blocks.end[j] < nodes.least[v] or blocks.begin[j] > nodes.most[v]:
                continue
            for c in range(nodes.first[v], nodes.first[v + 1]):
                if nodes.degree[c] != blocks.degree[j]:
                    continue
                time = nodes.seconds[c] * blocks.share[j] + nodes.weight[c] * blocks.reduce[j]
                size = nodes.per_microbatch[c] * blocks.in_flight[j] + nodes.fixed[c] - nodes.weight[c] * blocks.spared[j]
                value = time_price[j] * time + byte_price[j] * size
                if value < cost[v]:
                    cost[v] = value
                    block[v] = j
                    seconds[v] = time
                    held[v] = size
    return cost, block, seconds, held


@kernel
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
