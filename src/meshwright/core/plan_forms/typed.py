"""A pipeline as a table in a paper writes it, ``8:8@13:6``: a word for each stage, then how many layers each has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError, UnknownNameError

__all__ = ["TypedStages", "balanced", "parse", "whole"]

_STEPS = 80
"""Halvings of the interval in which the slowest stage's time lies: the rest is below rounding."""


@dataclass(frozen=True, slots=True)
class TypedStages:
    """A pipeline as typed.

    Parameters
    ----------
    text : str
        All of it, for messages.
    words : tuple of str
        One for each stage.
    counts : tuple of int
        Layers of each stage; empty where they were left out.
    options : tuple of (str, str)
        What follows, ``n_microbatches=16``: keys and values.
    """

    text: str
    words: tuple[str, ...]
    counts: tuple[int, ...]
    options: tuple[tuple[str, str], ...]


def whole(text: str, told: str, what: str) -> int:
    """Return a whole number of at least 1.

    Parameters
    ----------
    text : str
        The number.
    told : str
        The whole text that it stands in.
    what : str
        What it counts.

    Raises
    ------
    InputError
        When it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) > 0):
        raise InputError(f"--fix {told}: '{text}' must be {what}, a whole number of at least 1")
    return int(text)


def parse(text: str, n_layers: int, known: Sequence[str] = ()) -> TypedStages:
    """Return a pipeline that was typed.

    Parameters
    ----------
    text : str
        ``WORD:WORD:...[@LAYERS:LAYERS:...][,KEY=VALUE...]``.
    n_layers : int
        Layers of the model.
    known : sequence of str
        Keys that may follow.

    Returns
    -------
    TypedStages
        With at most as many stages as there are layers.

    Raises
    ------
    InputError
        When it is no such text, or the layers are not those of the model.
    """
    pipeline, *more = (part.strip() for part in text.split(","))
    options: dict[str, str] = {}
    for part in more:
        key, _, value = (side.strip() for side in part.partition("="))
        if key not in known:
            if not known:
                raise InputError(f"--fix {text}: nothing may follow the stages; leave out '{part}'")
            raise UnknownNameError("part of a plan (of --fix)", key, known)
        if key in options:
            raise InputError(f"--fix {text}: {key} is given twice")
        options[key] = value
    stages, at, layers = pipeline.partition("@")
    words = tuple(word.strip() for word in stages.split(":"))
    if "" in words:
        raise InputError(f"--fix {text}: a stage is empty; write one word for each, for example 8:8")
    if len(words) > n_layers:
        raise InputError(f"--fix {text}: {len(words)} stages need as many layers; the model has {n_layers}")
    counts = tuple(whole(count.strip(), text, "the layers of a stage") for count in layers.split(":")) if at else ()
    if counts and len(counts) != len(words):
        raise InputError(f"--fix {text}: has layers for {len(counts)} stages, but there are {len(words)} stages")
    if counts and sum(counts) != n_layers:
        raise InputError(f"--fix {text}: places {sum(counts)} layers; the model has {n_layers} ('meshwright show' lists them)")
    return TypedStages(text, words, counts, tuple(options.items()))


def balanced(seconds: NDArray[np.float64]) -> tuple[int, ...]:
    """Return how many consecutive layers each stage has where the slowest stage is as quick as can be.

    Parameters
    ----------
    seconds : ndarray, shape (n_stages, n_layers), float64
        What each layer takes in each stage; not negative.

    Returns
    -------
    tuple of int
        Each at least 1.

    Notes
    -----
    The least time that suffices is found by halving: with it, every stage takes as many of the next layers as it can, which
    leaves the fewest to those that follow.
    """
    n_stages, n_layers = seconds.shape
    ends = np.concatenate((np.zeros((n_stages, 1)), np.cumsum(seconds, axis=1)), axis=1)
    low, high = 0.0, float(ends[:, -1].max()) * (1.0 + 1e-12)
    best = _filled(ends, n_layers, high)
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        found = _filled(ends, n_layers, middle)
        low, high, best = (low, middle, found) if found else (middle, high, best)
    return best


def _filled(ends: NDArray[np.float64], n_layers: int, most_seconds: float) -> tuple[int, ...]:
    """Return the layers of stages that each take as many as they can in a time; empty where some layer is left over."""
    begin, counts = 0, []
    for stage, sums in enumerate(ends):
        last = n_layers - (len(ends) - stage - 1)
        end = min(int(np.searchsorted(sums, sums[begin] + most_seconds, side="right")) - 1, last)
        if end <= begin:
            return ()
        counts.append(end - begin)
        begin = end
    return tuple(counts) if begin == n_layers else ()
