"""The next best plans with other degrees than the answer, each optimised like the answer, and what is proven of all others."""

from __future__ import annotations

import math
from collections.abc import Iterable

from meshwright.core.result import Alternative, Objective
from meshwright.planners.best.incumbents import Degrees, Incumbent, causes_of_loss, degrees_of, rank
from meshwright.planners.best.space import Config, MeshDegrees

__all__ = ["LONGEST_SECONDS", "NextBest", "alternatives", "listed", "rest"]

LONGEST_SECONDS = 1e9
"""Sets of plans that fit nothing within it count as fitting nothing: thirty years a step."""

_TIED = 1e-6  # steps nearer than this are of one plan under two names, for example context degrees for data degrees


def listed(found: Iterable[Incumbent], answer: Incumbent, n_most: int) -> list[Incumbent]:
    """Return the best plan found of each set of other degrees that is not quicker than the answer, the best sets first.

    Of plans that take equally long only the simplest is listed.

    Parameters
    ----------
    found : iterable of Incumbent
        All plans found.
    answer : Incumbent
        The answer: plans that are quicker, and less simple, are no runners-up.
    n_most : int
        How many are listed at most.
    """
    best: dict[Degrees, Incumbent] = {}
    for own in sorted(found, key=rank):
        best.setdefault(degrees_of(own.config), own)
    best.pop(degrees_of(answer.config), None)
    kept: list[Incumbent] = []
    last = answer.step_seconds
    for own in sorted(best.values(), key=rank):
        if len(kept) < n_most and own.step_seconds > last * (1.0 + _TIED):
            kept.append(own)
            last = own.step_seconds
    return kept


def alternatives(found: Iterable[Incumbent], answer: Incumbent, n_most: int) -> tuple[Alternative, ...]:
    """Return `listed` with the causes that cost each the most against the answer."""
    return tuple(
        Alternative(own.plan, Objective("step_seconds", own.step_seconds), causes_of_loss(own, answer))
        for own in listed(found, answer, n_most)
    )


class NextBest:
    """The goal of finding the best plans of other degrees.

    Parameters
    ----------
    found : list of Incumbent
        All plans found, as it grows.
    answer : Incumbent
        The answer.
    n_wanted : int
        How many runners-up are asked for, at least one.
    new_only : bool
        Whether to look only for degrees of which there is no plan yet: what finds a list before it is proven.
    longest_seconds : float
        Steps from which on none is looked for.
    """

    def __init__(
        self, found: list[Incumbent], answer: Incumbent, n_wanted: int, *, new_only: bool, longest_seconds: float = math.inf
    ) -> None:
        self.found, self.answer, self.n_wanted, self.new_only = found, answer, n_wanted, new_only
        self.longest_seconds, self._own = longest_seconds, degrees_of(answer.config)
        self._n_known = -1
        self._best: dict[Degrees, float] = {}
        self._last_seconds = math.inf

    def _know(self) -> None:
        """Look at plans that were found since."""
        if self._n_known == len(self.found):
            return
        self._n_known = len(self.found)
        self._best = {}
        for own in self.found:
            degrees = degrees_of(own.config)
            self._best[degrees] = min(own.step_seconds, self._best.get(degrees, math.inf))
        kept = listed(self.found, self.answer, self.n_wanted)
        self._last_seconds = kept[-1].step_seconds if len(kept) == self.n_wanted else math.inf

    @property
    def cutoff_seconds(self) -> float:
        """The step of the last runner-up asked for, or from which on none is looked for."""
        self._know()
        return min(self._last_seconds, self.longest_seconds)

    @property
    def is_listed(self) -> bool:
        """Whether as many runners-up are known as are asked for."""
        self._know()
        return self._last_seconds < math.inf

    def limit(self, item: MeshDegrees | Config) -> float:
        """Return the step of the best plan of the same degrees, or of the last runner-up; nothing for degrees that are no runner-up."""
        self._know()
        degrees = degrees_of(item)
        own = self._best.get(degrees, math.inf)
        if degrees == self._own or own < self.answer.step_seconds or (self.new_only and own < math.inf):
            return 0.0
        return min(own, self._last_seconds, self.longest_seconds)


def rest(
    found: Iterable[Incumbent], left: Iterable[tuple[float, MeshDegrees | Config]], answer: Incumbent, n_most: int
) -> dict[str, object]:
    """Return what is proven of all degrees that are not listed.

    Lemma: every plan was played, or lies in a set that is left with its bound. So plans of degrees that are not listed take at
    least the least of both over those degrees. Left out are the answer's own degrees, those quicker than the answer, and those that
    take as long as one that is listed: they are counted.

    Parameters
    ----------
    found : iterable of Incumbent
        All plans found.
    left : iterable of (float, MeshDegrees or Config)
        Bounds of all sets of plans that were not gone through, or were and may hold other plans.
    answer : Incumbent
        The answer.
    n_most : int
        How many are listed at most.

    Returns
    -------
    dict
        ``proven``: whether all other degrees take at least as long as the last one listed; ``others_at_least_seconds``: what they
        take at least, None where none of them fits (or none within `LONGEST_SECONDS`); ``n_left_out``: sets of degrees as quick as one listed, or quicker than the answer.
    """
    kept = listed(found, answer, n_most)
    best: dict[Degrees, float] = {}
    for own in found:
        best[degrees_of(own.config)] = min(own.step_seconds, best.get(degrees_of(own.config), math.inf))
    shown = {degrees_of(own.config) for own in (answer, *kept)}
    last = kept[-1].step_seconds if kept else answer.step_seconds
    as_quick = {degrees for degrees, seconds in best.items() if seconds <= last * (1.0 + _TIED) and degrees not in shown}
    least = min((seconds for degrees, seconds in best.items() if degrees not in shown | as_quick), default=math.inf)
    for bound, item in left:
        if bound < least and degrees_of(item) not in shown | as_quick:
            least = bound
    return {
        "proven": least >= last * (1.0 - 1e-9),
        "others_at_least_seconds": least if least < LONGEST_SECONDS else None,
        "n_left_out": len(as_quick),
    }
