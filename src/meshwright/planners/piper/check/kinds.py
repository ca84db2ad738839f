"""What nodes take and hold at a tensor degree, added up over downsets; for the check of plans."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.piper.check.stage import buffer_held, reduce_seconds, replicas_allowed, share_ratio
from meshwright.planners.piper.menu import Options, allowed_by
from meshwright.planners.piper.problem import PiperChoice, PiperInstance

__all__ = ["KindSums"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDED = 1e-15
"""What adding up a node may turn of a sum, relative, a few times over."""

N_PRICES = 16
"""Prices of a byte at which the choices of all nodes are weighed: of as many shares of the swaps that nodes may make."""

MOST_KEPT = 20_000_000
"""Sums over downsets that are kept of a kind."""


class KindSums:
    """What nodes take and hold at a tensor degree, with buffers up to a size, which is kept; added up over downsets.

    Parameters
    ----------
    instance : PiperInstance
        The question.
    options : Options
        What plans may use.
    degree : int
        Tensor degree.
    room_bytes : float
        Size of the buffer.
    inside : ndarray, shape (n_sets, n_nodes), float64
        Whether a downset holds a node.

    Notes
    -----
    A sum over the nodes between two downsets is the difference of the sums over each. What rounding may turn in it, at most
    two units in the last place for every node of both, is told beside it (``slack``).
    """

    def __init__(self, instance: PiperInstance, options: Options, degree: int, room_bytes: float, inside: Floats) -> None:
        self.instance, self.degree, self.room_bytes, self.inside = instance, degree, room_bytes, inside
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
        self.choices = self._choices()
        self.data = np.array([d for d in replicas_allowed(instance, options) if d * degree <= instance.n_devices], np.int64)
        self.share = np.array([share_ratio(instance, int(d)) for d in self.data])
        self.reduce = np.array([reduce_seconds(instance, int(d), False) for d in self.data])
        self.spared = (1.0 - 1.0 / self.data) * instance.counting.shard_optimizer
        seconds, weights, _, _ = self.choices
        fastest = [np.argmin(seconds * x + weights * y, axis=1) for x, y in zip(self.share, self.reduce, strict=True)]
        patterns, pattern = np.unique(np.array(fastest), axis=0, return_inverse=True)
        self.pattern = pattern.reshape(-1)
        sizes = self._picked(self.choices, patterns)
        self.n_lacking = inside @ self.lacking
        self.sums = np.einsum("ipv,sv->ips", sizes, inside)
        seconds, weights, active, static = self._slack(sizes).max(axis=1)
        self.slack_seconds = float((self.share * seconds + self.reduce * weights).max(initial=0.0))
        self.slack_bytes = float(active * instance.n_microbatches + static + weights)
        self.into, self.out_of = self._borders()
        self._smallest: dict[tuple[int, int], tuple[Floats, float]] = {}
        self._weighed: dict[tuple[int, int], tuple[Floats, ...]] = {}

    def weighed(self, data: int, in_flight: int) -> tuple[Floats, ...]:
        """Return prices of a byte, and at each, added up over each downset, what the choices take and hold that are least with
        their bytes paid; and of both the slack.
        """
        self._make_room()
        if (key := (data, in_flight)) not in self._weighed:
            share, reduce = share_ratio(self.instance, data), reduce_seconds(self.instance, data, False)
            seconds, weights = self.choices[:2]
            times, sizes = seconds * share + weights * reduce, self._held(data, in_flight)
            every = np.arange(len(self.menus))
            with np.errstate(invalid="ignore"):
                swaps = (times - times.min(axis=1)[:, None]) / (sizes[every, np.argmin(times, axis=1)][:, None] - sizes)
            swaps = np.append(0.0, swaps[np.isfinite(swaps) & (swaps > 0.0)])
            prices = np.unique(np.quantile(swaps, np.linspace(0.0, 1.0, N_PRICES)))
            picked = np.array([np.argmin(times + price * np.where(np.isfinite(times), sizes, 0.0), axis=1) for price in prices])
            both = self._picked(np.array([times, sizes]), picked)
            slack = np.array([self._slack(x).max() for x in both])
            self._weighed[key] = prices, *(x @ self.inside.T for x in both), slack
        return self._weighed[key]

    def _choices(self) -> Floats:
        """Return what every choice of every node takes, its weights, its bytes for each micro-batch in flight, and those that
        are held in any case; what is no choice takes forever.
        """
        most = max(map(len, self.menus), default=1) or 1
        found = np.zeros((4, len(self.menus), most))
        found[0] = np.inf
        for v, menu in enumerate(self.menus):
            for c, (choice, buffer) in enumerate(menu):
                found[:, v, c] = choice.seconds, choice.weight_bytes, choice.activation_bytes, choice.static_bytes - buffer
        return found

    def _picked(self, sizes: Floats, picked: Ints) -> Floats:
        """Return the sizes, on the first axis, of the choices that each row picks; 0 for nodes without any."""
        return np.where(self.lacking < 0.5, sizes[:, np.arange(len(self.menus)), picked], 0.0)

    def _held(self, data: int, in_flight: int) -> Floats:
        """Return what every choice of every node holds; infinite where there is none."""
        seconds, weights, active, static = self.choices
        held = active * in_flight + static - weights * ((1.0 - 1.0 / data) * self.instance.counting.shard_optimizer)
        return np.where(np.isfinite(seconds), held, np.inf)

    def _slack(self, sizes: Floats) -> Floats:
        """Return what rounding may turn in a difference of sums of these sizes over the nodes, which stand on the last axis."""
        return np.asarray(ROUNDED * len(self.menus) * np.abs(sizes).sum(axis=-1))

    def between(self, upper: int, lower: Ints, some: slice) -> Floats:
        """Return sums over the nodes between a downset and smaller ones, for each pattern of choices: some of seconds, weights,
        bytes for each micro-batch in flight, bytes whatever is.
        """
        between: Floats = self.sums[some, :, upper, None] - self.sums[some, :, lower]
        return between

    def _borders(self) -> tuple[Floats, Floats]:
        """Return the least and the most seconds of each edge at its target, and at its source, when it crosses a border; by
        source.
        """
        speed = self.instance.bandwidth / 2.0
        into, out_of = [], []
        for edge in sorted(self.instance.edges, key=lambda edge: edge.source):
            ends = [dict(c.sync_forward)[edge.source] for c, _ in self.menus[edge.target]] or [0.0]
            into.append([(edge.bytes + min(ends)) / speed, (edge.bytes + max(ends)) / speed])
            ends = [dict(c.sync_backward)[edge.target] for c, _ in self.menus[edge.source]] or [0.0]
            out_of.append([(edge.bytes + min(ends)) / speed, (edge.bytes + max(ends)) / speed])
        return np.array(into).reshape(-1, 2), np.array(out_of).reshape(-1, 2)

    def smallest(self, data: int, in_flight: int) -> tuple[Floats, float]:
        """Return the least that nodes hold, added up over each downset, and its slack."""
        self._make_room()
        key = (data if self.instance.counting.shard_optimizer else 1, in_flight)
        if key not in self._smallest:
            held = np.where(self.lacking < 0.5, self._held(*key).min(axis=1), 0.0)
            self._smallest[key] = self.inside @ held, float(self._slack(held))
        return self._smallest[key]

    def _make_room(self) -> None:
        """Forget sums where there are many."""
        for known, each in ((self._weighed, 2 * N_PRICES), (self._smallest, 1)):
            if (len(known) + 1) * each * len(self.inside) > MOST_KEPT:
                known.clear()

    def least_of_replica(self, in_flight: int) -> Floats:
        """Return the least that each node holds on a device, times replicas; without a choice more than all devices have."""
        seconds, weights, active, static = self.choices
        nothing = 2.0 * self.instance.memory_bytes * (self.instance.n_devices + 1)
        held = active * in_flight + np.maximum(static - weights * self.instance.counting.shard_optimizer, 0.0)
        return np.asarray(np.where(np.isfinite(seconds), held, nothing).min(axis=1))
