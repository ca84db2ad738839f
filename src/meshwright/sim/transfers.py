"""What pipeline ranks send each other: channels between ranks, and how long a transfer takes alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.plan import Plan
from meshwright.problem import Problem
from meshwright.table import StageLoad

__all__ = ["channels", "pairs", "seconds", "send_seconds"]


def channels(rank_of_stage: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which channel carries what each stage sends forward (row 0) and backward (row 1).

    A channel leads from one rank to another; all stages that send between the same two ranks share it, in the order in which
    they finish. -1 where both stages lie on one rank, or there is no next stage.

    Returns
    -------
    ndarray, shape (2, n_stages), int64
        Ids from 0 on, below ``2 * n_stages``, in order of first use.
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


def send_seconds(transfer_seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds of what each stage sends forward and backward; shape (2, n_stages), float64."""
    result = np.zeros((2, len(transfer_seconds) + 1))
    result[0, :-1] = transfer_seconds
    result[1, 1:] = transfer_seconds
    return result


def pairs(sources: tuple[int, ...], targets: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return which device sends to which, and how much of what one sender holds.

    Senders and receivers each hold equal, contiguous parts of the micro-batches of all replicas; whoever's parts overlap
    exchange the overlap. With as many of both, each sends everything to its peer.

    Parameters
    ----------
    sources, targets : tuple of int
        Devices of two stages in mesh order.

    Returns
    -------
    pairs : ndarray, shape (n_pairs, 2), int64
        Source and target device.
    share : ndarray, shape (n_pairs,), float64
        The part of the source's output; adds up to 1 for every source.
    """
    if len(sources) == len(targets):
        return np.stack((np.array(sources), np.array(targets)), axis=1).astype(np.int64), np.ones(len(sources))
    # On a ruler with n_sources * n_targets marks, sender i holds n_targets marks and receiver j holds n_sources.
    n_sources, n_targets = len(sources), len(targets)
    cuts = np.unique(np.concatenate((np.arange(n_sources + 1) * n_targets, np.arange(n_targets + 1) * n_sources)))
    sender, receiver = cuts[:-1] // n_targets, cuts[:-1] // n_sources
    both = np.stack((np.array(sources)[sender], np.array(targets)[receiver]), axis=1).astype(np.int64)
    return both, np.diff(cuts) / n_targets


def seconds(problem: Problem, plan: Plan, loads: tuple[StageLoad, ...]) -> NDArray[np.float64]:
    """Return how long a transfer from each stage to the next takes when nothing else uses the links.

    Parameters
    ----------
    problem : Problem
        Its cluster has the links; without one, transfers take no time.
    plan : Plan
        Its stages name the devices.
    loads : tuple of StageLoad
        Their ``output_bytes`` is what each device sends.

    Returns
    -------
    ndarray, shape (n_stages - 1,), float64
        Seconds, all replicas sending at once; 0 between stages of one rank.
    """
    result = np.zeros(len(plan.stages) - 1)
    if problem.cluster is None:
        return result
    from meshwright import network

    for i in range(len(result)):
        here, there = plan.stages[i].devices, plan.stages[i + 1].devices
        if here != there and loads[i].output_bytes > 0.0:
            both, share = pairs(here, there)
            latency_seconds, seconds_per_byte = network.transfer(problem.cluster, both)
            result[i] = np.max(latency_seconds) + np.max(seconds_per_byte) * float(share.max()) * loads[i].output_bytes
    return result
