"""The ways of a rank's layers to recompute, and what the rank holds by what is chosen, for the check of answers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best.check.prices import MEMORY_ROUNDING, LayerPrices, PricedLayer, Table
from meshwright.planners.best.check.rank_memory import least_program
from meshwright.planners.best.check.virtual_stages import Beside

__all__ = ["RankWays"]


class RankWays:
    """Each layer of a rank with its ways to recompute, and what the rank holds by what is chosen.

    Parameters
    ----------
    prices : LayerPrices
        Of the pool.
    stages : list
        The layers of every stage of the rank, as `stage_rows` returns them.
    table : Table
        The rank's prices.
    moments : tuple
        What it holds, as `moments_of` says.
    beside : tuple or None
        What it holds while two tasks run beside each other, as `beside_of` says.
    """

    def __init__(
        self,
        prices: LayerPrices,
        stages: list[list[tuple[int, bool]]],
        table: Table,
        moments: tuple[NDArray[np.float64], NDArray[np.int64]],
        beside: Beside | None = None,
    ) -> None:
        self.words, self.moments, self.n_stages, self.beside = prices.words(table), moments, len(stages), beside
        self.at = [i for i, rows in enumerate(stages) for _ in rows]
        self.pinned = [prices.pinned_word(row) if fixed else "" for rows in stages for row, fixed in rows]
        ways: list[list[PricedLayer]] = [
            [table[row, prices.pinned_word(row) if fixed else word] for word in self.words]
            for rows in stages
            for row, fixed in rows
        ]
        self.kept, self.working, self.reserved, self.work = (
            np.array([[getattr(layer, name) for layer in own] for own in ways])
            for name in ("kept_bytes", "working_bytes", "reserved_bytes", "work")
        )
        self.ways, self.static = ways, sum(own[0].static_bytes for own in ways)

    def peak(self, choice: NDArray[np.int64]) -> float:
        """Return what the rank holds at the most; `choice`: of every layer, the place of its way among the words."""
        every, widest = np.arange(len(choice)), np.zeros(self.n_stages)
        times, place = self.moments
        np.maximum.at(widest, self.at, self.working[every, choice])
        kept = np.bincount(self.at, self.kept[every, choice], self.n_stages)
        moving = float((times @ kept + widest[place]).max())
        if self.beside is not None and len(self.beside[0]):
            moving = max(moving, float((self.beside[0] @ kept + widest[self.beside[1]].sum(axis=1)).max()))
        return float(self.static + self.reserved[every, choice].max() + moving)

    def least_work(self, memory_bytes: float, counted: int | None = None) -> float:
        """Return what the rank recomputes of a micro-batch at least, in seconds, so that it fits; inf where nothing does.

        `counted`: one of its stages, whose layers' seconds alone count; None for all.
        """
        if self.peak(np.zeros(len(self.at), dtype=np.int64)) <= memory_bytes:
            return 0.0
        alike: dict[tuple[int, tuple[PricedLayer, ...]], int] = {}
        for stage, ways in zip(self.at, self.ways, strict=True):
            alike[stage, tuple(ways)] = alike.get((stage, tuple(ways)), 0) + 1
        sorts = [(stage, count, ways) for (stage, ways), count in alike.items()]
        return least_program(sorts, *self.moments, memory_bytes * (1.0 + MEMORY_ROUNDING) - self.static, counted)

    def rule(self, memory_bytes: float) -> list[str] | None:
        """Return what the layers recompute by the rule of the space: the least work that fits; None where nothing does.

        For every number of layers that recompute the most, as few as possible of the others recompute their cheap activations; layers
        of stages that are held most often at the fullest moment come first.
        """
        nothing = np.zeros(len(self.at), dtype=np.int64)
        best: NDArray[np.int64] | None = nothing if self.peak(nothing) <= memory_bytes else None
        times = self.moments[0]
        fullest = int(np.argmax(times @ np.bincount(self.at, self.kept[:, 0], self.n_stages)))
        free = [i for i, word in enumerate(self.pinned) if not word]
        free.sort(key=lambda i: (-times[fullest, self.at[i]], i))
        strongest, least = len(self.words) - 1, math.inf
        for n_strong in range(len(free) + 1) if best is None and strongest else ():
            trial = nothing.copy()
            trial[free[:n_strong]] = strongest
            if self._extra(trial) >= least:
                break
            for weak in [*(free[n_strong:] if strongest == 2 else []), None]:
                if self.peak(trial) <= memory_bytes:
                    seconds = self._extra(trial)
                    if seconds < least:
                        least, best = seconds, trial.copy()
                    break
                if weak is not None:
                    trial[weak] = 1
        if best is None:
            return None
        return [word or self.words[i] for i, word in zip(best.tolist(), self.pinned, strict=True)]

    def _extra(self, choice: NDArray[np.int64]) -> float:
        """Return the work beyond that of nothing chosen."""
        return float((self.work[np.arange(len(choice)), choice] - self.work[:, 0]).sum())
