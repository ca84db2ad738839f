"""Checks plans of ``--search piper``: adds up what they cost, and goes through all pipelines below the bound; no solver,
no kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.planners.piper.check import sums
from meshwright.planners.piper.check.places import Neighbours, StageKind, work_seconds
from meshwright.planners.piper.check.stage import (
    TooLarge,
    buffer_held,
    held_bytes,
    members,
    moved_seconds,
    reduce_seconds,
    replicas_allowed,
    share_ratio,
)
from meshwright.planners.piper.menu import Options, allowed_by
from meshwright.planners.piper.problem import PiperChoice, PiperInstance
from meshwright.solvers.pairwise.certificate import Verdict

__all__ = ["ClaimedStage", "check"]

ROUNDING = 1e-9
"""Relative distance of sums that counts as none."""

MOST_SETS = 20_000
"""Downsets up to which the bound is checked."""

MOST_LONG, MOST_STEPS = 2_000, 3_000_000
"""With nodes, or filling and draining: downsets, and stages on ways to run a downset, up to which the bound is checked."""


@dataclass(frozen=True, slots=True)
class ClaimedStage:
    """A stage of the plan to check: nodes by position, replicas, tensor degree, and the id of each node's choice."""

    nodes: tuple[int, ...]
    data: int
    tensor: int
    choices: tuple[str, ...]


def check(
    instance: PiperInstance, options: Options, stages: Sequence[ClaimedStage], claimed_value: float, claimed_bound_value: float
) -> Verdict:
    """Check a claim: this plan is legal, fits and takes `claimed_value`, and no plan takes less than `claimed_bound_value`.

    `stages` go from the model's input on; the values claimed are times per micro-batch. Returns whether the claim holds, to a
    billionth; not valid, with the reason, where the bound cannot be checked here.

    Notes
    -----
    By definition and in plain Python: all downsets, for each the undominated pairs of replicas and devices with which all its
    stages stay below the bound, for each stage the undominated choices of its nodes. With nodes, stages
    lie one after the other, devices left out where that is better, and neighbours in one node where they may. With fill and
    drain the slowest stage, the longest and the sum of all others are compared too.
    """
    wrong = _illegal(instance, options, stages)
    if wrong:
        return Verdict(False, math.nan, math.nan, wrong)
    value, held = _cost(instance, stages)
    if held > instance.memory_bytes * (1.0 + 1e-12):
        return Verdict(False, value, math.nan, f"a device holds {held!r} bytes of {instance.memory_bytes!r}")
    if not abs(value - claimed_value) <= ROUNDING * abs(value):
        return Verdict(False, value, math.nan, f"the plan takes {value!r}, not {claimed_value!r}")
    if not claimed_bound_value <= value * (1.0 + ROUNDING):
        return Verdict(False, value, math.nan, f"the bound claimed, {claimed_bound_value!r}, is above what the plan takes")
    simple = work_seconds(instance, options, range(len(instance.nodes))) / instance.n_devices
    if claimed_bound_value <= simple * (1.0 + ROUNDING):
        return Verdict(True, value, claimed_bound_value)
    try:
        found = _exists(instance, options, claimed_bound_value * (1.0 - ROUNDING))
    except TooLarge:
        return Verdict(
            False, value, simple, f"the plan holds, but the graph is too large to check more than the bound {simple!r}"
        )
    if found:
        return Verdict(False, value, math.nan, f"there is a plan whose stages all take less than {claimed_bound_value!r}")
    return Verdict(True, value, claimed_bound_value)


def _illegal(instance: PiperInstance, options: Options, stages: Sequence[ClaimedStage]) -> str:
    """Say why stages are no plan; empty where they are one."""
    held = sorted(v for stage in stages for v in stage.nodes)
    if held != list(range(len(instance.nodes))):
        return "not every node is in exactly one stage"
    at = {v: i for i, stage in enumerate(stages) for v in stage.nodes}
    for edge in instance.edges:
        if at[edge.source] > at[edge.target]:
            return (
                f"the edge {instance.nodes[edge.source].id} -> {instance.nodes[edge.target].id} leads back to an earlier stage"
            )
    if sum(stage.data * stage.tensor for stage in stages) > instance.n_devices:
        return f"the plan uses more than the {instance.n_devices} devices"
    if sum(stage.data for stage in stages) > instance.n_microbatches:
        return f"the plan has more replicas than the {instance.n_microbatches} micro-batches"
    allowed = allowed_by(options)
    for i, stage in enumerate(stages):
        if stage.data not in replicas_allowed(instance, options) or (stage.tensor > 1 and not options.tensor_parallel):
            return f"stage {i} has {stage.data} replicas of {stage.tensor} devices, which the question does not allow"
        for v, name in zip(stage.nodes, stage.choices, strict=True):
            if not any(choice.id == name and allowed(choice) for choice in instance.nodes[v].at(stage.tensor)):
                return f"node {instance.nodes[v].id} has no choice '{name}' at tensor degree {stage.tensor}, or may not use it"
    return ""


def _cost(instance: PiperInstance, stages: Sequence[ClaimedStage]) -> tuple[float, float]:
    """Return the time per micro-batch of a plan and what its fullest device holds."""
    counting, n = instance.counting, instance.n_microbatches
    near = _near(instance, stages)
    at = {v: i for i, stage in enumerate(stages) for v in stage.nodes}
    every, fullest = [], 0.0
    for i, stage in enumerate(stages):
        pipeline = sum(other.data for other in stages[i:])
        chosen = [_chosen(instance, v, stage.tensor, name) for v, name in zip(stage.nodes, stage.choices, strict=True)]
        moved = moved_seconds(
            instance.edges,
            dict(zip(stage.nodes, chosen, strict=True)),
            lambda u, v: counting.node_bytes_per_second if (at[u], at[v]) in near else instance.bandwidth,
            once=counting.tensor_once,
        )
        inside = (i, i) in near
        reduce = reduce_seconds(instance, stage.data, inside) * sum(choice.weight_bytes for choice in chosen)
        every.append((sum(choice.seconds for choice in chosen) + moved) * share_ratio(instance, stage.data) + reduce)
        buffers = [buffer_held(instance, v, stage.tensor, choice) for v, choice in zip(stage.nodes, chosen, strict=True)]
        in_flight = -(-pipeline // stage.data)
        held = sum(held_bytes(instance, choice, stage.data, in_flight) for choice in chosen) - sum(buffers) + max(buffers)
        fullest = max(fullest, held)
    filling = [seconds * stage.data for seconds, stage in zip(every, stages, strict=True)]
    return max(every) + (sum(filling) - max(filling)) / n * counting.fill_drain, fullest


def _near(instance: PiperInstance, stages: Sequence[ClaimedStage]) -> set[tuple[int, int]]:
    """Return pairs of stages (a stage with itself too) that lie in one node together."""
    size = instance.counting.node_size
    if not size:
        return set()
    spare = instance.n_devices - sum(stage.data * stage.tensor for stage in stages)
    node: dict[int, int] = {}
    at = 0
    for i, stage in enumerate(stages):
        n = stage.data * stage.tensor
        rest = (size - at % size) % size
        if rest < n <= size and rest <= spare:
            at, spare = at + rest, spare - rest
        if at // size == (at + n - 1) // size:
            node[i] = at // size
        at += n
    return {(i, j) for i, j in itertools.product(node, node) if node[i] == node[j]}


def _chosen(instance: PiperInstance, v: int, degree: int, name: str) -> PiperChoice:
    return next(choice for choice in instance.nodes[v].at(degree) if choice.id == name)


def _downsets(instance: PiperInstance) -> list[int]:
    """Return all sets of nodes closed under successors, as bits, by size."""
    after = [0] * len(instance.nodes)
    for edge in instance.edges:
        after[edge.source] |= 1 << edge.target
    known, fresh = {0}, [0]
    while fresh:
        grown = {
            some | 1 << v
            for some in fresh
            for v in range(len(after))
            if not some >> v & 1 and after[v] & ~some == 0
        }  # fmt: skip
        fresh = sorted(grown - known)
        known |= grown
        if len(known) > MOST_SETS:
            raise TooLarge
    return sorted(known, key=lambda some: (some.bit_count(), some))


def _exists(instance: PiperInstance, options: Options, seconds: float) -> bool:
    """Return whether some plan is below a threshold: all its stages, and with filling where that is counted."""
    sets = _downsets(instance)
    if instance.counting.node_size or instance.counting.fill_drain:
        return _exists_by_stages(instance, options, seconds, sets)
    work = [work_seconds(instance, options, [v]) for v in range(len(instance.nodes))]
    return sums.exists(instance, options, seconds, sets, work)


def _exists_by_stages(instance: PiperInstance, options: Options, seconds: float, sets: Sequence[int]) -> bool:
    """Return the same wherever stages may lie, stage by stage."""
    if len(sets) > MOST_LONG:
        raise TooLarge
    degrees = [t for t in instance.degrees if t <= instance.n_devices and (t == 1 or options.tensor_parallel)]
    rest = {some: work_seconds(instance, options, members(sets[-1] & ~some)) / seconds for some in sets}
    spare = -instance.n_devices % (instance.counting.node_size or 1)  # what the last node lacks
    ways: dict[int, list[_Way]] = {0: [_Way(0, spare, 0.0, 0.0, 0.0, 0)]}
    neighbours = Neighbours(instance, options, seconds, sets[-1])
    steps = 0
    for upper in sets[1:]:
        reached: set[_Way] = set()
        for lower in sets:
            if lower & ~upper or lower == upper or not ways[lower]:
                continue
            for t in degrees:
                kind = StageKind(neighbours, upper, lower, t)
                if not kind.replicas:
                    continue
                steps += len(ways[lower])
                if steps > MOST_STEPS:
                    raise TooLarge
                n_devices = instance.n_devices + spare - rest[upper] * (1.0 - ROUNDING)
                for way in ways[lower]:
                    reached |= _longer(way, kind, seconds, n_devices)
        # With the greedy choice a stage may take less with more in flight, so that none is better than another.
        ways[upper] = _undominated(reached) if options.exact else sorted(reached)
    return bool(ways[sets[-1]])


class _Way(NamedTuple):
    """How a set of nodes may run: replicas, devices (those left out too), the slowest stage, all others' sum of seconds, the
    longest;

    and how far its node is filled where the stage in front is to lie there too, else 0.
    """

    replicas: int
    devices: int
    slowest: float
    others: float
    longest: float
    filled: int


def _longer(way: _Way, kind: StageKind, seconds: float, n_devices: float) -> set[_Way]:
    """Return the ways with a stage in front, for every number of replicas that may matter."""
    instance, options = kind.instance, kind.options
    most = min(instance.n_devices, instance.n_microbatches)
    found: set[_Way] = set()
    done: set[tuple[bool, bool]] = set()
    for d in kind.replicas:
        s = way.replicas + d
        if s > most or way.devices + d * kind.degree > n_devices:
            break
        for place in kind.places(way.devices, way.filled, d * kind.degree):
            stage = kind.stage(place.before, place.behind)
            if place.mode in done or place.devices > n_devices or stage is None:
                continue
            time = stage.least(d, -(-s // d), seconds, place.inside)
            if time > seconds:
                continue
            if instance.counting.fill_drain:
                long = time * d
                others, longest = way.others + min(way.longest, long), max(way.longest, long)
                slowest = max(way.slowest, time)
                if slowest + others / instance.n_microbatches <= seconds:
                    found.add(_Way(s, place.devices, slowest, others, longest, place.filled))
                continue
            found.add(_Way(s, place.devices, 0.0, 0.0, 0.0, place.filled))
            if options.exact:
                done.add(place.mode)  # more replicas take more devices, and nothing before gains from them
    return found


def _undominated(ways: set[_Way]) -> list[_Way]:
    """Return the ways of which no other has less or the same of everything, with the stage in front to lie alike."""
    kept: list[_Way] = []
    for way in sorted(ways):
        if not any(bool(o.filled) == bool(way.filled) and all(x <= y for x, y in zip(o, way, strict=True)) for o in kept):
            kept.append(way)
    return kept
