"""Betters a convex partition by cutting two neighbouring stages anew, exactly, wherever one of them is the most loaded."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.partition.cut_programs import halve
from meshwright.solvers.partition.hypergraph import Units, loads_of

__all__ = ["recut"]

_GAIN = 1e-6  # relative; less than this is the solver's tolerance

Groups = tuple[tuple[int, ...], ...]


def recut(
    units: Units,
    groups: Groups,
    *,
    scales: NDArray[np.float64] | None = None,
    memory_limit_bytes: float = math.inf,
    n_programs: int = 12,
) -> Groups:
    """Return a partition whose largest load no new cut near that between two neighbours lowers, or the best after so many cuts.

    `groups`: units of each stage, in order, all on accelerators.
    `scales`, shape (2, n_stages), float64, or None: factors on compute and communication of each stage.
    `memory_limit_bytes`: of one accelerator.
    `n_programs`: most integer programs to solve.
    Returns: never with a larger largest load than `groups`.

    Notes
    -----
    A pair is cut anew where that lowers the larger of its two loads, most loaded pairs first: slack wanders from stage to stage
    until the largest load can fall. A pair that did not change is not tried again before one of its neighbours did.
    """
    n_stages = len(groups)
    if n_stages < 2:
        return groups
    factors = np.ones((2, n_stages)) if scales is None else np.asarray(scales, dtype=np.float64)
    kinds = (False,) * n_stages
    now = [tuple(group) for group in groups]
    loads = list(loads_of(units, tuple(now), kinds, scales))
    settled = [False] * (n_stages - 1)
    for _ in range(n_programs):
        open_ = [s for s in range(n_stages - 1) if not settled[s]]
        if not open_:
            break
        s = max(open_, key=lambda k: (max(loads[k], loads[k + 1]), -k))
        settled[s] = True
        limit = max(loads[s], loads[s + 1])
        if limit <= 0.0:
            continue  # nothing to lower
        members = np.array(sorted((*now[s], *now[s + 1])), dtype=np.int64)
        pair = np.ascontiguousarray(factors[:, s : s + 2])
        in_first = np.isin(members, now[s])
        chosen, _ = halve(units, members, pair, limit * (1 - _GAIN), memory_limit_bytes, in_first=in_first)
        if chosen is None:
            continue
        halves = (members[chosen], members[~chosen])
        if any(math.fsum(units.arrays.memory[part]) > memory_limit_bytes for part in halves):
            continue  # within the solver's tolerance only
        trial = list(now)
        trial[s], trial[s + 1] = (tuple(part.tolist()) for part in halves)
        new = loads_of(units, tuple(trial), kinds, scales)
        if max(new[s], new[s + 1]) < limit * (1 - 0.1 * _GAIN) and max(new) <= max(loads) * (1 + 1e-12):
            now, loads = trial, list(new)
            for k in range(max(s - 1, 0), min(s + 2, n_stages - 1)):
                settled[k] = k == s
    return tuple(now)
