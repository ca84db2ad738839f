"""What stages of operator graphs and measured profiles do: the files' own times, and transfers of the tensors that are cut."""

from __future__ import annotations

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.planners.parmesan.operators import Question, question
from meshwright.planners.parmesan.readers.dnn_partitioning_json import PlacementGraph

__all__ = ["stage_costs"]


def stage_costs(problem: Problem, plan: Plan) -> tuple[StageCost, ...]:
    """Return what each stage of a plan on an operator graph or a profile does.

    Parameters
    ----------
    problem : Problem
        A placement graph or a PipeDream profile; with a cluster, its links carry the tensors, without one, the file's own (or
        assumed) transfer times are part of each stage.
    plan : Plan
        Stages of operators. Without a cluster, a device id of ``len(problem.graph.ops)`` or more names a host device.

    Returns
    -------
    tuple of StageCost
        One per stage. One micro-batch is what the file measured.

    Raises
    ------
    InputError
        When a stage has another degree than replicas, or shards anything.

    Notes
    -----
    A tensor for a stage further on passes through the stages between. Times of placement graphs are read as milliseconds.
    Where stages have unequally many replicas, the stage with the most gives each one micro-batch at a time; a replica of a
    stage with half as many takes two, one after the other. What an operator of a placement graph needs is one number in its
    file, which counts once, however many micro-batches are in flight; profiles tell weights from activations, which count for
    each of them.
    """
    posed = question(problem)
    operators, n = posed.operators, len(problem.graph.ops)
    stage_of = np.full(n, -1)
    for i, stage in enumerate(plan.stages):
        if stage.strategy != Strategy(data=stage.strategy.data):
            other = next(
                field for field in Strategy.__slots__
                if field != "data" and getattr(stage.strategy, field) != getattr(Strategy(), field)
            )  # fmt: skip
            raise InputError(
                f"stage {i}: {other} is {getattr(stage.strategy, other)}; costs partition know replicas only, so it must "
                f"be {getattr(Strategy(), other)}"
            )
        stage_of[list(stage.ops)] = i
    sent = np.zeros(len(plan.stages))
    paid = np.zeros((2, len(plan.stages)))
    for cost, pins in operators.nets:
        stages = {int(stage_of[pin]) for pin in pins}
        if len(stages) == 1:
            continue
        backward = posed.forward[pins[0]] == 0.0 and operators.compute[pins[0]] > 0.0
        if not backward:
            sent[int(stage_of[pins[0]]) : max(stages)] += posed.output_bytes[pins[0]]
        paid[int(backward), sorted(stages)] += cost
    profile = problem.model_spec.format == "pipedream_txt"
    if profile:  # one net is the activation and the gradient that comes back
        paid = np.stack((paid[0] / 2, paid[0] / 2))
    most = max(stage.strategy.data for stage in plan.stages)
    return tuple(
        _load(problem, posed, stage, sent[i], (float(paid[0, i]), float(paid[1, i])), most / stage.strategy.data)
        for i, stage in enumerate(plan.stages)
    )


def _load(
    problem: Problem, posed: Question, stage: Stage, sent_bytes: float, paid: tuple[float, float], share_ratio: float
) -> StageCost:
    """Return the load of one stage.

    `paid` are its transfers in the file's unit, forward and backward; `share_ratio` is how many micro-batches a replica takes.
    """
    ops, unit = list(stage.ops), posed.unit_seconds * share_ratio
    host = problem.cluster is None and min(stage.devices) >= len(problem.graph.ops)
    compute = posed.operators.host if host else posed.operators.compute
    total = float(compute[ops].sum())
    forward = float(posed.forward[ops].sum())
    if host:
        accelerated = float(posed.operators.compute[ops].sum())
        forward = total * forward / accelerated if accelerated > 0 else 0.0
    weights = float(posed.weight_bytes[ops].sum())
    reduce_seconds = 0.0
    own_links = problem.cluster is not None and not host
    if own_links and stage.strategy.data > 1 and weights > 0:
        from meshwright.network import Network

        groups = np.array(stage.ring_devices, dtype=np.int64).reshape(stage.strategy.data, -1).T
        reduce_seconds = Network.of(problem.required_cluster).axis(groups).seconds("all_reduce", weights)
    inside = () if own_links or host else ((("transfer", paid[0] * unit),), (("transfer", paid[1] * unit),))
    held = float(posed.operators.memory[ops].sum())
    once = isinstance(problem.model_spec.instance, PlacementGraph)
    return StageCost(
        forward_seconds=forward * unit,
        backward_input_seconds=max(total - forward, 0.0) * unit,
        forward_communication=inside[0] if inside else (),
        backward_communication=inside[1] if inside else (),
        output_bytes=float(sent_bytes) * share_ratio if own_links else 0.0,
        reduce_seconds=reduce_seconds,
        weight_bytes=weights,
        gradient_bytes=weights,
        activation_bytes=0.0 if once else max(held - 2.0 * weights, 0.0) * share_ratio,
        working_bytes=held if once else 0.0,
    )
