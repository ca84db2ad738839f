"""Virtual stages, whose layers lie in a few ways only: what ranks take and hold at least in each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best.check.prices import MEMORY_ROUNDING, LayerPrices, Table
from meshwright.planners.best.check.space import CheckedMesh, Form
from meshwright.planners.best.check.whole_stages import Sums, sums_of
from meshwright.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Actions

__all__ = ["Beside", "Moments", "Spreads", "VirtualStages", "beside_of", "moments_of", "stage_rows"]

_RANKS_OF_STEADY_STATE = 3

Moments = list[tuple[NDArray[np.float64], NDArray[np.int64]]]
"""Of every rank, what it holds while tasks run: micro-batches of each of its stages (a row per moment), and the stage at work."""


def moments_of(slots: Actions, *, early: bool) -> Moments:
    """Return what ranks hold while their tasks run, each different moment once.

    Parameters
    ----------
    slots : Actions
        The order of work.
    early : bool
        Whether activations are taken to be freed by the gradient of the input already: no order that only moves gradients of
        weights holds less.
    """
    found: Moments = []
    own = [np.flatnonzero(slots.rank_of_stage == rank).tolist() for rank in range(slots.n_ranks)]
    for rank, stages in enumerate(own):
        chunk = {stage: i for i, stage in enumerate(stages)}
        tasks = slice(int(slots.first[rank]), int(slots.first[rank + 1]))
        phases = slots.phase[tasks].tolist()
        freeing = {BACKWARD_INPUT if early else BACKWARD_WEIGHT, BACKWARD}
        held, seen = [0] * len(stages), set()
        for stage, phase in zip(slots.stage[tasks].tolist(), phases, strict=True):
            i = chunk[stage]
            held[i] += phase == FORWARD
            seen.add((tuple(held), i))
            held[i] -= phase in freeing
        every = sorted(seen)
        found.append((np.array([held for held, _ in every], dtype=float), np.array([at for _, at in every], dtype=np.int64)))
    return found


Beside = tuple[NDArray[np.float64], NDArray[np.int64]]
"""What a rank holds while two of its tasks run beside each other: micro-batches of each of its stages, and the two stages at work."""


def beside_of(slots: Actions) -> list[Beside]:
    """Return what every rank holds while pairs of tasks run, whose working memory adds up, each different moment once."""
    found = []
    for rank in range(slots.n_ranks):
        stages = np.flatnonzero(slots.rank_of_stage == rank).tolist()
        chunk, held, seen = {stage: i for i, stage in enumerate(stages)}, [0] * len(stages), set()
        paired = set(slots.pairs.tolist())
        for task in range(int(slots.first[rank]), int(slots.first[rank + 1])):
            i, phase = chunk[int(slots.stage[task])], int(slots.phase[task])
            held[i] += phase == FORWARD
            if task in paired:
                seen.add((tuple(held), (i, chunk[int(slots.stage[task + 1])])))
            held[i] -= phase in (BACKWARD, BACKWARD_WEIGHT)
        every = sorted(seen)
        times = np.array([own for own, _ in every], dtype=float).reshape(-1, len(stages))
        found.append((times, np.array([both for _, both in every], dtype=np.int64).reshape(-1, 2)))
    return found


def stage_rows(prices: LayerPrices, counts: Sequence[int]) -> list[list[tuple[int, bool]]]:
    """Return of every stage its layers by row, and whether each is pinned."""
    chain, found, start = prices.chain, [], 0
    for stage, count in enumerate(counts):
        rows = [(row, False) for row in chain.rows[start : start + count]]
        start += count
        if stage == 0:
            rows = [(i, True) for i in chain.prefix] + rows
        if stage == len(counts) - 1:
            rows += [(i, True) for i in chain.suffix]
        found.append(rows)
    return found


class _Stage(NamedTuple):
    """A virtual stage on its rank, nothing recomputed: sums over its layers, what is pinned to it included."""

    start: int
    stop: int
    forward: float
    backward: float
    weight: float
    work: float
    static_bytes: float
    kept_bytes: float
    overhead_bytes: float
    reduce: float
    update: float
    largest_reduce: float


_SUMS = ("forward", "backward", "weight", "work", "static_bytes", "kept_bytes", "reduce", "update")
_OF_A_STEP = ("forward", "backward", "weight", "work", "reduce", "update")


class Spreads:
    """The stages of every spread of the layers over virtual stages.

    Parameters
    ----------
    prices : LayerPrices
        Of the pool.
    mesh, form
        The configuration.
    priced : tuple
        As `LayerPrices.of_ranks` or `LayerPrices.any_sharding` return it.
    every : sequence of tuple of int
        Layers of each stage, of each spread.
    """

    def __init__(
        self,
        prices: LayerPrices,
        mesh: CheckedMesh,
        form: Form,
        priced: tuple[list[Table], list[int], list[int]],
        every: Sequence[tuple[int, ...]],
    ) -> None:
        tables, of_rank, _ = priced
        self.p, self.m = mesh.pipeline, prices.problem.batch.global_batch // (mesh.data * mesh.micro_batch)
        self.every = every
        self.sums = [sums_of(prices, table, is_split=form.is_split) for table in tables]
        self.ends = np.cumsum([(0, *counts) for counts in every], axis=1)
        self.rank_of_stage = schedules.load(form.schedule).placement(self.p, form.n_chunks)
        self.kind = np.array(of_rank)[self.rank_of_stage]
        self._found: dict[str, NDArray[np.float64]] = {}

    def of_stage(self, name: str) -> NDArray[np.float64]:
        """Return a figure of every stage, summed over its layers and what is pinned to it; shape (n_spreads, n_stages)."""
        if name not in self._found:
            running = np.array([getattr(own, name) for own in self.sums])
            found = running[self.kind, self.ends[:, 1:]] - running[self.kind, self.ends[:, :-1]]
            found[:, 0] += getattr(self.sums[self.kind[0]].prefix, name)
            found[:, -1] += getattr(self.sums[self.kind[-1]].suffix, name)
            self._found[name] = found
        return self._found[name]

    def long_enough(self, limit: float) -> NDArray[np.bool_]:
        """Return which spreads take `limit` or longer by the work of their ranks alone; shape (n_spreads,).

        Lemma: a rank runs its part of all micro-batches, one task after the other, from when the first of them has passed the first
        stages of the ranks before, which are the first of all stages, in order.
        """
        passing = self.of_stage("forward")[:, : self.p]
        there = np.cumsum(passing, axis=1) - passing
        of_ranks = self.of_stage("work") @ (self.rank_of_stage[:, None] == np.arange(self.p))
        return np.asarray((there + self.m * of_ranks).max(axis=1) >= limit)

    def never_fit(self, memory_bytes: Sequence[float], moments: Moments) -> NDArray[np.bool_]:
        """Return which spreads no recomputation makes fit, by the memory of the ranks; shape (n_spreads,).

        Lemma: at each of its moments a rank holds the state of all its layers and, of each stage as often as the order says, what its
        layers keep by the way that saves most, besides what the least demanding layer needs while it runs.
        """
        least = self.of_stage("kept_bytes") - self.of_stage("most_saved")
        static, overhead = self.of_stage("static_bytes"), self._overhead_bytes()
        found = np.zeros(len(self.every), dtype=np.bool_)
        for rank, (memory, (times, at)) in enumerate(zip(memory_bytes, moments, strict=True)):
            own = np.flatnonzero(self.rank_of_stage == rank)
            moving = (least[:, own] @ times.T + overhead[:, own[at]]).max(axis=1)
            found |= static[:, own].sum(axis=1) + moving > memory * (1.0 + MEMORY_ROUNDING)
            if found.all():
                break
        return found

    def _overhead_bytes(self) -> NDArray[np.float64]:
        """Return what the least demanding layer of every stage needs while it runs; shape (n_spreads, n_stages)."""
        least = np.array([own.overhead_bytes for own in self.sums])[self.kind]
        found = np.where(self.ends[:, 1:] > self.ends[:, :-1], least, 0.0)
        found[:, 0] = np.maximum(found[:, 0], self.sums[self.kind[0]].prefix.overhead_bytes)
        found[:, -1] = np.maximum(found[:, -1], self.sums[self.kind[-1]].suffix.overhead_bytes)
        return found

    def stage_costs(self, spread: int) -> tuple[StageCost, ...]:
        """Return what the stages of one spread do with the least recomputed, added up from their layers."""
        found, ends, last = [], self.ends[spread].tolist(), len(self.kind) - 1
        columns = zip(*(self.of_stage(name)[spread].tolist() for name in _OF_A_STEP), strict=True)
        for i, (kind, (forward, backward, weight, work, reduce, update)) in enumerate(
            zip(self.kind.tolist(), columns, strict=True)
        ):
            own, start, stop = self.sums[kind], ends[i], ends[i + 1]
            pinned = (*(own.prefix.layers if i == 0 else ()), *(own.suffix.layers if i == last else ()))
            largest = max([*own.reducing[start:stop], *(layer.reduce for layer in pinned)], default=0.0)
            sent = own.output_bytes[stop - 1 : stop] if stop > start else [layer.output_bytes for layer in pinned[-1:]]
            found.append(
                StageCost(
                    forward, backward - weight, weight, max(work - forward - backward, 0.0),
                    output_bytes=sum(sent) if i < last else 0.0,
                    reduce_seconds=reduce, overlap_ratio=1.0 - largest / reduce if reduce > 0.0 else 0.0, optimizer_seconds=update,
                    output_gradient=own.answered[stop] > own.answered[start] or any(layer.output_gradient for layer in pinned),
                )
            )  # fmt: skip
        return tuple(found)

    def stages(self, spread: int) -> list[list[_Stage]]:
        """Return the stages of every rank under one spread."""
        found: list[list[_Stage]] = [[] for _ in range(self.p)]
        ends = self.ends[spread].tolist()
        columns = zip(*(self.of_stage(name)[spread].tolist() for name in _SUMS), strict=True)
        of_rank = zip(self.rank_of_stage.tolist(), self.kind.tolist(), self._overhead_bytes()[spread].tolist(), strict=True)
        for i, ((rank, kind, overhead), column) in enumerate(zip(of_rank, columns, strict=True)):
            own, start, stop = self.sums[kind], ends[i], ends[i + 1]
            largest = max(own.reducing[start:stop], default=0.0)
            found[rank].append(_Stage._make((start, stop, *column[:-2], overhead, *column[-2:], largest)))
        return found


class VirtualStages:
    """One spread of a configuration with several stages per rank.

    Parameters
    ----------
    prices : LayerPrices
        Of the pool.
    form : Form
        The schedule.
    spreads : Spreads
        All spreads.
    spread : int
        Which of them.
    priced : tuple
        As of `Spreads`.
    moments : list
        As `least_moments` returns them.
    """

    def __init__(
        self,
        prices: LayerPrices,
        form: Form,
        spreads: Spreads,
        spread: int,
        priced: tuple[list[Table], list[int], list[int]],
        moments: Moments,
    ) -> None:
        _, self.of_rank, kinds = priced
        self.form, self.moments, self.is_equal, self.m = form, moments, prices.chain.is_equal, spreads.m
        self.memory_bytes = [prices.memory_bytes(kind) * (1.0 + MEMORY_ROUNDING) for kind in kinds]
        self.sums, self.stages = spreads.sums, spreads.stages(spread)

    @staticmethod
    def n_told(form: Form, n_ranks: int, n_microbatches: int) -> int:
        """Return how many micro-batches `least_moments` need to be told: with more it says the same, but breadth first."""
        return n_microbatches if form.schedule == "looped_bfs" else min(n_microbatches, _RANKS_OF_STEADY_STATE * n_ranks)

    @staticmethod
    def least_moments(form: Form, n_ranks: int, n_microbatches: int) -> Moments:
        """Return what every order of a schedule holds at least at its moments, for so many micro-batches or more.

        Lemma: with more micro-batches the steady state repeats, and every moment up to the last forward task of the shorter step is
        one of the longer step too, so what is held there is held in the longer step. Breadth first, every stage runs all micro-batches
        forward before the next one begins and before any backward task: where one is held, all are, at the last forward task.
        """
        module = schedules.load(form.schedule)
        if form.schedule != "looped_bfs":
            return moments_of(module.order(n_ranks, form.n_chunks, n_microbatches, None), early=True)
        one = moments_of(module.order(n_ranks, form.n_chunks, 1, None), early=True)
        return [(np.asarray(n_microbatches * held, dtype=np.float64), at) for held, at in one]

    def excess(self, rank: int) -> tuple[float, NDArray[np.float64]]:
        """Return by how much a rank exceeds its memory at least with nothing recomputed, and where it does what it holds of its stages
        then: a row for each of its fullest moments, of which any may ask for the most.

        Lemma: at each of the moments it holds the state of all its layers, the activations of its stages as often as the order says, and
        what the most demanding layer of the stage at work needs: at least what is pinned, or the least demanding layer of all.
        """
        stages, (times, at) = self.stages[rank], self.moments[rank]
        overhead = np.array([stage.overhead_bytes for stage in stages])
        moving = times @ np.array([stage.kept_bytes for stage in stages]) + overhead[at]
        most = float(moving.max())
        excess = sum(stage.static_bytes for stage in stages) + most - self.memory_bytes[rank]
        fullest = times[moving >= most * (1.0 - MEMORY_ROUNDING)] if excess > 0.0 else times[:0]
        return excess, np.array(sorted(set(map(tuple, fullest.tolist()))))

    def repeated(self, rank: int) -> float:
        """Return the seconds of a micro-batch that a rank must recompute at least, over all its stages; inf where nothing helps.

        Lemma: a layer gives up at most its savings as often as its stage is held at the fullest moment. The way that saves most is
        worth most for the layers that are held most often, the other one for those that come next: exchanging two frees no more.
        """
        excess, moments = self.excess(rank)
        if excess <= 0.0:
            return 0.0
        own, stages = self.sums[self.of_rank[rank]], self.stages[rank]
        n_layers = np.array([stage.stop - stage.start for stage in stages])
        missing = excess * (1.0 - 1e-9)
        if float((moments @ n_layers).min()) * max([0.0, *own.any_saved[:1], *own.any_saved[-1:]]) < missing:
            return math.inf
        found = max(self._freeing(own, missing, np.repeat(held, n_layers)) for held in moments)
        if not self.is_equal:
            often = float(np.where(n_layers > 0, moments, 0.0).max(axis=1).min())  # of some moment, any layer at most
            for price, worth in own.worth if often > 0.0 else ():
                found = max(found, price * excess / often - sum(worth[stage.stop] - worth[stage.start] for stage in stages))
        return found

    @staticmethod
    def _freeing(own: Sums, missing: float, times: NDArray[np.float64]) -> float:
        """Return what freeing so many bytes takes at least, of layers that are held so often."""
        freed = np.concatenate(([0.0], np.cumsum(np.sort(times)[::-1])))
        weak = own.any_saved[0] if len(own.any_saved) > 1 else 0.0
        strong = max(weak, own.any_saved[-1])
        n_strong = np.arange(len(freed))
        # of so many strong ones, how many layers recompute something when those held most often come first
        if weak > 0.0:
            n_all = np.searchsorted(weak * freed, missing - (strong - weak) * freed)
        else:
            n_all = np.where(strong * freed >= missing, 0, len(freed))
        n_weak = np.maximum(n_all - n_strong, 0)
        seconds = n_strong * own.any_extra[-1] + n_weak * own.any_extra[0]
        return float(np.where(n_strong + n_weak < len(freed), seconds, math.inf).min())

    def refuted(self, limit: float, least_work: Callable[[int], float] | None = None) -> bool:
        """Return whether the configuration is shown to take `limit` or longer, whatever its layers recompute.

        `least_work`: what a rank recomputes of a micro-batch at least, where more is known than `repeated` says.

        Lemma, of three parts. A rank begins when the first micro-batch has passed the first stages of the ranks before. (1) Then it
        works for all micro-batches, and the last part of one of its stages' reductions and its updates follow. (2) Its reductions follow
        each other; the first begins with the last task of the stage that is through first: by then all forward tasks of the rank are
        over, and the backward tasks of that stage (but this one, a whole one where some are) and of its later stages. (3) Where backward passes are whole, the last
        micro-batch returns from the rank through the first stages of those before, and the first rank updates.
        """
        there = back = first_end = 0.0
        for rank, stages in enumerate(self.stages):
            again = self.repeated(rank) if least_work is None else least_work(rank)
            if again == math.inf:
                return True
            work = self.m * (sum(stage.work for stage in stages) + again)
            update = sum(stage.update for stage in stages)
            end = update + min(stage.largest_reduce for stage in stages)
            first_end = end if rank == 0 else first_end
            most = max(there + work + end, there + self._reduced(stages) + update)
            if not self.form.is_split:
                most = max(most, there + work + back + first_end)
            if most >= limit:
                return True
            there += stages[0].forward
            back += stages[0].backward
        return False

    def _reduced(self, stages: list[_Stage]) -> float:
        """Return when a rank's reductions are over at least, from its first task on."""
        forward = self.m * sum(stage.forward for stage in stages)
        through = []
        later = 0.0
        for stage in reversed(stages):
            if self.form.is_split:
                later += self.m * (stage.backward - stage.weight)
                through.append(later + (self.m - 1) * stage.weight - (stage.backward - stage.weight) * self.form.is_mixed)
            else:
                later += self.m * stage.backward
                through.append(later - stage.backward)
        return forward + min(through) + sum(stage.reduce for stage in stages)
