"""Where to cut one topological order into stages: every position may be a cut, one tensor degree serves all stages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from meshwright._kernels.pipeline import fill as kernel
from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["cuts"]

CLOSE_RATIO = 1e-4
"""Relative distance of thresholds at which the search ends."""


def cuts(menu: StageMenu, order: Sequence[int], degree: int, lower_seconds: float) -> tuple[float, tuple[int, ...]]:
    """Return the threshold reached along an order, and where its stages begin.

    `order`: a topological order.
    `degree`: position of the tensor degree of all stages.
    `lower_seconds`: a lower bound, where the search starts.

    Returns
    -------
    seconds : float
        About the time of the slowest stage; infinite where nothing fits.
    positions : tuple of int
        Ascending; 0 is the first.
    """
    line = _line(menu, order, degree)
    n_devices = min(menu.n_devices // int(menu.degrees[degree]), menu.n_replicas)
    options = menu.replicas <= n_devices
    replicas, share = menu.replicas[options], menu.share[options]
    if line is None or not len(replicas):
        return math.inf, ()
    reduce = np.ascontiguousarray(menu.reduce_seconds[degree, options])
    spared = menu.sharded * (1.0 - 1.0 / replicas)
    memory = menu.memory_bytes - (0.0 if menu.reserve_bytes is None else float(menu.reserve_bytes[degree]))

    def attempt(seconds: float) -> tuple[int, ...]:
        begin, option = kernel.fill(line, replicas, share, reduce, spared, memory, n_devices, seconds)
        at = int(np.searchsorted(-begin, 0))  # the fewest replicas that reach the first node
        if at > n_devices:
            return ()
        positions = []
        while begin[at] < len(order):
            if option[at] < 0:
                at -= 1
                continue
            positions.append(int(begin[at]))
            at -= int(replicas[option[at]])
        return tuple(positions)

    best = attempt(math.inf)
    if not best:
        return math.inf, ()
    low, high, growth = lower_seconds, lower_seconds * 1.01, 1.3
    while not (best_here := attempt(high)):
        low, high, growth = high, min(high * growth, 1e300), growth if high < 1e3 * lower_seconds else growth * growth
    best = best_here
    while high > low * (1.0 + CLOSE_RATIO):
        middle = math.sqrt(low * high)
        found = attempt(middle)
        if found:
            best, high = found, middle
        else:
            low = middle
    return high, best


def _line(menu: StageMenu, order: Sequence[int], degree: int) -> kernel.Line | None:
    """Return the nodes of an order in the kernel's form, or None where one does not support the degree."""
    n = menu.n_nodes
    ids = [menu.choices(v, degree) for v in order]
    if min(len(some) for some in ids) == 0:
        return None
    first = np.zeros(n + 1, np.int64)
    np.cumsum([len(some) for some in ids], out=first[1:])
    flat = np.concatenate([np.asarray(some) for some in ids])
    seconds = menu.seconds[flat]
    fast = np.array([a + int(np.argmin(seconds[a:b])) for a, b in itertools.pairwise(first)], np.int64)
    position = np.empty(n, np.int64)
    position[list(order)] = np.arange(n)
    source, target = position[menu.edge_source], position[menu.edge_target]
    edge_first, by_node = downsets.groups(np.concatenate([source, target]), n)
    ends = np.concatenate([target, -1 - source])[by_node]
    costs = np.concatenate([menu.edge_seconds, menu.edge_seconds])[by_node]
    arrays = (
        first, fast, seconds, menu.weight_bytes[flat], menu.per_microbatch_bytes[flat], menu.fixed_bytes[flat],
        edge_first, ends, costs,
    )  # fmt: skip
    for array in arrays:
        array.setflags(write=False)
    return kernel.Line(*arrays)
