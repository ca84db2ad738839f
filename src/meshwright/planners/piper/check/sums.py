"""Whether some pipeline stays below a threshold, mostly from sums over nodes between downsets; for the check of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.piper.check.stage import (
    CheckedStage,
    NodeMenus,
    TooLarge,
    buffer_held,
    held_bytes,
    reduce_seconds,
    replicas_allowed,
    share_ratio,
)
from meshwright.planners.piper.menu import Options, allowed_by, rooms
from meshwright.planners.piper.problem import PiperChoice, PiperInstance

__all__ = ["exists"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CLOSE = 1e-10
"""Relative distance within which a sum decides nothing: far more than adding up in another order changes."""

N_PRICES = 16
"""Prices of a byte at which the choices of all nodes are weighed: of as many shares of the swaps that nodes may make."""

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
    return bool(search.ways[-1].replicas.size)


class _Ways(NamedTuple):
    """Ways to run a downset: replicas, and devices."""

    replicas: Ints
    devices: Ints


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
NO_WAYS = _Ways(NONE, NONE)
NO_CANDIDATES = _Candidates(NONE, NONE, NONE, NONE, NONE, NONE.astype(np.float64), NONE.astype(np.float64))


class _Kind:
    """What nodes take and hold at a tensor degree, with buffers up to a size, which is kept."""

    def __init__(self, instance: PiperInstance, options: Options, degree: int, room_bytes: float) -> None:
        self.instance, self.degree, self.room_bytes = instance, degree, room_bytes
        allowed = allowed_by(options)
        self.menus: list[list[tuple[PiperChoice, float]]] = [
            [
                (choice, buffer)
                for choice in node.at(degree)
                for buffer in [buffer_held(instance, v, degree, choice)]
                if allowed(choice) and buffer <= room_bytes
            ]
            for v, node in enumerate(instance.nodes)
        ]
        self.lacking = np.array([0.0 if menu else 1.0 for menu in self.menus])
        self.data = np.array([d for d in replicas_allowed(instance, options) if d * degree <= instance.n_devices], np.int64)
        self.share = np.array([share_ratio(instance, int(d)) for d in self.data])
        fastest = [[self._fastest(menu, int(d)) for menu in self.menus] for d in self.data]
        self.seconds, self.activation_bytes, self.static_bytes = (
            np.array([[one[i] for one in row] for row in fastest]).reshape(len(self.data), -1) for i in range(3)
        )
        self.into, self.out_of = self._borders()
        self._smallest: dict[tuple[int, int], Floats] = {}
        self._weighed: dict[tuple[int, int], tuple[Floats, ...]] = {}

    def weighed(self, data: int, in_flight: int) -> tuple[Floats, ...]:
        """Return prices of a byte, and at each what each node's choice takes and holds that is least with its bytes paid."""
        if (key := (data, in_flight)) not in self._weighed:
            share, reduce = share_ratio(self.instance, data), reduce_seconds(self.instance, data, False)
            times, sizes = np.full((2, len(self.menus), max(map(len, self.menus), default=1)), np.inf)
            for v, menu in enumerate(self.menus):
                for c, (choice, buffer) in enumerate(menu):
                    times[v, c] = choice.seconds * share + choice.weight_bytes * reduce
                    sizes[v, c] = held_bytes(self.instance, choice, data, in_flight) - buffer
            every = np.arange(len(self.menus))
            with np.errstate(invalid="ignore"):
                swaps = (times - times.min(axis=1)[:, None]) / (sizes[every, np.argmin(times, axis=1)][:, None] - sizes)
            swaps = np.append(0.0, swaps[np.isfinite(swaps) & (swaps > 0.0)])
            prices = np.unique(np.quantile(swaps, np.linspace(0.0, 1.0, N_PRICES)))
            picked = np.array([np.argmin(times + price * np.where(np.isfinite(times), sizes, 0.0), axis=1) for price in prices])
            self._weighed[key] = prices, *(np.where(self.lacking < 0.5, x[every, picked], 0.0) for x in (times, sizes))
        return self._weighed[key]

    def _fastest(self, menu: Sequence[tuple[PiperChoice, float]], data: int) -> tuple[float, float, float]:
        """Return seconds of a node's fastest choice, its bytes for each micro-batch in flight, and those whatever is."""
        share, reduce = share_ratio(self.instance, data), reduce_seconds(self.instance, data, False)
        every = [
            (c.seconds * share + c.weight_bytes * reduce, c.activation_bytes, held_bytes(self.instance, c, data, 0) - buffer)
            for c, buffer in menu
        ]
        return min(every, key=lambda one: one[0], default=(0.0, 0.0, 0.0))

    def _borders(self) -> tuple[Floats, Floats]:
        """Return the least and the most seconds of each edge at its target, and at its source, when it crosses a border."""
        speed = self.instance.bandwidth / 2.0
        into, out_of = [], []
        for edge in self.instance.edges:
            ends = [dict(c.sync_forward)[edge.source] for c, _ in self.menus[edge.target]] or [0.0]
            into.append([(edge.bytes + min(ends)) / speed, (edge.bytes + max(ends)) / speed])
            ends = [dict(c.sync_backward)[edge.target] for c, _ in self.menus[edge.source]] or [0.0]
            out_of.append([(edge.bytes + min(ends)) / speed, (edge.bytes + max(ends)) / speed])
        return np.array(into).reshape(-1, 2), np.array(out_of).reshape(-1, 2)

    def smallest(self, data: int, in_flight: int) -> Floats:
        """Return the least that each node holds."""
        key = (data if self.instance.counting.shard_optimizer else 1, in_flight)
        if key not in self._smallest:
            self._smallest[key] = np.array([
                min((held_bytes(self.instance, c, *key) - buffer for c, buffer in menu), default=0.0) for menu in self.menus
            ])  # fmt: skip
        return self._smallest[key]

    def least_of_replica(self, in_flight: int) -> Floats:
        """Return the least that each node holds on a device, times replicas; without a choice more than all devices have."""
        sharded = self.instance.counting.shard_optimizer
        nothing = 2.0 * self.instance.memory_bytes * (self.instance.n_devices + 1)
        held = [
            [(c.activation_bytes, max(c.static_bytes - buffer - c.weight_bytes * sharded, 0.0)) for c, buffer in menu]
            for menu in self.menus
        ]
        return np.array([min((a * in_flight + b for a, b in row), default=nothing) for row in held])


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
        self.kinds = [_Kind(instance, options, t, room) for t in degrees for room in rooms(instance, t)]
        self.most_replicas = min(instance.n_devices, instance.n_microbatches)
        n = len(instance.nodes)
        self.inside = np.array([[some >> v & 1 for v in range(n)] for some in sets], np.float64)
        self.work = self.inside @ work_seconds / seconds * (1.0 - CLOSE)  # devices, for each downset
        order = sorted(range(len(instance.edges)), key=lambda e: instance.edges[e].source)
        self.order = np.array(order, np.int64)
        self.source = np.array([instance.edges[e].source for e in order], np.int64)
        self.target = np.array([instance.edges[e].target for e in order], np.int64)
        self.first = np.flatnonzero(np.diff(self.source, prepend=-1))  # of the edges of each source
        self.crossing = (self.inside[:, self.target] - self.inside[:, self.source]) > 0.5
        self.out_of = [[self._added(self.crossing * kind.out_of[self.order, i]) for i in (0, 1)] for kind in self.kinds]
        spared = max(c.weight_bytes for node in instance.nodes for _, choices in node.choices for c in choices)
        self.slack_bytes = CLOSE * (instance.memory_bytes + n * spared * instance.counting.shard_optimizer)
        self._in_front: dict[int, Floats] = {}
        self.least_in_front = np.maximum((1.0 - self.inside) @ self._held_in_front(1) - self.slack_bytes, 0.0)
        self.menus = NodeMenus(instance, options)
        self.stages: dict[tuple[int, int], CheckedStage | None] = {}
        start = np.zeros(1, np.int64)
        self.ways = [_Ways(start, start)]
        self.n_steps = 0

    def _added(self, seconds: Floats) -> Floats:
        """Return what the edges of each source take over a border together: the most of them where a tensor crosses once."""
        if not self.source.size:
            return np.zeros((len(seconds), 0))
        together = np.maximum if self.instance.counting.tensor_once else np.add
        return together.reduceat(seconds, self.first, axis=1)

    def grow(self, upper: int) -> None:
        """Add the ways to run the next downset."""
        most_devices = self.instance.n_devices - (self.work[-1] - self.work[upper])
        if self.instance.n_devices - self.least_in_front[upper] / self.instance.memory_bytes < 1.0:
            self.ways.append(NO_WAYS)
            return
        able = self.fewest[:upper] + (self.work[upper] - self.work[:upper]) <= most_devices
        for word in self.words:
            able &= word[:upper] & ~word[upper] == 0
        lower = np.flatnonzero(able)
        if not lower.size:
            self.ways.append(NO_WAYS)
            return
        found = _Front(self.instance.n_devices, self.most_replicas, self.options.exact)
        open_ones = []
        for k, kind in enumerate(self.kinds):
            some = self._candidates(k, upper, lower, most_devices)
            if not some.replicas.size:
                continue
            some = some.take(some.devices <= self.instance.n_devices - self._devices_in_front(upper, some.replicas))
            fits = some.held < self.instance.memory_bytes - kind.room_bytes - self.slack_bytes
            surely = fits & (some.seconds < self.seconds * (1.0 - CLOSE))
            found.add(some.replicas[surely], some.devices[surely])
            open_ones.append((k, some.take(~surely)))
        for k, some in open_ones:
            self._decide(k, upper, some, found)
        self.ways.append(found.ways())
        self.fewest[upper] = self.ways[-1].devices.min(initial=self.instance.n_devices + 1)

    def _candidates(self, k: int, upper: int, lower: Ints, most_devices: float) -> _Candidates:
        """Return the stages of a kind in front of ways whose least time keeps the threshold."""
        kind = self.kinds[k]
        stage = self.inside[upper] * (1.0 - self.inside[lower])
        quick = kind.seconds @ stage.T
        kept = (quick <= self.seconds * (1.0 + CLOSE)) & (stage @ kind.lacking < 0.5)
        kept &= self.fewest[lower] + kind.degree * kind.data[:, None] <= most_devices
        able = kept.any(axis=0)
        if not able.any():
            return NO_CANDIDATES
        lower, stage, quick, kept = lower[able], stage[able], quick[:, able], kept[:, able]
        border = self._border(k, upper, lower)
        kept &= quick + kind.share[:, None] * border[0] <= self.seconds * (1.0 + CLOSE)
        at_data, at_lower = np.nonzero(kept)
        n_ways = np.array([self.ways[i].replicas.size for i in lower])
        begins = np.cumsum(n_ways) - n_ways
        each = n_ways[at_lower]
        self.n_steps += int(each.sum())
        if self.n_steps > MOST_STEPS:
            raise TooLarge
        pair = np.repeat(np.arange(len(each)), each)
        way = np.arange(len(pair)) - np.repeat(np.cumsum(each) - each, each) + begins[at_lower][pair]
        at_data, at_lower = at_data[pair], at_lower[pair]
        data = kind.data[at_data]
        replicas = np.concatenate([self.ways[i].replicas for i in lower])[way] + data
        devices = np.concatenate([self.ways[i].devices for i in lower])[way] + data * kind.degree
        some = np.flatnonzero((replicas <= self.most_replicas) & (devices <= most_devices))
        at_data, at_lower, data, replicas, devices = (field[some] for field in (at_data, at_lower, data, replicas, devices))
        in_flight = -(-replicas // data)
        growing, fixed = (held @ stage.T for held in (kind.activation_bytes, kind.static_bytes))
        held = growing[at_data, at_lower] * in_flight + fixed[at_data, at_lower]
        most = (quick + kind.share[:, None] * border[1])[at_data, at_lower]
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

    def _border(self, k: int, upper: int, lower: Ints) -> Floats:
        """Return the least and the most seconds of what crosses the borders of the nodes between a set and smaller ones, if one
        replica runs every micro-batch.
        """
        outside = 1.0 - self.inside[lower]
        sources = self.source[self.first]
        result = []
        for i in (0, 1):
            into = self.kinds[k].into[self.order, i] * self.crossing[upper]
            entering = self._added(outside[:, self.target] * into).sum(axis=1)
            leaving = self.out_of[k][i][lower] * outside[:, sources] @ self.inside[upper][sources]
            result.append(entering + leaving)
        return np.array(result)

    def _decide(self, k: int, upper: int, some: _Candidates, found: _Front) -> None:
        """Add those of the candidates that keep the threshold and fit, which sums of the fastest choices did not tell."""
        kind, space = self.kinds[k], self.instance.memory_bytes - self.kinds[k].room_bytes
        some = some.take(~found.known(some.replicas, some.devices))
        if not some.replicas.size:
            return
        base = self.most_replicas + 1
        data = np.maximum(some.data * self.instance.counting.shard_optimizer, 1)
        keys, of_key = np.unique(data * base + some.in_flight, return_inverse=True)
        lower, of_lower = np.unique(some.lower, return_inverse=True)
        held = np.array([kind.smallest(int(key) // base, int(key) % base) for key in keys])
        least = (held @ (self.inside[upper] * (1.0 - self.inside[lower])).T)[of_key, of_lower]
        some = some.take(least <= space + self.slack_bytes)
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
        space = self.instance.memory_bytes - kind.room_bytes
        stage, border = (self.inside[upper] * (1.0 - self.inside[lower])).T, self._border(k, upper, lower)
        refuted, kept = np.zeros((2, len(some.replicas)), np.bool_)
        for data, in_flight in {*zip(some.data.tolist(), some.in_flight.tolist(), strict=True)}:
            (own,), share = np.nonzero((some.data == data) & (some.in_flight == in_flight)), share_ratio(self.instance, data)
            at, (prices, times, sizes) = of_lower[own], kind.weighed(data, in_flight)
            time, held = (times @ stage)[:, at], (sizes @ stage)[:, at]
            least = (time + prices[:, None] * (held - space - self.slack_bytes)).max(axis=0)
            refuted[own] = least + share * border[0][at] > self.seconds * (1.0 + CLOSE)
            held[time + share * border[1][at] >= self.seconds * (1.0 - CLOSE)] = np.inf
            kept[own] = (held < space - self.slack_bytes).any(axis=0)
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

    def ways(self) -> _Ways:
        """Return those found."""
        if not self.exact:
            devices, replicas = np.nonzero(self.found)
            return _Ways(replicas, devices)
        better = np.flatnonzero(np.diff(self.least, prepend=self.found.shape[1]) < 0)
        return _Ways(self.least[better], better)
