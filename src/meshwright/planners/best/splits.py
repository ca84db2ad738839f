"""Other splits of the layers once the joint search has run: layers moved between stages, then all that may be better where few."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best import fitted_orders, inequalities, plans, step_ends, virtual
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.incumbents import Incumbent, rank
from meshwright.planners.best.memory import ROUNDING_RATIO, RankLayers
from meshwright.planners.best.space import Config
from meshwright.planners.best.step_ends import LinkWork
from meshwright.planners.best.together.step import least_together
from meshwright.solvers.pipeline import layer_split

__all__ = ["close", "dig", "improve"]

_MOST_IMPROVED = 3  # plans whose layers are moved
_MOST_STARTED = 40  # open configurations of which a split is built for its transfers
_MOST_MOVES = 100  # moves tried of one plan, at most
_MORE_MOVES = 4  # times as many of the best, where it is far from the bound
_SHARES = (0.5, 0.25, 0.125, 0.0625)  # of the way from the lowest bound to the best plan, by which it may be raised
_NEAR = 1.01  # a plan nearer to the bound than this is not worth moves between far stages


def close(search: BestFirstSearch, n_most: int | None = None) -> None:
    """Try every split that may still be better than the best plan, configurations with the lowest bounds first.

    Those with more such splits than may be tried stay open, and their bounds part of the proof; so do those with one split, by what
    their layers recompute at least.

    Parameters
    ----------
    search : BestFirstSearch
        It has run. What is found is added to it, what is settled is open only from its limit on.
    n_most : int or None
        How many splits are tried at most; None for as many as the limits say.
    """
    if search.params.uniform:
        return
    left, still_open = search.params.splits if n_most is None else min(n_most, search.params.splits), []
    for bound, pool, config in sorted(search.open):
        limit = search.limit(config)
        splits = None
        if bound < limit and config.one_way and not search.is_over:
            bound = max(bound, _least_again(search, pool, config, limit))
        elif bound < limit and not search.is_over:
            splits = _splits(search, pool, config, left)
        if splits is None:
            still_open += [(bound, pool, config)] * (bound < math.inf)
            continue
        left -= len(splits)
        least = math.inf
        for counts in splits:
            # what there was no time for is open from the configuration's bound on
            least = min(least, bound if search.is_over else _settle(search, pool, config, counts))
        # splits that were left out take as long as the limit at least
        if min(least, limit) < math.inf:
            still_open.append((max(bound, min(least, limit)), pool, config))
    search.open = still_open
    if n_most is None:
        _raise(search, left)


def _raise(search: BestFirstSearch, n_most: int) -> None:
    """Raise the bounds of configurations with too many splits, the lowest first: those splits are tried that may take the least.

    `n_most`: how many splits are tried at most.
    """
    while n_most > 0 and search.open and search.best_seconds > _NEAR * search.proven and not search.is_over:
        bound, pool, config = min(search.open)
        if config.one_way or bound > search.proven:  # what is lowest cannot be raised
            return
        chain = _chain(search, pool, config)
        for share in _SHARES:
            limit = bound + share * (search.best_seconds - bound)
            found = layer_split.cuts(chain, limit, n_most)
            if found is not None:
                break
        else:
            return
        n_most -= max(len(found), 1)
        for counts in found.tolist():
            limit = min(limit, bound if search.is_over else _settle(search, pool, config, tuple(counts)))
        if limit <= bound * (1.0 + 1e-6):  # a split that takes so little, of which it is open what it recomputes
            return
        search.open = [(limit, pool, config) if own == (bound, pool, config) else own for own in search.open]


def _least_again(search: BestFirstSearch, pool: int, config: Config, limit: float) -> float:
    """Return what every plan of a configuration with one split takes at least, by the least that each rank recomputes.

    Lemma: a rank recomputes no less than `RankLayers.least_work`, at moments that every order goes through; the step is then bounded
    as in `virtual.bounds_of`, and where weight gradients are tasks, none of them beside another, as in `fitted_orders.least_seconds`. On one rank all tasks follow each other, and what is recomputed late hides the most reductions.

    What takes `limit` or longer need not be told exactly; inf where no plan fits.
    """
    costs, n_microbatches = search.costs[pool], search.n_microbatches(config.mesh)
    counts = virtual.counts(costs, config)
    plan = plans.bare(costs, config, n_microbatches, counts)
    if plan is None:
        return 0.0
    stage_costs, ops_rows = costs.stage_costs(config, plan), costs.chain.stages(counts)[1]
    ranks = plans.ranks_of(costs, config, ops_rows, costs.peaks(config, n_microbatches))
    memory = costs.memory_bytes(config) * (1.0 + ROUNDING_RATIO)
    if config.mesh.pipeline == 1:
        again = ranks[0].least_work(memory[0])
        more = replace(stage_costs[0], recompute_seconds=stage_costs[0].recompute_seconds + again)
        return sim.estimate(plan, (more,), np.zeros(0)) if math.isfinite(again) else math.inf
    work = np.zeros(config.mesh.pipeline)
    for i, load in zip(plan.rank_of_stage(), stage_costs, strict=True):
        work[i] += load.forward_total_seconds + load.backward_total_seconds
    least, own = 0.0, np.zeros(config.mesh.pipeline)
    for i in np.argsort(-work, kind="stable").tolist():  # the busiest first: one rank is enough
        own[i] = ranks[i].least_work(memory[i])
        if not math.isfinite(own[i]):
            return math.inf
        least = float(virtual.bounds_of(costs, config, n_microbatches, light=False, again_seconds=own)[0])
        if least >= limit:
            return least
    on_links = (
        None if config.paired else step_ends.link_work(search.problem, plan, costs.model.stage_costs(costs.problem, plan))
    )
    least = max(least, virtual.played(costs, config, n_microbatches, own, on_links))
    if config.paired:  # tasks that run beside others take less than `fitted_orders` has them take
        return least
    if least < limit:
        least = max(least, _together(search, pool, config, plan, ranks, memory, limit))
    if least >= limit or not config.split_backward:
        return least
    return max(least, _in_fitted_orders(search.problem, plan, stage_costs, ranks, memory, own, on_links))


def _together(
    search: BestFirstSearch, pool: int, config: Config, bare: Plan, ranks: list[RankLayers], memory: NDArray[np.float64],
    limit: float,
) -> float:  # fmt: skip
    """Return `least_together` of a configuration, 0 where it says nothing; play the plan that it finds where that may be better, and is
    one of the space: where layers do not choose by themselves it need not be.
    """
    costs = search.costs[pool]
    found = least_together(costs, config, bare, ranks, memory, limit)
    if found is None:
        return 0.0
    plan = None if costs.one_setting else found.plan
    if plan is not None and found.plan_seconds < limit and search.least_seconds(costs, config, plan) < limit:
        better = search.play(pool, config, plan)
        if better is not None:
            search.keep(better)
    return found.seconds


def _in_fitted_orders(
    problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...], ranks: list[RankLayers], memory: NDArray[np.float64],
    own: NDArray[np.float64], on_links: LinkWork | None,
) -> float:  # fmt: skip
    """Return `fitted_orders.least_seconds` of a plan that recomputes nothing, by what its ranks, and each of their stages, must."""
    of_stage, seen = np.zeros(len(stage_costs)), [0] * len(ranks)
    for i, place in enumerate(plan.rank_of_stage()):
        if own[place] > 0.0:
            of_stage[i] = ranks[place].least_work(memory[place], seen[place])
        seen[place] += 1
    return fitted_orders.least_seconds(problem, plan, stage_costs, fitted_orders.LeastRepeated(of_stage, own), on_links)


def _splits(search: BestFirstSearch, pool: int, config: Config, n_most: int) -> list[tuple[int, ...]] | None:
    """Return every split of a configuration that its inequalities leave below the best plan; None where there are too many."""
    found = layer_split.cuts(_chain(search, pool, config), search.limit(config), n_most)
    return None if found is None else [tuple(counts) for counts in found.tolist()]


def _chain(search: BestFirstSearch, pool: int, config: Config) -> layer_split.UnequalChain:
    """Return the inequalities of a configuration, with the least that its transfers take."""
    costs, n_microbatches = search.costs[pool], search.n_microbatches(config.mesh)
    even = plans.bare(costs, config, n_microbatches, virtual.spread(len(search.chain.layers), config.mesh.pipeline, 1))
    hops = None
    if even is not None:
        hops = costs.transfer_seconds(config, even, costs.stage_costs(config, even))
    return inequalities.chain_to_cut(costs, config, n_microbatches, hops)


def _settle(search: BestFirstSearch, pool: int, config: Config, counts: tuple[int, ...]) -> float:
    """Play a split if it may be better; return what any plan of it takes at least, inf where none can be better than the best."""
    costs, n_microbatches = search.costs[pool], search.n_microbatches(config.mesh)
    bare = plans.bare(costs, config, n_microbatches, counts)
    plan = None if bare is None else plans.with_counts(costs, config, n_microbatches, counts)
    if bare is None or (plan is None and (search.chain.equal or (costs.one_setting and not config.fitted))):
        return math.inf  # a stage would be empty, or what it recomputes was searched through
    if plan is None and plans.never_fits(costs, config, n_microbatches, counts):
        return math.inf
    least = 0.0
    settled = plan is not None and (costs.one_setting or search.chain.equal or not plan.recomputes)
    if plan is not None and (costs.one_setting or not plan.recomputes or (config.split_backward and settled)):
        least = search.least_seconds(costs, config, plan)
    elif not config.split_backward:  # any mixture of what is recomputed takes as long as nothing recomputed, in the same order
        least = search.least_seconds(costs, config, bare)
    if plan is None or least >= search.limit(config):
        return least
    found = search.play(pool, config, plan)
    if found is None:
        return least
    search.keep(found)
    # of like layers the least work that fits is the quickest; which of unlike layers recompute is open
    return math.inf if settled else least


def improve(search: BestFirstSearch, of: Sequence[Incumbent] | None = None, n_most: int = _MOST_MOVES) -> None:
    """Move single layers between stages of the best plans, the busiest and neighbours first, while that shortens the step.

    Parameters
    ----------
    search : BestFirstSearch
        It has run; better plans are added to it.
    of : sequence of Incumbent or None
        The plans whose layers are moved; None for the three best. Only those of configurations that are still open are looked at.
    n_most : int
        Moves tried of each plan at most.
    """
    if search.params.uniform:
        return
    still_open = {(pool, config) for bound, pool, config in search.open if bound < search.limit(config)}
    for found in sorted(search.found, key=rank)[:_MOST_IMPROVED] if of is None else of:
        if not found.config.one_way and (found.pool, found.config) in still_open:
            _move_layers(search, found, min(n_most, search.budget))


def dig(search: BestFirstSearch) -> None:
    """Play plans of configurations that are open, whose layers are split as their bound with transfers says, and move their layers.

    A split that is built for the work of ranks alone is a poor one where links are slow; its configuration may have the best plan.

    Parameters
    ----------
    search : BestFirstSearch
        It has run, and its best plan is not near the bound; better plans are added to it.
    """
    if search.params.uniform or search.best_seconds <= _NEAR * search.proven or not search.found:
        return
    several = [own for own in sorted(search.open) if not own[2].one_way and own[0] < search.limit(own[2])]
    started = []
    for _, pool, config in several[:_MOST_STARTED]:
        costs, n_microbatches = search.costs[pool], search.n_microbatches(config.mesh)
        plan = None if search.is_over else _for_transfers(costs, config, n_microbatches)
        if plan is not None:
            started.append((sim.least_seconds(search.problem, plan, costs.stage_costs(config, plan)), pool, config, plan))
    for _, pool, config, plan in sorted(started, key=lambda own: own[:3])[:_MOST_IMPROVED]:
        found = None if search.is_over else search.play(pool, config, plan)
        if found is not None:
            search.keep(found)
            _move_layers(search, found, min(_MOST_MOVES, search.budget) // 2)
    best = min(search.found, key=rank)
    if not best.config.one_way:
        _move_layers(search, best, _MORE_MOVES * min(_MOST_MOVES, search.budget))


def _for_transfers(costs: Costs, config: Config, n_microbatches: int) -> Plan | None:
    """Return the plan of the split that the bound of a configuration with its transfers stands on; None where it does not fit."""
    even = plans.even(costs, config, n_microbatches)
    if even is None:
        return None
    hops = costs.transfer_seconds(config, even, costs.stage_costs(config, even))
    seconds, cut = layer_split.bottleneck(inequalities.chain_to_cut(costs, config, n_microbatches, hops, building=True))
    if not math.isfinite(seconds):
        return None
    pinned = (bool(costs.chain.prefix), bool(costs.chain.suffix))
    counts = plans.without_gaps([int(count) for count in cut], pinned)
    return plans.with_counts(costs, config, n_microbatches, counts)


def _move_layers(search: BestFirstSearch, found: Incumbent, most: int) -> Incumbent:
    """Move layers of one plan while that shortens its step, at most so many moves; return the quickest plan found."""
    costs, n_microbatches = search.costs[found.pool], found.plan.n_microbatches
    counts = tuple(sum(op in search.chain.layers for op in stage.ops) for stage in found.plan.stages)
    hops = costs.transfer_seconds(found.config, found.plan, costs.stage_costs(found.config, found.plan))
    tried, moved = {counts}, True
    while moved and len(tried) <= most and not search.is_over:
        moved, far = False, found.step_seconds > _NEAR * search.proven
        for trial in _moves(counts, costs.stage_costs(found.config, found.plan), far=far):
            if len(tried) > most or search.is_over:
                break
            if trial in tried:
                continue
            tried.add(trial)
            plan = plans.with_counts(costs, found.config, n_microbatches, trial)
            if plan is None:
                continue
            loads = costs.stage_costs(found.config, plan)
            # nothing is proved here: an order fitted to quicker transfers tells well enough
            if sim.estimate(plan, loads, hops) >= found.step_seconds:
                continue
            if far and sim.least_seconds(search.problem, plan, loads) >= found.step_seconds:
                continue  # where links are slow, transfers in each other's way tell most
            better = search.play(found.pool, found.config, plan)
            if better is not None and better.step_seconds < found.step_seconds * (1 - 1e-9):
                found, counts, moved = better, trial, True
                search.keep(found)
                break
    return found


def _moves(counts: tuple[int, ...], stage_costs: tuple[StageCost, ...], *, far: bool) -> Iterator[tuple[int, ...]]:
    """Yield other splits of the layers: one layer moved from a busy stage to its neighbour; with `far` also between any two stages, and
    their layers exchanged, in an order without a system, since where transfers decide it is not the busiest stages that matter.
    """
    busy = [load.forward_total_seconds + load.backward_total_seconds for load in stage_costs]
    busiest = sorted(range(len(counts)), key=lambda i: -busy[i])
    moves = [(i, j, 1) for i in busiest for j in reversed(busiest) if abs(i - j) == 1]
    if far:
        others = [(i, j, 1) for i in range(len(counts)) for j in range(len(counts)) if abs(i - j) > 1]
        others += [
            (i, j, counts[i] - counts[j]) for i in range(len(counts)) for j in range(len(counts)) if counts[i] > counts[j]
        ]
        random.Random(0).shuffle(others)
        moves += others
    for source, target, n_moved in moves:
        if counts[source] - n_moved >= (0 < source < len(counts) - 1):  # at the ends there may be pinned layers
            trial = list(counts)
            trial[source] -= n_moved
            trial[target] += n_moved
            yield tuple(trial)
