"""What all ranks put on the same links at the end of a step: reductions and gathered weights, of which each link carries one at full speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.sim.traffic import PARTS, traffic

__all__ = ["LinkWork", "link_work"]

_LAST = ("reduce", "gather")
_ROUNDING_RATIO = 1e-6  # room for what the event loop rounds when links fill


@dataclass(frozen=True, slots=True, eq=False)
class LinkWork:
    """What every stage puts on links once a step, as seconds of each link at its full bandwidth.

    Parameters
    ----------
    links : tuple of ndarray
        Of each stage, the links that it uses; int64.
    reduce_seconds, both_seconds : tuple of ndarray
        Of each stage, on each of these: of its reduction, and of that and its gathered weights.
    after_seconds : ndarray, shape (n_stages,), float64
        What the rank of each stage still does once its reductions are over.
    n_links : int
        Links of the cluster.
    """

    links: tuple[NDArray[np.int64], ...]
    reduce_seconds: tuple[NDArray[np.float64], ...]
    both_seconds: tuple[NDArray[np.float64], ...]
    after_seconds: NDArray[np.float64]
    n_links: int

    def least_seconds(self, begin_seconds: NDArray[np.float64]) -> float:
        """Return what a step takes at least whose stages begin to reduce no earlier than they say.

        Parameters
        ----------
        begin_seconds : ndarray, shape (n_stages,), float64
            Of each stage, when its last task that has gradients of weights starts at the earliest.

        Returns
        -------
        float
            Seconds; 0 where nothing is put on links.

        Notes
        -----
        Lemma: a reduction begins with the last task of its stage that has gradients of weights at the earliest, and a rank
        gathers weights after its reductions. No link carries more than its bandwidth. So of the stages that begin at some moment or later, all that they
        put on any one link follows that moment, at full bandwidth at best. Where only reductions are counted, the rank of the one
        that ends last still updates its weights and gathers them.
        """
        reduced, both, most = np.zeros(self.n_links), np.zeros(self.n_links), 0.0
        after = np.inf
        for stage in np.argsort(-begin_seconds, kind="stable").tolist():
            links = self.links[stage]
            if not len(links):
                continue
            reduced[links] += self.reduce_seconds[stage]
            both[links] += self.both_seconds[stage]
            after = min(after, float(self.after_seconds[stage]))
            carried = max(float(reduced.max()) + after, float(both.max()))
            most = max(most, float(begin_seconds[stage]) + carried)
        return most * (1.0 - _ROUNDING_RATIO)


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
    last = tuple(
        replace(load, collectives=tuple(one for one in load.collectives if one.part in _LAST)) for load in stage_costs
    )
    rank_of_stage = plan.rank_of_stage()
    if len({rank_of_stage[i] for i, load in enumerate(last) if load.collectives}) < 2:
        return None
    found = traffic(problem, plan, last)
    assert found is not None  # there is a cluster, and there are collectives
    n_stages, bandwidth = len(last), problem.required_cluster.links.bytes_per_second
    links, reduces, boths = [], [], []
    for i in range(n_stages):
        parts = []
        for word in _LAST:
            part = PARTS.index(word)
            own, seconds = part * n_stages + i, float(found.seconds[part, i])
            busy = found.bytes[own] / bandwidth[found.links[own]]
            # a flow takes no longer alone than is said of it, and fills no link beyond its bandwidth
            parts.append((found.links[own], busy * min(1.0, seconds / max(float(busy.max(initial=0.0)), 1e-300))))
        used, which = np.unique(np.concatenate([own for own, _ in parts]), return_inverse=True)
        n_first = len(parts[0][0])
        reduce, gather = (np.bincount(at, own, len(used)) for at, (_, own) in zip((which[:n_first], which[n_first:]), parts, strict=True))
        links.append(used)
        reduces.append(reduce.astype(np.float64))
        boths.append((reduce + gather).astype(np.float64))
    after = np.array([load.optimizer_seconds + load.gather_seconds for load in last])
    of_rank = np.bincount(rank_of_stage, after)
    return LinkWork(tuple(links), tuple(reduces), tuple(boths), of_rank[list(rank_of_stage)], len(bandwidth))
