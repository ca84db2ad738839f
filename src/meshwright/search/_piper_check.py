"""Checks plans of ``--search piper``: adds up what they cost, and goes through all pipelines below the bound; no solver, no kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from meshwright.costs._piper_menu import Options, allowed_by, buffer_bytes
from meshwright.readers._piper_instance import PiperChoice, PiperInstance
from meshwright.solvers.certificate import Verdict

__all__ = ["ClaimedStage", "check"]

ROUNDING = 1e-9
"""Relative distance of sums that counts as none."""

MOST_SETS, MOST_STEPS, MOST_WAYS = 2_000, 3_000_000, 5_000
"""Downsets, stages on labels, and undominated choices of one stage up to which the bound is checked."""


@dataclass(frozen=True, slots=True)
class ClaimedStage:
    """A stage of the plan to check: nodes by position, replicas, tensor degree, and the id of each node's choice."""

    nodes: tuple[int, ...]
    data: int
    tensor: int
    choices: tuple[str, ...]


class _TooLarge(Exception):
    """The pipelines below the bound are too many to go through."""


def check(
    instance: PiperInstance, options: Options, stages: Sequence[ClaimedStage], claimed_value: float, claimed_bound_value: float
) -> Verdict:
    """Check a claim: this plan is legal, fits and takes `claimed_value`, and no plan takes less than `claimed_bound_value`.

    Parameters
    ----------
    instance : PiperInstance
        The question, read from the file.
    options : Options
        What plans may use.
    stages : sequence of ClaimedStage
        The plan, from the model's input on.
    claimed_value, claimed_bound_value : float
        The claim, in time per micro-batch.

    Returns
    -------
    Verdict
        Whether it holds, to a billionth; not valid, with the reason, where the bound cannot be checked here.

    Notes
    -----
    By definition and in plain Python: all downsets, for each the undominated pairs of replicas and devices with which all its
    stages stay below the bound, for each stage the undominated choices of its nodes. With fill and drain, or nodes, no stage may
    be below the bound as `meshwright.costs.piper` prices it at best: no filling, and neighbours in one node.
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
    if not options.exact:
        return Verdict(False, value, math.nan, "the plan holds, but bounds are checked for knapsack=exact only")
    simple = _work(instance, options, range(len(instance.nodes))) / instance.n_devices
    if claimed_bound_value <= simple * (1.0 + ROUNDING):
        return Verdict(True, value, claimed_bound_value)
    try:
        found = _exists(instance, options, claimed_bound_value * (1.0 - ROUNDING))
    except _TooLarge:
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
        if stage.data not in _replicas(instance, options) or (stage.tensor > 1 and not options.tensor_parallel):
            return f"stage {i} has {stage.data} replicas of {stage.tensor} devices, which the question does not allow"
        for v, name in zip(stage.nodes, stage.choices, strict=True):
            if not any(choice.id == name and allowed(choice) for choice in instance.nodes[v].at(stage.tensor)):
                return f"node {instance.nodes[v].id} has no choice '{name}' at tensor degree {stage.tensor}, or may not use it"
    return ""


def _replicas(instance: PiperInstance, options: Options) -> list[int]:
    """Return the numbers of replicas that a stage may have, ascending."""
    n = instance.n_microbatches
    most = min(instance.n_devices, n) if options.data_parallel else 1
    return [d for d in range(1, most + 1) if instance.counting.any_replicas or n % d == 0]


def _cost(instance: PiperInstance, stages: Sequence[ClaimedStage]) -> tuple[float, float]:
    """Return the time per micro-batch of a plan and what its fullest device holds."""
    counting, n = instance.counting, instance.n_microbatches
    near = _near(instance, stages)
    at = {v: i for i, stage in enumerate(stages) for v in stage.nodes}
    every, fullest = [], 0.0
    for i, stage in enumerate(stages):
        pipeline = sum(other.data for other in stages[i:])
        chosen = [_chosen(instance, v, stage.tensor, name) for v, name in zip(stage.nodes, stage.choices, strict=True)]
        moved = _moved(
            instance,
            dict(zip(stage.nodes, chosen, strict=True)),
            lambda u, v: counting.node_bytes_per_second if (at[u], at[v]) in near else instance.bandwidth,
        )
        inside = (i, i) in near
        reduce = _reduce(instance, stage.data, inside) * sum(choice.weight_bytes for choice in chosen)
        every.append((sum(choice.seconds for choice in chosen) + moved) * _share(instance, stage.data) + reduce)
        buffers = [_buffer(instance, v, stage.tensor, choice) for v, choice in zip(stage.nodes, chosen, strict=True)]
        in_flight = -(-pipeline // stage.data)
        held = sum(_held(instance, choice, stage.data, in_flight) for choice in chosen) - sum(buffers) + max(buffers)
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


def _buffer(instance: PiperInstance, v: int, degree: int, choice: PiperChoice) -> float:
    return buffer_bytes(instance.nodes[v], degree, choice) if instance.counting.layer_buffers else 0.0


def _share(instance: PiperInstance, data: int) -> float:
    return math.ceil(instance.n_microbatches / data) / instance.n_microbatches


def _held(instance: PiperInstance, choice: PiperChoice, data: int, in_flight: int) -> float:
    spared = choice.weight_bytes * (1.0 - 1.0 / data) * instance.counting.shard_optimizer
    return choice.activation_bytes * in_flight + choice.static_bytes - spared


def _reduce(instance: PiperInstance, data: int, inside: bool) -> float:
    """Return seconds of gradient reduction per weight byte and micro-batch."""
    speed = instance.counting.node_bytes_per_second if inside else instance.bandwidth
    return 4.0 * (data - 1) / data / instance.n_microbatches / speed


def _moved(instance: PiperInstance, chosen: dict[int, PiperChoice], speed: Callable[[int, int], float]) -> float:
    """Return seconds that tensors take over a stage's borders, both passes, when it runs every micro-batch."""
    tensors: dict[tuple[str, int], list[float]] = {}
    for edge in instance.edges:
        u, v = edge.source, edge.target
        if (u in chosen) == (v in chosen):
            continue
        key, further = (
            (("out", u), dict(chosen[u].sync_backward)[v]) if u in chosen else (("in", u), dict(chosen[v].sync_forward)[u])
        )
        tensors.setdefault(key, []).append((edge.bytes + further) / speed(u, v))
    return 2.0 * sum(max(some) if instance.counting.tensor_once else sum(some) for some in tensors.values())


def _work(instance: PiperInstance, options: Options, nodes: Iterable[int]) -> float:
    """Return the device-seconds that nodes need at least, per micro-batch."""
    allowed = allowed_by(options)
    total = 0.0
    for v in nodes:
        menu = instance.nodes[v].choices
        every = [t * c.seconds for t, choices in menu for c in choices if allowed(c) and (t == 1 or options.tensor_parallel)]
        total += min(every, default=math.inf)
    return total


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
            raise _TooLarge
    return sorted(known, key=lambda some: (some.bit_count(), some))


def _exists(instance: PiperInstance, options: Options, seconds: float) -> bool:
    """Return whether some plan has all stages below a threshold."""
    sets = _downsets(instance)
    replicas = _replicas(instance, options)
    most = min(instance.n_devices, instance.n_microbatches)
    degrees = [t for t in instance.degrees if t <= instance.n_devices and (t == 1 or options.tensor_parallel)]
    rest = {some: _work(instance, options, _members(sets[-1] & ~some)) / seconds for some in sets}
    ways: dict[int, list[tuple[int, int]]] = {0: [(0, 0)]}
    steps = 0
    for upper in sets[1:]:
        reached: set[tuple[int, int]] = set()
        for lower in sets:
            if lower & ~upper or lower == upper or not ways[lower]:
                continue
            for t in degrees:
                stage = _Stage.of(instance, options, upper & ~lower, t, seconds)
                if stage is None:
                    continue
                for s, k in ways[lower]:
                    steps += 1
                    if steps > MOST_STEPS:
                        raise _TooLarge
                    for d in replicas:
                        if s + d > most or k + d * t > instance.n_devices - rest[upper] * (1.0 - ROUNDING):
                            break
                        if stage.fits(d, -(-(s + d) // d), seconds):
                            reached.add((s + d, k + d * t))
                            break
        ways[upper] = _undominated(reached)
    return bool(ways[sets[-1]])


def _members(some: int) -> list[int]:
    return [v for v in range(some.bit_length()) if some >> v & 1]


def _undominated(pairs: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs of which no other has less or the same of both."""
    kept: list[tuple[int, int]] = []
    for s, k in sorted(pairs):
        if not kept or k < kept[-1][1]:
            kept.append((s, k))
    return kept


@dataclass(frozen=True, slots=True)
class _Stage:
    """A set of nodes as a stage: of each node the choices as (seconds, crossing seconds within and between nodes, choice, buffer)."""

    instance: PiperInstance
    degree: int
    menus: tuple[tuple[tuple[float, float, float, PiperChoice, float], ...], ...]
    once: tuple[float, float]
    known: dict[tuple[int, int], bool]

    @classmethod
    def of(cls, instance: PiperInstance, options: Options, some: int, degree: int, seconds: float) -> _Stage | None:
        """Return the stage; None where its nodes do not support the degree, or no replicas would be enough."""
        allowed = allowed_by(options)
        nodes = _members(some)
        picked = {v: [c for c in instance.nodes[v].at(degree) if allowed(c)] for v in nodes}
        if (
            not all(picked.values())
            or sum(min(c.seconds for c in row) for row in picked.values()) > seconds * instance.n_devices
        ):
            return None
        near = max(instance.bandwidth, instance.counting.node_bytes_per_second)
        once = instance.counting.tensor_once
        first = {v: row[0] for v, row in picked.items()}
        border = [_moved(instance, first, lambda u, v, x=speed: x) if once else 0.0 for speed in (near, instance.bandwidth)]  # type: ignore[misc]
        menus = []
        for v, row in picked.items():
            crossing = [_crossing(instance, v, some, c) * (not once) for c in row]
            menus.append(
                tuple(
                    (c.seconds, x / near, x / instance.bandwidth, c, _buffer(instance, v, degree, c))
                    for c, x in zip(row, crossing, strict=True)
                )
            )
        return cls(instance, degree, tuple(menus), (border[0], border[1]), {})

    def fits(self, data: int, in_flight: int, seconds: float) -> bool:
        """Return whether some choices stay below a threshold and fit the memory."""
        key = (data, in_flight)
        if key not in self.known:
            rooms = sorted({row[4] for menu in self.menus for row in menu})
            self.known[key] = any(self._fits(data, in_flight, seconds, room) for room in rooms)
        return self.known[key]

    def _fits(self, data: int, in_flight: int, seconds: float, room: float) -> bool:
        """Return the same with buffers up to one size, which is kept."""
        instance, size = self.instance, self.instance.counting.node_size
        n_devices = data * self.degree
        within = bool(size) and n_devices < size
        reduce = min(_reduce(instance, data, inside) for inside in ((False, True) if 0 < size >= n_devices else (False,)))
        share = _share(instance, data)
        time = seconds - self.once[not within] * share
        space = instance.memory_bytes * (1.0 + 1e-12) - room
        rows = [
            [
                (
                    (s + (near if within else far)) * share + c.weight_bytes * reduce,
                    _held(instance, c, data, in_flight) - buffer,
                )
                for s, near, far, c, buffer in menu
                if buffer <= room
            ]
            for menu in self.menus
        ]
        if not all(rows):
            return False
        least = [(min(x for x, _ in row), min(y for _, y in row)) for row in rows]
        time -= sum(x for x, _ in least)
        space -= sum(y for _, y in least)
        if time < 0.0 or space < 0.0:
            return False
        ways = [(0.0, 0.0)]  # beyond the least of every node
        for row, (x0, y0) in zip(rows, least, strict=True):
            grown = sorted((x + a - x0, y + b - y0) for x, y in ways for a, b in row)
            ways = []
            for x, y in grown:
                if x <= time and y <= space and (not ways or y < ways[-1][1] - 1e-14 * instance.memory_bytes):
                    ways.append((x, y))
            if len(ways) > MOST_WAYS:
                raise _TooLarge
            if not ways:
                return False
        return True


def _crossing(instance: PiperInstance, v: int, some: int, choice: PiperChoice) -> float:
    """Return the bytes of one node's tensors over its stage's border, both passes."""
    total = 0.0
    for edge in instance.edges:
        if edge.target == v and not some >> edge.source & 1:
            total += edge.bytes + dict(choice.sync_forward)[edge.source]
        if edge.source == v and not some >> edge.target & 1:
            total += edge.bytes + dict(choice.sync_backward)[edge.target]
    return 2.0 * total
