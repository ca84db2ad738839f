"""Every node of a graph on one path, each path's nodes one behind the other; what is reached from nodes, as bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.pipeline import downsets, orders

__all__ = ["depths", "paths", "reached"]


def reached(n: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return for each node the nodes reached along edges, itself among them, as bits."""
    first, order = downsets.groups(source, n)
    heads = target[order]
    words = np.zeros((n, (n + 63) // 64), np.uint64)
    every = np.arange(n)
    words[every, every >> 6] = np.uint64(1) << (every & 63).astype(np.uint64)
    for v in reversed(orders.orders(n, source, target)[0]):
        for x in heads[first[v] : first[v + 1]]:
            words[v] |= words[x]
    return words


def depths(n: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each node the number of edges of the longest way from it on."""
    first, order = downsets.groups(source, n)
    heads = target[order].tolist()
    depth = [0] * n
    for v in reversed(orders.orders(n, source, target)[0]):
        depth[v] = max((depth[x] + 1 for x in heads[first[v] : first[v + 1]]), default=0)
    return np.array(depth, np.int64)


def paths(
    n: int, source: NDArray[np.int64], target: NDArray[np.int64], below: NDArray[np.uint64], longest: int
) -> tuple[tuple[int, ...], ...]:
    """Return paths that hold every node once; a node reaches the next on its path, by one edge where it may be.

    Parameters
    ----------
    n : int
        Number of nodes.
    source, target : ndarray, shape (n_edges,), int64
        Ends of the edges of an acyclic graph.
    below : ndarray, uint64
        What `reached` says.
    longest : int
        Most nodes of a path.

    Returns
    -------
    tuple of tuple of int
        The fewest along edges, then put one behind the other where one reaches the next.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    depth = depths(n, source, target).tolist()
    order = orders.orders(n, source, target)[0]
    edges = coo_array((np.ones(len(source), np.int8), (source, target)), shape=(n, n)).tocsr()
    after = maximum_bipartite_matching(edges, perm_type="column").tolist()  # as many nodes as can be have one behind them
    taken = np.zeros(n, np.bool_)
    taken[[v for v in after if v >= 0]] = True
    joined: list[list[int]] = []
    for v in order:
        if taken[v]:
            continue
        piece = [v]
        while after[piece[-1]] >= 0:
            piece.append(after[piece[-1]])
        tails = np.array([path[-1] for path in joined], np.int64)
        bits = below[tails, v >> 6] >> np.uint64(v & 63) & np.uint64(1)
        open_paths = np.flatnonzero(bits)
        if len(open_paths):
            joined[min(open_paths.tolist(), key=lambda i: depth[joined[i][-1]])].extend(piece)
        else:
            joined.append(piece)
    return tuple(tuple(path[at : at + longest]) for path in joined for at in range(0, len(path), longest))
