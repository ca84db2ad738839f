"""Which samples of a step a process gives, where the user's loop loads the samples of each process only; without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.errors import InputError
from meshwright.runtime.ranks.layout import Layout, rows_of

__all__ = ["DataShare", "StepSampler", "share_of"]


@dataclass(frozen=True, slots=True)
class DataShare:
    """The samples that one process gives to every step.

    `rank`, `n_ranks`: which part of the data it loads, of how many.
    `rows`: its samples among those of the step, by micro-batch.
    `first`, `last`: first and last-but-one of its samples, as it holds them, that the first and the last stage take of each
    micro-batch; empty where this rank is of another stage.
    `note`: why every process is given all samples, where they cannot be dealt out; else empty.
    """

    rank: int
    n_ranks: int
    rows: tuple[int, ...]
    first: tuple[tuple[int, int], ...]
    last: tuple[tuple[int, int], ...]
    note: str = ""


def share_of(places: Layout, rank: int) -> DataShare:
    """Return the samples that a process gives: those of its replica, or all where first and last stage deal them out unlike.

    The first stage takes the inputs of samples, the last one their labels: a process can do with the samples of its replica
    only where both stages have as many. One that works for both has the same place in both: their devices stand in one order.
    """
    ends = (0, places.n_stages - 1)
    degrees = [places.plan.stages[stage].strategy.data for stage in ends]
    mine = places.stages_of(rank)
    seats = {stage: places.seat(rank, stage).data for stage in mine}
    batches = [places.microbatch_rows(i) for i in range(places.plan.n_microbatches)]
    if degrees[0] != degrees[1]:
        slices = {
            end: [(start, *places.rows(end, seats[end], stop - start)) for start, stop in batches]
            for end in ends
            if end in seats
        }
        first, last = (tuple((start + low, start + high) for start, low, high in slices.get(end, [])) for end in ends)
        note = (
            f"first and last stage have {degrees[0]} and {degrees[1]} replicas: every process is given all samples of a step, "
            "and takes its own out of them"
        )
        return DataShare(0, 1, tuple(range(places.plan.global_batch)), first, last, note)
    place = seats.get(0, seats.get(ends[1], next(iter(seats.values())) % degrees[0]))
    rows: list[int] = []
    held: list[tuple[int, int]] = []
    for start, stop in batches:
        low, high = rows_of(stop - start, degrees[0], place)
        held.append((len(rows), len(rows) + high - low))
        rows += range(start + low, start + high)
    return DataShare(place, degrees[0], tuple(rows), tuple(held) if 0 in seats else (), tuple(held) if ends[1] in seats else ())


class StepSampler:
    """The indices of a data set that one process loads, step after step: a ``batch_sampler`` of a ``DataLoader``.

    Every process draws the same order and takes its rows of every step; samples that do not fill a last step are left out.

    Parameters
    ----------
    share : DataShare
        The samples of this process.
    n_samples : int
        Of the data set.
    global_batch : int
        Samples of a step.
    shuffle : bool
        Whether every epoch has another order.
    seed : int
        Of the orders.

    Attributes
    ----------
    step : int
        Steps drawn so far; set it to go on where a run had stopped. A pass over the data set ends after ``len()`` steps.

    Raises
    ------
    InputError
        When the data set does not fill one step.
    """

    def __init__(self, share: DataShare, n_samples: int, global_batch: int, *, shuffle: bool, seed: int) -> None:
        if n_samples < global_batch:
            raise InputError(f"the data set has {n_samples} samples, but one step of the plan takes {global_batch}")
        self.share, self.n_samples, self.global_batch = share, n_samples, global_batch
        self.shuffle, self.seed, self.step = shuffle, seed, 0

    def __len__(self) -> int:
        return self.n_samples // self.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        order: Sequence[int] = range(self.n_samples)
        epoch, first = divmod(self.step, len(self))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.n_samples).tolist()
        for step in range(first, len(self)):
            self.step += 1
            yield [order[step * self.global_batch + row] for row in self.share.rows]
