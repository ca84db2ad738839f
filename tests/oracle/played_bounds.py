"""Every bound that search best has on the way to a plan, beside what the plan takes.

One that is a little too high makes an answer false only where another plan is nearly as quick; here it shows at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from joint_enumerator import Played, Question

from meshwright.base import options
from meshwright.core.problem import Stop
from meshwright.planners.best import bounds, fitted_orders, incumbents, plans, step_ends, virtual
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.memory import ROUNDING_RATIO
from meshwright.planners.best.search.best import Params
from meshwright.planners.best.space import ANY, ANY_SPREAD, Config, pools
from meshwright.planners.best.together.step import least_together

__all__ = ["Excess", "largest_excess"]

NO_LIMIT = 1e9


class Excess(NamedTuple):
    """By which share a bound exceeds a plan of the set that it closes."""

    ratio: float
    bound: str
    played: Played | None


def largest_excess(question: Question, played: list[Played]) -> Excess:
    """Return the largest excess of any bound over a plan that was played and fits; not positive where all hold.

    Parameters
    ----------
    question : Question
        What the search is asked.
    played : list of Played
        Plans of its space.
    """
    params = options.parse(Params, dict(question.settings), "search best")
    search = BestFirstSearch(question.problem, params, Stop())
    for pool in pools(question.problem.required_cluster):
        search.add(pool)
    worst, known = Excess(-1.0, "", None), dict[tuple[int, Config], dict[str, float]]()
    for one in played:
        place = incumbents.place_of(one.plan, search.costs)
        if place is None:
            continue
        costs, n_microbatches = search.costs[place[0]], one.plan.n_microbatches
        if place not in known:
            known[place] = _bounds(costs, place[1], n_microbatches)
        for name, seconds in (known[place] | _of_split(question, costs, place[1], one)).items():
            worst = max(worst, Excess(seconds / one.step_seconds - 1.0, name, one), key=lambda own: own.ratio)
    return worst


def _bounds(costs: Costs, config: Config, n_microbatches: int) -> dict[str, float]:
    """Return the bounds of the sets that a configuration is in, from its mesh to itself."""
    mesh, several = config.mesh, config.chunks > 1
    spreads = replace(config, fewer=ANY_SPREAD if several else (0, 0))
    every = replace(spreads, shard=ANY, shard_degree=0, layout="", exchange="ring", offload="none")
    found = {
        "mesh": bounds.of_mesh(costs, mesh, n_microbatches),
        "mesh with communication": bounds.of_mesh(costs, mesh, n_microbatches, with_communication=True),
    }
    for name, own, light in (
        ("schedule", every, True), ("light", config, True), ("whole", config, False),
        ("light, of all spreads", spreads, True), ("whole, of all spreads", spreads, False),
    ):  # fmt: skip
        found[name] = bounds.of_config(costs, own, n_microbatches, NO_LIMIT, light=light)
    if several:
        found["spread"] = float(virtual.bounds_of(costs, config, n_microbatches, light=False)[0])
        found |= _together(costs, config, n_microbatches)
    found["sent"] = bounds.with_transfers(costs, config, n_microbatches, NO_LIMIT)
    return found


def _together(costs: Costs, config: Config, n_microbatches: int) -> dict[str, float]:
    """Return what all ranks say of a spread together, by what they may recompute; nothing where that is not asked."""
    counts = virtual.counts(costs, config)
    bare = plans.bare(costs, config, n_microbatches, counts)
    if bare is None or config.paired:
        return {}
    ranks = plans.ranks_of(costs, config, costs.chain.stages(counts)[1], costs.peaks(config, n_microbatches))
    memory = costs.memory_bytes(config) * (1.0 + ROUNDING_RATIO)
    found = least_together(costs, config, bare, ranks, memory, NO_LIMIT)
    return {} if found is None else {"together": found.seconds}


def _of_split(question: Question, costs: Costs, config: Config, one: Played) -> dict[str, float]:
    """Return what a plan's transfers say of all splits of its configuration, and what its split says of all orders."""
    loads, found = costs.stage_costs(config, one.plan), {}
    if not config.one_way:
        hops = costs.transfer_seconds(config, one.plan, loads)
        found["with transfers"] = bounds.of_config(costs, config, one.plan.n_microbatches, NO_LIMIT, transfer_seconds=hops)
    if config.split_backward and config.mesh.pipeline > 1 and not config.paired and not one.plan.recomputes:
        on_links = step_ends.link_work(question.problem, one.plan, costs.model.stage_costs(costs.problem, one.plan))
        found["fitted order"] = fitted_orders.least_seconds(question.problem, one.plan, loads, on_links=on_links)
    return found
