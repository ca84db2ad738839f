"""Costs from measured profiles: layers' times as they were measured, collectives too where the links were."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs.profiled.readers.profile_json import Measure, MeasuredLayer, Profile

__all__ = ["compute_seconds", "illegal", "layer_seconds", "stage_costs"]

_ALIKE_RATIO = 3.0
"""Links whose measured rates differ by less count as alike: pairs on one machine differ by chance alone."""


_NO_AXES = "profiles hold no context or expert parallelism"
_NO_HOST = "profiles hold nothing of the host; leave the optimizer's state on the devices (offload none)"


def illegal(problem: Problem, strategy: Strategy, micro_batch: int = 1) -> str:
    """Return why a strategy cannot be priced, in one sentence; empty when it can.

    `micro_batch`: samples of one micro-batch and replica; any number can be priced.
    """
    profile = problem.model_spec.instance
    assert isinstance(profile, Profile)
    if strategy.context > 1 or strategy.expert > 1:
        return _NO_AXES
    if strategy.offload != "none":
        return _NO_HOST
    if strategy.tensor > 1 and not any(tensor == strategy.tensor for _, tensor in profile.measures):
        return f"the tensor degree {strategy.tensor} was not measured; measure it with 'meshwright profile --tensor'"
    return ""


def stage_costs(problem: Problem, plan: Plan) -> tuple[StageCost, ...]:
    """Return what each stage of a plan does and holds.

    Raises `InputError` when the problem is no profile, or asks for an axis that profiles do not hold.

    Notes
    -----
    Times between measured numbers of rows are interpolated, outside they follow the nearest two. Layers that were not
    measured with a tensor degree take the time of the whole layer: every rank of the axis computes them. Weights that several
    layers share are held, reduced and updated once by a rank that has more than one of these; gathered weights travel for each.
    """
    profile = problem.model_spec.instance
    if not isinstance(profile, Profile):
        raise InputError(
            f"costs profiled: {problem.model_spec.name} is no profile; measure one with 'meshwright profile' and name its file "
            "as the model"
        )
    rows_of_microbatch = plan.global_batch / plan.n_microbatches
    result = []
    spare = _spare(profile, plan)
    for i, stage in enumerate(plan.stages):
        if stage.strategy.context > 1 or stage.strategy.expert > 1:
            raise InputError(f"costs profiled: stage {i}: {_NO_AXES}")
        if stage.strategy.offload != "none":
            raise InputError(f"costs profiled: stage {i}: {_NO_HOST}")
        result.append(_stage(problem, profile, stage, rows_of_microbatch / stage.strategy.data, spare[i]))
    return tuple(result)


def _spare(profile: Profile, plan: Plan) -> list[dict[int, float]]:
    """Return, of each stage, the bytes of weights by layer that an earlier layer on its rank holds already."""
    held: dict[int, set[int]] = {}
    result = []
    for rank, stage in zip(plan.rank_of_stage(), plan.stages, strict=True):
        own, spare = held.setdefault(rank, set()), {}
        for op in stage.ops:
            shared = profile.shared.get(op, ())
            spare[op] = sum(n_bytes for group, n_bytes in shared if group in own)
            own.update(group for group, _ in shared)
        result.append(spare)
    return result


def _stage(problem: Problem, profile: Profile, stage: Stage, rows: float, spare: dict[int, float]) -> StageCost:
    """Return the load of one stage; `spare`: bytes of weights by layer that its rank holds already."""
    import numpy as np

    strategy = stage.strategy
    recompute = stage.recompute or ("none",) * len(stage.ops)
    sums = np.zeros(5)  # forward, input, weight, recomputation seconds; saved bytes
    working = weights = once = tensor_bytes = 0.0
    for op, how in zip(stage.ops, recompute, strict=True):
        layer = profile.layers[op]
        forward, backward_input, backward_weight, saved = _at(profile, layer, rows, strategy.tensor)
        entering = profile.layers[op - 1].output_bytes * rows if op else 0.0
        again = how == "full"
        sums += (forward, backward_input, backward_weight, forward if again else 0.0, entering if again else saved)
        working = max(working, saved if again else 0.0)
        split = (layer.like, strategy.tensor) in profile.measures
        weights += layer.weight_bytes / (strategy.tensor if split else 1)
        once += (layer.weight_bytes - spare[op]) / (strategy.tensor if split else 1)
        if strategy.tensor > 1 and split:
            tensor_bytes += layer.output_bytes * rows
    tensor = 2.0 * _collective(problem, profile, stage, "tensor", "all_reduce", tensor_bytes)
    n_shards = (strategy.shard_degree or strategy.data) if strategy.shard else 1
    gather, scatter, reduce, update = _data_axis(problem, profile, stage, weights, once)
    return StageCost(
        forward_seconds=float(sums[0]),
        backward_input_seconds=float(sums[1]),
        backward_weight_seconds=float(sums[2]),
        recompute_seconds=float(sums[3]),
        forward_communication=(("gather", gather), ("tensor", tensor)),
        backward_communication=(("gather", gather + scatter), ("tensor", tensor)),
        output_bytes=profile.layers[stage.ops[-1]].output_bytes * rows,
        reduce_seconds=reduce,
        gather_seconds=update,
        optimizer_seconds=profile.optimizer_seconds_per_byte * once / n_shards,
        weight_bytes=once / (n_shards if strategy.shard == 3 else 1),
        gradient_bytes=once / (n_shards if strategy.shard >= 2 else 1),
        optimizer_bytes=2.0 * once / n_shards,
        activation_bytes=float(sums[4]),
        working_bytes=working,
    )


def compute_seconds(problem: Problem, strategy: Strategy, micro_batch: int, device: Device) -> dict[int, float]:
    """Return what every layer computes, forward and backward, for one micro-batch.

    `strategy`: degrees; only the tensor degree matters.
    `micro_batch`: samples of one micro-batch and replica.
    `device`: any: layers were measured on one kind of device.
    Returns: seconds by id of the layer.
    """
    profile = problem.model_spec.instance
    assert isinstance(profile, Profile)
    return {op: sum(layer_seconds(profile, op, micro_batch, strategy.tensor)) for op in range(len(profile.layers))}


def layer_seconds(profile: Profile, op: int, rows: float, tensor: int) -> tuple[float, float, float]:
    """Return forward, backward-input and backward-weight seconds of a layer for so many rows on one rank of a tensor axis."""
    return _at(profile, profile.layers[op], rows, tensor)[:3]


def _at(profile: Profile, layer: MeasuredLayer, rows: float, tensor: int) -> tuple[float, float, float, float]:
    """Return forward, backward-input and backward-weight seconds and saved bytes of a layer for so many rows."""
    measures = profile.measures.get((layer.like, tensor))
    if measures is None:
        measures = profile.measures[layer.like, 1]  # layers that a tensor axis does not split are computed whole by every rank
    names = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds", "saved_bytes")
    found = [_line(measures, name, rows) for name in names]
    return found[0], found[1], found[2], found[3]


def _line(measures: Sequence[Measure], name: str, rows: float) -> float:
    """Return a measured figure at any number of rows."""
    import numpy as np

    x = np.array([measure.rows for measure in measures], dtype=float)
    y = np.array([getattr(measure, name) for measure in measures], dtype=float)
    if len(x) == 1:
        return float(y[0] * rows / x[0])
    if rows <= x[-1]:
        inside = float(np.interp(rows, x, y))
        return inside if rows >= x[0] else max(0.0, float(y[0] + (y[1] - y[0]) / (x[1] - x[0]) * (rows - x[0])))
    return max(0.0, float(y[-1] + (y[-1] - y[-2]) / (x[-1] - x[-2]) * (rows - x[-1])))


def _data_axis(
    problem: Problem, profile: Profile, stage: Stage, weights: float, once: float
) -> tuple[float, float, float, float]:
    """Return seconds of gathering and scattering per micro-batch, of the reduction and of the gathering once a step.

    `weights`: bytes of the layers' weights, what they share counted for each; `once`: what the rank holds of them.
    """
    shard = stage.strategy.shard if stage.strategy.data > 1 else 0

    def seconds(kind: str) -> float:
        return _collective(problem, profile, stage, "data", kind, weights if shard == 3 else once)

    if stage.strategy.data == 1:
        return 0.0, 0.0, 0.0, 0.0
    if shard == 0:
        return 0.0, 0.0, seconds("all_reduce"), 0.0
    if shard == 1:
        return 0.0, 0.0, seconds("reduce_scatter"), seconds("all_gather")
    if shard == 2:
        return 0.0, seconds("reduce_scatter"), 0.0, seconds("all_gather")
    return seconds("all_gather"), seconds("reduce_scatter"), 0.0, 0.0


def _measured_there(problem: Problem) -> bool:
    """Whether collectives measured among the first ranks hold for any: the profile's own machine, all links nearly alike."""
    cluster = problem.cluster
    if cluster is None or cluster is not problem.model_spec.cluster:
        return False
    widths = cluster.links.bytes_per_second
    return bool(widths.max() <= _ALIKE_RATIO * widths.min())


def _collective(problem: Problem, profile: Profile, stage: Stage, axis: str, kind: str, n_bytes: float) -> float:
    """Return the seconds of a collective along one axis of a stage: as measured, or computed from the cluster's links."""
    strategy = stage.strategy
    n_ranks = strategy.data if axis == "data" else strategy.tensor
    if n_ranks == 1 or n_bytes <= 0.0:
        return 0.0
    for measured in profile.collectives if _measured_there(problem) else ():
        if measured.kind == kind and measured.n_ranks == n_ranks:
            return measured.latency_seconds + measured.seconds_per_byte * n_bytes
    if problem.cluster is None:
        return 0.0
    import numpy as np

    from meshwright.network import Network

    grid = np.array(stage.ring_devices).reshape(strategy.data, strategy.tensor)
    return float(Network.of(problem.cluster).axis(grid.T if axis == "data" else grid).seconds(kind, n_bytes))
