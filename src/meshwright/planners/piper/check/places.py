"""Where a stage of a Piper plan may lie in nodes, and which neighbours may lie there too; for the check of plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshwright.planners.piper.check.stage import SURELY, CheckedStage, NodeMenus, members, replicas_allowed
from meshwright.planners.piper.menu import Options, allowed_by
from meshwright.planners.piper.problem import PiperInstance

__all__ = ["Neighbours", "Place", "StageKind", "work_seconds"]

ABOVE = 1.0 + 1e-9
"""What work may be above what devices have time for, for rounding."""


def work_seconds(instance: PiperInstance, options: Options, nodes: Iterable[int]) -> float:
    """Return the device-seconds that nodes need at least, per micro-batch."""
    allowed = allowed_by(options)
    total = 0.0
    for v in nodes:
        menu = instance.nodes[v].choices
        every = [t * c.seconds for t, choices in menu for c in choices if allowed(c) and (t == 1 or options.tensor_parallel)]
        total += min(every, default=math.inf)
    return total


class Place(NamedTuple):
    """A place for a stage: devices then used, how far the node is filled for a neighbour in front, whether it lies in one node,

    and the devices of its node that stages before it and behind it may have at most; alike in `mode`, fewer replicas are
    better.
    """

    devices: int
    filled: int
    inside: bool
    before: int
    behind: int
    mode: tuple[bool, bool]


class Neighbours:
    """Which nodes may lie in one node with a stage: all that must lie between have to fit in too."""

    def __init__(self, instance: PiperInstance, options: Options, seconds: float, everything: int) -> None:
        self.instance, self.options, self.seconds, self.everything = instance, options, seconds, everything
        n = len(instance.nodes)
        self.after, self.until = [1 << v for v in range(n)], [1 << v for v in range(n)]
        for _ in range(n if instance.counting.node_size else 0):
            for edge in instance.edges:
                self.after[edge.source] |= self.after[edge.target]
                self.until[edge.target] |= self.until[edge.source]
        self._known: dict[tuple[int, int, bool], frozenset[int]] = {}
        self.replicas = replicas_allowed(instance, options)
        self.menus = NodeMenus(instance, options)

    def within(self, some: int, n_devices: int, before: bool) -> frozenset[int]:
        """Return the nodes of a set that may lie on so many devices beside a stage behind (`before`) or in front of the set."""
        if not n_devices:
            return frozenset()
        key = (some, n_devices, before)
        if key not in self._known:
            most = n_devices * self.seconds * ABOVE
            between = self.after if before else self.until
            self._known[key] = frozenset(
                v for v in members(some) if work_seconds(self.instance, self.options, members(between[v] & some)) <= most
            )
        return self._known[key]


class StageKind:
    """A stage between two sets at a tensor degree, wherever it lies."""

    def __init__(self, neighbours: Neighbours, upper: int, lower: int, degree: int) -> None:
        self.neighbours, self.upper, self.lower, self.degree = neighbours, upper, lower, degree
        self._known: dict[frozenset[int], CheckedStage | None] = {}
        self._replicas: list[int] | None = None

    @property
    def replicas(self) -> list[int]:
        """Numbers of replicas with which the fastest choices keep the threshold, wherever the stage and its neighbours lie."""
        if self._replicas is None:
            nodes = bool(self.instance.counting.node_size)
            near = frozenset(members(self.neighbours.everything)) if nodes else frozenset[int]()
            stage, most = self.placed(near), self.neighbours.seconds * SURELY
            allowed = self.neighbours.replicas if stage is not None else []
            self._replicas = [d for d in allowed if stage is not None and stage.quickest(d, nodes) <= most]
        return self._replicas

    @property
    def instance(self) -> PiperInstance:
        """The question."""
        return self.neighbours.instance

    @property
    def options(self) -> Options:
        """What plans may use."""
        return self.neighbours.options

    def stage(self, before: int, behind: int) -> CheckedStage | None:
        """Return the stage where those before it and behind it have at most so many devices of its node."""
        rest = self.neighbours.everything & ~self.upper
        return self.placed(self.neighbours.within(rest, before, True) | self.neighbours.within(self.lower, behind, False))

    def placed(self, near: frozenset[int]) -> CheckedStage | None:
        """Return the stage with some neighbours in its node."""
        if near not in self._known:
            some = self.upper & ~self.lower
            self._known[near] = CheckedStage.of(self.neighbours.menus, some, self.degree, self.neighbours.seconds, near)
        return self._known[near]

    def places(self, used: int, filled: int, size: int) -> Iterator[Place]:
        """Give where a stage of `size` devices may lie when `used` are taken, up to `filled` of a node that it has to join."""
        node = self.instance.counting.node_size
        if not node:
            yield Place(used + size, 0, False, 0, 0, (False, False))
            return
        rest = -used % node
        behind = node - size if filled else 0
        for skipped in (0, rest) if rest and not filled else (0,):
            begin = (used + skipped) % node
            inside = begin + size <= node
            if filled and not inside:
                continue
            devices = used + skipped + size
            yield Place(devices, 0, inside, 0, behind, (skipped > 0, False))
            if begin + size < node and self.upper != self.neighbours.everything:
                yield Place(devices, begin + size, inside, node - begin - size, behind, (skipped > 0, True))
