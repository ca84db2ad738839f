"""Whether a plan belongs to the space of search best, by the space's definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded, exceeded_by_any
from meshwright.core.problem import Problem
from meshwright.planners.best.check.device_pools import pools
from meshwright.planners.best.check.on_host import spaces_of
from meshwright.planners.best.check.space import (
    CheckedChain,
    CheckedMesh,
    Form,
    chain_of,
    even_counts,
    forms,
    meshes,
    ranks_of,
    runnable,
    split_counts,
)

__all__ = ["outside"]


def outside(problem: Problem, plan: Plan, limits: Mapping[str, Any]) -> str:
    """Return why a plan is not one of the space; empty where it is.

    Parameters
    ----------
    problem : Problem
        The question.
    plan : Plan
        A plan of the model on the cluster (`meshwright.sim.check_plan`).
    limits : mapping
        The options of the search.
    """
    own, chain = plan.stages[0].strategy, chain_of(problem.graph)
    if any(stage.strategy != own or stage.ring for stage in plan.stages):
        return "its stages have different degrees, which are no part of the space"
    ranks = plan.ranks()
    mesh = CheckedMesh(own.tensor, own.context, own.expert, plan.micro_batch, own.data, len(ranks))
    form = Form(plan.schedule, len(plan.stages) // len(ranks))
    if plan.n_microbatches * mesh.data * mesh.micro_batch != problem.batch.global_batch:
        return f"its micro-batches are not those of a batch of {problem.batch.global_batch} samples"
    ops = [op for stage in plan.stages for op in stage.ops]
    if ops != [*chain.prefix, *chain.layers, *chain.suffix]:
        return "its layers are not in the order of the model"
    counts = [sum(op in set(chain.layers) for op in stage.ops) for stage in plan.stages]
    if limits["uniform"] and counts != even_counts(len(chain.layers), len(counts)):
        return "its stages do not hold equally many layers, and uniform was asked for"
    beyond = _beyond(problem, plan)
    if beyond:
        return f"{problem.framework.word} does not run it: {beyond[0]}"
    why = _spread(counts, chain, form, len(ranks), limits) or _recomputes(problem, plan, limits, chain)
    if why:
        return why
    if form not in forms(mesh, plan.n_microbatches, len(chain.layers), limits):
        return f"schedule {form.schedule} with {form.n_chunks} stages per rank is not allowed here"
    for pool in pools(problem):
        if mesh.pipeline > pool.n_ranks(mesh.rank_size) or mesh not in meshes(problem, pool, len(chain.layers), limits):
            continue
        for strategy, layout in runnable(problem, mesh, limits, len(pool.devices)):
            if strategy == own and [tuple(devices.tolist()) for devices in ranks_of(pool, mesh, layout)[0]] == list(ranks):
                return ""
    return "its degrees, its sharding or its devices are not those of any mesh that the options allow"


def _beyond(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return what of a plan its framework does not run; of one that is assumed not what it lacks for every plan of the question."""
    told, precision = problem.framework.limits, problem.training.precision
    lacking = () if problem.framework_asked else exceeded_by_any(told, problem.graph, precision)
    return tuple(why for why in exceeded(told, plan, problem.graph, precision) if why not in lacking)


def _spread(counts: list[int], chain: CheckedChain, form: Form, n_ranks: int, limits: Mapping[str, Any]) -> str:
    """Return why virtual stages hold other layers than those of any plan of the space; empty where one may."""
    if form.n_chunks == 1 or tuple(counts) in split_counts(chain, form, n_ranks, limits):
        return ""
    return f"its virtual stages hold {'-'.join(map(str, counts))} layers, which is no spread of the space"


def _recomputes(problem: Problem, plan: Plan, limits: Mapping[str, Any], chain: CheckedChain) -> str:
    """Return why no plan of the space recomputes what a plan does; empty where one may.

    Embedding and head recompute nothing, other layers that are pinned to the ends only where all layers recompute alike.
    """
    told = [(op, word) for stage in plan.stages for op, word in zip(stage.ops, stage.recompute, strict=False)]
    words = {word for op, word in told if op in set(chain.layers)} or {"none"}
    pinned = {word for op, word in told if op not in set(chain.layers)}
    every = spaces_of(problem, limits, pipeline=len(plan.ranks()) > 1)
    spaces = [space for space in every if words <= set(space.words)]
    if not spaces:
        allowed = "; ".join(" and ".join(space.words) for space in every)
        return f"it recomputes what is not allowed ({', '.join(sorted(words))}; allowed: {allowed})"
    if any(word != "none" and problem.graph.ops[op].kind in ("embedding", "head") for op, word in told):
        return "its embedding or head recomputes, which is no part of the space"
    if limits["uniform"] and len(words) > 1:
        return f"its layers recompute differently ({', '.join(sorted(words))}), and uniform was asked for"
    alike = limits["uniform"] or any(len(space.words) == 1 for space in spaces)
    if not pinned <= ({"none"} | words if alike else {"none"}):
        return f"layers pinned to its ends recompute ({', '.join(sorted(pinned))}), which is no part of the space"
    return ""
