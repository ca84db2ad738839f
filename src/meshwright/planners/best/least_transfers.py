"""What the ranks of a configuration send each other at least, whatever the split of its layers: known before there is a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.network import Network
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.space import Config
from meshwright.sim import transfers

__all__ = ["of_stages"]


def of_stages(costs: Costs, config: Config, rank_of_stage: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what each stage sends forward (row 0) and backward (row 1) at least, alone on its links.

    Lemma: what a stage sends is the output of its last layer, so no less than the least output of all; on the same links fewer bytes
    take less. Where some layers have no gradient of their output, nothing may come back, so nothing is counted.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    config : Config
        With a sharding and a layout of its own.
    rank_of_stage : ndarray, shape (n_stages,), int64
        Where the stages are.

    Returns
    -------
    ndarray, shape (2, n_stages), float64
        Seconds of one micro-batch; 0 where both stages lie on one rank.
    """
    rank, found = rank_of_stage, np.zeros((2, len(rank_of_stage)))
    n_bytes, comes_back = _least_output(costs, config)
    if n_bytes <= 0.0:
        return found
    crosses = rank[1:] != rank[:-1]
    for way, source, target in ((0, rank[:-1], rank[1:]), (1, rank[1:], rank[:-1])):
        if way and not comes_back:
            continue
        pairs = list(zip(source.tolist(), target.tolist(), strict=True))
        seconds = {pair: _seconds(costs, config, *pair, n_bytes) for pair in set(pairs) if pair[0] != pair[1]}
        own = found[way, 1:] if way else found[way, :-1]
        own[crosses] = [seconds[pair] for pair in pairs if pair[0] != pair[1]]
    return found


def _least_output(costs: Costs, config: Config) -> tuple[float, bool]:
    """Return the least bytes that a layer sends on, and whether something comes back for all of them."""
    rows = costs.rows(config)
    ends = {*costs.chain.rows, *costs.chain.prefix[-1:]}
    sent = [load for of_class in rows for (row, _), load in of_class.items() if row in ends]
    return min(load.output_bytes for load in sent), all(load.output_gradient for load in sent)


def _seconds(costs: Costs, config: Config, source: int, target: int, n_bytes: float) -> float:
    """Return what one rank needs to send another so many bytes of each device, alone on the links."""
    mesh, cluster = config.mesh, costs.problem.required_cluster
    key = ("sends", config.layout, mesh.pipeline, mesh.data, mesh.context * mesh.tensor, source, target)
    if key not in costs.virtual_stages:
        ends = (tuple(costs.pool.rank(config, rank).tolist()) for rank in (source, target))
        latency, links, load = Network.of(cluster).sends(*transfers.pairs(*ends))
        slowest = float((load / cluster.links.bytes_per_second[links]).max(initial=0.0))
        costs.virtual_stages[key] = latency, slowest
    latency, seconds_per_byte = costs.virtual_stages[key]
    return float(latency + n_bytes * seconds_per_byte)
