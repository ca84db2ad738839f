"""What a mesh, and a configuration of the joint space, take at least: proven lower bounds on the simulated step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best import inequalities
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import stage_sums, work_of
from meshwright.planners.best.space import Config, Mesh
from meshwright.solvers.pipeline import layer_split

__all__ = ["of_config", "of_mesh"]


def of_mesh(costs: Costs, mesh: Mesh, n_microbatches: int, *, with_communication: bool = False) -> float:
    """Return a bound on the step of every configuration of a mesh: the work of its ranks, in whole layers, shared evenly.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    mesh : Mesh
        The mesh.
    n_microbatches : int
        Micro-batches of a step.
    with_communication : bool
        Whether to count communication inside layers too, which takes longer to find.
    """
    cluster = costs.problem.required_cluster
    chain, config = costs.chain, Config(mesh, 0, 0, "1f1b", 1, "pipeline")
    kinds = [devices for devices in costs.pool.devices if len(devices) >= mesh.rank_size]
    rates, layer_rates = 0.0, 0.0
    least_layer = math.inf
    for i, devices in enumerate(kinds):
        if with_communication:
            loads = costs.rows(config, light=True)[i]
            word = costs.words(loads)[0]
            seconds = {row: work_of(loads[row, word if row in chain.rows else "none"]) for row, _ in loads}
        else:
            device = cluster.device(int(devices[0]))
            seconds = costs.model.compute_seconds(costs.problem, config.strategy, mesh.micro_batch, device)
        n_ranks = min(len(devices) // mesh.rank_size, mesh.pipeline)
        rates += n_ranks / sum(seconds[row] for row in (*chain.prefix, *chain.rows, *chain.suffix))
        layer_rates += n_ranks
        least_layer = min(least_layer, *(seconds[row] for row in set(chain.rows)))
    # some rank has at least the quotient of layers, rounded up
    whole_layers = math.ceil(len(chain.layers) / layer_rates) * least_layer
    return n_microbatches * max(1.0 / rates, whole_layers)


def of_config(
    costs: Costs,
    config: Config,
    n_microbatches: int,
    limit_seconds: float,
    *,
    light: bool = False,
    transfer_seconds: NDArray[np.float64] | None = None,
) -> float:
    """Return a proven lower bound on the simulated step of a configuration, over all splits and recomputations.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    config : Config
        The configuration.
    n_microbatches : int
        Micro-batches of a step.
    limit_seconds : float
        Above this the answer may be inf.
    light : bool
        Whether to leave out what happens between replicas: a lower bound, quick on large clusters.
    transfer_seconds : ndarray, shape (n_ranks - 1,), float64, or None
        The least that a transfer from each rank to the next takes, whatever the split; None for nothing.

    Returns
    -------
    float
        Seconds; inf when no split fits the memory.
    """
    if config.chunks > 1:
        return _of_virtual_stages(costs, config, n_microbatches, light)
    ranks, n_layers, after = costs.pipeline_ranks(config, n_microbatches, light=light)
    bound = after + layer_split.bound(
        ranks,
        n_layers,
        n_microbatches,
        split_backward=config.split_backward,
        whole=costs.chain.equal,
        limit_seconds=limit_seconds,
        tolerance_ratio=1e-4 if light else 1e-6,
    )
    if not math.isfinite(bound) or light:
        return bound
    chain = inequalities.chain_to_cut(costs, config, n_microbatches, transfer_seconds)
    return max(bound, layer_split.bottleneck(chain, least_seconds=bound, limit_seconds=limit_seconds)[0])


def _of_virtual_stages(costs: Costs, config: Config, n_microbatches: int, light: bool) -> float:
    """Return the bound for virtual stages, whose layers `spread` puts in one way: only what they recompute is open.

    Notes
    -----
    * A rank works for all micro-batches from the first arrival at its first stage on; then it ends its own step, or, where
      backward passes are whole, the last micro-batch returns to the first rank, which ends the step. Every byte over its
      memory costs at least the best price of any layer.
    * The reductions of a rank follow each other. The first one starts with the last task of the stage that is through first:
      by then all forward passes are done, and the backward passes of that stage and of later ones (of weights: all but one).
    """
    m = float(n_microbatches)
    digests = costs.digests(config, light=light)
    in_flight, memory = costs.in_flight(config, n_microbatches), np.array(costs.memory_bytes(config))
    of_rank = np.array(costs.kind_of_rank(config))
    counts, own = costs.virtual_stages(config.schedule, config.mesh.pipeline, config.chunks)
    of, places = stage_sums(digests, counts, of_rank, own), np.concatenate(([0], np.cumsum(counts)))
    seconds = of.work_seconds.sum(axis=1)
    reserved = np.array([digest.reserved_bytes for digest in digests])[of_rank]
    excess = of.static_bytes.sum(axis=1) + in_flight * of.activation_bytes.sum(axis=1) + reserved - memory
    for rank in np.flatnonzero(excess > 0.0):
        at = digests[of_rank[rank]]
        n_layers, saved = int(counts[own[rank]].sum()), in_flight[rank] * at.saved_bytes
        extra = layer_split.least_extra(excess[rank], n_layers, saved, at.extra_seconds)
        if not costs.chain.equal:
            worth = at.relief.worth_seconds
            earned = (worth[:, places[own[rank] + 1]] - worth[:, places[own[rank]]]).sum(axis=1)
            by_price = at.relief.seconds_per_byte * excess[rank] / in_flight[rank] - earned
            extra = max(extra, by_price.max(initial=0.0))
        seconds[rank] += extra
    update, work = of.update_seconds.sum(axis=1), m * seconds
    end = update + of.largest_reduce_seconds.min(axis=1)
    split_backward = config.split_backward
    # backward passes of the stages from each one on, the last task of that stage left out
    later = m * np.cumsum((of.input_seconds if split_backward else of.backward_seconds)[:, ::-1], axis=1)[:, ::-1]
    done = later + (m - 1) * of.weight_seconds if split_backward else later - of.backward_seconds
    reduced = m * of.forward_seconds.sum(axis=1) + done.min(axis=1) + of.reduce_seconds.sum(axis=1) + update
    there = np.concatenate(([0.0], np.cumsum(of.forward_seconds[:-1, 0])))
    ends = [work + end, reduced]
    if not split_backward:  # otherwise weight gradients may be what a rank does last, and nobody waits for those
        ends.append(work + np.concatenate(([0.0], np.cumsum(of.backward_seconds[:-1, 0]))) + end[0])
    return float((there + np.max(ends, axis=0)).max())
