"""All that the layers of a rank may recompute so that it fits, as seconds of each of its stages: what no other choice is below."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best.memory import RankLayers

__all__ = ["MOST_CHOICES", "RankChoices", "choices_of"]

MOST_CHOICES = 20_000
"""Choices of a rank that are gone through at most, layers that are alike in all figures counted together."""

_ROUNDING_RATIO = 3e-12  # of the memory, beside that of bounds: whoever goes through them anew leaves out none that is in here


class RankChoices(NamedTuple):
    """Choices of a rank.

    Parameters
    ----------
    again_seconds : ndarray, shape (n_choices, n_stages), float64
        What the layers of each of the rank's stages recompute of a micro-batch, of which no choice has another below it in all.
    ways : ndarray, shape (n_choices, n_layers), int64
        What each layer recomputes by a choice, as a place in `RankLayers.words`.
    """

    again_seconds: NDArray[np.float64]
    ways: NDArray[np.int64]


def choices_of(layers: RankLayers, memory_bytes: float) -> RankChoices | None:
    """Return every choice of what a rank's layers recompute by which it fits, but those above another one; None where they are too many.

    Lemma: at each of the moments a rank holds what `RankLayers.peak_bytes` says, of layers that are alike in every figure as many
    of each way as are chosen, whichever they are. A choice that fits is one of these numbers. Where another one takes no longer in any
    stage, what is below that is below both.

    Parameters
    ----------
    layers : RankLayers
        The layers; none of its tasks run beside each other.
    memory_bytes : float
        That of its devices.
    """
    n_ways, n_stages = len(layers.words), layers.held.shape[1]
    figures = (layers.kept_bytes, layers.working_bytes, layers.reserved_bytes, layers.extra_seconds)
    columns = np.vstack((layers.stage, layers.is_pinned, *figures)).T
    _, first, sort_of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(sort_of.ravel())
    if math.prod(math.comb(int(n) + n_ways - 1, n_ways - 1) for n in counts) > MOST_CHOICES:
        return None
    kept, widest, again = (np.zeros((1, n_stages)) for _ in range(3))
    reserved, numbers = np.zeros(1), np.zeros((1, 0), dtype=np.int64)
    for n_layers, at in zip(counts.tolist(), first.tolist(), strict=True):
        stage = int(layers.stage[at])
        own = _numbers(n_layers, 1 if layers.is_pinned[at] else n_ways, n_ways)
        used = own > 0
        some, option = np.indices((len(kept), len(own))).reshape(2, -1)
        kept, widest, again, reserved = kept[some], widest[some], again[some], reserved[some]
        kept[:, stage] += (own @ layers.kept_bytes[:, at])[option]
        again[:, stage] += (own @ np.maximum(layers.extra_seconds[:, at], 0.0))[option]
        needs, reserves = (
            (used * of_way[:, at]).max(axis=1)[option] for of_way in (layers.working_bytes, layers.reserved_bytes)
        )
        widest[:, stage] = np.maximum(widest[:, stage], needs)
        reserved = np.maximum(reserved, reserves)
        numbers = np.concatenate((numbers[some], option[:, None]), axis=1)
    moving = (kept @ layers.held.T + widest[:, layers.at]).max(axis=1)
    peak = float(layers.static_bytes.sum()) + reserved + moving
    fitting = np.flatnonzero(peak <= memory_bytes * (1.0 + _ROUNDING_RATIO))
    lowest = fitting[_lowest(again[fitting])]
    ways = np.zeros((len(lowest), len(layers.stage)), dtype=np.int64)
    for sort, (n_layers, at) in enumerate(zip(counts.tolist(), first.tolist(), strict=True)):
        own = _numbers(n_layers, 1 if layers.is_pinned[at] else n_ways, n_ways)
        strongest_first = np.array([np.repeat(np.arange(n_ways)[::-1], n[::-1]) for n in own])
        ways[:, np.flatnonzero(sort_of.ravel() == sort)] = strongest_first[numbers[lowest, sort]]
    return RankChoices(again[lowest], ways)


def _numbers(n_layers: int, n_open: int, n_ways: int) -> NDArray[np.int64]:
    """Return every way to divide like layers among the first ways to recompute; shape (n_divisions, n_ways)."""
    ends = np.array([(*cuts, n_layers) for cuts in itertools.combinations_with_replacement(range(n_layers + 1), n_open - 1)])
    return np.pad(np.diff(ends, axis=1, prepend=0), ((0, 0), (0, n_ways - n_open)))


def _lowest(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of rows that no other row is below in everything, of equal ones the first."""
    left, found = np.argsort(values.sum(axis=1), kind="stable"), []
    while len(left):
        found.append(int(left[0]))
        left = left[~(values[left] >= values[left[0]]).all(axis=1)]
    return np.array(found, dtype=np.int64)
