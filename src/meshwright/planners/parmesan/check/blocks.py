"""Operators joined to blocks that a partition keeps together, for the check of partitions: in plain Python, by definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from meshwright.solvers.partition.hypergraph import Operators

__all__ = ["OperatorBlocks", "bits"]


@dataclass(frozen=True, slots=True)
class OperatorBlocks:
    """Operators that stay together, numbered so that edges point forward.

    Parameters
    ----------
    compute : tuple of float
        Of each block.
    after : tuple of int
        The blocks that must come after each, itself among them, as a bit mask.
    nets : tuple of (float, int)
        Cost of each tensor that blocks share, and those blocks as a bit mask.
    """

    compute: tuple[float, ...]
    after: tuple[int, ...]
    nets: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, operators: Operators) -> OperatorBlocks:
        """Return the blocks of operators."""
        label = _joined(operators)
        edges = {(label[u], label[v]) for u, v in operators.edges if label[u] != label[v]}
        n = max(label) + 1
        work = [0.0] * n
        for op, block in enumerate(label):
            work[block] += float(operators.compute[op])
        order = _order(n, edges, work)
        position = {block: i for i, block in enumerate(order)}
        compute = [work[block] for block in order]
        after = _reached(n, sorted(((position[u], position[v]) for u, v in edges), reverse=True))
        masks: dict[int, float] = {}
        for cost, pins in operators.nets:
            mask = 0
            for pin in pins:
                mask |= 1 << position[label[pin]]
            if mask & (mask - 1) and cost > 0.0:
                masks[mask] = masks.get(mask, 0.0) + cost
        return cls(tuple(compute), tuple(after), tuple((cost, mask) for mask, cost in masks.items()))


def _joined(operators: Operators) -> list[int]:
    """Return the block of each operator: those that stay together, those on a cycle,
    and free ones with their only neighbour.
    """
    label = _dense(operators.colocated)
    while True:
        n = max(label) + 1
        edges = sorted({(label[u], label[v]) for u, v in operators.edges if label[u] != label[v]}, reverse=True)
        group = _dense(_reached(n, edges))  # blocks on one cycle reach the same
        if len(set(group)) == n:
            group = _free(operators, label, edges)
        if len(set(group)) == n:
            return label
        label = _dense([group[block] for block in label])


def _dense(label: Sequence[int]) -> list[int]:
    """Renumber labels 0, 1, ... in order of first appearance."""
    number: dict[int, int] = {}
    return [number.setdefault(one, len(number)) for one in label]


def _reached(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each block those that edges lead to, itself among them, as a bit mask."""
    reached = [1 << v for v in range(n)]
    changed = True
    while changed:
        changed = False
        for u, v in edges:
            union = reached[u] | reached[v]
            changed = changed or union != reached[u]
            reached[u] = union
    return reached


def _free(operators: Operators, label: list[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return blocks with those joined that cost no compute and touch one other, which is in all their tensors."""
    n = max(label) + 1
    near: list[set[int]] = [set() for _ in range(n)]
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)
    compute = [0.0] * n
    for op, block in enumerate(label):
        compute[block] += float(operators.compute[op])
    shared: list[set[int] | None] = [None] * n
    for _, pins in operators.nets:
        blocks = {label[pin] for pin in pins}
        for block in blocks if len(blocks) > 1 else ():
            known = shared[block]
            shared[block] = blocks if known is None else known & blocks
    group = list(range(n))
    for block in range(n):
        if compute[block] == 0.0 and len(near[block]) == 1:
            (other,) = near[block]
            known = shared[block]
            if group[other] == other and (known is None or other in known):
                group[block] = other
    return group


def _order(n: int, edges: set[tuple[int, int]], compute: Sequence[float]) -> list[int]:
    """Return blocks so that every edge points forward, those with much compute before and little behind them late."""
    sorter: TopologicalSorter[int] = TopologicalSorter({block: set() for block in range(n)})
    for u, v in sorted(edges):
        sorter.add(v, u)
    after = _reached(n, sorted(edges, reverse=True))
    depth = [0.0] * n
    for u in range(n):
        for v in bits(after[u]):
            depth[u] -= compute[v]
            depth[v] += compute[u]
    sorter.prepare()
    order: list[int] = []
    ready: list[tuple[float, int]] = []
    while sorter.is_active():
        for block in sorter.get_ready():
            heappush(ready, (depth[block], block))
        order.append(heappop(ready)[1])
        sorter.done(order[-1])
    return order


def bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits that are set in a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
