"""Pairs of a forward and a backward task that run beside each other: either hides the other's all-to-alls of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import locked
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.schedules import Actions
from meshwright.sim.traffic import Loads, Traffic, on_links

__all__ = ["SLOWED_RATIO", "TaskPairs", "exchange_seconds", "of_order", "with_pairs"]

SLOWED_RATIO = 20.0 / 132.0
"""Share of a device that sends and receives while all-to-alls run beside compute: 20 of the 132 multiprocessors of an H800
fill its NVLink and InfiniBand (DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.2.2); taken for every device."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskPairs:
    """The pairs of an order of work.

    Parameters
    ----------
    first : ndarray, shape (n_pairs,), int64
        The forward task of each; the backward task is the next one.
    sort : ndarray, shape (n_pairs,), int64
        Of what sort each is: those of the same two stages are.
    stages : ndarray, shape (n_sorts, 2), int64
        The stages of the forward and of the backward task of every sort.
    seconds : ndarray, shape (n_sorts, 2), float64
        How long the two tasks of every sort take.
    """

    first: NDArray[np.int64]
    sort: NDArray[np.int64]
    stages: NDArray[np.int64]
    seconds: NDArray[np.float64]

    def of_tasks(self, n_tasks: int) -> NDArray[np.int64]:
        """Return what kernels read as `Orders.paired`; empty where there are no pairs."""
        if not len(self.first):
            return np.empty(0, dtype=np.int64)
        found = np.full(n_tasks, -1, dtype=np.int64)
        found[self.first], found[self.first + 1] = 2 * self.sort, 2 * self.sort + 1
        return found

    def released(self, end: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return when what each task made is there, from when the tasks end: that of a pair when both are done."""
        found = end.copy()
        found[self.first] = end[self.first + 1]
        return found

    def hidden_seconds(self, rank: int, slots: Actions, stage_costs: tuple[StageCost, ...]) -> float:
        """Return by how much pairs shorten the tasks of a rank."""
        mine = (slots.first[rank] <= self.first) & (self.first < slots.first[rank + 1])
        counts = np.bincount(self.sort[mine], minlength=len(self.stages))
        alone = [stage_costs[f].forward_total_seconds + stage_costs[b].backward_total_seconds for f, b in self.stages.tolist()]
        return float(counts @ (np.array(alone) - self.seconds.sum(axis=1))) if len(alone) else 0.0


def exchange_seconds(load: StageCost) -> tuple[float, float]:
    """Return the seconds of all-to-alls of experts in a forward and in a backward task."""
    return dict(load.forward_communication).get("expert", 0.0), dict(load.backward_communication).get("expert", 0.0)


def of_order(slots: Actions, stage_costs: tuple[StageCost, ...]) -> TaskPairs:
    """Return the pairs of an order of work; there are none under most schedules.

    While the forward task's compute runs, the all-to-alls of the backward task do, and the other way round (Megatron-Core's
    ``combined_1f1b``; DualPipe): each of the two parts takes as long as the longer of both. What sends takes a share of the
    device from what computes (`SLOWED_RATIO`), so that t seconds of all-to-alls lengthen the compute beside them by that
    share of t. Other collectives block as they do alone.
    """
    first = slots.pairs
    both = np.stack((slots.stage[first], slots.stage[first + 1]), axis=1)
    stages, sort = np.unique(both, axis=0, return_inverse=True) if len(first) else (both, first)
    seconds = np.empty((len(stages), 2))
    for k, (f, b) in enumerate(stages.tolist()):
        there, back = exchange_seconds(stage_costs[f])[0], exchange_seconds(stage_costs[b])[1]
        seconds[k] = (
            max(back, stage_costs[f].forward_total_seconds - there + SLOWED_RATIO * back),
            max(there, stage_costs[b].backward_total_seconds - back + SLOWED_RATIO * there),
        )
    return TaskPairs(first, np.asarray(sort, dtype=np.int64).ravel(), stages, seconds)


def with_pairs(
    problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...], slots: Actions, pairs: TaskPairs, alone: Traffic
) -> tuple[TaskPairs, Traffic]:
    """Return pairs that last as long as their links need for what runs beside them, and the traffic with that of pairs."""
    if not len(pairs.first):
        return pairs, alone
    rates = problem.required_cluster.links.bytes_per_second
    known: Loads = {}
    seconds, links, n_bytes, lasting = [], [], [], pairs.seconds.copy()
    for k, both in enumerate(pairs.stages.tolist()):
        for i, (own, other) in enumerate((both, both[::-1])):
            word, mates = (("forward", "backward"), ("backward", "forward"))[i]
            blocks, _ = _apart(plan.stages[own], stage_costs[own], word)
            mate = _apart(plan.stages[other], stage_costs[other], mates)[1]
            beside = (*(one for one in stage_costs[own].collectives if one.part == f"{word}_beside"), *mate)
            for part in (blocks, beside):
                found = on_links(problem, plan.stages[own], part, known) if part else (_NO_LINKS, np.empty(0))
                links.append(found[0])
                n_bytes.append(found[1])
            load = stage_costs[own]
            own_seconds = load.forward_total_seconds if i == 0 else load.backward_total_seconds
            sent = sum(value for _, value in (load.forward_communication, load.backward_communication)[i])
            waited = sent - exchange_seconds(load)[i]
            busy = float((n_bytes[-1] / rates[links[-1]]).max(initial=0.0))
            apart = (beside[: len(beside) - len(mate)], mate)
            longest = max(min(sum(one.seconds for one in part), own_seconds) for part in apart)
            seconds += [min(sum(one.seconds for one in blocks), waited), max(longest, busy)]
            lasting[k, i] = max(lasting[k, i], seconds[-1])
    found_pairs = replace(pairs, seconds=lasting)
    ranks = slots.rank_of_stage[pairs.stages[:, 0]]
    return found_pairs, replace(
        alone,
        paired_seconds=locked(np.array(seconds)),
        paired_links=tuple(links),
        paired_bytes=tuple(n_bytes),
        paired_ranks=ranks,
    )


_NO_LINKS = np.empty(0, dtype=np.int64)


def _apart(stage: Stage, load: StageCost, word: str) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Return what blocks a task beside its all-to-alls of experts, and those.

    All-to-alls of a context axis may be of the same groups: then each counts by its share of the seconds.
    """
    own = stage.strategy
    groups = (own.expert, 1 if own.folded else own.tensor)
    exchanged = exchange_seconds(load)[0 if word == "forward" else 1]
    inside = [one for one in load.collectives if one.part == word]
    alike = [one for one in inside if one.kind == "all_to_all" and (one.size, one.stride) == groups]
    total = sum(one.seconds for one in alike)
    share = min(1.0, exchanged / total) if total > 0.0 else 0.0
    blocks = [one for one in inside if one not in alike]
    if share < 1.0:
        blocks += [_times(one, 1.0 - share) for one in alike]
    return tuple(blocks), tuple(_times(one, share) for one in alike if share > 0.0)


def _times(one: Collective, share: float) -> Collective:
    """Return a share of collectives."""
    return one if share == 1.0 else replace(one, n_times=one.n_times * share, seconds=one.seconds * share)
