"""Checks partitions onto unlike devices: adds up loads and bytes by definition, and goes through all chains below the bound."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.planners.parmesan.check.partition import ROUNDING
from meshwright.solvers.pairwise.certificate import Verdict
from meshwright.solvers.partition.hypergraph import Operators
from meshwright.solvers.partition.unlike import DeviceKind

__all__ = ["ClaimedUnlikePartition", "check"]

_MOST_SETS = 3_000  # sets of operators that stages can have done
_MOST_PAIRS = 2_000_000  # pairs of them


@dataclass(frozen=True, slots=True)
class ClaimedUnlikePartition:
    """A partition to check: operators and kind of device of each stage, most stages, the largest load and the bound claimed."""

    groups: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    n_stages: int
    value: float
    bound_value: float


def check(operators: Operators, kinds: Sequence[DeviceKind], claim: ClaimedUnlikePartition) -> Verdict:
    """Check a claim: the partition is convex, every stage fits its device, and no partition has less than the bound.

    Parameters
    ----------
    operators : Operators
        The question.
    kinds : sequence of DeviceKind
        The devices.
    claim : ClaimedUnlikePartition
        The answer.

    Returns
    -------
    Verdict
        Whether it holds, to a billionth; not valid, with the reason, where the bound cannot be checked here.

    Notes
    -----
    A bound up to compute shared out perfectly among as many devices as there may be stages, each as quick as the quickest, is
    proven by that; otherwise every set of operators that stages below the bound can have done, and the devices they took, is
    gone through.
    """
    wrong = _illegal(operators, kinds, claim)
    if wrong:
        return Verdict(False, math.nan, math.nan, wrong)
    stage_costs = [_load(operators, kinds[k], frozenset(group)) for group, k in zip(claim.groups, claim.kinds, strict=True)]
    value = max(stage_costs)
    if not abs(value - claim.value) <= ROUNDING * value:
        return Verdict(False, value, math.nan, f"the largest load is {value!r}, not {claim.value!r}")
    if not claim.bound_value <= value * (1.0 + ROUNDING):
        return Verdict(False, value, math.nan, f"the bound claimed, {claim.bound_value!r}, is above the largest load")
    quickest = math.fsum(min(float(kind.compute[op]) for kind in kinds) for op in range(len(operators.memory)))
    if quickest > claim.n_stages * claim.bound_value * (1.0 - 2.0 * ROUNDING):
        return Verdict(True, value, claim.bound_value)
    below = _exists(operators, kinds, claim.n_stages, claim.bound_value * (1.0 - 2.0 * ROUNDING))
    if below is None:
        return Verdict(
            False, value, math.nan, "the partition holds, but partitions below the bound are too many to go through here"
        )
    if below:
        return Verdict(False, value, math.nan, f"some partition has less than the bound claimed, {claim.bound_value!r}")
    return Verdict(True, value, claim.bound_value)


def _illegal(operators: Operators, kinds: Sequence[DeviceKind], claim: ClaimedUnlikePartition) -> str:
    """Return what is wrong with the partition itself; empty when nothing is."""
    stage = {op: s for s, group in enumerate(claim.groups) for op in group}
    if sorted(op for group in claim.groups for op in group) != list(range(len(operators.memory))):
        return "not every operator is in exactly one stage"
    if len(claim.groups) > claim.n_stages:
        return f"{len(claim.groups)} devices are used of {claim.n_stages}"
    for k, kind in enumerate(kinds):
        if claim.kinds.count(k) > kind.n_devices:
            return f"{claim.kinds.count(k)} devices of a kind are used of {kind.n_devices}"
    for u, v in operators.edges:
        if stage[u] > stage[v]:
            return f"operator {u} is in stage {stage[u]}, behind stage {stage[v]} of operator {v}, which reads it"
    first: dict[int, int] = {}
    for op, colour in enumerate(operators.colocated):
        if stage[first.setdefault(colour, op)] != stage[op]:
            return f"operators {first[colour]} and {op} must stay together and do not"
    for s, (group, k) in enumerate(zip(claim.groups, claim.kinds, strict=True)):
        held = math.fsum(float(operators.memory[op]) for op in group)
        if held > kinds[k].free_bytes * (1.0 + ROUNDING):
            return f"stage {s} holds {held!r} bytes of the {kinds[k].free_bytes!r} of its device"
        if not all(operators.supported[op] for op in group):
            return f"stage {s} has an operator that no accelerator supports"
    return ""


def _load(operators: Operators, kind: DeviceKind, mine: frozenset[int]) -> float:
    """Return the load of a stage on one kind of device."""
    cut = (cost for cost, pins in operators.nets if 0 < len(mine.intersection(pins)) < len(set(pins)))
    return math.fsum([*(float(kind.compute[op]) for op in mine), *cut])


def _exists(operators: Operators, kinds: Sequence[DeviceKind], n_stages: int, limit: float) -> bool | None:
    """Whether some chain of stages has every load within the limit and fits; None where that is too much to go through."""
    ideals = _down_sets(operators)
    if ideals is None or len(ideals) ** 2 > 2 * _MOST_PAIRS:
        return None
    nets = [(cost, sum(1 << pin for pin in set(pins))) for cost, pins in operators.nets]
    held = [_sum(operators.memory.tolist(), ideal) for ideal in ideals]
    done = [[_sum(kind.compute.tolist(), ideal) for ideal in ideals] for kind in kinds]
    taken: list[set[tuple[int, ...]]] = [{(0,) * len(kinds)}, *(set() for _ in ideals[1:])]
    for i, ideal in enumerate(ideals):
        for j in range(i):
            mine = ideal & ~ideals[j]
            if ideals[j] & ~ideal or not taken[j]:
                continue
            cut = math.fsum(cost for cost, net in nets if net & mine and net & ~mine)
            for k, kind in enumerate(kinds):
                if held[i] - held[j] > kind.free_bytes or done[k][i] - done[k][j] + cut > limit:
                    continue
                counts = (tuple(c + (at == k) for at, c in enumerate(count)) for count in taken[j])
                taken[i] |= {count for count in counts if count[k] <= kind.n_devices and sum(count) <= n_stages}
    return bool(taken[-1])


def _sum(values: Sequence[float], ideal: int) -> float:
    """Return the sum of the values that an ideal's bits name."""
    return math.fsum(value for op, value in enumerate(values) if ideal >> op & 1)


def _down_sets(operators: Operators) -> list[int] | None:
    """Return all sets of operators after which a stage can end, as bits, by size; None where there are too many."""
    n = len(operators.memory)
    before, together = [0] * n, [0] * n
    for u, v in operators.edges:
        before[v] |= 1 << u
    for op, colour in enumerate(operators.colocated):
        together[op] = sum(1 << other for other, same in enumerate(operators.colocated) if same == colour)
    # what must be in a set with an operator: its class, all that these read, and so on
    need = [together[op] | before[op] for op in range(n)]
    changed = True
    while changed:
        wider = [functools.reduce(operator.or_, (need[u] for u in range(n) if mine >> u & 1), mine) for mine in need]
        changed = wider != need
        need = wider
    found = layer = {0}
    while layer:
        layer = {ideal | need[op] for ideal in layer for op in range(n) if not ideal >> op & 1} - found
        found = found | layer
        if len(found) > _MOST_SETS:
            return None
    return sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))
