"""What nodes take and hold at a tensor degree, added up over downsets; for the check of plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.piper.check.stage import buffer_held, held_bytes, reduce_seconds, replicas_allowed, share_ratio
from meshwright.planners.piper.menu import Options, allowed_by
from meshwright.planners.piper.problem import PiperChoice, PiperInstance

__all__ = ["Kind"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDED = 1e-15
"""What adding up a node may turn of a sum, relative, a few times over."""

N_PRICES = 16
"""Prices of a byte at which the choices of all nodes are weighed: of as many shares of the swaps that nodes may make."""

MOST_KEPT = 20_000_000
"""Sums over downsets that are kept of a kind."""


class Kind:
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
        self.data = np.array([d for d in replicas_allowed(instance, options) if d * degree <= instance.n_devices], np.int64)
        self.share = np.array([share_ratio(instance, int(d)) for d in self.data])
        self.reduce = np.array([reduce_seconds(instance, int(d), False) for d in self.data])
        self.spared = (1.0 - 1.0 / self.data) * instance.counting.shard_optimizer
        fastest = [tuple(self._fastest(menu, i) for menu in self.menus) for i in range(len(self.data))]
        patterns = list(dict.fromkeys(fastest))
        self.pattern = np.array([patterns.index(one) for one in fastest], np.int64)
        sizes = np.array([[self._sizes(menu, c) for menu, c in zip(self.menus, one, strict=True)] for one in patterns])
        self.n_lacking = inside @ self.lacking
        self.sums = np.einsum("pvi,sv->ips", sizes, inside)
        seconds, weights, active, static = self._slack(sizes.transpose(2, 0, 1)).max(axis=1)
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
            both = [np.where(self.lacking < 0.5, x[every, picked], 0.0) for x in (times, sizes)]
            slack = np.array([self._slack(x).max() for x in both])
            self._weighed[key] = prices, *(x @ self.inside.T for x in both), slack
        return self._weighed[key]

    def _fastest(self, menu: Sequence[tuple[PiperChoice, float]], i: int) -> int:
        """Return a node's fastest choice at the i-th number of replicas."""
        every = [choice.seconds * self.share[i] + choice.weight_bytes * self.reduce[i] for choice, _ in menu]
        return min(range(len(menu)), key=every.__getitem__, default=-1)

    def _sizes(self, menu: Sequence[tuple[PiperChoice, float]], c: int) -> tuple[float, float, float, float]:
        """Return what a choice takes, its weights, its bytes for each micro-batch in flight, and those whatever is."""
        if c < 0:
            return 0.0, 0.0, 0.0, 0.0
        choice, buffer = menu[c]
        return choice.seconds, choice.weight_bytes, choice.activation_bytes, choice.static_bytes - buffer

    def _slack(self, sizes: Floats) -> Floats:
        """Return what rounding may turn in a difference of sums of these sizes over the nodes, which stand on the last axis."""
        return np.asarray(ROUNDED * len(self.menus) * np.abs(sizes).sum(axis=-1))

    def between(self, upper: int, lower: Ints) -> Floats:
        """Return the sums over the nodes between a downset and smaller ones: seconds, weights, bytes for each micro-batch in
        flight, bytes whatever is; of each pattern of choices.
        """
        between: Floats = self.sums[:, :, upper, None] - self.sums[:, :, lower]
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
            held = np.array([
                min((held_bytes(self.instance, c, *key) - buffer for c, buffer in menu), default=0.0) for menu in self.menus
            ])  # fmt: skip
            self._smallest[key] = self.inside @ held, float(self._slack(held))
        return self._smallest[key]

    def _make_room(self) -> None:
        """Forget sums where there are many."""
        for known, each in ((self._weighed, 2 * N_PRICES), (self._smallest, 1)):
            if (len(known) + 1) * each * len(self.inside) > MOST_KEPT:
                known.clear()

    def least_of_replica(self, in_flight: int) -> Floats:
        """Return the least that each node holds on a device, times replicas; without a choice more than all devices have."""
        sharded = self.instance.counting.shard_optimizer
        nothing = 2.0 * self.instance.memory_bytes * (self.instance.n_devices + 1)
        held = [
            [(c.activation_bytes, max(c.static_bytes - buffer - c.weight_bytes * sharded, 0.0)) for c, buffer in menu]
            for menu in self.menus
        ]
        return np.array([min((a * in_flight + b for a, b in row), default=nothing) for row in held])
