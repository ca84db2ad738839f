"""Stretches of ranks that micro-batches go down and up in turn: what a step takes at least because of them, for the check of answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Stretch", "Turns"]

_MOST = 12  # stretches that are looked at, those that take longest if layers are spread evenly


class Stretch(NamedTuple):
    """Ranks from one to another: how many round trips follow each other, seconds of a step beside them, and fewest layers' seconds."""

    first: int
    last: int
    n_trips: int
    fixed: float
    least: float


class Turns:
    """The stretches of a pipeline with one stage per rank, whose ranks run a backward and a forward pass in turn.

    Parameters
    ----------
    leads : sequence of int
        Forward passes of each rank before its first backward pass.
    n_microbatches : int
        Of the step.
    arrives : sequence of float
        Seconds of the transfers before each rank.
    both : sequence of float
        Seconds of one micro-batch there and back in the layers before each place, on the ranks where they take least.
    pinned : sequence of tuple of float
        Of each rank, the same of what is pinned to it: forward alone, and there and back.
    whole_trip : float
        Seconds of one micro-batch from the first rank to the last and back, with transfers.

    Notes
    -----
    Lemma: rank a does not forward micro-batch i + l(a) before the backward pass of i, which comes back from a later rank b, where it
    runs after the forward pass of i + l(b) - 1; l is what they forward before their first backward pass. So l(a) - l(b) + 1 micro-batches
    after another one, a forwards the next only when that one has gone down to b, and one has come back from there. This holds from
    micro-batch l(b) - 1 on. Counted back from the last one, there are as many such trips as fit; before the first of them every earlier
    micro-batch has passed what is pinned to a and the slowest transfer on the way to b; and the last micro-batch makes the whole trip.
    """

    def __init__(
        self, leads: Sequence[int], n_microbatches: int, arrives: Sequence[float], both: Sequence[float],
        pinned: Sequence[tuple[float, float]], whole_trip: float,
    ) -> None:  # fmt: skip
        p, self.both = len(leads), both
        of_layer = min(after - before for before, after in itertools.pairwise(both))
        found = []
        for a in range(p):
            for b in range(a + 1, p):
                apart, left = leads[a] - leads[b] + 1, n_microbatches - leads[b]
                n_trips = left // apart
                if left < 0 or n_trips == 0:
                    continue
                slowest = max(arrives[i + 1] - arrives[i] for i in range(b))
                trip = sum(own for _, own in pinned[a : b + 1]) + 2.0 * (arrives[b] - arrives[a])
                n_before = leads[b] - 1 + left % apart
                fixed = whole_trip + n_trips * trip + n_before * max(pinned[a][0], slowest)
                n_least = min(b, p - 2) - max(a, 1) + 1  # ranks with nothing pinned to them have a layer
                found.append(Stretch(a, b, n_trips, fixed, n_least * of_layer))
        found.sort(key=lambda own: own.fixed + own.n_trips * both[-1] * (own.last - own.first + 1) / p, reverse=True)
        self.stretches = found[:_MOST]

    def allow(self, rank: int, stops: Sequence[int], end: float, limit: float) -> bool:
        """Return whether some layers of the first ranks leave all stretches that end with one of them below a limit.

        `rank`: the last of these ranks; `stops`: where each of them ends; `end`: what follows on the first rank.
        """
        return all(
            self._seconds(own, stops[own.first - 1] if own.first else 0, stops[rank]) + end < limit
            for own in self.stretches
            if own.last == rank
        )

    def earliest(self, rank: int, starts: Sequence[int], end: float, limit: float) -> int:
        """Return the first layer that a rank may begin with below a limit, as the ranks behind it begin at `starts` or later.

        What begins earlier has more layers in every stretch that the rank is in. More than all layers where no layer will do.
        """
        start = 0
        for own in self.stretches:
            if not own.first <= rank <= own.last:
                continue
            stop = starts[own.last + 1]
            if self._seconds(own, stop, stop) + end >= limit:
                return len(self.both)
            while self._seconds(own, start, stop) + end >= limit:
                start += 1
        return start

    def _seconds(self, own: Stretch, start: int, stop: int) -> float:
        """Return what a step takes at least, but for its end on the first rank, with some layers in a stretch and maybe more."""
        return own.fixed + own.n_trips * max(self.both[stop] - self.both[start], own.least)
