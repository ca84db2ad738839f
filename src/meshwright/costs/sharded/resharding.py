"""Seconds of bringing a tensor from the layout it is written in to the one it is read in, and its gradient back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.sharded.choices import PARTIAL, REPLICATED
from meshwright.network import Axis

__all__ = ["reshard_seconds"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def reshard_seconds(axes: Sequence[Axis], written: Ints, read: Ints, n_bytes: float) -> tuple[Floats, Floats]:
    """Return the seconds of re-sharding a tensor forward, and of its gradient backward.

    `axes`: the mesh axes, outermost first.
    `written`, shape (n_written, n_axes), int64: layouts the tensor may be written in.
    `read`, shape (n_read, n_axes), int64: layouts it may be read in.
    `n_bytes`: the whole tensor.

    Returns `forward`, `backward`, shape (n_written, n_read), float64: seconds; both block.

    Notes
    -----
    Over one mesh axis: partial sums become whole by an all-reduce and split by a reduce-scatter, a split tensor becomes whole
    by an all-gather and split otherwise by an all-to-all; cutting out a part of a whole tensor is free. A gradient starts in
    the layout its reader leaves (partial sums where parts of the reader's work were summed over) and ends in the writer's.
    With several axes each is converted in turn, in the order that is quickest.
    """
    whole_when_read = np.minimum(read, REPLICATED)
    whole_when_written = np.minimum(written, REPLICATED)
    forward = _convert(axes, written[:, None, :], whole_when_read[None, :, :], n_bytes)
    backward = _convert(axes, read[None, :, :], whole_when_written[:, None, :], n_bytes)
    return forward, backward


def _convert(axes: Sequence[Axis], source: Ints, target: Ints, n_bytes: float) -> Floats:
    """Return the seconds from every source layout to every target layout, axes in the best order."""
    source, target = np.broadcast_arrays(source, target)
    held = np.full(source.shape[:-1], n_bytes)
    for d, axis in enumerate(axes):
        held = held / np.where(source[..., d] < REPLICATED, axis.size, 1)
    best = np.full(held.shape, np.inf)
    for order in itertools.permutations(d for d, axis in enumerate(axes) if axis.size > 1):
        local, total = held, np.zeros(held.shape)
        for d in order:
            seconds, local = _along(axes[d], source[..., d], target[..., d], local)
            total = total + seconds
        best = np.minimum(best, total)
    return best


def _along(axis: Axis, source: Ints, target: Ints, held: Floats) -> tuple[Floats, Floats]:
    """Return the seconds along one axis and what a device holds afterwards."""
    was_split, becomes_split = source < REPLICATED, target < REPLICATED
    partial = source == PARTIAL
    larger = held * axis.size
    seconds = np.zeros(held.shape)
    for kind, place, size in (
        ("all_gather", was_split & ~becomes_split, larger),
        ("all_to_all", was_split & becomes_split & (source != target), held),
        ("all_reduce", partial & ~becomes_split, held),
        ("reduce_scatter", partial & becomes_split, held),
    ):
        if place.any():
            seconds = np.where(place, _collective(axis, kind, size), seconds)
    after = np.where(was_split & ~becomes_split, larger, np.where(~was_split & becomes_split, held / axis.size, held))
    return seconds, after


def _collective(axis: Axis, kind: str, n_bytes: Floats) -> Floats:
    """Return the seconds of the quickest algorithm for each size."""
    lines = axis.lines(kind)
    times = np.array([line.latency_seconds + line.seconds_per_byte * n_bytes for line in lines])
    return np.where(n_bytes > 0, times.min(axis=0), 0.0)
