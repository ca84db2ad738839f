"""Ways through the tasks of a step, weighed against each other over what ranks may recompute, for the check of answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.base.integer_program import ProgramRow, least_values
from meshwright.planners.best.check.rank_ways import RankWays

__all__ = ["MOST_CHOICES", "Way", "all_take", "rank_choices"]

MOST_CHOICES = 100_000
"""Choices of a rank that are gone through at most."""

_MOST_ROUNDS, _IN_ONE_GO = 120, 4096
_ROUNDING = 1e-12  # of memory


class Way:
    """Seconds of a way through tasks, which know how often a backward pass of each stage lies on it: added, subtracted and compared as
    numbers are.

    Parameters
    ----------
    seconds : float
        What it takes.
    times : ndarray, shape (n_stages,), float64
        Backward passes of each stage.
    """

    __slots__ = ("seconds", "times")

    def __init__(self, seconds: float, times: NDArray[np.float64]) -> None:
        self.seconds, self.times = seconds, times

    def __add__(self, other: Way | float) -> Way:
        if isinstance(other, Way):
            return Way(self.seconds + other.seconds, self.times + other.times)
        return Way(self.seconds + other, self.times)

    __radd__ = __add__

    def __sub__(self, other: Way | float) -> Way:
        if isinstance(other, Way):
            return Way(self.seconds - other.seconds, self.times - other.times)
        return Way(self.seconds - other, self.times)

    def __rsub__(self, other: float) -> Way:
        return Way(other - self.seconds, -self.times)

    def __lt__(self, other: Way | float) -> bool:
        return self.seconds < float(other)

    def __gt__(self, other: Way | float) -> bool:
        return self.seconds > float(other)

    def __float__(self) -> float:
        return float(self.seconds)


def rank_choices(ways: RankWays, memory_bytes: float) -> NDArray[np.float64] | None:
    """Return what the stages of a rank recompute of a micro-batch by every choice that fits, but for those no better than another.

    Lemma: of layers that are alike in what they hold and take by each way, only how many go which way matters; every choice is one of
    these numbers, and fits where the rank does at all its moments.

    Parameters
    ----------
    ways : RankWays
        The layers of the rank.
    memory_bytes : float
        Of its devices.

    Returns
    -------
    ndarray, shape (n_choices, n_stages), float64, or None
        Seconds; None where there are more choices than are gone through.
    """
    n_ways, n_stages = ways.kept.shape[1], ways.n_stages
    alike: dict[tuple[object, ...], list[int]] = {}
    again = np.maximum(ways.work - ways.work[:, :1], 0.0)
    for i, (stage, fixed) in enumerate(zip(ways.at, ways.pinned, strict=True)):
        figures = (ways.kept[i], ways.working[i], ways.reserved[i], again[i])
        alike.setdefault((stage, bool(fixed), *(own.tobytes() for own in figures)), []).append(i)
    groups = [(places[0], len(places), 1 if fixed else n_ways) for (_, fixed, *_), places in alike.items()]
    divided = [list(_divided(count, own)) for _, count, own in groups]
    if math.prod(len(own) for own in divided) > MOST_CHOICES:
        return None
    flat = [(first, way) for first, _, own in groups for way in range(own)]
    at = np.array([ways.at[first] for first, _ in flat])
    held, stage_at_work = ways.moments
    columns = [np.array([of[first, way] for first, way in flat]) for of in (ways.kept, ways.working, ways.reserved, again)]
    kept, working, reserved, seconds = columns
    inside = at[:, None] == np.arange(n_stages)
    found = np.zeros((0, n_stages))
    every = itertools.product(*divided)
    while some := list(itertools.islice(every, _IN_ONE_GO)):
        numbers = np.array([[n for own in one for n in own] for one in some], dtype=float)
        chosen = numbers > 0.0
        widest = np.array([np.where(chosen & inside[:, stage], working, 0.0).max(axis=1) for stage in range(n_stages)])
        moving = (numbers * kept) @ inside @ held.T + widest[stage_at_work].T
        peak = ways.static + np.where(chosen, reserved, 0.0).max(axis=1) + moving.max(axis=1)
        fits = peak <= memory_bytes * (1.0 + _ROUNDING)
        found = _undominated(np.concatenate((found, (numbers[fits] * seconds) @ inside)))
    return found


def _divided(count: int, n_ways: int) -> list[tuple[int, ...]]:
    """Return all ways to say how many of some things go each way."""
    if n_ways == 1:
        return [(count,)]
    return [(first, *rest) for first in range(count + 1) for rest in _divided(count - first, n_ways - 1)]


def _undominated(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows that no other is below in everything, each once."""
    left, kept = rows[np.argsort(rows.sum(axis=1), kind="stable")], []
    while len(left):
        kept.append(left[0])
        left = left[(left < left[0]).any(axis=1)]
    return np.array(kept).reshape(-1, rows.shape[1])


def all_take(
    choices: Sequence[NDArray[np.float64]],
    places: Sequence[Sequence[int]],
    longest: Callable[[NDArray[np.float64]], Way],
    limit: float,
) -> bool:
    """Return whether the longest way is shown to take `limit` or longer by every choice of all ranks.

    Lemma: no choice is quicker than the mean of some ways, with any weights that add up to one; of that mean each rank has a part of its own, of
    which it has the least over its choices by itself. The sum of these least parts, and of what takes equally long by all choices,
    is below every choice.

    Parameters
    ----------
    choices : sequence of ndarray, shape (n_choices, n_stages of the rank), float64
        What the stages of each rank may recompute.
    places : sequence of sequence of int
        The stages of each rank.
    longest : callable
        The longest way, by what all stages recompute.
    limit : float
        Seconds.
    """
    if any(len(own) == 0 for own in choices):
        return True  # a rank that nothing makes fit
    n_stages = sum(len(own) for own in places)
    fixed: list[float] = []
    times: list[NDArray[np.float64]] = []
    point = np.zeros(n_stages)
    for own, at in zip(choices, places, strict=True):
        point[list(at)] = own.min(axis=0)
    for _ in range(_MOST_ROUNDS):
        way = longest(point)
        if fixed and way.seconds < limit:
            return False  # a mixture of choices that takes less: no mean of ways is above it
        fixed.append(way.seconds - float(way.times @ point))
        times.append(way.times)
        told = _shortest(choices, places, fixed, times, limit)
        if told is None:
            return False
        least, point = told
        if least >= limit * (1.0 - 1e-7) and _mean_takes(choices, places, fixed, times, limit):
            return True
    return False


def _shortest(
    choices: Sequence[NDArray[np.float64]], places: Sequence[Sequence[int]], fixed: Sequence[float],
    times: Sequence[NDArray[np.float64]], unit: float,
) -> tuple[float, NDArray[np.float64]] | None:  # fmt: skip
    """Return the least that the longest of some ways takes over mixtures of choices, and what stages recompute in it."""
    n_of = [len(own) for own in choices]
    start = [0, *itertools.accumulate(n_of)]
    rows = []
    for rank, n in enumerate(n_of):
        rows.append(ProgramRow(np.arange(start[rank], start[rank] + n), np.ones(n), 1.0, 1.0))
    for seconds, own_times in zip(fixed, times, strict=True):
        takes = np.concatenate([own @ own_times[list(at)] for own, at in zip(choices, places, strict=True)])
        used = np.flatnonzero(takes)
        rows.append(ProgramRow(np.append(used, start[-1]), np.append(takes[used] / unit, -1.0), -math.inf, -seconds / unit))
    values = least_values(np.append(np.zeros(start[-1]), 1.0), rows)
    if values is None:
        return None
    point = np.zeros(sum(len(own) for own in places))
    for rank, (own, at) in enumerate(zip(choices, places, strict=True)):
        shares = np.clip(values[start[rank] : start[rank + 1]], 0.0, None)
        point[list(at)] = (shares / max(float(shares.sum()), 1e-9)) @ own
    least = max(seconds + float(own_times @ point) for seconds, own_times in zip(fixed, times, strict=True))
    return least, point


def _mean_takes(
    choices: Sequence[NDArray[np.float64]], places: Sequence[Sequence[int]], fixed: Sequence[float],
    times: Sequence[NDArray[np.float64]], limit: float,
) -> bool:  # fmt: skip
    """Return whether some mean of ways takes `limit` or longer by every choice, added up without the solver's rounding."""
    n, n_ranks = len(fixed), len(choices)
    rows = [ProgramRow(np.arange(n), np.ones(n), 1.0, 1.0)]
    for rank, (own, at) in enumerate(zip(choices, places, strict=True)):
        for takes in (np.array([own_times[list(at)] for own_times in times]) @ own.T / limit).T:
            rows.append(ProgramRow(np.array([*range(n), n + rank]), np.array([*-takes, 1.0]), -math.inf, 0.0))
    values = least_values(-np.concatenate((np.array(fixed) / limit, np.ones(n_ranks))), rows)
    if values is None:
        return False
    weights = np.clip(values[:n], 0.0, None)
    if not weights.any():
        return False
    weights = weights / float(weights.sum())
    mean = np.array(times).T @ weights
    parts = [float((own @ mean[list(at)]).min()) for own, at in zip(choices, places, strict=True)]
    return math.fsum((*(weights * np.array(fixed)).tolist(), *parts)) >= limit
