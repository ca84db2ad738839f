"""Checks mappings: adds up what each device costs by definition, and tries all mappings below the bound; no solver,
no kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.core.cluster import Cluster

__all__ = ["ClaimedMapping", "MappedStages", "check", "pair_table"]

ROUNDING = 1e-9
"""Relative distance of sums that counts as none; the solver proves to as much."""

MOST_STEPS = 3_000_000
"""Placements of a replica tried before the bound is left unchecked."""

MOST_RINGS = 9
"""Replicas up to which rings are looked for."""

Table = list[list[float]]


@dataclass(frozen=True, slots=True)
class MappedStages:
    """What is mapped: seconds of each stage, bytes between stages, bytes over each link of a stage's ring."""

    seconds: tuple[float, ...]
    between: Mapping[tuple[int, int], float]
    ring: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClaimedMapping:
    """Devices and ring order of each stage's replicas, the largest cost of a device,
    and what no mapping is said to stay below.

    `said`: the numbers of stages and replicas, and whether no mapping is better; empty where nothing is said.
    """

    devices: tuple[tuple[int, ...], ...]
    rings: tuple[tuple[int, ...], ...]
    seconds: float
    bound_seconds: float
    said: tuple[object, ...] = ()


class _TooLarge(Exception):
    """The mappings below the bound are too many to try."""


def pair_table(cluster: Cluster) -> Table:
    """Return the seconds per byte between all devices: the widest of the shortest routes, the slower direction.

    Where devices pass on traffic, a route of h links takes h times as long.
    """
    following: list[list[tuple[int, float]]] = [[] for _ in range(cluster.n_devices + cluster.n_switches)]
    links = cluster.links
    for source, target, rate in zip(links.source.tolist(), links.target.tolist(), links.bytes_per_second.tolist(), strict=True):
        following[source].append((target, rate))
    rates = []
    for begin in range(cluster.n_devices):
        widest, front, hops, level = {begin: math.inf}, [begin], {begin: 0}, 0
        while front:
            level += 1
            reached: dict[int, float] = {}
            for u in front if cluster.forwards or level == 1 else [w for w in front if w >= cluster.n_devices]:
                for v, rate in following[u]:
                    if v not in widest:
                        reached[v] = max(reached.get(v, 0.0), min(widest[u], rate))
            widest |= reached
            hops |= dict.fromkeys(reached, level)
            front = list(reached)
        far = [max(hops.get(end, 1), 1) if cluster.forwards else 1 for end in range(cluster.n_devices)]
        rates.append([widest.get(end, 0.0) / far[end] for end in range(cluster.n_devices)])
    n = cluster.n_devices
    return [[0.0 if a == b else 1.0 / min(rates[a][b], rates[b][a]) for b in range(n)] for a in range(n)]


def check(stages: MappedStages, seconds_per_byte: Table, claim: ClaimedMapping, proven_seconds: float = 0.0) -> str:
    """Return why a claim does not hold; empty when it does.

    `seconds_per_byte`: seconds per byte between all devices.
    `proven_seconds`: a bound that is known to hold: a claim up to it needs no trial of the mappings below.
    """
    used = [device for row in claim.devices for device in row]
    if len(set(used)) != len(used) or not set(used) <= set(range(len(seconds_per_byte))):
        return "a device is used twice, or there is no such device"
    n = len(claim.devices[0])
    if any(sorted(ring) != list(range(n)) for ring in claim.rings) or {len(row) for row in claim.devices} != {n}:
        return "a ring does not go once through all replicas"
    costs = [
        _replica(stages, seconds_per_byte, claim.devices, s, r)
        + stages.ring[s] * _slowest(seconds_per_byte, [claim.devices[s][i] for i in claim.rings[s]])
        for s in range(len(claim.devices))
        for r in range(n)
    ]
    if not abs(max(costs) - claim.seconds) <= ROUNDING * max(costs):
        return f"the largest cost of a device is {max(costs)!r} seconds, not {claim.seconds!r}"
    if not claim.bound_seconds <= max(costs) * (1.0 + ROUNDING):
        return f"the bound claimed, {claim.bound_seconds!r}, is above the largest cost"
    exact = claim.bound_seconds >= claim.seconds * (1.0 - ROUNDING)
    if claim.said and claim.said not in ((len(claim.devices), n, False), (len(claim.devices), n, exact)):
        return f"n_stages, n_replicas and exact are {claim.said!r}, which its devices and its bound do not say"
    if claim.bound_seconds <= proven_seconds * (1.0 + ROUNDING):
        return ""
    try:
        below = _exists(stages, seconds_per_byte, n, claim.bound_seconds * (1.0 - 2.0 * ROUNDING))
    except _TooLarge:
        return "the mapping holds, but mappings below the bound are too many to try here"
    return f"some mapping costs less than the bound claimed, {claim.bound_seconds!r} seconds" if below else ""


def _replica(stages: MappedStages, seconds_per_byte: Table, devices: Sequence[Sequence[int]], s: int, r: int) -> float:
    """Return the seconds of one replica with the transfers to those of its neighbours that have a device; without its ring."""
    own = [stages.seconds[s]]
    for (a, b), volume in stages.between.items():
        other = b if a == s else a if b == s else -1
        if 0 <= other < len(devices):
            own.append(volume * seconds_per_byte[devices[s][r]][devices[other][r]])
    return math.fsum(own)


def _slowest(seconds_per_byte: Table, ring: Sequence[int]) -> float:
    """Return the seconds per byte of the slowest link of a ring."""
    return max((seconds_per_byte[a][b] for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a != b), default=0.0)


def _exists(stages: MappedStages, seconds_per_byte: Table, n_replicas: int, limit: float) -> bool:
    """Whether some mapping has no device that costs more than a limit;
    replicas of the first stage are tried in one order only.
    """
    if max(stages.seconds) > limit:
        return False
    steps = 0
    stack: list[tuple[tuple[int, ...], ...]] = [()]
    while stack:
        placed = stack.pop()
        if len(placed) == len(stages.seconds):
            return True
        for row in _rows(seconds_per_byte, placed, n_replicas):
            steps += n_replicas
            if steps > MOST_STEPS:
                raise _TooLarge
            if _fits(stages, seconds_per_byte, (*placed, row), limit):
                stack.append((*placed, row))
    return False


def _rows(seconds_per_byte: Table, placed: tuple[tuple[int, ...], ...], n_replicas: int) -> Iterator[tuple[int, ...]]:
    """Yield the devices that the next stage may get."""
    used = {device for row in placed for device in row}
    free = [device for device in range(len(seconds_per_byte)) if device not in used]
    return itertools.permutations(free, n_replicas) if placed else itertools.combinations(free, n_replicas)


def _fits(stages: MappedStages, seconds_per_byte: Table, placed: tuple[tuple[int, ...], ...], limit: float) -> bool:
    """Whether the stages placed so far keep a limit with the transfers among themselves and their best rings."""
    last = len(placed) - 1
    for s in {last, *(a + b - last for a, b in stages.between if last in (a, b) and a + b - last < last)}:
        slack_seconds = limit - max(_replica(stages, seconds_per_byte, placed, s, r) for r in range(len(placed[s])))
        if slack_seconds < 0.0 or (
            stages.ring[s] > 0.0 and not _ring(seconds_per_byte, placed[s], slack_seconds / stages.ring[s])
        ):
            return False
    return True


def _ring(seconds_per_byte: Table, devices: tuple[int, ...], most: float) -> bool:
    """Whether some ring through the devices has no slower link than allowed."""
    if len(devices) > MOST_RINGS:
        raise _TooLarge
    stack: list[tuple[int, ...]] = [(devices[0],)]
    while stack:
        walk = stack.pop()
        if len(walk) == len(devices) and (len(walk) == 1 or seconds_per_byte[walk[-1]][walk[0]] <= most):
            return True
        stack += [(*walk, device) for device in devices if device not in walk and seconds_per_byte[walk[-1]][device] <= most]
    return False
