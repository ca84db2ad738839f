"""The published stage mapper: bisection on the largest cost, each target searched depth first."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.mapping import search
from meshwright.solvers.mapping.bounds import lower_bound
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import evaluate

__all__ = ["FoundMapping", "backtrack"]


@dataclass(frozen=True, slots=True, eq=False)
class FoundMapping:
    """A mapping and the work it took.

    Parameters
    ----------
    devices : ndarray, shape (n_stages, n_replicas), int64
        The mapping.
    seconds : float
        Its largest cost in the terms that were counted.
    finished : bool
        Whether no search gave up.
    n_searches, n_placements : int
        Depth-first searches, and devices tried in all of them.
    """

    devices: NDArray[np.int64]
    seconds: float
    finished: bool
    n_searches: int = 0
    n_placements: int = 0


def backtrack(
    graph: StageGraph,
    seconds_per_byte: NDArray[np.float64],
    starts: Sequence[NDArray[np.int64]],
    n_targets: int = 1,
    n_same_target: int = 1,
    n_nodes: int = 300_000,
    n_rounds: int = 12,
    timeout_seconds: float = math.inf,
) -> FoundMapping:
    """Bisect the largest cost between a lower bound and the best start.

    Parameters
    ----------
    graph : StageGraph
        What to map, with the terms that count.
    seconds_per_byte : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte between devices.
    starts : sequence of ndarray, shape (n_stages, n_replicas)
        Mappings for the upper end.
    n_targets : int
        Targets of one round, dividing the interval evenly.
    n_same_target : int
        Searches of one target, each trying devices in another order.
    n_nodes : int
        Placements after which one search gives up.
    n_rounds : int
        Rounds.
    timeout_seconds : float
        After so long, what is under way gives up and no further search begins.

    Returns
    -------
    FoundMapping
        The best mapping.

    References
    ----------
    .. [1] L. Liu et al., Parmesan, IEEE TCAD 2024, section V, algorithms 1 and 2, equations (10) and (11).
    """
    packed = graph.arrays(seconds_per_byte)
    n, n_replicas = len(seconds_per_byte), graph.n_replicas
    best = min(
        (evaluate(graph, seconds_per_byte, devices, fixed_rings=True) for devices in starts), key=lambda one: one.seconds
    )
    devices, high = best.devices, best.seconds
    low, finished = lower_bound(graph, seconds_per_byte), True
    order = np.arange(graph.n_stages * n_replicas).reshape(graph.n_stages, n_replicas).T.ravel().copy()
    n_searches = n_placements = 0
    clock = _Clock(time.monotonic(), timeout_seconds)
    for _ in range(n_rounds):
        if high <= low * (1 + 1e-3):
            break
        floor, improved = low, False
        for target in np.linspace(low, high, n_targets + 2)[1:-1]:
            outcome = math.inf
            complete = False
            for turn in range(n_same_target):
                allowed = min(n_nodes, clock.placements(n_placements))
                if allowed < 1:
                    break
                turned = np.roll(np.arange(n), -(turn * n) // n_same_target)
                table = np.ascontiguousarray(seconds_per_byte[np.ix_(turned, turned)])
                table.setflags(write=False)
                place, value, visited = search.branch(
                    packed._replace(seconds_per_byte=table), order, n_replicas, allowed, float(target)
                )
                n_searches, n_placements = n_searches + 1, n_placements + int(visited)
                complete = complete or visited <= allowed
                if math.isfinite(value):
                    devices, outcome = turned[place].reshape(graph.n_stages, n_replicas), float(value)
                    break
            if math.isfinite(outcome):
                high, improved = outcome, True
                break
            if complete:
                floor = max(floor, float(target))
            else:
                finished = False
        if floor == low and not improved:
            break  # every target gave up: nothing is learned by asking again
        low = floor
    return FoundMapping(np.ascontiguousarray(devices), high, finished, n_searches, n_placements)


@dataclass(frozen=True, slots=True)
class _Clock:
    """A timeout told in placements, which a search counts anyway."""

    begun_seconds: float
    timeout_seconds: float

    def placements(self, n_so_far: int) -> int:
        """Return how many placements fit into the time left, at the rate so far."""
        if math.isinf(self.timeout_seconds):
            return 1 << 62
        passed = time.monotonic() - self.begun_seconds
        rate = n_so_far / passed if n_so_far else 1e5
        return max(0, int(rate * (self.timeout_seconds - passed)))
