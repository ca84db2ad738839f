"""Betters a convex partition by annealing: units wander between neighbouring stages, with those that must go along."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.partition import annealing as kernel
from meshwright.solvers.partition.hypergraph import Units, loads_of

__all__ = ["annealed"]

_RUNS = ((24, 8.0, 0.3), (24, 16.0, 0.3), (24, 16.0, 1.0), (16, 32.0, 1.0))
"""Most units of a move, power of the loads, first temperature: which does best differs from graph to graph."""

_MOVES_PER_UNIT, _MOST_MOVES = 2_400, 3_000_000

Groups = tuple[tuple[int, ...], ...]


def annealed(
    units: Units, groups: Groups, *, scales: NDArray[np.float64], memory_limit_bytes: float = math.inf, seed: int = 0
) -> Groups:
    """Return the best partition of a few runs of annealing.

    Parameters
    ----------
    units : Units
        The graph.
    groups : tuple of tuple of int
        Units of each stage, in order, all on accelerators.
    scales : ndarray, shape (2, n_stages), float64
        Factors on compute and communication of each stage.
    memory_limit_bytes : float
        Of one accelerator.
    seed : int
        Of the moves.

    Returns
    -------
    tuple of tuple of int
        Never with a larger largest load than `groups`.
    """
    n_stages = len(groups)
    kinds = (False,) * n_stages
    begin = np.empty(len(units), dtype=np.int64)
    for s, group in enumerate(groups):
        begin[list(group)] = s
    best, value = groups, max(loads_of(units, groups, kinds, scales))
    n_moves = min(_MOVES_PER_UNIT * len(units), _MOST_MOVES)
    for random, (most_units, power, temperature) in zip(np.random.default_rng(seed).spawn(len(_RUNS)), _RUNS, strict=True):
        cooling = np.array([temperature, 0.01 * temperature])
        stage = kernel.anneal(
            units.arrays, begin.copy(), scales, memory_limit_bytes, n_moves, power, cooling, most_units, random
        )
        new = tuple(tuple(np.flatnonzero(stage == s).tolist()) for s in range(n_stages))
        reached = max(loads_of(units, new, kinds, scales))
        if reached < value:
            best, value = new, reached
    return best
