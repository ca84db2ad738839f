"""Checks partitions: adds up the loads by definition, and goes through all partitions below the bound; no solver, no kernel."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.solvers.pairwise.certificate import Verdict
from meshwright.solvers.partition.hypergraph import Operators

__all__ = ["ClaimedPartition", "check"]

ROUNDING = 1e-9
"""Relative distance of sums that counts as none; the solver proves to as much."""

MOST_STEPS = 20_000_000
"""Down-sets and pairs of them looked at before the bound is left unchecked."""


@dataclass(frozen=True, slots=True)
class ClaimedPartition:
    """A partition to check.

    Parameters
    ----------
    groups : tuple of tuple of int
        Operators of each stage.
    hosts : tuple of bool
        Which stages run on host devices.
    n_stages, n_hosts : int
        Accelerators and host devices there are.
    memory_limit_bytes : float
        Of one accelerator.
    value, bound_value : float
        The largest load claimed, and the load that no partition is said to stay below.
    """

    groups: tuple[tuple[int, ...], ...]
    hosts: tuple[bool, ...]
    n_stages: int
    n_hosts: int
    memory_limit_bytes: float
    value: float
    bound_value: float


class _TooLarge(Exception):
    """The partitions below the bound are too many to go through."""


def check(operators: Operators, claim: ClaimedPartition) -> Verdict:
    """Check a claim: the partition is convex, fits and has this largest load, and none has less than the bound.

    Returns: whether it holds, to a billionth; not valid, with the reason, where the bound cannot be checked here.

    Notes
    -----
    The bound is checked without host devices, and without the memory limit (a bound without it holds with it): compute shared
    among all stages and the heaviest operator prove it at once where they reach it. Otherwise all down-sets after which a stage
    below the bound can end are listed, by the compute in front, behind and the tensors cut, and chains of them are looked for.
    """
    wrong = _illegal(operators, claim)
    if wrong:
        return Verdict(False, math.nan, math.nan, wrong)
    value = max(_load(operators, set(group), host) for group, host in zip(claim.groups, claim.hosts, strict=True))
    if not abs(value - claim.value) <= ROUNDING * value:
        return Verdict(False, value, math.nan, f"the largest load is {value!r}, not {claim.value!r}")
    if not claim.bound_value <= value * (1.0 + ROUNDING):
        return Verdict(False, value, math.nan, f"the bound claimed, {claim.bound_value!r}, is above the largest load")
    if claim.n_hosts:
        return Verdict(False, value, math.nan, "the partition holds, but bounds are checked without host devices only")
    blocks = _Blocks.of(operators)
    try:
        below = _exists(blocks, claim.n_stages, claim.bound_value * (1.0 - 2.0 * ROUNDING))
    except _TooLarge:
        return Verdict(
            False, value, math.nan, "the partition holds, but partitions below the bound are too many to go through here"
        )
    if below and math.isfinite(claim.memory_limit_bytes):
        return Verdict(
            False, value, math.nan, "the partition holds, but its bound needs the memory limit, which is not checked here"
        )
    if below:
        return Verdict(False, value, math.nan, f"some partition has less than the bound claimed, {claim.bound_value!r}")
    return Verdict(True, value, claim.bound_value)


def _illegal(operators: Operators, claim: ClaimedPartition) -> str:
    """Return what is wrong with the partition itself; empty when nothing is."""
    stage = {op: s for s, group in enumerate(claim.groups) for op in group}
    n_hosts = sum(claim.hosts)
    if sorted(op for group in claim.groups for op in group) != list(range(len(operators.compute))):
        return "not every operator is in exactly one stage"
    if len(claim.groups) - n_hosts > claim.n_stages or n_hosts > claim.n_hosts:
        return (
            f"{len(claim.groups) - n_hosts} accelerators and {n_hosts} hosts are used of {claim.n_stages} and {claim.n_hosts}"
        )
    for u, v in operators.edges:
        if stage[u] > stage[v]:
            return f"operator {u} is in stage {stage[u]}, behind stage {stage[v]} of operator {v}, which reads it"
    first: dict[int, int] = {}
    for op, kind in enumerate(operators.colocated):
        if stage[first.setdefault(kind, op)] != stage[op]:
            return f"operators {first[kind]} and {op} must stay together and do not"
    for s, (group, host) in enumerate(zip(claim.groups, claim.hosts, strict=True)):
        if host:
            continue
        if not all(operators.supported[op] for op in group):
            return f"stage {s} has an operator that no accelerator supports"
        held = math.fsum(float(operators.memory[op]) for op in group)
        if held > claim.memory_limit_bytes * (1.0 + ROUNDING):
            return f"stage {s} holds {held!r} bytes of {claim.memory_limit_bytes!r}"
    return ""


def _load(operators: Operators, mine: set[int], host: bool) -> float:
    """Return the load of one stage."""
    if host:
        return math.fsum(float(operators.host[op]) for op in mine)
    cut = (cost for cost, pins in operators.nets if 0 < sum(pin in mine for pin in set(pins)) < len(set(pins)))
    return math.fsum([*(float(operators.compute[op]) for op in mine), *cut])


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Operators that stay together, numbered so that edges point forward; nets as bit masks over them."""

    compute: tuple[float, ...]
    after: tuple[int, ...]
    nets: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, operators: Operators) -> _Blocks:
        label = _joined(operators)
        edges = {(label[u], label[v]) for u, v in operators.edges if label[u] != label[v]}
        order = _order(max(label) + 1, edges)
        position = {block: i for i, block in enumerate(order)}
        n = len(order)
        compute = [0.0] * n
        for op, block in enumerate(label):
            compute[position[block]] += float(operators.compute[op])
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


def _order(n: int, edges: set[tuple[int, int]]) -> list[int]:
    """Return blocks so that every edge points forward."""
    from graphlib import TopologicalSorter

    sorter: TopologicalSorter[int] = TopologicalSorter({block: set() for block in range(n)})
    for u, v in sorted(edges):
        sorter.add(v, u)
    return list(sorter.static_order())


def _exists(blocks: _Blocks, n_stages: int, limit: float) -> bool:
    """Whether at most `n_stages` stages with loads of at most `limit` hold all blocks."""
    total = math.fsum(blocks.compute)
    if total > n_stages * limit or max(blocks.compute, default=0.0) > limit:
        return False
    steps = [0]
    ends = _ends(blocks, n_stages, limit, steps)
    whole = (1 << len(blocks.compute)) - 1
    reached = {0}
    for _ in range(n_stages):
        fronts = sorted((ends[ideal][0], ideal) for ideal in reached)
        found = set()
        for ideal, (compute, nets) in ends.items():
            # the nearest first: only so much compute fits into one stage
            for begun, before in reversed(
                fronts[bisect_left(fronts, (compute - limit,)) : bisect_right(fronts, (compute, ideal))]
            ):
                _count(steps)
                if before & ~ideal:
                    continue
                mine, cut = ideal & ~before, nets | ends[before][1]
                cost = math.fsum(blocks.nets[i][0] for i in cut if blocks.nets[i][1] & mine and blocks.nets[i][1] & ~mine)
                if compute - begun + cost <= limit:
                    found.add(ideal)
                    break
        if whole in found:
            return True
        reached |= found  # a stage may stay empty
    return False


def _count(steps: list[int]) -> None:
    """Count a step, and give up after too many."""
    steps[0] += 1
    if steps[0] > MOST_STEPS:
        raise _TooLarge


def _ends(blocks: _Blocks, n_stages: int, limit: float, steps: list[int]) -> dict[int, tuple[float, frozenset[int]]]:
    """Return the down-sets after which some stage can end, with their compute and the nets they cut."""
    total = math.fsum(blocks.compute)
    found = {}
    slack = ROUNDING * (total + limit)
    windows = [(total - (n_stages - s) * limit - slack, s * limit + slack) for s in range(n_stages + 1)]
    for ideal, compute in _down_sets(blocks, windows, steps):
        nets = frozenset(i for i, (_, net) in enumerate(blocks.nets) if net & ideal and net & ~ideal)
        cut = math.fsum(blocks.nets[i][0] for i in nets)
        # a tensor cut is paid in front of the cut as well as behind it
        if any(low + cut <= compute <= high - cut for low, high in windows):
            found[ideal] = (compute, nets)
    return found


def _down_sets(blocks: _Blocks, windows: list[tuple[float, float]], steps: list[int]) -> Iterator[tuple[int, float]]:
    """Yield every down-set with compute in one of the windows, once: block after block is in, or out with all behind it."""
    n = len(blocks.compute)
    total = math.fsum(blocks.compute)
    weights: dict[int, float] = {}
    stack = [(0, 0, 0, 0.0, 0.0)]  # next block, blocks in, blocks out, and their compute
    while stack:
        _count(steps)
        v, inside, outside, has, lacks = stack.pop()
        while v < n and outside >> v & 1:
            v += 1
        if not any(low <= total - lacks and has <= high for low, high in windows):
            continue
        if v == n:
            yield inside, has
            continue
        stack.append((v + 1, inside | 1 << v, outside, has + blocks.compute[v], lacks))
        new = blocks.after[v] & ~outside
        if new not in weights:
            weights[new] = math.fsum(c for w, c in enumerate(blocks.compute) if new >> w & 1)
        stack.append((v + 1, inside, outside | new, has, lacks + weights[new]))
