"""What pipeline ranks send each other: channels between ranks, their links, and how long a transfer takes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import distinct
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.network import Network

__all__ = ["Transfers", "channels", "fixed", "pairs", "transfers"]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Transfers of one plan. Flow ``way * n_stages + stage`` is what a stage sends forward (way 0) or backward (way 1).

    Parameters
    ----------
    channel : ndarray, shape (2, n_stages), int64
        See `channels`.
    seconds : ndarray, shape (2, n_stages), float64
        Alone on the links.
    latency_seconds : ndarray, shape (2, n_stages), float64
        The part of it before the first byte arrives.
    bytes : ndarray, shape (2, n_stages), float64
        What one device sends for one micro-batch.
    links, busy_bytes : tuple of ndarray
        Per flow: the links it uses, int64, and how many bytes cross each of them for one micro-batch, float64.
    link_bytes_per_second : ndarray, shape (n_links,), float64
        Bandwidth of the cluster's links.
    """

    channel: NDArray[np.int64]
    seconds: NDArray[np.float64]
    latency_seconds: NDArray[np.float64]
    bytes: NDArray[np.float64]
    links: tuple[NDArray[np.int64], ...] = ()
    busy_bytes: tuple[NDArray[np.float64], ...] = ()
    link_bytes_per_second: NDArray[np.float64] | None = None


def channels(rank_of_stage: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which channel carries what each stage sends forward (row 0) and backward (row 1).

    A channel leads from one rank to another; all stages that send between the same two ranks share it, in the order in which
    they finish. -1 where both stages lie on one rank, or there is no next stage.

    Returns shape (2, n_stages), int64: ids from 0 on, below ``2 * n_stages``, by source and target rank.
    """
    rank = np.asarray(rank_of_stage, dtype=np.int64)
    n_stages = len(rank)
    target = np.full((2, n_stages), -1, dtype=np.int64)
    target[0, :-1], target[1, 1:] = rank[1:], rank[:-1]
    crosses = (target >= 0) & (target != rank)
    codes = np.where(crosses, rank * n_stages + target, -1)
    _, ids = np.unique(codes[crosses], return_inverse=True)
    result = np.full((2, n_stages), -1, dtype=np.int64)
    result[crosses] = ids
    return result


def fixed(rank_of_stage: NDArray[np.int64], transfer_seconds: NDArray[np.float64]) -> Transfers:
    """Return transfers of known length on links that nothing else uses.

    Parameters
    ----------
    rank_of_stage : ndarray, shape (n_stages,), int64
        Which rank runs each stage.
    transfer_seconds : ndarray, shape (n_stages - 1,), float64
        From each stage to the next, and back; not counted between stages of one rank.
    """
    seconds = np.zeros((2, len(rank_of_stage)))
    seconds[0, :-1] = transfer_seconds
    seconds[1, 1:] = transfer_seconds
    return Transfers(channels(rank_of_stage), seconds, np.zeros_like(seconds), np.zeros_like(seconds))


def pairs(
    sources: tuple[int, ...], targets: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return which device sends to which, and how much of what one sender holds.

    Senders and receivers each hold equal, contiguous parts of the micro-batches of all replicas; whoever's parts overlap
    exchange the overlap. With as many of both, each sends everything to its peer.

    Parameters
    ----------
    sources, targets : tuple of int
        Devices of two stages in mesh order.

    Returns
    -------
    source, target : ndarray, shape (n_pairs,), int64
        Devices.
    share : ndarray, shape (n_pairs,), float64
        The part of the source's output; adds up to 1 for every source.
    """
    # On a ruler with n_sources * n_targets marks, sender i holds n_targets marks and receiver j holds n_sources.
    n_sources, n_targets = len(sources), len(targets)
    if n_sources == n_targets:
        return np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64), np.ones(n_sources)
    cuts = distinct(np.concatenate((np.arange(n_sources + 1) * n_targets, np.arange(n_targets + 1) * n_sources)))
    sender, receiver = cuts[:-1] // n_targets, cuts[:-1] // n_sources
    return (
        np.array(sources, dtype=np.int64)[sender],
        np.array(targets, dtype=np.int64)[receiver],
        np.diff(cuts) / n_targets,
    )


def transfers(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> Transfers:
    """Return the transfers of a plan on the links of its cluster, all replicas sending at once.

    Parameters
    ----------
    problem : Problem
        Its cluster has the links; without one, transfers take no time.
    plan : Plan
        Its stages name the devices.
    stage_costs : tuple of StageCost
        Their ``output_bytes`` is what each device sends forward, and what it gets back where anything up to there is trained.

    Returns
    -------
    Transfers
        Alone and on their links.
    """
    n_stages = len(plan.stages)
    ranks = np.array(plan.rank_of_stage(), dtype=np.int64)
    nothing = fixed(ranks, np.zeros(n_stages - 1))
    cluster = problem.cluster
    if cluster is None:
        return nothing
    net = Network.of(cluster)
    seconds, latency, sent = (np.zeros((2, n_stages)) for _ in range(3))
    links = [np.empty(0, dtype=np.int64)] * (2 * n_stages)
    busy = [np.empty(0)] * (2 * n_stages)
    for i in range(n_stages - 1):
        if ranks[i] == ranks[i + 1] or stage_costs[i].output_bytes == 0.0:
            continue
        source, target, share = pairs(plan.stages[i].devices, plan.stages[i + 1].devices)
        for way, stage, ends in ((0, i, (source, target)), (1, i + 1, (target, source))):
            if way and not stage_costs[i].output_gradient:
                continue
            flow = way * n_stages + stage
            sent[way, stage] = stage_costs[i].output_bytes
            latency[way, stage], links[flow], busy_share = net.sends(*ends, share)
            busy[flow] = busy_share * stage_costs[i].output_bytes
            slowest = busy[flow] / cluster.links.bytes_per_second[links[flow]]
            seconds[way, stage] = latency[way, stage] + slowest.max(initial=0.0)
    return Transfers(nothing.channel, seconds, latency, sent, tuple(links), tuple(busy), cluster.links.bytes_per_second)
