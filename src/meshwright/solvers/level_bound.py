"""A bound on convex partitions from the cheapest cut at every level of compute, for graphs whose ideals are too many to list."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.cut_programs import cheapest_cut
from meshwright.solvers.units import Units

__all__ = ["level_bound"]

_LEVELS = 64
_FINEST_RATIO = 1 / 48  # of the value: narrower levels make the programs hard and the bound hardly better
_LONG_RATIO = 0.8  # of the value: stages with at least this much compute are long
_SAFETY = 1e-6  # relative; the tolerance of the integer programs


def level_bound(units: Units, n_stages: int, value: float) -> float:
    """Return a lower bound of the largest load over convex partitions into `n_stages` equal stages.

    Parameters
    ----------
    units : Units
        The graph.
    n_stages : int
        Stages; some may stay empty.
    value : float
        The largest load of some partition.

    Returns
    -------
    float
        At most `value`; valid to a relative 1e-6, by which it is lowered.

    Notes
    -----
    The compute in front of a cut lies within windows that follow from `value`. They are divided into levels, and an integer
    program prices the cheapest cut of each. A stage between two cuts pays both, except for tensors that pass it by;
    only tensors too short to pass by a long stage are priced, so every long stage pays both cuts in full. A largest load
    is possible only if that many stages, each reaching as far as the load allows or being short, cover all compute; bisection
    finds the least such load.
    """
    total = units.total
    if n_stages < 2 or total <= 0.0:
        return 0.0
    kept = _lengths(units) < _LONG_RATIO * value
    edges = _levels(total, n_stages, value)
    low = np.array([0.0, *(a for a, _ in edges), total])
    high = np.array([0.0, *(b for _, b in edges), total])
    price = np.array([0.0, *(cheapest_cut(units, a, b, kept) for a, b in edges), 0.0])
    below, above = max(total / n_stages, float(units.arrays.compute.max(initial=0.0))), value
    if _covers(n_stages, low, high, price, below, _LONG_RATIO * value):
        return below * (1 - _SAFETY)
    for _ in range(40):
        middle = 0.5 * (below + above)
        if _covers(n_stages, low, high, price, middle, _LONG_RATIO * value):
            above = middle
        else:
            below = middle
    return below * (1 - _SAFETY)


def _lengths(units: Units) -> NDArray[np.float64]:
    """Return for each net the most compute of a stage that it can pass by: all but what must lie before and after; inf unknown."""
    a = units.arrays
    lengths = np.full(len(a.net_cost), math.inf)
    for net in range(len(lengths)):
        pins = np.sort(a.net_pins[a.net_first[net] : a.net_first[net + 1]])
        head, tail = pins[0], pins[-1]
        following = set(a.succ[a.succ_first[head] : a.succ_first[head + 1]].tolist())
        leading = set(a.pred[a.pred_first[tail] : a.pred_first[tail + 1]].tolist())
        if following.issuperset(pins[1:].tolist()):
            lengths[net] = units.total - units.before[head] - units.after[pins[1:]].min()
        elif leading.issuperset(pins[:-1].tolist()):
            lengths[net] = units.total - units.before[pins[:-1]].min() - units.after[tail]
    return lengths


def _levels(total: float, n_stages: int, value: float) -> list[tuple[float, float]]:
    """Return the intervals of compute in which a cut may lie, divided into levels."""
    windows: list[tuple[float, float]] = []
    for s in range(1, n_stages):
        low, high = max(total - (n_stages - s) * value, 0.0), min(s * value, total)
        if windows and low <= windows[-1][1]:
            windows[-1] = (windows[-1][0], high)
        elif low <= high:
            windows.append((low, high))
    width = max(sum(b - a for a, b in windows) / _LEVELS, _FINEST_RATIO * value)
    edges: list[tuple[float, float]] = []
    for a, b in windows:
        marks = np.linspace(a, b, max(1, math.ceil((b - a) / width)) + 1)
        edges += list(zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True))
    return edges


def _covers(
    n_stages: int,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    price: NDArray[np.float64],
    value: float,
    short: float,
) -> bool:
    """Whether stages of at most this load can cover all compute: how far the cut after each stage may lie, level by level."""
    reach = np.full(len(low), -math.inf)
    reach[0] = 0.0
    both = value - price[:, None] - price[None, :]
    step = np.maximum(both, short)
    step[:, ~np.isfinite(price)] = -math.inf
    for _ in range(n_stages):
        after = np.minimum((reach[:, None] + step).max(axis=0), high)
        after[after < low] = -math.inf
        reach = np.maximum(reach, after)
    return bool(reach[-1] >= high[-1] * (1 - 1e-12))
