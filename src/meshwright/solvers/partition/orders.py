"""Topological orders of units in several styles: starting points for cutting a graph into intervals."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.partition.hypergraph import Units

__all__ = ["orders"]


def orders(units: Units, n_orders: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield topological orders, the structured ones first.

    Yields shape (n,), int64: units; every edge points forward.

    Notes
    -----
    The numbering itself; earliest and latest possible; depth first; breadth first; the least open tensors; then the numbering
    with growing noise, alternating with least open tensors under noise.
    """
    n = len(units)
    random = np.random.default_rng(seed)
    depth = units.before - units.after
    yield np.arange(n, dtype=np.int64)
    styles: list[Callable[[], NDArray[np.int64]]] = [
        lambda: _least_open(units, np.zeros(n)),
        lambda: _by_priority(units, units.before),
        lambda: _by_priority(units, -units.after),
        lambda: _depth_first(units, reverse=False),
        lambda: _depth_first(units, reverse=True),
        lambda: _by_priority(units, np.arange(n, dtype=np.float64), first_come=True),
    ]
    for style in styles[: max(n_orders - 1, 0)]:
        yield style()
    spread = float(units.arrays.compute.mean()) if n else 0.0
    largest = float(units.arrays.net_cost.max()) if len(units.arrays.net_cost) else 0.0
    for k in range(n_orders - 1 - len(styles)):
        noise = random.standard_normal(n)
        if k % 3 == 2:
            yield _least_open(units, noise * largest * 0.2)
        else:
            yield _by_priority(units, depth + noise * spread * (2.0 + 3.0 * k))


def _by_priority(units: Units, key: NDArray[np.float64], *, first_come: bool = False) -> NDArray[np.int64]:
    """Take the ready unit of least key; with `first_come`, the one that became ready first."""
    arrays = units.arrays
    degree = np.diff(arrays.pred_first)
    ready = [(float(key[v]), int(v)) for v in np.flatnonzero(degree == 0)]
    heapq.heapify(ready)
    waiting, order = degree.tolist(), []
    first, following = arrays.succ_first.tolist(), arrays.succ.tolist()
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for w in following[first[v] : first[v + 1]]:
            waiting[w] -= 1
            if waiting[w] == 0:
                heapq.heappush(ready, (len(order) + len(key) if first_come else float(key[w]), w))
    return np.array(order, dtype=np.int64)


def _depth_first(units: Units, *, reverse: bool) -> NDArray[np.int64]:
    """Take the unit that became ready last."""
    arrays = units.arrays
    degree = np.diff(arrays.pred_first)
    waiting, order = degree.tolist(), []
    first, following = arrays.succ_first.tolist(), arrays.succ.tolist()
    ready = [int(v) for v in np.flatnonzero(degree == 0)]
    if reverse:
        ready.reverse()
    while ready:
        v = ready.pop()
        order.append(v)
        block = following[first[v] : first[v + 1]]
        for w in reversed(block) if reverse else block:
            waiting[w] -= 1
            if waiting[w] == 0:
                ready.append(w)
    return np.array(order, dtype=np.int64)


def _least_open(units: Units, bias: NDArray[np.float64]) -> NDArray[np.int64]:
    """Take the ready unit after which the tensors cut cost least; ties to the numbering."""
    arrays = units.arrays
    pins = np.diff(arrays.net_first).tolist()
    unit_first, unit_nets = arrays.unit_first.tolist(), arrays.unit_nets.tolist()
    cost, tilt = arrays.net_cost.tolist(), bias.tolist()
    first, following = arrays.succ_first.tolist(), arrays.succ.tolist()
    waiting = np.diff(arrays.pred_first).tolist()
    inside = [0] * len(cost)
    ready = [v for v in range(len(waiting)) if waiting[v] == 0]
    order: list[int] = []

    def change(v: int) -> float:
        total = tilt[v]
        for net in unit_nets[unit_first[v] : unit_first[v + 1]]:
            if inside[net] == 0:
                total += cost[net]
            if inside[net] + 1 == pins[net]:
                total -= cost[net]
        return float(total)

    while ready:
        # many ready units: only the earliest are looked at, so that wide graphs stay quick
        v = min(sorted(ready)[:64], key=lambda unit: (change(unit), unit))
        ready.remove(v)
        order.append(v)
        for net in unit_nets[unit_first[v] : unit_first[v + 1]]:
            inside[net] += 1
        for w in following[first[v] : first[v + 1]]:
            waiting[w] -= 1
            if waiting[w] == 0:
                ready.append(w)
    return np.array(order, dtype=np.int64)
