"""Several jobs on one cluster: a step of each, played at once on links they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import SEGMENT_BYTES, Placement, Step

if TYPE_CHECKING:
    from meshwright._kernels.topoopt.step_tasks import Split, WorkloadArrays

__all__ = ["PlacedJob", "fitted", "scattered", "together"]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedJob:
    """One job and where it runs.

    Parameters
    ----------
    step : Step
        Its workload.
    placement : Placement
        Its plan, on servers ``0, 1, ...`` of its own.
    servers : tuple of int
        Which servers of the cluster these are.
    """

    step: Step
    placement: Placement
    servers: tuple[int, ...]


def scattered(n_servers: int, sizes: Sequence[int], rng: np.random.Generator | None = None) -> list[tuple[int, ...]]:
    """Return servers for jobs of some sizes: drawn, as a busy scheduler leaves them; side by side without a generator.

    `sizes`: servers of each job.
    Raises `InputError` when the jobs need more servers than there are.
    """
    if sum(sizes) > n_servers:
        raise InputError(f"the jobs need {sum(sizes)} servers, but the cluster has {n_servers}")
    order = (np.arange(n_servers) if rng is None else rng.permutation(n_servers)).tolist()
    ends = np.cumsum(sizes).tolist()
    return [tuple(sorted(order[end - size : end])) for end, size in zip(ends, sizes, strict=True)]


def fitted(jobs: Sequence[PlacedJob], fabric: Fabric) -> Fabric:
    """Return the same wires with routes and rings chosen for what all jobs send."""
    pair = np.zeros((fabric.n_servers, fabric.n_servers))
    groups: list[tuple[tuple[int, ...], float]] = []
    for job in jobs:
        traffic, servers = job.step.traffic(job.placement), list(job.servers)
        pair[np.ix_(servers, servers)] += traffic.pair_bytes
        groups += [(tuple(sorted(servers[i] for i in members)), n_bytes) for members, n_bytes in traffic.group_bytes]
    return fabric.refitted(pair, groups)


def together(jobs: Sequence[PlacedJob], fabric: Fabric, traffic: str = "queues") -> tuple[float, ...]:
    """Return how long a step of each job takes when all begin at once and share the links.

    `jobs`: no server in two of them, all with the same number and kind of devices a server.
    `fabric`: network of the whole cluster.
    `traffic`: ``queues``, ``segments`` or ``fair``.
    Returns: seconds.
    Raises `InputError` when two jobs want one server, or servers differ.

    Notes
    -----
    One step each: a short step that would meet several times with a long one's transfers meets them once.
    """
    from meshwright._kernels.topoopt import fair_steps, flow_simulation, step_tasks

    taken = [server for job in jobs for server in job.servers]
    if len(set(taken)) != len(taken) or not all(0 <= server < fabric.n_servers for server in taken):
        raise InputError(f"jobs: every server of 0 .. {fabric.n_servers - 1} may be in one job only; they want {sorted(taken)}")
    insides = {job.step.inside() for job in jobs}
    if len(insides) != 1:
        raise InputError("jobs: servers of all jobs must have the same devices and the same network between them")
    inside = insides.pop()
    split = _side_by_side([job.step.split(_moved(job), fabric) for job in jobs])
    tasks = step_tasks.tasks(
        _one_model([job.step.model for job in jobs]), split, fabric.pair_ways, fabric.pair_share, SEGMENT_BYTES
    )
    if traffic == "fair":
        stay = fair_steps.Windows(np.zeros(1), 0.0)
        played = fair_steps.play(tasks, split, fabric.network(), stay, inside, np.inf)
    else:
        played = flow_simulation.play(tasks, split, fabric.network(), SEGMENT_BYTES, traffic == "queues", inside, np.inf)
    last_op = np.cumsum([len(job.placement.choice) for job in jobs])
    op_of = np.repeat(np.arange(last_op[-1]), np.diff(tasks.part_first))
    job_of_op = np.repeat(np.arange(len(jobs)), np.diff(last_op, prepend=0))
    seconds = np.zeros(len(jobs))
    reduce_op = np.repeat(np.arange(last_op[-1]), np.diff(tasks.reduce_first))
    for ends, ops in (
        (played.end, np.repeat(op_of, 2)),
        (played.edge_end, op_of[tasks.edge_source >> 1]),
        (played.reduce_end, reduce_op),
    ):
        np.maximum.at(seconds, job_of_op[ops], ends)
    return tuple(seconds.tolist())


def _moved(job: PlacedJob) -> Placement:
    """Return the plan on the servers of the cluster."""
    return replace(job.placement, servers=tuple(tuple(job.servers[s] for s in servers) for servers in job.placement.servers))


def _one_model(models: Sequence[WorkloadArrays]) -> WorkloadArrays:
    """Return the operators of all jobs as those of one."""
    n_before = np.cumsum([0, *(len(model.sample_bytes) for model in models)])
    inputs = [model.input_op + shift for model, shift in zip(models, n_before[:-1], strict=True)]
    return models[0]._replace(
        batch=np.concatenate([model.batch for model in models]),
        input_first=_joined([model.input_first for model in models]),
        input_op=np.concatenate(inputs).astype(np.int64),
        sample_bytes=np.concatenate([model.sample_bytes for model in models]),
        weight_first=_joined([model.weight_first for model in models]),
        weight_bytes=np.concatenate([model.weight_bytes for model in models]),
    )


def _joined(firsts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return where rows begin when several lists of rows follow each other."""
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(first) for first in firsts]))]).astype(np.int64)


def _side_by_side(splits: Sequence[Split]) -> Split:
    """Return the plans of all jobs as one."""

    def padded(arrays: Sequence[NDArray[np.int64]], value: int) -> NDArray[np.int64]:
        most = max(array.shape[1] for array in arrays)
        return np.concatenate([np.pad(array, ((0, 0), (0, most - array.shape[1])), constant_values=value) for array in arrays])

    return splits[0]._replace(
        samples=np.concatenate([split.samples for split in splits]),
        columns=np.concatenate([split.columns for split in splits]),
        rows=np.concatenate([split.rows for split in splits]),
        server=padded([split.server for split in splits], 0),
        group=padded([split.group for split in splits], -1),
        seconds=np.concatenate([split.seconds for split in splits], axis=1),
        last=np.concatenate([split.last for split in splits]),
    )
