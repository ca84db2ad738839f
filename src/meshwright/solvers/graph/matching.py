"""Maximum weight matching of servers on a traffic matrix, round by round, with diminishing demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["match", "rounds"]


def match(weight: NDArray[np.float64], free: Sequence[bool]) -> list[tuple[int, int]]:
    """Return pairs of free nodes, each in one pair at most, with the largest total weight among the largest pairings.

    `weight`, shape (n, n), float64: symmetric weights of pairs.
    `free`: which nodes may be paired.
    Returns: smaller node first, ascending.

    References
    ----------
    .. [1] J. Edmonds, "Paths, trees, and flowers", Canadian J. Math. 17, 1965.
    """
    import rustworkx

    graph: rustworkx.PyGraph[int, int] = rustworkx.PyGraph()
    nodes = [i for i, is_free in enumerate(free) if is_free]
    graph.add_nodes_from(nodes)
    # the solver counts in whole numbers: one part in a thousand million of the largest weight
    largest = float(weight.max())
    whole = np.rint(weight / (largest or 1.0) * 1e9).astype(np.int64)
    pairs = [(a, b, int(whole[nodes[a], nodes[b]])) for a in range(len(nodes)) for b in range(a + 1, len(nodes))]
    graph.add_edges_from(pairs)
    found = rustworkx.max_weight_matching(graph, max_cardinality=True, weight_fn=int)
    return sorted((min(nodes[a], nodes[b]), max(nodes[a], nodes[b])) for a, b in found)


def rounds(demand_bytes: NDArray[np.float64], free: NDArray[np.int64], n_rounds: int) -> list[tuple[int, int]]:
    """Return links laid by matching, a round at a time; a pair with c links counts for ``1 / (1 + c)`` of its demand.

    Parameters
    ----------
    demand_bytes : ndarray, shape (n, n), float64
        From row to column; the two directions of a pair are added.
    free : ndarray, shape (n,), int64
        Free interfaces of every server.
    n_rounds : int
        How many at most; a server takes part while it has a free interface.

    Returns
    -------
    list of (int, int)
        Links, repeated where a pair got several.

    References
    ----------
    .. [1] Wang et al., "TopoOpt", NSDI 2023, algorithm 1, matching on the point-to-point demand.

    Notes
    -----
    The released program counts one direction of a pair only and never reaches this step; here both count.
    """
    demand = demand_bytes + demand_bytes.T
    left = free.copy()
    n_links = np.zeros_like(demand)
    found: list[tuple[int, int]] = []
    for _ in range(n_rounds):
        pairs = match(demand / (1.0 + n_links), (left > 0).tolist())
        if not pairs:
            break
        for a, b in pairs:
            n_links[a, b] += 1
            n_links[b, a] += 1
            left[[a, b]] -= 1
        found += pairs
    return found
