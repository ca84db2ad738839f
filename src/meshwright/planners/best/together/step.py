"""What virtual stages take at least by what all their ranks recompute together, and the plan of the best choice seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.plan import Plan
from meshwright.planners.best import fitted_orders, virtual
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.memory import RankLayers
from meshwright.planners.best.space import Config
from meshwright.planners.best.together.rank_choices import RankChoices, choices_of
from meshwright.sim import transfers
from meshwright.solvers.pipeline.weighed_ways import least_longest

__all__ = ["Together", "least_together"]

_ROUNDING_RATIO = 1e-5  # of what is proven, for whoever proves it anew from other ways


class Together(NamedTuple):
    """What is proven of a configuration with one split, and a plan.

    Parameters
    ----------
    seconds : float
        What every plan takes at least; inf where none fits.
    plan : Plan or None
        The best one seen, by tasks and transfers alone; its own order may hold more than it was chosen for.
    plan_seconds : float
        What it takes at least.
    """

    seconds: float
    plan: Plan | None
    plan_seconds: float


def least_together(
    costs: Costs, config: Config, bare: Plan, ranks: list[RankLayers], memory_bytes: NDArray[np.float64], limit_seconds: float
) -> Together | None:
    """Return a lower bound on the step of every plan with the split of a plan, whose tasks do not run in pairs; None where ranks have too many choices.

    Lemma: of each rank `choices_of` has every choice, or one that takes no longer in any stage. For one choice of all ranks
    `fitted_orders.least_of_order`, with what each stage recomputes in its backward passes, is below every plan of it, and is
    the longest of some ways through the tasks; on each a stage counts as often as its backward passes lie on it, whatever they take. So
    `least_longest` of these is below every plan. What follows a rank's last task is the more of what `fitted_orders.least_seconds`
    and `virtual.played` say, both of which hold.

    Parameters
    ----------
    costs, config
        The configuration.
    bare : Plan
        Its split, nothing recomputed.
    ranks : list of RankLayers
        The layers of every rank.
    memory_bytes : ndarray, shape (n_ranks,), float64
        Of their devices, with room for rounding.
    limit_seconds : float
        What takes as long need not be told exactly.
    """
    every: list[RankChoices] = []
    for own, memory in zip(ranks, memory_bytes.tolist(), strict=True):
        found = choices_of(own, memory)
        if found is None:
            return None
        if not len(found.ways):
            return Together(math.inf, None, math.inf)
        every.append(found)
    stage_costs, n_ranks = costs.stage_costs(config, bare), config.mesh.pipeline
    order = fitted_orders.order_of(config.schedule, n_ranks, config.chunks, bare.n_microbatches)
    sends = transfers.transfers(costs.problem, bare, stage_costs).seconds
    end = np.maximum(fitted_orders.end_seconds(order, stage_costs), virtual.end_seconds(costs, config, order.rank_of_stage))
    stages = fitted_orders.seconds_of(stage_costs)

    def longest(again: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        return fitted_orders.longest_way(order, stages._replace(backward=stages.backward + again), sends, end)

    places = [np.flatnonzero(order.rank_of_stage == rank) for rank in range(n_ranks)]
    found_all = least_longest([own.again_seconds for own in every], places, longest, limit_seconds)
    ways = [own.ways[i] for own, i in zip(every, found_all.chosen, strict=True)]
    plan = _with_ways(bare, ranks, ways) if math.isfinite(found_all.chosen_seconds) else None
    return Together(found_all.seconds * (1.0 - _ROUNDING_RATIO), plan, found_all.chosen_seconds)


def _with_ways(bare: Plan, ranks: list[RankLayers], ways: list[NDArray[np.int64]]) -> Plan:
    """Return a plan whose layers recompute what is chosen for each rank's."""
    seen, stages = [0] * len(ranks), []
    for stage, rank in zip(bare.stages, bare.rank_of_stage(), strict=True):
        places = range(seen[rank], seen[rank] + len(stage.ops))
        seen[rank] = places.stop
        layers = ranks[rank]
        words = (
            word if layers.is_pinned[i] else layers.words[int(ways[rank][i])]
            for i, word in zip(places, stage.recompute, strict=True)
        )
        stages.append(replace(stage, recompute=tuple(words)))
    return replace(bare, stages=tuple(stages))
