"""What layers take and hold as one stage of a Piper plan, by definition and in plain Python; for the check of plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from meshwright.planners.piper.menu import Options, allowed_by, buffer_bytes
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance

__all__ = [
    "SURELY",
    "CheckedStage",
    "NodeMenus",
    "TooLarge",
    "buffer_held",
    "held_bytes",
    "members",
    "moved_seconds",
    "reduce_seconds",
    "replicas_allowed",
    "share_ratio",
]

ENOUGH = 1e-9
"""Bytes below which the published greedy takes a saving for none and a need for met."""

SURELY = 1.0 + 1e-9
"""What differs by so much does so whatever the order in which it was added up."""

MOST_WAYS = 5_000
"""Undominated choices of one stage up to which the least time is looked for."""


class TooLarge(Exception):
    """What is to be checked is too much to go through."""


def replicas_allowed(instance: PiperInstance, options: Options) -> list[int]:
    """Return the numbers of replicas that a stage may have, ascending."""
    n = instance.n_microbatches
    most = min(instance.n_devices, n) if options.data_parallel else 1
    return [d for d in range(1, most + 1) if instance.counting.any_replicas or n % d == 0]


def buffer_held(instance: PiperInstance, v: int, degree: int, choice: PiperChoice) -> float:
    """Return what a choice keeps for recomputation, where that is counted once per stage."""
    return buffer_bytes(instance.nodes[v], degree, choice) if instance.counting.layer_buffers else 0.0


def share_ratio(instance: PiperInstance, data: int) -> float:
    """Return the share of the micro-batches that the busiest replica runs."""
    return math.ceil(instance.n_microbatches / data) / instance.n_microbatches


def held_bytes(instance: PiperInstance, choice: PiperChoice, data: int, in_flight: int) -> float:
    """Return what a choice holds on each device of a stage."""
    spared = choice.weight_bytes * (1.0 - 1.0 / data) * instance.counting.shard_optimizer
    return choice.activation_bytes * in_flight + choice.static_bytes - spared


def reduce_seconds(instance: PiperInstance, data: int, inside: bool) -> float:
    """Return seconds of gradient reduction per weight byte and micro-batch."""
    speed = instance.counting.node_bytes_per_second if inside else instance.bandwidth
    return 4.0 * (data - 1) / data / instance.n_microbatches / speed


def moved_seconds(
    edges: Iterable[PiperEdge], chosen: dict[int, PiperChoice], speed: Callable[[int, int], float], *, once: bool
) -> float:
    """Return seconds that tensors take over a stage's borders, both passes, when it runs every micro-batch.

    `once`: a tensor crosses once, however many consumers it has beyond.
    """
    tensors: dict[tuple[str, int], list[float]] = {}
    for edge in edges:
        u, v = edge.source, edge.target
        if (u in chosen) == (v in chosen):
            continue
        key, further = (
            (("out", u), dict(chosen[u].sync_backward)[v]) if u in chosen else (("in", u), dict(chosen[v].sync_forward)[u])
        )
        tensors.setdefault(key, []).append((edge.bytes + further) / speed(u, v))
    return 2.0 * sum(max(some) if once else sum(some) for some in tensors.values())


def members(some: int) -> list[int]:
    """Return the members of a set given as bits."""
    return [v for v in range(some.bit_length()) if some >> v & 1]


Menu = tuple[tuple[float, float, PiperChoice, float], ...]
"""The choices of a node in a stage: (seconds, seconds of what crosses the border, choice, buffer)."""

Row = Sequence[tuple[float, PiperChoice, float]]
"""The same at some number of replicas: (seconds, choice, bytes whatever is in flight)."""


class NodeMenu:
    """What a node may do at a tensor degree; of a node from which nothing crosses the border one serves all stages."""

    def __init__(self, instance: PiperInstance, menu: Menu) -> None:
        self.instance, self.menu = instance, menu
        self.seconds = min((s + moved for s, moved, _, _ in menu), default=math.inf)
        self.weight_bytes = min((c.weight_bytes for _, _, c, _ in menu), default=0.0)
        self.rooms = {buffer for _, _, _, buffer in menu}
        self._timed: dict[tuple[float, float, int, float], tuple[Row, tuple[float, PiperChoice, float] | None]] = {}
        self._smallest: dict[tuple[int, int, float], float] = {}

    def timed(
        self, share: float, reduce: float, data: int, free_bytes: float
    ) -> tuple[Row, tuple[float, PiperChoice, float] | None]:
        """Return the choices with buffers up to a size, and the fastest."""
        key = (share, reduce, data, free_bytes)
        if key not in self._timed:
            row = [
                ((s + moved) * share + c.weight_bytes * reduce, c, held_bytes(self.instance, c, data, 0) - buffer)
                for s, moved, c, buffer in self.menu
                if buffer <= free_bytes
            ]
            self._timed[key] = row, min(row, key=lambda one: one[0], default=None)
        return self._timed[key]

    def smallest(self, data: int, in_flight: int, free_bytes: float) -> float:
        """Return what the smallest choice holds of those with buffers up to a size."""
        key = (data, in_flight, free_bytes)
        if key not in self._smallest:
            self._smallest[key] = min(
                held_bytes(self.instance, c, data, in_flight) - buffer for _, _, c, buffer in self.menu if buffer <= free_bytes
            )
        return self._smallest[key]


class NodeMenus:
    """The menus of all nodes, whatever stage they are in, and those of nodes from which nothing crosses its border."""

    def __init__(self, instance: PiperInstance, options: Options) -> None:
        self.instance, self.options = instance, options
        self.edges: list[list[PiperEdge]] = [[] for _ in instance.nodes]
        for edge in instance.edges:
            self.edges[edge.source].append(edge)
            self.edges[edge.target].append(edge)
        self._known: dict[tuple[int, int], NodeMenu] = {}

    def of(self, v: int, degree: int) -> NodeMenu:
        """Return the menu of a node inside a stage."""
        if (v, degree) not in self._known:
            allowed = allowed_by(self.options)
            row = tuple(
                (c.seconds, 0.0, c, buffer_held(self.instance, v, degree, c))
                for c in self.instance.nodes[v].at(degree)
                if allowed(c)
            )
            self._known[v, degree] = NodeMenu(self.instance, row)
        return self._known[v, degree]


class CheckedStage:
    """A set of nodes as a stage."""

    def __init__(self, instance: PiperInstance, menus: tuple[NodeMenu, ...], once_seconds: float, options: Options) -> None:
        self.instance, self.menus, self.once_seconds, self.options = instance, menus, once_seconds, options
        self.rooms = sorted(set[float]().union(*(menu.rooms for menu in menus)))
        self._least_seconds = once_seconds + sum(menu.seconds for menu in menus)
        self._least_weights = sum(menu.weight_bytes for menu in menus)
        self._least_of: dict[tuple[int, int, float, bool], float] = {}
        self._timed_of: dict[tuple[int, bool, float], _Timed | None] = {}
        self._held_of: dict[tuple[int, int, float], float] = {}

    @classmethod
    def of(
        cls, known: NodeMenus, some: int, degree: int, seconds: float, near: frozenset[int] = frozenset()
    ) -> CheckedStage | None:
        """Return the stage, with neighbours in its node; None where its nodes lack the degree,
        or no replicas would be enough.
        """
        instance, options = known.instance, known.options
        nodes = members(some)
        menus = [known.of(v, degree) for v in nodes]
        if sum(menu.seconds for menu in menus) > seconds * instance.n_devices:
            return None
        best = max(instance.bandwidth, instance.counting.node_bytes_per_second)

        def moved(edges: Iterable[PiperEdge], chosen: dict[int, PiperChoice]) -> float:
            return moved_seconds(edges, chosen, lambda u, v: best if u in near or v in near else instance.bandwidth, once=once)

        once, border = instance.counting.tensor_once, list[PiperEdge]()
        for k, v in enumerate(nodes):
            crossing = [edge for edge in known.edges[v] if (some >> edge.source & 1) != (some >> edge.target & 1)]
            border += crossing
            if crossing and not once:
                menu = tuple((s, moved(crossing, {v: c}), c, held) for s, _, c, held in menus[k].menu)
                menus[k] = NodeMenu(instance, menu)
        chosen = {v: menu.menu[0][2] for v, menu in zip(nodes, menus, strict=True)} if once else {}
        return cls(instance, tuple(menus), moved(border, chosen) if once else 0.0, options)

    def least(self, data: int, in_flight: int, seconds: float, inside: bool) -> float:
        """Return the least time of choices that fit the memory and stay below a threshold; infinite for none.

        `inside`: the stage lies in one node.
        """
        key = (data, in_flight, seconds, inside)
        if key not in self._least_of:
            self._least_of[key] = min(self._least(data, in_flight, seconds, inside, room) for room in self.rooms)
        return self._least_of[key]

    def quickest(self, data: int, inside: bool) -> float:
        """Return what no choices beat, whatever they hold: the least compute of every node, and the least weights reduced."""
        reduce = min(reduce_seconds(self.instance, data, here) for here in ((False, True) if inside else (False,)))
        return self._least_seconds * share_ratio(self.instance, data) + self._least_weights * reduce

    def _least(self, data: int, in_flight: int, seconds: float, inside: bool, free_bytes: float) -> float:
        """Return the same with buffers up to one size, which is kept.

        Most questions are answered without going through choices: the fastest take too long, the smallest do not fit, or the
        fastest fit. What rounding might turn is gone through.
        """
        instance, timed = self.instance, self._timed(data, inside, free_bytes)
        border = self.once_seconds * share_ratio(instance, data)
        if timed is None or border + timed.seconds > seconds * SURELY:
            return math.inf
        memory = instance.memory_bytes * (1.0 + 1e-12) if self.options.exact else instance.memory_bytes
        space = memory - free_bytes
        if self._smallest(data, in_flight, free_bytes) > space + (SURELY - 1.0) * memory:
            return math.inf
        if timed.activation_bytes * in_flight + timed.static_bytes < space - (SURELY - 1.0) * memory:
            return border + timed.seconds
        rows = [[(x, choice.activation_bytes * in_flight + fixed) for x, choice, fixed in row] for row in timed.rows]
        if not self.options.exact:
            return border + _greedy(rows, space, self.options.all_or_none)
        return border + _exact(rows, space, seconds - border, instance.memory_bytes)

    def _timed(self, data: int, inside: bool, free_bytes: float) -> _Timed | None:
        """Return the choices with buffers up to a size and what they take; None where a node has none."""
        key = (data, inside, free_bytes)
        if key not in self._timed_of:
            instance = self.instance
            reduce = min(reduce_seconds(instance, data, here) for here in ((False, True) if inside else (False,)))
            share = share_ratio(instance, data)
            rows = [menu.timed(share, reduce, data, free_bytes) for menu in self.menus]
            fastest = [one for _, one in rows if one is not None]
            self._timed_of[key] = (
                _Timed(
                    [row for row, _ in rows], sum(x for x, _, _ in fastest), sum(c.activation_bytes for _, c, _ in fastest),
                    sum(fixed for _, _, fixed in fastest),
                )
                if len(fastest) == len(rows)
                else None
            )  # fmt: skip
        return self._timed_of[key]

    def _smallest(self, data: int, in_flight: int, free_bytes: float) -> float:
        """Return what the smallest choices hold together, of those with buffers up to a size."""
        key = (data if self.instance.counting.shard_optimizer else 1, in_flight, free_bytes)
        if key not in self._held_of:
            self._held_of[key] = sum(menu.smallest(*key) for menu in self.menus)
        return self._held_of[key]


class _Timed(NamedTuple):
    """What choices take at some number of replicas: of each node (seconds, choice, bytes whatever is in flight), and of the
    fastest of all nodes the sums of seconds, of bytes for every micro-batch in flight, and of bytes whatever is.
    """

    rows: Sequence[Row]
    seconds: float
    activation_bytes: float
    static_bytes: float


Rows = Sequence[Sequence[tuple[float, float]]]


def _exact(rows: Rows, space: float, most: float, memory_bytes: float) -> float:
    """Return the least sum of times, up to a limit, of one (time, bytes) of each row within a space; infinite for none."""
    least = [(min(x for x, _ in row), min(y for _, y in row)) for row in rows]
    base = sum(x for x, _ in least)
    time, space = most - base, space - sum(y for _, y in least)
    if time < 0.0 or space < 0.0:
        return math.inf
    ways = [(0.0, 0.0)]  # beyond the least of every node
    for row, (x0, y0) in zip(rows, least, strict=True):
        grown = sorted((x + a - x0, y + b - y0) for x, y in ways for a, b in row)
        ways = []
        for x, y in grown:
            if x <= time and y <= space and (not ways or y < ways[-1][1] - 1e-14 * memory_bytes):
                ways.append((x, y))
        if len(ways) > MOST_WAYS:
            raise TooLarge
        if not ways:
            return math.inf
    return base + ways[0][0]


def _greedy(rows: Rows, space: float, all_or_none: bool) -> float:
    """Return the sum of times of the published greedy choice; infinite where nothing fits."""
    picked = [min(range(len(row)), key=lambda i, row=row: row[i][0]) for row in rows]  # type: ignore[misc]
    low = [min(range(len(row)), key=lambda i, row=row: row[i][1]) for row in rows]  # type: ignore[misc]
    need = sum(row[i][1] for row, i in zip(rows, picked, strict=True)) - space
    if need > 0.0:
        if sum(row[i][1] for row, i in zip(rows, low, strict=True)) > space:
            return math.inf
        picked = low if all_or_none else _swapped(rows, picked, need)
    return sum(row[i][0] for row, i in zip(rows, picked, strict=True))


def _swapped(rows: Rows, picked: list[int], need: float) -> list[int]:
    """Return choices after the cheapest swaps per byte: sorted once for two choices a node, of what is needed for more."""
    picked, once = list(picked), all(len(row) <= 2 for row in rows)
    while need >= ENOUGH:
        swaps = []
        for i, row in enumerate(rows):
            for j, (time, held) in enumerate(row):
                saving = row[picked[i]][1] - held
                if saving > ENOUGH:
                    swaps.append(((time - row[picked[i]][0]) / (saving if once else min(saving, need)), i, j))
        if not swaps:
            break
        _, i, j = min(swaps)
        need -= rows[i][picked[i]][1] - rows[i][j][1]
        picked[i] = j
    return picked
