"""What a convex partition is made of: units (operators that must or may as well stay together),
and nets (tensors with their pins).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.partition import convex as kernel
from meshwright._kernels.partition import ideals

__all__ = ["Operators", "Units", "contract", "entries", "loads_of", "sums_of_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """Operators before anything is joined.

    Parameters
    ----------
    compute, host, memory : ndarray, shape (n,), float64
        Time on an accelerator, time on a host device (any one unit of time), bytes on an accelerator.
    supported : ndarray, shape (n,), bool
        Whether an accelerator can run the operator.
    edges : tuple of (int, int)
        Order constraints: the first may not stand in a later stage than the second.
    colocated : tuple of int
        Class of each operator; those of one class stay together.
    nets : tuple of (float, tuple of int)
        Tensors: what a device that holds some but not all of the pins pays, and the pins (operators).
    """

    compute: NDArray[np.float64]
    host: NDArray[np.float64]
    memory: NDArray[np.float64]
    supported: NDArray[np.bool_]
    edges: tuple[tuple[int, int], ...]
    colocated: tuple[int, ...]
    nets: tuple[tuple[float, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units in a topological numbering, ready for the kernels.

    Parameters
    ----------
    members : tuple of tuple of int
        Operators of each unit.
    arrays : meshwright._kernels.partition.convex.Arrays
        Their costs, edges and nets.
    before, after : ndarray, shape (n,), float64
        Compute of each unit with everything that must come before it, and with everything that must come after.
    """

    members: tuple[tuple[int, ...], ...]
    arrays: kernel.Arrays
    before: NDArray[np.float64]
    after: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def total(self) -> float:
        """Compute of all units."""
        return float(self.arrays.compute.sum())


def contract(operators: Operators, *, weigh_memory: bool = False) -> Units:
    """Join what stays together anyway and number the result.

    Joined are operators of one colocation class, classes that form a cycle, and an operator that costs nothing with the only
    other operator it touches, where that one is a pin of all its nets: moving it there never makes a partition worse.

    Parameters
    ----------
    operators : Operators
        What to place.
    weigh_memory : bool
        Whether memory is a cost: under a binding memory limit, moving it may be worse.

    Returns
    -------
    Units
        In a topological numbering by the amount of compute that must come before and need not.
    """
    label = _strong(np.asarray(operators.colocated, dtype=np.int64), operators.edges)
    label = _join_free(operators, label, weigh_memory)
    n = int(label.max()) + 1
    edges = sorted({(int(label[u]), int(label[v])) for u, v in operators.edges if label[u] != label[v]})
    sums = [
        np.bincount(label, weights=column, minlength=n).astype(np.float64)
        for column in (operators.compute, operators.host, operators.memory)
    ]
    supported = np.bincount(label, weights=~operators.supported, minlength=n) == 0
    order = _topological(n, edges)
    before, after = _closures(order, edges, sums[0])
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    # depth among the units, measured in compute: neighbours in the numbering may stand in the same stage
    final = np.lexsort((position, before - after))
    number = np.empty(n, dtype=np.int64)
    number[final] = np.arange(n)
    members: list[list[int]] = [[] for _ in range(n)]
    for operator, unit in enumerate(label):
        members[number[unit]].append(operator)
    nets = _nets(operators.nets, number[label])
    arrays = _arrays(
        [column[final] for column in sums], supported[final], [(int(number[u]), int(number[v])) for u, v in edges], nets
    )
    return Units(tuple(tuple(group) for group in members), arrays, before[final], after[final])


def loads_of(
    units: Units, groups: tuple[tuple[int, ...], ...], hosts: tuple[bool, ...], scales: NDArray[np.float64] | None = None
) -> tuple[float, ...]:
    """Return the load of each device of a partition, straight from the definition.

    `groups`: units of each device.
    `hosts`: which devices are hosts (host time only, no communication).
    `scales`, shape (2, n_stages), float64, or None: factors on compute and communication of the accelerators, in order.
    Returns: one load per device.
    """
    a = units.arrays
    loads: list[float] = []
    accelerator = 0
    for group, host in zip(groups, hosts, strict=True):
        if host:
            loads.append(math.fsum(a.host[v] for v in group))
            continue
        chosen = np.asarray(group, dtype=np.int64)
        mine = np.zeros(len(units), dtype=np.int64)
        mine[chosen] = 1
        nets = np.unique(entries(a.unit_first, a.unit_nets, chosen)[0])
        pins, n_pins = entries(a.net_first, a.net_pins, nets)
        cut = nets[sums_of_rows(mine[pins], n_pins) < n_pins]
        compute, communication = math.fsum(a.compute[chosen].tolist()), math.fsum(a.net_cost[cut].tolist())
        if scales is None:
            loads.append(math.fsum((compute, communication)))
        else:
            loads.append(float(scales[0, accelerator] * compute + scales[1, accelerator] * communication))
        accelerator += 1
    return tuple(loads)


def entries(
    first: NDArray[np.int64], values: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries of some of the compressed rows, one row after the other, and how many each row has.

    `first`, shape (n + 1,), int64: where each row begins; `values`, int64: the entries of all rows.
    `rows`, shape (m,), int64: which.
    Returns: int64, and shape (m,), int64.
    """
    counts = first[rows + 1] - first[rows]
    ends = np.cumsum(counts)
    shift = np.repeat(first[rows] - (ends - counts), counts)
    return values[shift + np.arange(len(shift))], counts


def sums_of_rows(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of every row of what lies one row after the other; rows without entries have 0.

    `values`, int64: entries; `counts`, shape (m,), int64: how many each row has. Returns: shape (m,), int64.
    """
    ends = np.cumsum(counts)
    running = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(running[ends] - running[ends - counts], dtype=np.int64)


def _dense(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber labels 0, 1, ... in order of first appearance."""
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]


def _strong(label: NDArray[np.int64], edges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Join classes that form a cycle."""
    label = _dense(label)
    pairs = label[np.array(edges, dtype=np.int64).reshape(-1, 2)]
    n = int(label.max()) + 1
    if len(_topological(n, pairs[pairs[:, 0] != pairs[:, 1]].tolist())) == n:
        return label  # as most graphs: no need of SciPy
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, component = connected_components(matrix, directed=True, connection="strong")
    return _dense(component[label].astype(np.int64))


def _join_free(operators: Operators, label: NDArray[np.int64], weigh_memory: bool) -> NDArray[np.int64]:
    """Join units that cost nothing with their only neighbour, until none is left."""
    while True:
        n = int(label.max()) + 1
        weight = operators.compute + operators.host + (operators.memory if weigh_memory else 0.0)
        cost = np.bincount(label, weights=weight, minlength=n)
        bound = np.bincount(label, weights=~operators.supported, minlength=n)
        touches: list[set[int]] = [set() for _ in range(n)]
        for u, v in ((int(label[u]), int(label[v])) for u, v in operators.edges):
            if u != v:
                touches[u].add(v)
                touches[v].add(u)
        shared: list[set[int] | None] = [None] * n  # units that are in every net of this one
        for _, pins in operators.nets:
            units = {int(label[pin]) for pin in pins}
            for unit in units if len(units) > 1 else ():
                known = shared[unit]
                shared[unit] = set(units) if known is None else known & units
        target = np.arange(n)
        moved = False
        for unit in range(n):
            if cost[unit] == 0 and bound[unit] == 0 and len(touches[unit]) == 1:
                (other,) = touches[unit]
                known = shared[unit]
                if known is not None and other not in known:
                    continue
                if target[other] == other:  # chains of free units are joined one link a round
                    target[unit] = other
                    moved = True
        if not moved:
            return label
        label = _dense(target[label])


def _topological(n: int, edges: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return units so that every edge points forward, ties by number; without those that a cycle holds back."""
    import heapq

    degree = [0] * n
    following: list[list[int]] = [[] for _ in range(n)]
    for source, target in edges:
        following[source].append(target)
        degree[target] += 1
    ready = [unit for unit in range(n) if degree[unit] == 0]
    order: list[int] = []
    while ready:
        unit = heapq.heappop(ready)
        order.append(unit)
        for other in following[unit]:
            degree[other] -= 1
            if degree[other] == 0:
                heapq.heappush(ready, other)
    return np.array(order, dtype=np.int64)


def _rows(n: int, pairs: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs (row, value) as compressed rows."""
    table = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    first = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(table[:, 0], minlength=n), out=first[1:])
    return first, np.ascontiguousarray(table[:, 1])


def _closures(
    order: NDArray[np.int64], edges: Sequence[tuple[int, int]], compute: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the compute of everything before and after each unit, itself included."""
    n = len(order)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    moved = [(int(position[u]), int(position[v])) for u, v in edges]
    weight = np.ascontiguousarray(compute[order])
    before, after = np.empty(n), np.empty(n)
    before[order] = ideals.closures(*_rows(n, [(v, u) for u, v in moved]), weight, False)
    after[order] = ideals.closures(*_rows(n, moved), weight, True)
    return before, after


def _nets(nets: Iterable[tuple[float, tuple[int, ...]]], number: NDArray[np.int64]) -> list[tuple[float, tuple[int, ...]]]:
    """Return nets on units: those inside one unit dropped, those with the same pins added up."""
    merged: dict[tuple[int, ...], float] = {}
    for cost, pins in nets:
        units = tuple(sorted({int(number[pin]) for pin in pins}))
        if len(units) > 1 and cost > 0:
            merged[units] = merged.get(units, 0.0) + cost
    return [(cost, units) for units, cost in sorted(merged.items())]


def _arrays(
    sums: list[NDArray[np.float64]],
    supported: NDArray[np.bool_],
    edges: list[tuple[int, int]],
    nets: list[tuple[float, tuple[int, ...]]],
) -> kernel.Arrays:
    """Pack everything into read-only arrays."""
    n = len(supported)
    net_first, net_pins = _rows(len(nets), [(i, pin) for i, (_, pins) in enumerate(nets) for pin in pins])
    unit_first, unit_nets = _rows(n, [(pin, i) for i, (_, pins) in enumerate(nets) for pin in pins])
    compute, host, memory = (np.ascontiguousarray(column, dtype=np.float64) for column in sums)
    pred_first, pred = _rows(n, [(v, u) for u, v in edges])
    succ_first, succ = _rows(n, edges)
    net_cost = np.array([cost for cost, _ in nets], dtype=np.float64)
    arrays = kernel.Arrays(
        compute, host, memory, supported.astype(np.uint8), pred_first, pred, succ_first, succ,
        net_first, net_pins, net_cost, unit_first, unit_nets,
    )  # fmt: skip
    for array in arrays:
        array.setflags(write=False)
    return arrays
