"""Whether some pipeline stays below a threshold, mostly from sums over nodes between downsets; for the check of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.piper.check.kinds import KindSums
from meshwright.planners.piper.check.stage import CheckedStage, NodeMenus, TooLarge, share_ratio
from meshwright.planners.piper.menu import Options, rooms
from meshwright.planners.piper.problem import PiperInstance

__all__ = ["exists"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CLOSE = 1e-10
"""Relative distance within which a sum decides nothing: far more than adding up in another order changes."""

MOST_STEPS = 100_000_000
"""Stages on ways to run what follows them up to which the bound is checked."""


def exists(
    instance: PiperInstance, options: Options, seconds: float, sets: Sequence[int], work_seconds: Sequence[float]
) -> bool:
    """Return whether some pipeline has all its stages below a threshold; without nodes, and without filling and draining.

    `sets`: all downsets, as bits, by size.
    `work_seconds`: device-seconds that each node needs at least, per micro-batch.
    Raises `TooLarge` where that is too much to go through.

    Notes
    -----
    By definition: for each downset its ways to run, as pairs of replicas and devices; a way grows by each stage in front, at
    each tensor degree and number of replicas. Whether a stage keeps the threshold is asked of sums over its nodes first. Lemma
    1: where the least time of every node and the least of what crosses the border add up to more than the threshold, no choices
    keep it. Lemma 2: where the least that every node holds adds up to more than the memory, none fits. Lemma 3: where the
    fastest choices, with the most that may cross, keep the threshold and fit, both the exact and the greedy choice keep it.
    Lemma 6: for any price of a byte, what choices take is at least the sum over nodes of the least of time and price times
    bytes, less the price of all the memory; and where the choices that make up this sum fit and keep the threshold, the exact
    choice keeps it. Lemma 4: nodes that need w device-seconds take at least w / threshold devices, as a stage of k devices has
    k times the threshold of them. Lemma 5: in front of s replicas a stage of d replicas at degree t has y >= (s + d) / d
    micro-batches in flight, so its d t devices, of M bytes each, hold d t (y a + b) >= t ((s + 1) a + b) bytes of each node;
    what stands in front of s replicas has at least these bytes on devices of its own. What is left, or within `CLOSE`, is gone
    through choice by choice (`CheckedStage`). With the exact choice a way with no fewer replicas and devices than another is
    left out: whatever may stand in front of it may stand in front of the other, with no more micro-batches in flight. With the
    greedy choice it is kept.
    """
    if not np.all(np.isfinite(work_seconds)):
        return False
    search = _Reached(instance, options, seconds, sets, work_seconds)
    for upper in range(1, len(sets)):
        search.grow(upper)
    return bool(search.ways.count[-1])


class _AllWays:
    """The ways to run every downset so far, one downset's behind the other's: replicas, and devices."""

    def __init__(self, n_sets: int) -> None:
        self.first, self.count = np.zeros(n_sets, np.int64), np.zeros(n_sets, np.int64)
        self.replicas, self.devices = np.zeros(2 * n_sets, np.int64), np.zeros(2 * n_sets, np.int64)
        self.count[0], self.n_ways = 1, 1  # nothing runs on nothing

    def add(self, at: int, replicas: Ints, devices: Ints) -> None:
        """Add the ways to run a downset."""
        n = self.n_ways + len(replicas)
        if n > len(self.replicas):
            self.replicas, self.devices = (np.resize(some, 2 * n) for some in (self.replicas, self.devices))
        self.first[at], self.count[at] = self.n_ways, len(replicas)
        self.replicas[self.n_ways : n], self.devices[self.n_ways : n] = replicas, devices
        self.n_ways = n


class _Candidates(NamedTuple):
    """Stages in front of ways to run what follows: replicas and devices of all, the stage's own replicas, the position of what
    follows, micro-batches in flight, and the sums of the fastest choices (most seconds, bytes).
    """

    replicas: Ints
    devices: Ints
    data: Ints
    lower: Ints
    in_flight: Ints
    seconds: Floats
    held: Floats

    def take(self, some: Flags) -> _Candidates:
        """Return some of them."""
        return _Candidates(
            self.replicas[some], self.devices[some], self.data[some], self.lower[some], self.in_flight[some],
            self.seconds[some], self.held[some],
        )  # fmt: skip


NONE: Ints = np.zeros(0, np.int64)
NONE.setflags(write=False)
NO_CANDIDATES = _Candidates(NONE, NONE, NONE, NONE, NONE, NONE.astype(np.float64), NONE.astype(np.float64))


class _Reached:
    """The ways to run every downset so far."""

    def __init__(
        self, instance: PiperInstance, options: Options, seconds: float, sets: Sequence[int], work_seconds: Sequence[float]
    ) -> None:
        self.instance, self.options, self.seconds, self.sets = instance, options, seconds, sets
        words = [[some >> 64 * i & (1 << 64) - 1 for i in range(-(-len(instance.nodes) // 64))] for some in sets]
        self.words = np.array(words, np.uint64).T.copy()
        self.fewest = np.full(len(sets), np.inf)  # devices on which a downset runs
        self.fewest[0] = 0.0
        degrees = [t for t in instance.degrees if t <= instance.n_devices and (t == 1 or options.tensor_parallel)]
        self.most_replicas = min(instance.n_devices, instance.n_microbatches)
        n = len(instance.nodes)
        self.inside = np.array([[some >> v & 1 for v in range(n)] for some in sets], np.float64)
        self.kinds = [KindSums(instance, options, t, room, self.inside) for t in degrees for room in rooms(instance, t)]
        self.work = self.inside @ work_seconds / seconds * (1.0 - CLOSE)  # devices, for each downset
        edges = sorted(instance.edges, key=lambda edge: edge.source)
        self.source = np.array([edge.source for edge in edges], np.int64)
        self.target = np.array([edge.target for edge in edges], np.int64)
        self.first = np.flatnonzero(np.diff(self.source, prepend=-1))  # of the edges of each source
        self.crossing = (self.inside[:, self.target] - self.inside[:, self.source]) > 0.5
        self.out_of = [self._leaving(kind) for kind in self.kinds]
        spared = max(c.weight_bytes for node in instance.nodes for _, choices in node.choices for c in choices)
        self.slack_bytes = CLOSE * (instance.memory_bytes + n * spared * instance.counting.shard_optimizer)
        self._in_front: dict[int, Floats] = {}
        self.least_in_front = np.maximum((1.0 - self.inside) @ self._held_in_front(1) - self.slack_bytes, 0.0)
        self.menus = NodeMenus(instance, options)
        self.stages: dict[tuple[int, int], CheckedStage | None] = {}
        self.ways = _AllWays(len(sets))
        self.sending = self.inside[:, self.source[self.first]]
        self.border_of_upper: tuple[Ints, Ints] = (NONE, NONE)
        self.n_steps = 0

    def _leaving(self, kind: KindSums) -> Floats:
        """Return the least and the most seconds of what each source sends into each downset from outside of it: of all its
        edges there, or the most of them where a tensor crosses once.
        """
        if not self.source.size:
            return np.zeros((len(self.sets), 0, 2))
        together = np.maximum if self.instance.counting.tensor_once else np.add
        return together.reduceat(self.crossing[:, :, None] * kind.out_of, self.first, axis=1)

    def grow(self, upper: int) -> None:
        """Add the ways to run the next downset."""
        most_devices = self.instance.n_devices - (self.work[-1] - self.work[upper])
        if self.instance.n_devices - self.least_in_front[upper] / self.instance.memory_bytes < 1.0:
            return
        able = self.fewest[:upper] + (self.work[upper] - self.work[:upper]) <= most_devices
        for word in self.words:
            able &= word[:upper] & ~word[upper] == 0
        lower = np.flatnonzero(able)
        if not lower.size:
            return
        self.border_of_upper = np.flatnonzero(self.crossing[upper]), np.flatnonzero(self.sending[upper])
        found = _Front(self.instance.n_devices, self.most_replicas, self.options.exact)
        open_ones = []
        for k, kind in enumerate(self.kinds):
            some = self._candidates(k, upper, lower, most_devices)
            if not some.replicas.size:
                continue
            some = some.take(some.devices <= self.instance.n_devices - self._devices_in_front(upper, some.replicas))
            fits = some.held < self.instance.memory_bytes - kind.room_bytes - self.slack_bytes - kind.slack_bytes
            surely = fits & (some.seconds < self.seconds * (1.0 - CLOSE) - kind.slack_seconds)
            found.add(some.replicas[surely], some.devices[surely])
            open_ones.append((k, some.take(~surely)))
        for k, some in open_ones:
            self._decide(k, upper, some, found)
        replicas, devices = found.ways()
        self.ways.add(upper, replicas, devices)
        self.fewest[upper] = devices.min(initial=self.instance.n_devices + 1)

    def _candidates(self, k: int, upper: int, lower: Ints, most_devices: float) -> _Candidates:
        """Return the stages of a kind in front of ways whose least time keeps the threshold."""
        kind = self.kinds[k]
        seconds, weights = kind.between(upper, lower, slice(2))
        quick = kind.share[:, None] * seconds[kind.pattern] + kind.reduce[:, None] * weights[kind.pattern]
        limit = self.seconds * (1.0 + CLOSE) + kind.slack_seconds
        kept = (quick <= limit) & (kind.n_lacking[upper] - kind.n_lacking[lower] < 0.5)
        kept &= self.fewest[lower] + kind.degree * kind.data[:, None] <= most_devices
        able = kept.any(axis=0)
        if not able.any():
            return NO_CANDIDATES
        lower, quick, kept = lower[able], quick[:, able], kept[:, able]
        border = self._border(k, lower)
        kept &= quick + kind.share[:, None] * border[0] <= limit
        at_data, at_lower = np.nonzero(kept)
        each = self.ways.count[lower[at_lower]]
        self.n_steps += int(each.sum())
        if self.n_steps > MOST_STEPS:
            raise TooLarge
        pair = np.repeat(np.arange(len(each)), each)
        way = np.arange(len(pair)) - np.repeat(np.cumsum(each) - each, each)
        at_data, at_lower = at_data[pair], at_lower[pair]
        way += self.ways.first[lower[at_lower]]
        data = kind.data[at_data]
        replicas, devices = self.ways.replicas[way] + data, self.ways.devices[way] + data * kind.degree
        some = np.flatnonzero((replicas <= self.most_replicas) & (devices <= most_devices))
        at_data, at_lower, data, replicas, devices = (field[some] for field in (at_data, at_lower, data, replicas, devices))
        in_flight = -(-replicas // data)
        _, weights, growing, fixed = kind.between(upper, lower, slice(4))[:, kind.pattern[at_data], at_lower]
        held = growing * in_flight + fixed - weights * kind.spared[at_data]
        most = quick[at_data, at_lower] + kind.share[at_data] * border[1][at_lower]
        return _Candidates(replicas, devices, data, lower[at_lower], in_flight, most, held)

    def _devices_in_front(self, upper: int, replicas: Ints) -> Floats:
        """Return how many devices the nodes in front fill at least, with so many replicas behind them."""
        rest, memory = 1.0 - self.inside[upper], self.instance.memory_bytes
        needed = np.zeros(self.most_replicas + 1)
        for s in np.unique(replicas):
            needed[s] = max(self._held_in_front(int(s)) @ rest - self.slack_bytes, 0.0) / memory
        return needed[replicas]

    def _held_in_front(self, replicas: int) -> Floats:
        """Return what each node holds at least in front of so many replicas, on all devices of its stage."""
        if replicas not in self._in_front:
            held = [kind.degree * kind.least_of_replica(replicas + 1) for kind in self.kinds]
            self._in_front[replicas] = np.min(held, axis=0)
        return self._in_front[replicas]

    def _border(self, k: int, lower: Ints) -> Floats:
        """Return the least and the most seconds of what crosses the borders of the nodes between the set that grows and smaller
        ones, if one replica runs every micro-batch.
        """
        over, within = self.border_of_upper
        into, out_of = self.kinds[k].into[over], self.out_of[k]
        outside = 1.0 - self.inside[lower[:, None], self.target[over]]
        if self.instance.counting.tensor_once and over.size:
            first = np.flatnonzero(np.diff(self.source[over], prepend=-1))
            entering = np.maximum.reduceat(outside[:, :, None] * into, first, axis=1).sum(axis=1)
        else:
            entering = outside @ into
        leaving = out_of[lower[:, None], within].sum(axis=1)  # what leaves a set stems from outside of it
        both: Floats = entering + leaving
        return both.T

    def _decide(self, k: int, upper: int, some: _Candidates, found: _Front) -> None:
        """Add those of the candidates that keep the threshold and fit, which sums of the fastest choices did not tell."""
        kind, space = self.kinds[k], self.instance.memory_bytes - self.kinds[k].room_bytes
        some = some.take(~found.known(some.replicas, some.devices))
        if not some.replicas.size:
            return
        base = self.most_replicas + 1
        data = np.maximum(some.data * self.instance.counting.shard_optimizer, 1)
        keys, of_key = np.unique(data * base + some.in_flight, return_inverse=True)
        fits = np.zeros(len(of_key), np.bool_)
        for i, key in enumerate(keys.tolist()):
            own, (held, slack_bytes) = of_key == i, kind.smallest(key // base, key % base)
            fits[own] = held[upper] - held[some.lower[own]] <= space + self.slack_bytes + slack_bytes
        some = some.take(fits)
        some = self._weighed(k, upper, some, found) if self.options.exact else some
        for at in np.lexsort((some.replicas, some.devices)):
            replicas, devices = some.replicas[at : at + 1], some.devices[at : at + 1]
            if found.known(replicas, devices)[0]:
                continue
            stage = self._stage(upper, int(some.lower[at]), kind.degree)
            if stage is None:
                continue
            if stage.least(int(some.data[at]), int(some.in_flight[at]), self.seconds, False) <= self.seconds:
                found.add(replicas, devices)

    def _weighed(self, k: int, upper: int, some: _Candidates, found: _Front) -> _Candidates:
        """Return those of the candidates that no price of a byte decides (lemma 6), adding those that keep it."""
        kind, (lower, of_lower) = self.kinds[k], np.unique(some.lower, return_inverse=True)
        border, refuted, kept = self._border(k, lower), *np.zeros((2, len(some.replicas)), np.bool_)
        for data, in_flight in {*zip(some.data.tolist(), some.in_flight.tolist(), strict=True)}:
            own, share = np.flatnonzero((some.data == data) & (some.in_flight == in_flight)), share_ratio(self.instance, data)
            prices, times, sizes, (slack_seconds, slack_bytes) = kind.weighed(data, in_flight)
            space, limit = self.instance.memory_bytes - kind.room_bytes, self.seconds * (1.0 + CLOSE) + slack_seconds
            least, most = share * border[:, of_lower[own]]
            time, held = (x[:, upper, None] - x[:, some.lower[own]] for x in (times, sizes))
            paid = time + prices[:, None] * (held - space - self.slack_bytes - slack_bytes)
            refuted[own] = paid.max(axis=0) + least > limit
            held[time + most >= self.seconds * (1.0 - CLOSE) - slack_seconds] = np.inf
            kept[own] = (held < space - self.slack_bytes - slack_bytes).any(axis=0)
        found.add(some.replicas[kept], some.devices[kept])
        return some.take(~(refuted | kept))

    def _stage(self, upper: int, lower: int, degree: int) -> CheckedStage | None:
        """Return the nodes between two sets as a stage, whose choices are gone through."""
        key = (self.sets[upper] & ~self.sets[lower], degree)
        if key not in self.stages:
            self.stages[key] = CheckedStage.of(self.menus, *key, self.seconds)
        return self.stages[key]


class _Front:
    """Ways to run one downset that were found: the undominated ones, or with the greedy choice all."""

    def __init__(self, n_devices: int, n_replicas: int, exact: bool) -> None:
        self.exact = exact
        self.found = np.zeros((n_devices + 1, n_replicas + 1), np.bool_)
        self.least = np.full(n_devices + 1, n_replicas + 1, np.int64)  # replicas on at most so many devices

    def add(self, replicas: Ints, devices: Ints) -> None:
        """Add some."""
        if self.exact:
            np.minimum.at(self.least, devices, replicas)
            self.least = np.minimum.accumulate(self.least)
        else:
            self.found[devices, replicas] = True

    def known(self, replicas: Ints, devices: Ints) -> Flags:
        """Return which ways add nothing to those found."""
        return self.least[devices] <= replicas if self.exact else self.found[devices, replicas]

    def ways(self) -> tuple[Ints, Ints]:
        """Return replicas and devices of those found."""
        if not self.exact:
            devices, replicas = np.nonzero(self.found)
            return replicas, devices
        better = np.flatnonzero(self.least[1:] < self.least[:-1]) + 1  # on no devices runs nothing
        return self.least[better], better
