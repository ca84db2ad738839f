"""What of a plan, or of a model and its training, is outside what a framework runs."""

from __future__ import annotations

from meshwright.core.framework import FrameworkLimits, listed
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.plan_forms import inner_words, layout_of, recomputed_in_block
from meshwright.core.strategy import OFFLOAD, RECOMPUTE

__all__ = ["exceeded", "exceeded_by_any"]

_ENDS = ("embedding", "head")


def exceeded(limits: FrameworkLimits, plan: Plan, graph: Graph, precision: str = "", optimizer: str = "") -> tuple[str, ...]:
    """Return what of a plan is outside a framework's limits, a sentence without a full stop each; empty for nothing.

    `precision`, `optimizer`: of products, and what updates weights; empty where it does not matter.
    """
    return tuple(reason for reason in (
        *_degrees(limits, plan), *_exchanges(limits, plan, graph), *_pipeline(limits, plan, graph), *_places(limits, plan),
        _pairs(limits, plan),
        *_recompute(limits, plan, graph),
        *exceeded_by_any(limits, graph, precision, optimizer),
        *(f"{what} state on the host; it has offload {listed(limits.offloads)}"
          for what in dict.fromkeys(stage.strategy.offload for stage in plan.stages) if what not in limits.offloads),
        *(reason for one in dict.fromkeys(stage.strategy for stage in plan.stages) for reason in limits.unpaired(one)),
    ) if reason)  # fmt: skip


def exceeded_by_any(limits: FrameworkLimits, graph: Graph, precision: str = "", optimizer: str = "") -> tuple[str, ...]:
    """Return what of a model and its training is outside a framework's limits, whatever the plan; as `exceeded`."""
    return tuple(reason for reason in (
        f"products in {precision}; it has {listed(limits.precisions)}"
        if precision and limits.precisions and precision not in limits.precisions else "",
        f"optimizer {optimizer}; it has {listed(limits.optimizers)}"
        if optimizer and limits.optimizers and optimizer not in limits.optimizers else "",
        "frozen weights in four bits; it has none" if graph.quantised and not limits.quantised_base else "",
        "pairs of a chosen and a rejected sequence (DPO); it trains on single sequences"
        if graph.n_sequences > 1 and not limits.preference_pairs else "",
        "a model with frozen weights; it trains all weights" if not (limits.frozen_weights or graph.fully_trained) else "",
    ) if reason)  # fmt: skip


def _degrees(limits: FrameworkLimits, plan: Plan) -> list[str]:
    """Return what is wrong with degrees and sharding."""
    strategies = list(dict.fromkeys(stage.strategy for stage in plan.stages))
    found = []
    if len(strategies) > 1 and not limits.unlike_stages:
        found.append(f"stages have {len(strategies)} different sets of degrees; one set serves all stages there")
    largest = {name: max(getattr(one, name) for one in strategies) for name in ("tensor", "context", "expert")}
    largest["pipeline"] = len(plan.ranks())
    found += [
        f"{name} degree {degree}; it has {limits.lacks(name)}"
        for name, degree in largest.items()
        if degree > 1 and name not in limits.degrees
    ]
    if not limits.sequence_parallel and any(one.tensor > 1 and one.sequence_parallel for one in strategies):
        found.append("norms split along the sequence over the tensor axis; it has no sequence parallelism")
    for one in strategies:
        ranks = one.data * one.context
        if ranks > 1 and one.shard not in limits.shards:
            found.append(f"sharding level {one.shard} of the data axis; it has {listed(limits.shards)}")
        elif 0 < one.shard_degree < one.data and one.shard not in limits.hybrid_shards:
            found.append(
                f"level {one.shard} sharded over {one.shard_degree} of {one.data} data ranks; it shards over all of them"
            )
    return found


def _exchanges(limits: FrameworkLimits, plan: Plan, graph: Graph) -> list[str]:
    """Return what is wrong with how keys and values are exchanged over context axes."""
    used = dict.fromkeys(stage.strategy.context_exchange for stage in plan.stages if stage.strategy.context > 1)
    known = limits.exchanges(graph) if used else ()
    return [f"context exchange {kind} of this model; it has {listed(known)}" for kind in used if kind not in known]


def _pipeline(limits: FrameworkLimits, plan: Plan, graph: Graph) -> list[str]:
    """Return what is wrong with schedule and stages."""
    n_ranks, n_stages = len(plan.ranks()), len(plan.stages)
    found = []
    if n_ranks > 1 and graph.has_reference:
        found.append("a pipeline beside a reference model, whose pass through it is not priced")
    if n_stages > 1 and limits.schedules and plan.schedule not in limits.schedules:
        found.append(f"schedule {plan.schedule}; it has {listed(limits.schedules)}")
    if n_stages > n_ranks and not limits.virtual_stages:
        found.append("several stages on one pipeline rank; it has no virtual stages")
    if n_ranks > 1 and graph.n_shared_parameters and not limits.tied_pipeline:
        found.append("weights shared by embedding and head in a pipeline; it ties them within one stage only")
    counts = {sum(graph.ops[op].kind not in _ENDS for op in stage.ops) for stage in plan.stages}
    if len(counts) > 1 and not limits.uneven_stages:
        found.append(f"stages of {listed(tuple(sorted(counts)))} layers; every stage has equally many there")
    if not limits.free_ends:
        for kind, place, end in (("embedding", 0, "first"), ("head", n_stages - 1, "last")):
            if any(graph.ops[op].kind == kind for i, stage in enumerate(plan.stages) if i != place for op in stage.ops):
                found.append(f"the {kind} is not on the {end} stage; it keeps it there")
    return found


def _pairs(limits: FrameworkLimits, plan: Plan) -> str:
    """Return what is wrong with tasks that run beside each other."""
    if not plan.schedule.startswith("combined_"):
        return ""
    if not limits.paired_tasks:
        return f"schedule {plan.schedule}; it runs no forward task beside a backward task"
    if plan.stages[0].strategy.expert == 1:
        return f"schedule {plan.schedule} with an expert degree of 1; it is there to hide all-to-alls of experts"
    if 1 < len(plan.stages) == len(plan.ranks()):
        return f"schedule {plan.schedule} with one stage per pipeline rank; its pairs are of tasks of several virtual stages"
    alone = len(plan.stages) == 1 and limits.schedules and plan.schedule not in limits.schedules
    return f"schedule {plan.schedule}; it has {listed(limits.schedules)}" if alone else ""


def _places(limits: FrameworkLimits, plan: Plan) -> list[str]:
    """Return what is wrong with the devices of stages and the order of gradient rings."""
    found = []
    layout = layout_of(plan)
    if not layout and not limits.any_order:
        found.append("stages take devices out of order; its ranks run over the devices in order, tensor innermost")
    elif layout and layout not in limits.layouts and len(plan.ranks()) > 1 and plan.stages[0].strategy.data > 1:
        found.append(f"the {layout} axis changes slowest over the devices; it lays out {listed(limits.layouts)} outermost")
    if not limits.gradient_rings and any(stage.ring for stage in plan.stages):
        found.append("the order of the gradient rings; the communication library finds its own")
    return found


def _recompute(limits: FrameworkLimits, plan: Plan, graph: Graph) -> list[str]:
    """Return what is wrong with what layers recompute."""
    words = inner_words(plan, graph)
    every = list(dict.fromkeys(word for stage in words for word in stage))
    if OFFLOAD in every:
        return _activations(limits, plan, words)
    modules = {module for word in limits.recompute for module in word.split("+")} - set(RECOMPUTE)
    unknown = [word for word in every if word not in limits.recompute and not set(word.split("+")) <= modules]
    if unknown:
        return [f"recomputation '{word}'; it has {listed(limits.recompute)}" for word in unknown]
    if limits.recompute_scope == "plan" and len(every) > 1:
        if limits.block_recompute and recomputed_in_block(words) >= 0:
            return []
        block = ", or the first layers of every stage recompute all, equally many of each" if limits.block_recompute else ""
        return [f"layers recompute differently ({listed(tuple(every))}); all layers recompute alike there{block}"]
    return []


def _activations(limits: FrameworkLimits, plan: Plan, words: list[list[str]]) -> list[str]:
    """Return what is wrong with activations on the host."""
    if "activations" not in limits.offloads:
        return [f"activations on the host; it has offload {listed(limits.offloads)}"]
    if len(plan.stages) > 1:
        return ["activations on the host beside a pipeline; it has them without one"]
    n_first, n_layers = recomputed_in_block(words, OFFLOAD), len(words[0])
    if not 0 < n_first < n_layers:
        return [f"activations of other layers on the host than of the first, at most {n_layers - 1} of {n_layers}"]
    return []
