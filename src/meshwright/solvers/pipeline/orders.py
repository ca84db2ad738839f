"""Topological orders whose suffixes are good places to cut a graph into stages, and where along them to cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cuts", "orders"]


def orders(n_nodes: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Return distinct topological orders: breadth first, depth first, and their mirror images.

    `source`, `target`, shape (n_edges,), int64: ends of the edges of an acyclic graph.
    Returns: orders in which every edge points forward.
    """
    found: dict[tuple[int, ...], None] = {}
    for last_first in (True, False):
        found[_kahn(n_nodes, source, target, last_first)] = None
        found[tuple(reversed(_kahn(n_nodes, target, source, last_first)))] = None
    return tuple(found)


def _kahn(n_nodes: int, source: NDArray[np.int64], target: NDArray[np.int64], last_first: bool) -> tuple[int, ...]:
    """Return Kahn's order with a stack (`last_first`) or a queue of ready nodes."""
    heads: list[list[int]] = [[] for _ in range(n_nodes)]
    waiting = [0] * n_nodes
    for u, v in zip(source.tolist(), target.tolist(), strict=True):
        heads[u].append(v)
        waiting[v] += 1
    ready = [v for v in range(n_nodes) if waiting[v] == 0]
    order: list[int] = []
    begin = 0
    while begin < len(ready):
        if last_first:
            v = ready.pop()
        else:
            v = ready[begin]
            begin += 1
        order.append(v)
        for x in heads[v]:
            waiting[x] -= 1
            if waiting[x] == 0:
                ready.append(x)
    return tuple(order)


def cuts(weights: NDArray[np.float64], border: NDArray[np.float64], n_cuts: int) -> list[int]:
    """Return positions that divide an order into parts of about equal weight, each where little crosses nearby.

    `weights`, shape (n_nodes,), float64: work of each node, in the order.
    `border`, shape (n_nodes + 1,), float64: what crosses a cut before each position.
    `n_cuts`: most positions to return.
    Returns: ascending positions.
    """
    n = len(weights)
    if n - 1 <= n_cuts:
        return list(range(1, n))
    total = np.cumsum(weights + weights.sum() / n * 1e-3)
    part = np.minimum((total / total[-1] * n_cuts).astype(np.int64), n_cuts - 1)
    best: dict[int, int] = {}
    for position in range(1, n):
        key = int(part[position - 1])
        if key not in best or border[position] < border[best[key]]:
            best[key] = position
    return sorted(best.values())
