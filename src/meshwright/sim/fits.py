"""Whether a plan fits its devices: the only place where memory, what a device keeps for itself, and a share of the memory meet.

Searches, checks, reports, what-ifs and validation ask here. Searches that look for plans before they simulate any ask
`free_bytes`; who has a simulated plan asks `excess_bytes`. Published instances (Piper's files, placement graphs, PaSE's
``memory_limit``) bring a limit of their own, which their planner keeps instead where no cluster is named; each planner says so
where it reads that limit.

A predicted peak may fill `Problem.memory_ratio` of a device, which leaves room for what predictions miss with the chance that
the question allows (`Problem.memory_risk`); a search that is told to leave more takes the smaller share of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from meshwright.base import registry
from meshwright.base.identity import distinct
from meshwright.core.cluster import Cluster, Device
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.costs import LAYERS, offers
from meshwright.schedules import Room

__all__ = [
    "context_bytes", "excess_bytes", "free_bytes", "host_bytes", "rank_excess_bytes", "room", "shared_excess_bytes", "tightest",
]  # fmt: skip


def free_bytes(devices: Iterable[Device], memory_ratio: float = 1.0) -> float:
    """Return what a process may take on every one of some devices: the memory of the tightest, less what it keeps for itself.

    Parameters
    ----------
    devices : iterable of Device
        The devices of a stage, or their kinds.
    memory_ratio : float
        Share of the memory that may be filled, what the device keeps for itself included: `Problem.memory_ratio`.
    """
    return min(memory_ratio * device.memory_bytes - device.reserved_bytes for device in devices)


def tightest(cluster: Cluster, devices: Sequence[int]) -> Device:
    """Return the kind of device that has the least left beside what it keeps for itself; the peak of a rank is that device's.

    Parameters
    ----------
    cluster : Cluster
        Where the devices are.
    devices : sequence of int
        Their ids.
    """
    return min(_kinds(cluster, devices), key=lambda kind: kind.memory_bytes - kind.reserved_bytes)


def context_bytes(problem: Problem, plan: Plan) -> tuple[float, ...] | None:
    """Return what the device of each pipeline rank keeps for itself, which the simulator adds to whatever the cost model
    counts.

    Parameters
    ----------
    problem : Problem
        Where it runs.
    plan : Plan
        Its ranks.

    Returns
    -------
    tuple of float or None
        Of the tightest device of each rank; None without a cluster.
    """
    cluster = problem.cluster
    return None if cluster is None else tuple(tightest(cluster, devices).reserved_bytes for devices in plan.ranks())


def room(problem: Problem, plan: Plan, stage_costs: Sequence[StageCost]) -> Room | None:
    """Return the memory that a plan leaves its tasks on each rank: orders that are fitted to durations keep to it.

    Parameters
    ----------
    problem : Problem
        Where it runs, and how much of the memory may be filled.
    plan : Plan
        Its ranks.
    stage_costs : sequence of StageCost
        What its stages do and hold.

    Returns
    -------
    Room or None
        What is left beside weights, gradients, optimizer state, buffers of collectives and what the device keeps for itself;
        None without a cluster.
    """
    cluster = problem.cluster
    if cluster is None:
        return None
    rank_of_stage = np.array(plan.rank_of_stage())
    free = [free_bytes(_kinds(cluster, devices), problem.memory_ratio) for devices in plan.ranks()]
    static = np.bincount(rank_of_stage, [load.static_bytes for load in stage_costs], len(free))
    buffers = np.zeros(len(free))
    np.maximum.at(buffers, rank_of_stage, [load.communication_bytes for load in stage_costs])
    return Room(
        np.array([load.activation_bytes for load in stage_costs]),
        np.array([load.working_bytes for load in stage_costs]),
        np.array(free) - static - buffers,
    )


def rank_excess_bytes(
    problem: Problem, plan: Plan, peak_bytes: Sequence[float], memory_ratio: float = 1.0
) -> tuple[float, ...]:
    """Return by how many bytes each pipeline rank exceeds its tightest device, or its share of the host if that is more; not
    above zero where it fits.

    Parameters
    ----------
    problem : Problem
        Its cluster has the memory; without one, nothing is known and everything fits.
    plan : Plan
        Its stages name the devices.
    peak_bytes : sequence of float
        What a device of each rank holds at its peak, as `meshwright.sim.simulate` says for this problem.
    memory_ratio : float
        Share of the memory that may be filled, if less than the problem allows.
    """
    cluster, ratio = problem.cluster, min(memory_ratio, problem.memory_ratio)
    if cluster is None:
        return (0.0,) * len(peak_bytes)
    found = []
    for peak, devices, away in zip(peak_bytes, plan.ranks(), host_bytes(problem, plan), strict=True):
        own = tightest(cluster, devices).reserved_bytes  # part of the peak; other devices of the rank keep their own
        kinds = _kinds(cluster, devices)
        found.append(max(peak + (kind.reserved_bytes - own) - ratio * kind.memory_bytes for kind in kinds))
        if away:
            from meshwright.costs.analytic.offload import HOST_FILL_RATIO

            of_host = min(kind.host.memory_bytes if kind.host else 0.0 for kind in kinds)
            found[-1] = max(found[-1], away - HOST_FILL_RATIO * of_host)
    return tuple(found)


def host_bytes(problem: Problem, plan: Plan) -> tuple[float, ...]:
    """Return what each pipeline rank holds on the host of each of its devices.

    Parameters
    ----------
    problem, plan
        As of `rank_excess_bytes`.
    """
    rank_of_stage, held = plan.rank_of_stage(), [0.0] * len(plan.ranks())
    if (plan.n_offloaded or any(stage.strategy.offload != "none" for stage in plan.stages)) and offers(problem.costs, LAYERS):
        priced = registry.load("costs", problem.costs, "cost model").stage_costs(problem, plan, ledger=False)
        for rank, load in zip(rank_of_stage, priced, strict=True):
            held[rank] += load.host_bytes
    return tuple(held)


def excess_bytes(problem: Problem, plan: Plan, peak_bytes: Sequence[float], memory_ratio: float = 1.0) -> float:
    """Return by how many bytes a plan exceeds its fullest device; not above zero where it fits everywhere.

    Parameters
    ----------
    problem, plan, peak_bytes, memory_ratio
        As of `rank_excess_bytes`.
    """
    return max(rank_excess_bytes(problem, plan, peak_bytes, memory_ratio))


def shared_excess_bytes(n_bytes: float, device: Device, n_devices: int) -> float:
    """Return by how many bytes devices of one kind are exceeded at least when they hold some bytes together.

    Parameters
    ----------
    n_bytes : float
        What all of them hold together at least; not above zero where an equal share fits.
    device : Device
        Their kind.
    n_devices : int
        How many.
    """
    return n_bytes / n_devices - device.memory_bytes


def _kinds(cluster: Cluster, devices: Sequence[int]) -> list[Device]:
    """Return the different kinds among some devices."""
    if len(cluster.kinds) == 1:
        return [cluster.kinds[0]]
    return [cluster.kinds[int(kind)] for kind in distinct(cluster.kind_of_device[list(devices)])]
