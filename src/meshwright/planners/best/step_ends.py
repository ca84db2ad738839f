"""What all ranks put on the same links at the end of a step: reductions and gathered weights, of which each link carries one at full speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import read_only
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.sim.traffic import PARTS, traffic

__all__ = ["EarliestEnds", "LinkWork", "link_work"]

_LAST = ("reduce", "gather")
_ROUNDING_RATIO = 1e-6  # room for what the event loop rounds when links fill

_OnLinks = tuple[NDArray[np.int64], NDArray[np.float64]]
_NONE: _OnLinks = read_only(np.empty(0), np.int64), read_only(np.empty(0), np.float64)


class EarliestEnds(NamedTuple):
    """When the end of a step begins at the earliest, in seconds.

    Parameters
    ----------
    of_stage : ndarray, shape (n_stages,), float64
        The start of the last task of each stage that has gradients of weights.
    last_of_rank : ndarray, shape (n_ranks,), float64
        The start of the last task of each rank.
    over : ndarray, shape (n_ranks,), float64
        The end of the last task of each rank.
    """

    of_stage: NDArray[np.float64]
    last_of_rank: NDArray[np.float64]
    over: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LinkWork:
    """What every stage puts on links once a step, as seconds of each link at its full bandwidth.

    Parameters
    ----------
    rank_of_stage : tuple of int
        The rank of each stage.
    reduced, gathered : tuple of tuple of ndarray
        Of each stage, the links that its reduction, and its gathered weights, use (int64), and seconds of each of them.
    update_seconds, gather_seconds, exposed_seconds : ndarray, shape (n_stages,), float64
        What each stage does after its reductions, and what of its reduction follows its last task.
    n_links : int
        Links of the cluster.
    """

    rank_of_stage: tuple[int, ...]
    reduced: tuple[_OnLinks, ...]
    gathered: tuple[_OnLinks, ...]
    update_seconds: NDArray[np.float64]
    gather_seconds: NDArray[np.float64]
    exposed_seconds: NDArray[np.float64]
    n_links: int

    def least_seconds(self, earliest: EarliestEnds) -> float:
        """Return what a step takes at least whose ranks end their work no earlier than they say.

        Returns: seconds; 0 where nothing is put on links.

        Notes
        -----
        Lemma: a reduction begins with the last task of its stage that has gradients of weights at the earliest. One of the reductions of a rank,
        no matter which, begins with the last task of the rank; once what of it is left then, and all updates, are over, the rank gathers
        weights. No link carries more than its bandwidth. So what begins at some moment or later takes any one link after that moment as long
        as all of it does at full bandwidth, of the reductions of a rank that may have begun earlier the one that takes the link
        least. Where only reductions are counted, the rank of the one that ends last still updates and gathers its weights.
        """
        of_rank, n_ranks = np.array(self.rank_of_stage), len(earliest.over)
        update = np.bincount(of_rank, self.update_seconds, n_ranks)
        after = update + np.bincount(of_rank, self.gather_seconds, n_ranks)
        carried, only_reduced = np.zeros(self.n_links), np.zeros(self.n_links)
        # of ranks, the least that one of their reductions, not yet counted itself, takes of links
        begun: dict[int, _OnLinks] = {}
        least_after, most = np.inf, 0.0
        moments = [(float(begin), 0, stage) for stage, begin in enumerate(earliest.of_stage)]
        for rank in range(n_ranks):
            stages = np.flatnonzero(of_rank == rank).tolist()
            gathers = earliest.over[rank] + self.exposed_seconds[stages].min() + update[rank]
            moments += [(float(gathers), 2, stage) for stage in stages]
            last = max(float(earliest.last_of_rank[rank]), float(earliest.of_stage[stages].max()))
            moments.append((last, 1, rank))  # before its stages
        for moment, kind, number in sorted(moments, reverse=True):
            if kind == 2:
                links, seconds = self.gathered[number]
                carried[links] += seconds
            elif kind == 1:
                begun[number] = links, seconds = self._least_of_rank(number)
                carried[links] += seconds
                only_reduced[links] += seconds
                least_after = min(least_after, float(after[number])) if len(links) else least_after
            else:
                rank = self.rank_of_stage[number]
                for sign, (links, seconds) in ((1.0, self.reduced[number]), (-1.0, begun.pop(rank, _NONE))):
                    carried[links] += sign * seconds
                    only_reduced[links] += sign * seconds
                least_after = min(least_after, float(after[rank]))
            most = max(most, moment + float(carried.max()))
            if least_after < np.inf:
                most = max(most, moment + float(only_reduced.max()) + least_after)
        return most * (1.0 - _ROUNDING_RATIO)

    def _least_of_rank(self, rank: int) -> _OnLinks:
        """Return the links that all reductions of a rank use, and what one of them takes of each at least."""
        own = [self.reduced[stage] for stage, of in enumerate(self.rank_of_stage) if of == rank]
        links = own[0][0]
        if any(not np.array_equal(links, other) for other, _ in own):
            return _NONE
        return links, np.asarray(np.min([seconds for _, seconds in own], axis=0))


def link_work(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> LinkWork | None:
    """Return what a plan puts on links at the end of a step; None where nothing is known of that, or only one rank reduces.

    Whatever its layers recompute: that changes neither gradients nor weights.

    Parameters
    ----------
    problem : Problem
        Where it runs.
    plan : Plan
        The plan.
    stage_costs : tuple of StageCost
        What its stages do, with their collectives.
    """
    last = tuple(replace(load, collectives=tuple(one for one in load.collectives if one.part in _LAST)) for load in stage_costs)
    rank_of_stage = plan.rank_of_stage()
    if len({rank_of_stage[i] for i, load in enumerate(last) if load.collectives}) < 2:
        return None
    found, bandwidth = traffic(problem, plan, last), problem.required_cluster.links.bytes_per_second
    assert found is not None  # there is a cluster, and there are collectives
    parts = []
    for part in map(PARTS.index, _LAST):
        own = []
        for i, seconds in enumerate(found.seconds[part].tolist()):
            links, n_bytes = found.links[part * len(last) + i], found.bytes[part * len(last) + i]
            busy = n_bytes / bandwidth[links]
            # no flow takes longer alone than is said of it, or fills a link beyond its bandwidth
            most = float(busy.max(initial=0.0))
            own.append((links, busy * min(1.0, seconds / most) if most > 0.0 else busy))
        parts.append(tuple(own))
    return LinkWork(
        rank_of_stage, parts[0], parts[1],
        update_seconds=np.array([load.optimizer_seconds for load in last]),
        gather_seconds=np.array([load.gather_seconds for load in last]),
        exposed_seconds=np.array([load.reduce_seconds * (1.0 - load.overlap_ratio) for load in last]),
        n_links=len(bandwidth),
    )  # fmt: skip
