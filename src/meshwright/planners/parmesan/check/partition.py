"""Checks partitions: adds up the loads by definition, and goes through all partitions below the bound; no solver, no kernel."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.planners.parmesan.check.blocks import OperatorBlocks, bits
from meshwright.solvers.pairwise.certificate import Verdict
from meshwright.solvers.partition.hypergraph import Operators

__all__ = ["ClaimedPartition", "check"]

ROUNDING = 1e-9
"""Relative distance of sums that counts as none; the solver proves to as much."""

MOST_STEPS = 20_000_000
"""Down-sets and pairs of them looked at before the bound is left unchecked."""

FEW_STEPS = 500_000
"""Steps after which the cheapest cuts are looked for."""

ROUNDS = 8
"""Times that the cheapest cut of each stage is looked for."""

LEVELS = 12
"""Costs up to which a cheapest cut is looked for, each half more than the one before."""


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
    blocks = OperatorBlocks.of(operators)
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


def _exists(blocks: OperatorBlocks, n_stages: int, limit: float) -> bool:
    """Whether at most `n_stages` stages with loads of at most `limit` hold all blocks."""
    total = math.fsum(blocks.compute)
    if total > n_stages * limit or max(blocks.compute, default=0.0) > limit:
        return False
    steps = [0]
    ends = _ends(blocks, n_stages, limit, steps)
    if 0 not in ends:  # the cheapest cuts leave no room for all compute
        return False
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
                _count(steps, MOST_STEPS)
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


def _count(steps: list[int], most_steps: int) -> None:
    """Count a step, and give up after too many."""
    steps[0] += 1
    if steps[0] > most_steps:
        raise _TooLarge


def _ends(blocks: OperatorBlocks, n_stages: int, limit: float, steps: list[int]) -> dict[int, tuple[float, frozenset[int]]]:
    """Return the down-sets after which some stage can end, with their compute and the nets they cut.

    Where they are many, what the cheapest cuts between other stages cost is taken from each window first (`_cheapest_cuts`).
    """
    total = math.fsum(blocks.compute)
    slack = ROUNDING * (total + limit)
    cuts = [0.0] * (n_stages + 1)
    try:
        return _listed(blocks, _windows(total, limit, cuts, slack), slack, steps, min(MOST_STEPS, FEW_STEPS))
    except _TooLarge:
        cuts = _cheapest_cuts(blocks, n_stages, limit, steps)
    found: dict[int, tuple[float, frozenset[int]]] = {}
    windows = _windows(total, limit, cuts, slack)
    if sum(cuts) == 0.0:
        return _listed(blocks, windows, slack, steps, MOST_STEPS)
    for window in windows:  # one by one: those far from a window share no branch with it
        found |= _listed(blocks, [window], slack, steps, MOST_STEPS)
    return found


def _windows(total: float, limit: float, cuts: Sequence[float], slack: float) -> list[tuple[float, float]]:
    """Return the compute that may be in front of the end of each stage, where others' cuts cost at least so much."""
    n_stages = len(cuts) - 1
    return [
        (total - (n_stages - s) * limit + 2.0 * math.fsum(cuts[s + 1 :]) - slack, s * limit - 2.0 * math.fsum(cuts[:s]) + slack)
        for s in range(n_stages + 1)
    ]


def _cheapest_cuts(blocks: OperatorBlocks, n_stages: int, limit: float, steps: list[int]) -> list[float]:
    """Return what the tensors that only the cut after each stage can cut cost there at least, zero where that is not known.

    Notes
    -----
    In a partition with loads of at most `limit`, stages 1 to s pay their compute, once every tensor that the cut after s cuts,
    and twice every tensor that a cut before it cuts and it does not, for such a tensor lies in front of it in two stages or
    more. So twice the cheapest cuts before may be taken from the compute in front, and twice those behind from that behind,
    where the tensors counted for each cut can be cut by no other. Taken away, windows are narrower and cuts in them dearer.
    """
    total = math.fsum(blocks.compute)
    slack = ROUNDING * (total + limit)
    of_cut = _of_one_cut(blocks, _windows(total, limit, [0.0] * (n_stages + 1), slack))
    cuts = [0.0] * (n_stages + 1)
    for _ in range(ROUNDS):
        before = list(cuts)
        for s in range(1, n_stages):
            window = _windows(total, limit, cuts, slack)[s]
            largest = 0.5 * (window[1] - window[0])
            for most in (largest * 1.5**level for level in range(1 - LEVELS, 1)):
                if most <= cuts[s] or not of_cut[s]:
                    continue
                try:
                    found = _least_cut(blocks, of_cut[s], window, most, steps)
                except _TooLarge:
                    return cuts
                cuts[s] = max(cuts[s], most if found is None else found - slack)
                if found is not None:
                    break
        if all(new <= old + slack for new, old in zip(cuts, before, strict=True)):
            break
    return cuts


def _of_one_cut(blocks: OperatorBlocks, windows: list[tuple[float, float]]) -> list[int]:
    """Return for each window the nets that a down-set with compute in it can cut, and none with compute in any other can."""
    whole, n = math.fsum(blocks.compute), len(blocks.compute)
    behind = [math.fsum(c for w, c in enumerate(blocks.compute) if blocks.after[v] >> w & 1) for v in range(n)]
    before = [math.fsum(c for w, c in enumerate(blocks.compute) if blocks.after[w] >> v & 1) for v in range(n)]
    result = [0] * len(windows)
    for i, (_, net) in enumerate(blocks.nets):
        pins = [v for v in range(n) if net >> v & 1]
        least, most = min(before[v] for v in pins), whole - min(behind[v] for v in pins)
        can = [s for s, (low, high) in enumerate(windows[:-1]) if s > 0 and least <= high and most >= low]
        if len(can) == 1:
            result[can[0]] |= 1 << i
    return result


def _least_cut(blocks: OperatorBlocks, nets: int, window: tuple[float, float], most: float, steps: list[int]) -> float | None:
    """Return the least cost of these nets cut by a down-set in a window that also leaves room for it; None above `most`."""
    best = None
    limits = [most]
    for _, _, cost in _down_sets(blocks, [window], steps, MOST_STEPS // 2, nets=nets, most=limits):
        best = cost if best is None else min(best, cost)
        limits[0] = best * (1.0 - ROUNDING)
    return best


def _listed(
    blocks: OperatorBlocks, windows: list[tuple[float, float]], slack: float, steps: list[int], most_steps: int
) -> dict[int, tuple[float, frozenset[int]]]:
    """Return the down-sets in the windows with their compute and the nets they cut."""
    found = {}
    # a tensor cut is paid in front of the cut as well as behind it
    largest = [max(0.5 * (high - low) for low, high in windows) + slack]
    for ideal, compute, _ in _down_sets(blocks, windows, steps, most_steps, nets=-1, most=largest):
        nets = frozenset(i for i, (_, net) in enumerate(blocks.nets) if net & ideal and net & ~ideal)
        cut = math.fsum(blocks.nets[i][0] for i in nets)
        if any(low + cut <= compute <= high - cut for low, high in windows):
            found[ideal] = (compute, nets)
    return found


def _down_sets(
    blocks: OperatorBlocks,
    windows: list[tuple[float, float]],
    steps: list[int],
    most_steps: int,
    *,
    nets: int,
    most: list[float],
) -> Iterator[tuple[int, float, float]]:
    """Yield every down-set with compute c in one of the windows, once, with c and what it cuts of some nets, k.

    Block after block is in, or out with all behind it. A window (low, high) holds low + k <= c <= high - k; what k exceeds
    ``most[0]``, which may fall on the way, is left out.
    """
    n = len(blocks.compute)
    total = math.fsum(blocks.compute)
    costs = [cost for cost, _ in blocks.nets]
    own = [0] * n
    for i, (_, net) in enumerate(blocks.nets):
        for v in bits(net) if nets >> i & 1 else ():
            own[v] |= 1 << i
    behind: dict[int, int] = {}  # the nets with a pin in a block or behind it
    weights: dict[int, float] = {}
    # next block, blocks in and out, nets with a pin in and out; compute in and out, cost of nets cut
    stack = [(0, 0, 0, 0, 0, 0.0, 0.0, 0.0)]
    while stack:
        _count(steps, most_steps)
        v, inside, outside, begun, ended, has, lacks, cut = stack.pop()
        if cut > most[0] or not any(low + cut <= total - lacks and has <= high - cut for low, high in windows):
            continue
        while v < n and outside >> v & 1:
            v += 1
        if v == n:
            yield inside, has, cut
            continue
        new = blocks.after[v] & ~outside
        if new not in weights:
            weights[new] = math.fsum(blocks.compute[w] for w in bits(new))
        if v not in behind:
            behind[v] = 0
            for w in bits(blocks.after[v]):
                behind[v] |= own[w]
        more = cut + sum(costs[i] for i in bits(own[v] & ended & ~begun))
        stack.append((v + 1, inside | 1 << v, outside, begun | own[v], ended, has + blocks.compute[v], lacks, more))
        more = cut + sum(costs[i] for i in bits(behind[v] & begun & ~ended))
        stack.append((v + 1, inside, outside | new, begun, ended | behind[v], has, lacks + weights[new], more))
