"""What a pipeline rank holds at its fullest moments, and what its layers recompute so that it fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.stage_cost import StageCost
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions
from meshwright.solvers.pipeline.recomputed import RankSorts, least_recomputed

__all__ = ["ROUNDING_RATIO", "Peaks", "RankLayers", "RowFigures", "least_peaks", "peaks_of"]

ROUNDING_RATIO = 1e-12
"""Share of a device's memory by which sums in another order may differ: bounds take that much more, so that what just fits, fits."""

_MOST_COMPARED = 256  # moments of a rank that are compared with each other


@dataclass(frozen=True, slots=True, eq=False)
class Peaks:
    """Moments of a step at which ranks hold the most: micro-batches of each of a rank's stages, and the stage at work.

    Parameters
    ----------
    held : ndarray, shape (n_ranks, n_moments, n_chunks), float64
        Micro-batches of which each stage holds activations.
    at : ndarray, shape (n_ranks, n_moments), int64
        Which of the rank's stages is at work.
    beside : ndarray, shape (n_ranks, n_moments), int64, or None
        Which of them is at work beside it, -1 for none; None where tasks never run in pairs.
    """

    held: NDArray[np.float64]
    at: NDArray[np.int64]
    beside: NDArray[np.int64] | None = None


@lru_cache(maxsize=1024)
def least_peaks(schedule: str, n_ranks: int, n_chunks: int, n_microbatches: int) -> Peaks:
    """Return moments that every plan of a configuration goes through, whatever the durations, holding at least so much.

    Parameters
    ----------
    schedule : str
        Its name.
    n_ranks, n_chunks, n_microbatches : int
        Pipeline ranks, stages of each, micro-batches of a step.

    Notes
    -----
    Lemma: where the backward pass is one task, the order does not depend on durations, and this is what is held. Under ZB-H1 it is
    (and ZB-H2) the most that the schedule allows, as the space asks. Under ZB-V, V-Half and V-Min weight gradients are tasks of
    their own that go where ranks wait, but forward tasks and input gradients stay in the order of the hand-made schedule (`schedules._fitted.shortest`). An
    activation is held at least to the end of its input gradient, so with those alone freeing memory no order holds less. Under
    DualPipe-V the order is given; it puts weight gradients off only where the rank has held more before, so this is what is held.

    With virtual stages more micro-batches than three times the ranks are left out: the steady state repeats group by group, and
    all moments before the last forward task are those of the longer step too. Breadth first, all micro-batches of a stage are held
    where one is in a step of one.
    """
    if n_chunks == 1:
        own = schedules.load(schedule).in_flight(n_ranks, 1, n_microbatches)
        return Peaks(own.astype(np.float64)[:, None, None], np.zeros((n_ranks, 1), dtype=np.int64))
    if schedule == "looped_bfs":
        one = peaks_of(schedules.load(schedule).order(n_ranks, n_chunks, 1, None))
        return Peaks(np.asarray(n_microbatches * one.held, dtype=np.float64), one.at)
    return peaks_of(schedules.load(schedule).order(n_ranks, n_chunks, min(n_microbatches, 3 * n_ranks), None), least=True)


def peaks_of(slots: Actions, *, least: bool = False) -> Peaks:
    """Return the moments of an order of work at which ranks hold the most.

    Parameters
    ----------
    slots : Actions
        The order.
    least : bool
        Whether activations go with the input gradient, as early as any order of the schedule could free them.
    """
    n_ranks = slots.n_ranks
    n_chunks = slots.n_stages // n_ranks
    chunk, phase, first = slots.stage // n_ranks, slots.phase, slots.first
    beside = np.full(len(chunk), -1)
    beside[slots.pairs], beside[slots.pairs + 1] = chunk[slots.pairs + 1], chunk[slots.pairs]
    if least:
        kept = phase != BACKWARD_WEIGHT
        chunk, phase, first = chunk[kept], phase[kept], np.concatenate(([0], np.cumsum(kept)))[first]
        beside = beside[kept]
    own = chunk[:, None] == np.arange(n_chunks)
    freed = own & ((phase == BACKWARD) | (phase == (BACKWARD_INPUT if least else BACKWARD_WEIGHT)))[:, None]
    held = np.cumsum(own & (phase == FORWARD)[:, None], axis=0)  # every rank ends with as many freed as taken
    held[1:] -= np.cumsum(freed, axis=0)[:-1]
    ranks = [slice(start, stop) for start, stop in itertools.pairwise(first.tolist())]
    working = chunk + n_chunks * (beside + 1)
    moments = [_fullest(held[rank], working[rank]) + rank.start for rank in ranks]
    n_most = max(len(moment) for moment in moments)
    index = np.stack([np.concatenate((moment, np.full(n_most - len(moment), moment[0]))) for moment in moments])
    return Peaks(held[index].astype(np.float64), chunk[index], beside[index] if len(slots.pairs) else None)


def _fullest(held: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of moments that no other one exceeds in everything with the same stage at work."""
    if held.shape[1] == 1:
        return np.asarray(np.argmax(held, axis=0))
    # moments alike have one number; that different ones share it is so unlikely that it may only prove less
    number = held @ np.random.default_rng(0).integers(1, 2**40, held.shape[1]) + at
    _, first = np.unique(number, return_index=True)
    if len(first) > _MOST_COMPARED:
        return np.asarray(first)
    mine, stage = held[first], at[first]
    more = stage[None] == stage[:, None]
    for chunk in mine.T:  # one after the other: NumPy is slow along an axis of two
        more &= chunk[None] >= chunk[:, None]
    np.fill_diagonal(more, False)  # no two are equal
    return np.asarray(first[~more.any(axis=1)])


@dataclass(frozen=True, slots=True, eq=False)
class RowFigures:
    """What every distinct layer holds on one class of ranks: rows are what it may recompute, columns distinct layers.

    Parameters
    ----------
    words : tuple of str
        What the rows are, the least recomputation first.
    place : mapping of int to int
        The column of each distinct layer.
    is_pinned : ndarray, shape (n_distinct,), bool
        These recompute nothing, whatever the row.
    static_bytes, kept_bytes, working_bytes, reserved_bytes, extra_seconds : ndarray, shape (n_words, n_distinct), float64
        As in `RankLayers`.
    """

    words: tuple[str, ...]
    place: Mapping[int, int]
    is_pinned: NDArray[np.bool_]
    static_bytes: NDArray[np.float64]
    kept_bytes: NDArray[np.float64]
    working_bytes: NDArray[np.float64]
    reserved_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]

    @classmethod
    def of(cls, stage_costs: dict[tuple[int, str], StageCost], words: tuple[str, ...], pinned: set[int]) -> RowFigures:
        """Return the figures of a class of ranks from its loads."""
        rows = sorted({row for row, _ in stage_costs})
        own = [[stage_costs[row, "none" if row in pinned else word] for row in rows] for word in words]

        def column(name: str) -> NDArray[np.float64]:
            return np.array([[getattr(load, name) for load in way] for way in own])

        busy = column("forward_total_seconds") + column("backward_total_seconds")
        return cls(
            words, {row: i for i, row in enumerate(rows)}, np.array([row in pinned for row in rows], dtype=np.bool_),
            column("static_bytes"), column("activation_bytes"), column("working_bytes"), column("reserved_bytes"),
            busy - busy[0],
        )  # fmt: skip

    def layers(
        self,
        rows: list[tuple[int, ...]],
        held: NDArray[np.float64],
        at: NDArray[np.int64],
        beside: NDArray[np.int64] | None = None,
    ) -> RankLayers:
        """Return the layers of a rank, for the distinct layers of each of its stages and its fullest moments."""
        columns = np.array([self.place[row] for stage in rows for row in stage], dtype=np.int64)
        return RankLayers(
            self.words, self.is_pinned[columns], np.repeat(np.arange(len(rows)), [len(stage) for stage in rows]),
            self.static_bytes[0, columns], self.kept_bytes[:, columns], self.working_bytes[:, columns],
            self.reserved_bytes[:, columns], self.extra_seconds[:, columns], held, at, beside,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class RankLayers:
    """The layers of a rank, pinned ones included: rows are what they may recompute, columns layers.

    Parameters
    ----------
    words : tuple of str
        What the rows are, the least recomputation first.
    is_pinned : ndarray, shape (n_layers,), bool
        These recompute nothing, whatever the row.
    stage : ndarray, shape (n_layers,), int64
        Which of the rank's stages each layer is in.
    static_bytes : ndarray, shape (n_layers,), float64
        Held all the time.
    kept_bytes, working_bytes, reserved_bytes, extra_seconds : ndarray, shape (n_words, n_layers), float64
        Kept of one micro-batch; needed while the layer's stage works, and held all the time by the process: the largest counts;
        what the row takes longer than the first one.
    held : ndarray, shape (n_moments, n_chunks), float64
        As in `Peaks`.
    at : ndarray, shape (n_moments,), int64
        As in `Peaks`.
    beside : ndarray, shape (n_moments,), int64, or None
        As in `Peaks`; what must be recomputed at least (`least_work`) is found without it, which proves less.
    """

    words: tuple[str, ...]
    is_pinned: NDArray[np.bool_]
    stage: NDArray[np.int64]
    static_bytes: NDArray[np.float64]
    kept_bytes: NDArray[np.float64]
    working_bytes: NDArray[np.float64]
    reserved_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]
    held: NDArray[np.float64]
    at: NDArray[np.int64]
    beside: NDArray[np.int64] | None = None

    def peak_bytes(self, choice: NDArray[np.int64]) -> float:
        """Return the most that one device holds for a choice of each layer: the simulator's count at these moments."""
        every = np.arange(len(choice))
        return self._peak(self.kept_bytes[choice, every], self.working_bytes[choice, every], self.reserved_bytes[choice, every])

    @property
    def least_bytes(self) -> float:
        """What one device holds at least, whatever its layers recompute.

        Lemma: at each moment the largest working memory of the layers of the stage at work is that of some way to recompute one of
        them, so each of these keeps no less than by the best of its ways that need no more; layers of other stages keep their least, and
        every layer reserves its least. A stage at work beside it needs at least the most that any of its layers does in its way that
        needs the least. The fullest moment is the one of which this is most.
        """
        n_chunks, least = self.held.shape[1], self.kept_bytes.min(axis=0)
        kept = np.bincount(self.stage, least, n_chunks)
        needs = []
        for stage in range(n_chunks):
            own = self.stage == stage
            keeps, working = self.kept_bytes[:, own], self.working_bytes[:, own]
            widest = np.unique(working)
            widest = widest[widest >= working.min(axis=0).max(initial=0.0)]
            allowed = np.where(working <= widest[:, None, None], keeps, np.inf)
            needs.append((allowed.min(axis=1, initial=np.inf).sum(axis=1) - kept[stage], widest))
        moving = [
            held @ kept + (float((held[at] * needs[at][0] + needs[at][1]).min()) if len(needs[at][1]) else 0.0)
            for held, at in zip(self.held, self.at.tolist(), strict=True)
        ]
        if self.beside is not None:
            low = [float(self.working_bytes[:, self.stage == stage].min(axis=0).max(initial=0.0)) for stage in range(n_chunks)]
            moving = [
                own + (low[stage] if stage >= 0 else 0.0) for own, stage in zip(moving, self.beside.tolist(), strict=True)
            ]
        return float(self.static_bytes.sum() + self.reserved_bytes.min(axis=0).max() + max(moving))

    def least_work(self, memory_bytes: float, stage: int | None = None) -> float:
        """Return the least that the layers recompute of a micro-batch, in seconds, so that the rank fits; inf where nothing does.

        `stage`: one of its stages, of which alone the seconds count; None for all.

        Lemma: that of `least_recomputed`, of layers that are alike in every figure and of one stage counted together.
        """
        if self.peak_bytes(np.zeros(len(self.stage), dtype=np.int64)) <= memory_bytes:
            return 0.0
        extra = self.extra_seconds if stage is None else np.where(self.stage == stage, self.extra_seconds, 0.0)
        figures = (self.kept_bytes, self.working_bytes, self.reserved_bytes, extra)
        columns = np.vstack((self.stage, *figures)).T
        own, count = np.unique(columns, axis=0, return_counts=True)
        of_sort = np.asarray(own[:, 1:].T, dtype=np.float64).reshape(4, len(self.words), -1)
        sorts = RankSorts(count, own[:, 0].astype(np.int64), of_sort[0], of_sort[1], of_sort[2], of_sort[3])
        return least_recomputed(sorts, self.held, self.at, memory_bytes - float(self.static_bytes.sum()))

    def _peak(self, kept: NDArray[np.float64], working: NDArray[np.float64], reserved: NDArray[np.float64]) -> float:
        n_chunks = self.held.shape[1]
        if n_chunks == 1:
            moving = float(self.held.max() * kept.sum() + working.max())
        else:
            widest = np.zeros(n_chunks)
            np.maximum.at(widest, self.stage, working)
            moving = float((self.held @ np.bincount(self.stage, kept, n_chunks) + self._at_work(widest[None])[0]).max())
        return float(self.static_bytes.sum() + reserved.max()) + moving

    def chosen(self, memory_bytes: float) -> list[str] | None:
        """Return what each layer recomputes: the least work that fits, exact for like layers of one stage; None where none does.

        Notes
        -----
        For every number of layers that recompute everything, as few as possible of the others recompute their cheap activations.
        With virtual stages, layers come in the order of the micro-batches that their stage holds at the fullest moment.
        """
        none = np.zeros(len(self.stage), dtype=np.int64)
        best: NDArray[np.int64] | None = none
        if self.peak_bytes(none) > memory_bytes:
            best, least = None, math.inf
            free, strongest = self._in_order(), len(self.words) - 1
            for n_strong in range(len(free) + 1):
                trial = none.copy()
                trial[free[:n_strong]] = strongest
                if float(self.extra_seconds[strongest, free[:n_strong]].sum()) >= least:
                    break
                others = free[n_strong:] if strongest == 2 else free[:0]
                fitting = np.flatnonzero(self._peaks_along(trial, others) <= memory_bytes)
                if not len(fitting):
                    continue
                trial[others[: fitting[0]]] = 1
                work = float(self.extra_seconds[trial, np.arange(len(trial))].sum())
                if work < least:
                    least, best = work, trial
        if best is None:
            return None
        return ["none" if pinned else self.words[i] for i, pinned in zip(best.tolist(), self.is_pinned.tolist(), strict=True)]

    def _peaks_along(self, choice: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the peak when none, one, two, ... of some layers recompute their cheap activations; shape (n_others + 1,)."""
        every, n_chunks = np.arange(len(choice)), self.held.shape[1]
        steps = len(others) + 1
        kept, widest = np.zeros((steps, n_chunks)), np.zeros((steps, n_chunks))
        reserved = np.full(steps, self.reserved_bytes[choice, every].max())
        kept[0] = np.bincount(self.stage, self.kept_bytes[choice, every], n_chunks)
        is_other = np.zeros(len(choice), dtype=np.bool_)
        is_other[others] = True
        stays = every[~is_other]
        np.maximum.at(widest[0], self.stage[stays], self.working_bytes[choice[stays], stays])
        if len(others):
            stage = self.stage[others]
            moved = np.zeros((steps, n_chunks))
            moved[np.arange(1, steps), stage] = self.kept_bytes[1, others] - self.kept_bytes[0, others]
            kept = kept[0] + np.cumsum(moved, axis=0)
            reserved[1:] = np.maximum(reserved[0], np.maximum.accumulate(self.reserved_bytes[1, others]))
            before, after = np.zeros((steps, n_chunks)), np.zeros((steps, n_chunks))
            after[np.arange(1, steps), stage] = self.working_bytes[1, others]
            before[np.arange(steps - 1), stage] = self.working_bytes[0, others]
            widest = np.maximum(
                np.maximum(widest[0], np.maximum.accumulate(after, axis=0)),
                np.maximum.accumulate(before[::-1], axis=0)[::-1],
            )
        return np.asarray(float(self.static_bytes.sum()) + reserved + (kept @ self.held.T + self._at_work(widest)).max(axis=1))

    def _at_work(self, widest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the stages at work need at every moment, from what each stage does; shape (n_ways, n_moments)."""
        if self.beside is None:
            return widest[:, self.at]
        return np.asarray(widest[:, self.at] + np.where(self.beside >= 0, widest[:, self.beside], 0.0))

    def _in_order(self) -> NDArray[np.int64]:
        """Return the layers that may recompute, those first that are held most often."""
        free = np.flatnonzero(~self.is_pinned)
        if self.held.shape[1] == 1:
            return free
        kept = np.bincount(self.stage, self.kept_bytes[0], self.held.shape[1])
        times = self.held[int(np.argmax(self.held @ kept))][self.stage[free]]
        return free[np.argsort(-times, kind="stable")]
