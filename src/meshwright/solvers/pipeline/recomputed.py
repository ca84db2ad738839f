"""The least work that the layers of a rank must recompute to fit its memory at several moments: an integer program."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.integer_program import ProgramRow, solve

__all__ = ["RankSorts", "least_recomputed"]

_MOST_NODES = 2000  # of the branch and bound; what it proves until then holds
_ROUNDING = (
    4e-6  # share by which HiGHS may miss a row and what it proves (1e-6), and that much again for whoever proves it anew
)


class RankSorts(NamedTuple):
    """Layers of a rank by sort, with their ways to recompute: like layers of one of its stages are one sort.

    Parameters
    ----------
    n_layers : ndarray, shape (n_sorts,), int64
        Layers of each sort.
    stage : ndarray, shape (n_sorts,), int64
        Which of the rank's stages they are in.
    kept_bytes, working_bytes, reserved_bytes, extra_seconds : ndarray, shape (n_ways, n_sorts), float64
        Of one layer: kept of a micro-batch; needed while the stage works, and held by the process all the time, of which the
        largest counts; what the way takes longer than the first one.
    """

    n_layers: NDArray[np.int64]
    stage: NDArray[np.int64]
    kept_bytes: NDArray[np.float64]
    working_bytes: NDArray[np.float64]
    reserved_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]


def least_recomputed(sorts: RankSorts, held: NDArray[np.float64], at: NDArray[np.int64], room_bytes: float) -> float:
    """Return a lower bound on the seconds of a micro-batch that a rank recomputes, whatever each of its layers does.

    Parameters
    ----------
    sorts : RankSorts
        The layers.
    held : ndarray, shape (n_moments, n_stages), float64
        Micro-batches of each stage that are held at each moment.
    at : ndarray, shape (n_moments,), int64
        The stage at work.
    room_bytes : float
        Memory less what the layers hold all the time whatever they recompute.

    Returns
    -------
    float
        Seconds; inf where nothing fits.

    Notes
    -----
    Lemma: a choice of ways is a number of layers for every sort and way. It fits where at every moment what is kept of each
    stage, as often as it is held, the most that a layer of the stage at work needs and the most that any layer reserves are
    within the room. Those are the rows of this program; so its least, and every bound on it that the solver proves before it
    stops, is below the work of every choice that fits. Rows are loosened by what the solver may miss them by. Plans that
    differ in what is sharded often ask the same, so answers are remembered.
    """
    return _least(_Asked(sorts, held, at, float(room_bytes)))


class _Asked:
    """A question as the key of a memo: equal to one with the same numbers."""

    __slots__ = ("_numbers", "at", "held", "room_bytes", "sorts")

    def __init__(self, sorts: RankSorts, held: NDArray[np.float64], at: NDArray[np.int64], room_bytes: float) -> None:
        self.sorts, self.held, self.at, self.room_bytes = sorts, held, at, room_bytes
        self._numbers = (*(own.tobytes() for own in (*sorts, held, at)), held.shape, room_bytes)

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self._numbers == other._numbers


@lru_cache(maxsize=256)
def _least(asked: _Asked) -> float:
    """Return `least_recomputed`."""
    sorts, held, at, room_bytes = asked.sorts, asked.held, asked.at, asked.room_bytes
    n_ways, n_sorts = sorts.kept_bytes.shape
    n_stages, scale = held.shape[1], max(abs(room_bytes), 1.0)
    n_counts = n_ways * n_sorts  # counts by way and sort, then whether any is chosen, then the largest of what is shared
    n_variables = 2 * n_counts + 1 + n_stages
    largest = 2 * n_counts
    every = np.arange(n_counts)
    sort_of = every % n_sorts
    rows: list[ProgramRow] = []
    for sort in range(n_sorts):
        own = every[sort_of == sort]
        rows.append(ProgramRow(own, np.ones(n_ways), float(sorts.n_layers[sort]), float(sorts.n_layers[sort])))
    for i in every.tolist():
        way, sort = divmod(i, n_sorts)
        shared = ((sorts.reserved_bytes, largest), (sorts.working_bytes, largest + 1 + int(sorts.stage[sort])))
        rows.append(ProgramRow(np.array([i, n_counts + i]), np.array([1.0, -float(sorts.n_layers[sort])]), -np.inf, 0.0))
        for n_bytes, most in shared:
            rows.append(ProgramRow(np.array([n_counts + i, most]), np.array([n_bytes[way, sort] / scale, -1.0]), -np.inf, 0.0))
    for times, stage in zip(held, at.tolist(), strict=True):
        kept = (times[sorts.stage] * sorts.kept_bytes / scale).ravel()
        columns = np.concatenate((every, [largest, largest + 1 + stage]))
        rows.append(ProgramRow(columns, np.concatenate((kept, [1.0, 1.0])), -np.inf, room_bytes / scale + _ROUNDING))
    extra = np.maximum(sorts.extra_seconds, 0.0)
    price = extra.max(initial=0.0)
    if price == 0.0:
        return 0.0
    cost = np.zeros(n_variables)
    cost[:n_counts] = (extra / price).ravel()
    upper = np.full(n_variables, np.inf)
    upper[n_counts:largest] = 1.0
    found = solve(cost, np.arange(n_variables) < largest, upper, rows, most_nodes=_MOST_NODES)
    if found.infeasible:
        return np.inf
    proven = found.bound or 0.0
    return max(0.0, proven * (1.0 - _ROUNDING) - _ROUNDING) * float(price)
