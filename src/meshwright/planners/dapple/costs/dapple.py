"""Measured profiles: what the stages of a plan do and hold, summed from layers measured one by one.

Times are proportional to samples, as every planner on such profiles assumes; a replica works on whole samples, so where they do
not divide evenly the fullest replica counts.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.planners.dapple import machines
from meshwright.planners.dapple.profile import LinearisedProfile, PipeDreamProfile, ProfiledTraining, cleaned

__all__ = ["ROUNDS", "reduce_seconds", "samples_per_replica", "stage_costs", "trained"]

ROUNDS = True
"""The batch is shared out here; the samples of a micro-batch and replica in a plan are rounded."""


def trained(problem: Problem) -> ProfiledTraining | None:
    """Return the problem's profile with its settings; None where nobody said what it was measured with.

    Raises `InputError` when the problem holds no profile.
    """
    instance = problem.model_spec.instance
    if isinstance(instance, ProfiledTraining):
        return instance
    if not isinstance(instance, (PipeDreamProfile, LinearisedProfile)):
        raise InputError(
            f"model {problem.model_spec.name}: costs 'dapple' sums measured profiles (formats pipedream_txt, "
            "pipedream_linearised), "
            f"this is {problem.model_spec.format}; use --costs {problem.model_spec.costs}"
        )
    if not instance.profile_batch:
        return None
    return ProfiledTraining(instance, instance.profile_batch, 4.0)


def samples_per_replica(global_batch: int, n_microbatches: int, n_replicas: int) -> int:
    """Return the samples that the fullest replica of a stage takes of one micro-batch."""
    whole = -(-global_batch // n_microbatches)
    return -(-whole // n_replicas)


def reduce_seconds(problem: Problem, training: ProfiledTraining, devices: tuple[int, ...], n_bytes: float) -> float:
    """Return the time of an all-reduce of gradients over the devices of a stage, alone on its links."""
    if problem.cluster is None or len(devices) == 1 or n_bytes == 0.0:
        return 0.0
    if training.published_links:
        return machines.all_reduce_seconds(problem.cluster, devices, n_bytes)
    from meshwright.network import Network

    return Network.of(problem.cluster).axis([list(devices)]).seconds("all_reduce", n_bytes)


def stage_costs(problem: Problem, plan: Plan) -> tuple[StageCost, ...]:
    """Return what each stage does and holds.

    Every stage is replicated over its devices. Empty where the samples of the profile are not known.
    Raises `InputError` when the problem holds no profile, or a stage is split over a tensor or context axis, which a profile
    says nothing about.
    """
    training = trained(problem)
    if training is None:
        return ()
    totals = _totals(problem, training, plan)
    found = []
    for stage, (forward, backward, activation, parameter, entering, leaving) in zip(plan.stages, totals, strict=True):
        if stage.strategy.n_devices != stage.strategy.data:
            raise InputError("costs dapple: a profile measures whole layers; stages can only be replicated (data), not split")
        n_samples = samples_per_replica(plan.global_batch, plan.n_microbatches, len(stage.devices))
        ratio = n_samples / training.profile_batch
        share = plan.global_batch / plan.n_microbatches / len(stage.devices) / training.profile_batch
        recomputes = "full" in stage.recompute
        kept = activation * training.activation_ratio * ratio
        found.append(
            StageCost(
                forward_seconds=forward * ratio,
                backward_input_seconds=backward * ratio,
                recompute_seconds=forward * ratio if recomputes else 0.0,
                output_bytes=leaving * share,
                reduce_seconds=reduce_seconds(problem, training, stage.devices, parameter),
                weight_bytes=parameter,
                optimizer_bytes=parameter * max(training.optimizer_scaling_ratio - 1.0, 0.0),
                activation_bytes=entering * ratio if recomputes else kept,
                working_bytes=kept if recomputes else 0.0,
            )
        )
    return tuple(found)


def _totals(problem: Problem, training: ProfiledTraining, plan: Plan) -> list[tuple[float, float, float, float, float, float]]:
    """Return forward and backward seconds, activation, parameter, entering and leaving bytes of each stage,
    for the profile batch.
    """
    if isinstance(training.profile, LinearisedProfile):
        return _state_totals(training.profile, plan)
    clean = cleaned(training.profile)
    stage_of_op = {op: i for i, stage in enumerate(plan.stages) for op in stage.ops}
    ids = problem.graph.ids()
    stage_of_node = [stage_of_op[ids[node.name]] for node in clean.nodes]
    totals = np.zeros((len(plan.stages), 4))
    for node, stage in zip(clean.nodes, stage_of_node, strict=True):
        milliseconds = (node.forward_milli_seconds, node.backward_milli_seconds)
        totals[stage] += (milliseconds[0] / 1000.0, milliseconds[1] / 1000.0, node.output_bytes, node.parameter_bytes)
    last_reader = list(stage_of_node)
    for source, target in clean.edges:
        last_reader[source] = max(last_reader[source], stage_of_node[target])
    crossing = np.zeros(len(plan.stages) + 1)
    for i, node in enumerate(clean.nodes):
        crossing[stage_of_node[i] + 1 : last_reader[i] + 1] += node.output_bytes
    rows = np.column_stack((totals, crossing[:-1], crossing[1:])).tolist()
    return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in rows]


def _state_totals(profile: LinearisedProfile, plan: Plan) -> list[tuple[float, float, float, float, float, float]]:
    """Return the same for states, whose one time is taken as a third forward."""
    found, begin = [], 0
    for i, stage in enumerate(plan.stages):
        # the stage ends with its last state, which all its others lead to
        end = max(stage.ops)
        seconds = max(float(profile.compute_seconds[begin, end]), 0.0)
        found.append(
            (
                seconds / 3.0,
                seconds - seconds / 3.0,
                max(float(profile.activation_bytes[begin, end]), 0.0),
                max(float(profile.parameter_bytes[begin, end]), 0.0),
                float(profile.cut_bytes[begin - 1]) if i else 0.0,
                float(profile.cut_bytes[end]) if i + 1 < len(plan.stages) else 0.0,
            )
        )
        begin = end + 1
    return found
