"""The analytic cost model with every layer split inside in the best way that holds no more memory than Megatron's split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.cluster import Device
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.sharded.against_megatron import Saving, savings

__all__ = ["FRAMEWORKS", "axis_times", "compute_seconds", "described", "illegal", "row_costs", "splits", "stage_costs"]

FRAMEWORKS = True
"""As of the analytic model, on which this one rests."""

_INSIDE = ("tensor", "context", "expert")


def illegal(problem: Problem, strategy: Strategy, micro_batch: int = 1) -> str:
    """Return why a strategy cannot run the model; see `meshwright.costs.analytic.illegal`."""
    if strategy.context > 1 and strategy.context_exchange != "ring":
        return f"the context exchange is {strategy.context_exchange}; --costs sharded prices rings only"
    return analytic.illegal(problem, strategy, micro_batch)


def row_costs(
    problem: Problem,
    strategy: Strategy,
    devices: Sequence[int],
    micro_batch: int,
    *,
    inside_only: bool = False,
    spare: frozenset[int] = frozenset(),
) -> analytic.RowLoads:
    """Return the load of every distinct layer under one strategy, with each way to recompute; never worse than Megatron's.

    `problem`, `strategy`, `devices`, `micro_batch`, `inside_only`, `spare`: as in `meshwright.costs.analytic.row_costs`.
    Returns: ``(row, recompute) -> StageCost`` of that one layer.
    Raises `InputError` when there is no cluster, or the devices are not as many as the strategy needs.

    Notes
    -----
    The analytic load is calibrated on runs of Megatron's split, so it stays the start. What a better split saves over
    Megatron's, both priced operator by operator, is taken from the communication inside the layer, down to nothing; compute
    and memory stay. So `compute_seconds` stays a lower bound. `inside_only` takes off what is saved with silent replicas,
    which is never less.
    """
    layers = analytic.row_costs(problem, strategy, devices, micro_batch, inside_only=inside_only, spare=spare)
    saved = savings(problem, strategy, micro_batch, alone=inside_only)
    return {key: _less(load, saved[key[0]]) if key[0] in saved else load for key, load in layers.items()}


def axis_times(
    problem: Problem, strategy: Strategy, devices: Sequence[int], *, inside_only: bool = False
) -> tuple[object, ...]:
    """Return all that the place of devices decides: as in `meshwright.costs.analytic.axis_times`; savings are those of one
    place.
    """
    return analytic.axis_times(problem, strategy, devices, inside_only=inside_only)


def _less(load: StageCost, saving: Saving) -> StageCost:
    """Return a load without what is saved."""
    return replace(
        load,
        forward_communication=_reduced(load.forward_communication, saving.forward_seconds),
        backward_communication=_reduced(load.backward_communication, saving.backward_seconds),
    )


def _reduced(causes: tuple[tuple[str, float], ...], seconds: float) -> tuple[tuple[str, float], ...]:
    """Return causes with seconds taken off those inside a layer."""
    left = dict(causes)
    for cause in _INSIDE:
        taken = min(seconds, left.get(cause, 0.0))
        if taken > 0.0:
            left[cause] -= taken
            seconds -= taken
    return tuple(left.items())


def stage_costs(problem: Problem, plan: Plan, *, ledger: bool = True) -> tuple[StageCost, ...]:
    """Return what each stage of a plan does and holds.

    `ledger`: as in `analytic.stage_costs`.
    Returns: one per stage; empty where the layers hold no operators.
    Raises `InputError` when a stage's strategy is illegal for the model, or its devices do not match it.
    """
    return analytic.stage_costs(problem, plan, row_costs, ledger=ledger)


def compute_seconds(problem: Problem, strategy: Strategy, micro_batch: int, device: Device) -> dict[int, float]:
    """Return what every distinct layer computes at least: as in `meshwright.costs.analytic.compute_seconds`.

    Another split takes nothing off compute here, so the bound holds.
    """
    return analytic.compute_seconds(problem, strategy, micro_batch, device)


def splits(problem: Problem, plan: Plan) -> tuple[dict[str, object], ...]:
    """Return which layers of a plan are split otherwise than Megatron does.

    Returns: by strategy in order of the stages, then layer: ``stages`` and ``layers`` that are alike, ``saved_seconds`` of
    each per micro-batch, and ``operators`` with Megatron's split and this one over the expert, context and tensor axis.
    """
    row_of_op, samples = analytic.rows(problem), plan.samples_of_replicas()
    found: list[dict[str, object]] = []
    for strategy in dict.fromkeys(stage.strategy for stage in plan.stages):
        stages = [(i, stage) for i, stage in enumerate(plan.stages) if stage.strategy == strategy]
        for row, saving in savings(problem, strategy, samples[stages[0][0]]).items():
            own = {i: [op for op in stage.ops if row_of_op[op] == row] for i, stage in stages}
            if any(own.values()):
                found.append(
                    {
                        "stages": [i for i, ops in own.items() if ops],
                        "layers": [problem.graph.ops[op].name for ops in own.values() for op in ops],
                        "saved_seconds": saving.forward_seconds + saving.backward_seconds,
                        "operators": [
                            {"name": name, "megatron": before, "split": now} for name, before, now in saving.operators
                        ],
                    }
                )
    return tuple(found)


def described(problem: Problem, plan: Plan) -> str:
    """Return in one sentence which layers of a plan are split otherwise than Megatron does, or why none is."""
    if problem.cluster is not None and len(problem.cluster.kinds) > 1:
        return "costs sharded: with several kinds of device every layer keeps Megatron's split"
    rows, samples = analytic.rows(problem), plan.samples_of_replicas()
    words: dict[str, None] = {}
    for strategy in dict.fromkeys(stage.strategy for stage in plan.stages):
        stages = [i for i, stage in enumerate(plan.stages) if stage.strategy == strategy]
        ops = {rows[op] for i in stages for op in plan.stages[i].ops}
        for row, saving in savings(problem, strategy, samples[stages[0]]).items():
            if row in ops:
                changed = ", ".join(f"{name} {now} instead of {before}" for name, before, now in saving.operators)
                words[f"{problem.graph.ops[row].name}: {changed}"] = None
    if not words:
        return "costs sharded: every layer keeps Megatron's split; none that holds no more memory is quicker"
    listed = "; ".join(words)
    return (
        f"costs sharded: layers split otherwise than Megatron's (over the expert/context/tensor axis): {listed}; launch files "
        "do not "
        "carry these splits yet"
    )
