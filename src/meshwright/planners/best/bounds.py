"""What a mesh, and a configuration of the joint space, take at least: proven lower bounds on the simulated step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best import inequalities, plans, step_ends, virtual
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.space import ANY, Config, MeshDegrees
from meshwright.solvers.pipeline import layer_split

__all__ = ["of_config", "of_mesh", "with_transfers"]

_ROUNDING_RATIO = 1e-6  # room for what proves a bound again and rounds otherwise, such as a solver of integer programs


def of_mesh(costs: Costs, mesh: MeshDegrees, n_microbatches: int, *, with_communication: bool = False) -> float:
    """Return a bound on the step of every configuration of a mesh: the work of its ranks, in whole layers, shared evenly.

    Lemma: give every kind of device k the price 1 / S_k of a second, S_k being what the whole model takes on it. A layer then
    costs at least the least of its prices wherever it lies, and ranks that work for T seconds earn T times the sum of 1 / S_k
    over ranks: T is at least the quotient. With one kind this is the whole work over the number of ranks.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    mesh : MeshDegrees
        The mesh.
    n_microbatches : int
        Micro-batches of a step.
    with_communication : bool
        Whether to count communication inside layers too, which takes longer to find.
    """
    config = Config(mesh, ANY, 0, "1f1b", 1, "")
    n_ranks = np.array([float(mesh.pipeline)])
    if len(costs.pool.devices) > 1:
        n_ranks = np.bincount(costs.kind_of_rank(config))[list(costs.classes(config).kinds)]
    own = costs.least_work(config, with_communication=with_communication)
    # some rank has at least the quotient of layers, rounded up
    whole_layers = math.ceil(len(costs.chain.layers) / mesh.pipeline) * own.layer_seconds
    return float(n_microbatches * max(own.share_ratio / (n_ranks / own.whole_seconds).sum(), whole_layers))


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
        return virtual.bound(costs, config, n_microbatches, light)
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
    cut = layer_split.bottleneck(chain, least_seconds=bound, limit_seconds=limit_seconds)[0]
    return max(bound, cut * (1.0 - _ROUNDING_RATIO))


def with_transfers(costs: Costs, config: Config, n_microbatches: int, limit_seconds: float) -> float:
    """Return what a configuration takes at least by what its ranks send each other, whatever layers recompute.

    Parameters
    ----------
    costs, config, n_microbatches, limit_seconds
        As in `of_config`; of virtual stages `config.fewer` says which spread of the layers.

    Returns
    -------
    float
        Seconds; 0 where ranks send each other nothing; inf where no split fits the memory.
    """
    if config.chunks > 1:
        least = virtual.played(costs, config, n_microbatches)
        plan = None if config.paired or least >= limit_seconds else plans.even(costs, config, n_microbatches)
        on_links = (
            None if plan is None else step_ends.link_work(costs.problem, plan, costs.model.stage_costs(costs.problem, plan))
        )
        return least if on_links is None else virtual.played(costs, config, n_microbatches, on_links=on_links)
    # any plan of the configuration tells what transfers take at least
    even = None if config.one_way else plans.even(costs, config, n_microbatches)
    if even is None:
        return 0.0
    hops = costs.transfer_seconds(config, even, costs.stage_costs(config, even))
    return of_config(costs, config, n_microbatches, limit_seconds, transfer_seconds=hops)
