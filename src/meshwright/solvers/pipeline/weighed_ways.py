"""The least of a longest way, over what parts that share it may choose: ways weighed against each other by a linear program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.integer_program import ProgramRow, least_values

__all__ = ["Weighed", "least_longest"]

_MOST_ROUNDS = 40
_NEAR = 1e-6  # of what is proven to what the choices it stands on take, at which no way more is looked for

Way = tuple[float, NDArray[np.float64]]
"""What a way takes with nothing chosen, and how often each place of a choice lies on it."""


class Weighed(NamedTuple):
    """What is proven, and the best choice seen on the way to it.

    Parameters
    ----------
    seconds : float
        A lower bound on the longest way of every choice; `limit_seconds` or more proves no more than that.
    chosen : tuple of int
        Of every part the number of its choice.
    chosen_seconds : float
        The longest way by these.
    """

    seconds: float
    chosen: tuple[int, ...]
    chosen_seconds: float


def least_longest(
    choices: Sequence[NDArray[np.float64]],
    places: Sequence[NDArray[np.int64]],
    longest: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]],
    limit_seconds: float,
) -> Weighed:
    """Return a lower bound on the longest way over all choices of some parts, each of which lengthens what lies at its places.

    Parameters
    ----------
    choices : sequence of ndarray, shape (n_choices, n_places), float64
        Of every part at least one: by how many seconds each of its places is longer.
    places : sequence of ndarray, shape (n_places,), int64
        Where the places of every part stand among all.
    longest : callable
        Of the seconds at all places: what the longest way takes, and how often each place lies on it.
    limit_seconds : float
        What is no shorter need not be told exactly.

    Returns
    -------
    Weighed

    Notes
    -----
    Lemma: by every choice the longest way takes no less than any way, so no less than the mean of some ways with any weights.
    That mean is a sum over parts, each of which takes at least its least over its own choices; the sum of these is below all.
    Weights are those of a linear program over mixtures of choices; a way is looked for where the longest of those known is the
    shortest. What the solver says is not trusted: any weights prove something, and what they prove is added up here.
    """
    n_places = sum(len(own) for own in places)
    at = _put(n_places, places, [own.min(axis=0) for own in choices])
    unit, n_times = longest(at)
    ways: list[Way] = [(unit - float(n_times @ at), n_times)]
    chosen, chosen_seconds = tuple(0 for _ in choices), math.inf
    for _ in range(_MOST_ROUNDS if unit > 0.0 else 0):
        mixed = _mixtures(choices, places, ways, unit)
        if mixed is None:
            break
        whole = tuple(int(np.argmax(shares)) for shares in mixed)
        at = _put(n_places, places, [own[i] for own, i in zip(choices, whole, strict=True)])
        between = _put(n_places, places, [shares @ own for shares, own in zip(mixed, choices, strict=True)])
        told = max(seconds + float(n_times @ between) for seconds, n_times in ways)
        if told >= limit_seconds:
            break
        seconds, n_times = longest(at)
        if seconds < chosen_seconds:
            chosen, chosen_seconds = whole, seconds
        ways.append((seconds - float(n_times @ at), n_times))
        if not np.array_equal(at, between):
            seconds, n_times = longest(between)
            ways.append((seconds - float(n_times @ between), n_times))
        if seconds <= told * (1.0 + _NEAR):
            break
    return Weighed(_proven(choices, places, ways, unit), chosen, chosen_seconds)


def _put(n_places: int, places: Sequence[NDArray[np.int64]], values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the values of all parts at their places."""
    found = np.zeros(n_places)
    for own, of_part in zip(places, values, strict=True):
        found[own] = of_part
    return found


def _mixtures(
    choices: Sequence[NDArray[np.float64]], places: Sequence[NDArray[np.int64]], ways: Sequence[Way], unit: float
) -> list[NDArray[np.float64]] | None:
    """Return the shares of each part's choices by which the longest of some ways is shortest; None where there are none."""
    first = [0, *itertools.accumulate(len(own) for own in choices)]
    every = np.arange(first[-1] + 1)  # the last one: the longest way
    rows = [ProgramRow(every[start:stop], np.ones(stop - start), 1.0, 1.0) for start, stop in itertools.pairwise(first)]
    for seconds, n_times in ways:
        lengths = [own @ n_times[at] / unit for own, at in zip(choices, places, strict=True)]
        rows.append(ProgramRow(every, np.concatenate((*lengths, [-1.0])), -np.inf, -seconds / unit))
    values = least_values(np.append(np.zeros(first[-1]), 1.0), rows)
    if values is None:
        return None
    shares = [np.maximum(values[start:stop], 0.0) for start, stop in itertools.pairwise(first)]
    return [own / own.sum() if own.sum() > 0.0 else np.full(len(own), 1.0 / len(own)) for own in shares]


def _proven(
    choices: Sequence[NDArray[np.float64]], places: Sequence[NDArray[np.int64]], ways: Sequence[Way], unit: float
) -> float:
    """Return what some ways prove by the best weights: a linear program of weights, and of the least of every part by them."""
    n_ways, n_parts = len(ways), len(choices)
    rows = [ProgramRow(np.arange(n_ways), np.ones(n_ways), 1.0, 1.0)]
    for part, (own, at) in enumerate(zip(choices, places, strict=True)):
        for choice in own:
            lengths = np.array([-float(n_times[at] @ choice) / unit for _, n_times in ways])
            rows.append(ProgramRow(np.append(np.arange(n_ways), n_ways + part), np.append(lengths, 1.0), -np.inf, 0.0))
    cost = np.concatenate(([-seconds / unit for seconds, _ in ways], -np.ones(n_parts)))
    values = least_values(cost, rows) if unit > 0.0 else None
    alone = [np.eye(n_ways)[i] for i in range(n_ways)]  # each way by itself proves something too
    weights = np.zeros(n_ways) if values is None else np.maximum(values[:n_ways], 0.0)
    found = -math.inf
    for own_weights in [*alone, weights / weights.sum()] if weights.sum() > 0.0 else alone:
        n_times = sum(weight * times for weight, (_, times) in zip(own_weights, ways, strict=True))
        least = sum(float((own @ n_times[at]).min()) for own, at in zip(choices, places, strict=True))
        found = max(found, sum(weight * seconds for weight, (seconds, _) in zip(own_weights, ways, strict=True)) + least)
    return float(found)
