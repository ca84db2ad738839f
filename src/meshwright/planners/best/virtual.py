"""What virtual stages cost at least: layers are spread over them in a few ways, only what they recompute is open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import RECOMPUTE, repeats_dispatch
from meshwright.network import Network
from meshwright.planners.best import fitted_orders
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.memory import ROUNDING_RATIO
from meshwright.planners.best.space import ANY_SPREAD, VIRTUAL, Config, spreads_of
from meshwright.planners.best.step_ends import LinkWork
from meshwright.sim import transfers

__all__ = ["bound", "bounds_of", "counts", "end_seconds", "fewer_of", "in_shape", "played", "spread", "spreads"]


def bound(costs: Costs, config: Config, n_microbatches: int, light: bool) -> float:
    """Return a proven lower bound on the simulated step of virtual stages: the least of `bounds_of`; arguments as there."""
    return float(bounds_of(costs, config, n_microbatches, light, only_least=True).min())


def bounds_of(
    costs: Costs,
    config: Config,
    n_microbatches: int,
    light: bool,
    *,
    only_least: bool = False,
    again_seconds: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return a proven lower bound on the simulated step of each spread of layers over virtual stages.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    config : Config
        The configuration.
    n_microbatches : int
        Micro-batches of a step.
    light : bool
        Whether to leave out what happens between replicas.
    only_least : bool
        Whether only the least bound is of interest: the others may then be too small, but not below it.
    again_seconds : ndarray, shape (n_ranks,), or None
        What ranks recompute at least of a micro-batch, where that is known (`RankLayers.least_work`).

    Returns
    -------
    ndarray, shape (n_spreads,), float64
        Seconds, in the order of `spreads`; inf when no recomputation makes it fit.

    Notes
    -----
    * A rank works for all micro-batches from the first arrival at its first stage on; then it ends its own step, or, where
      backward passes are whole, the last micro-batch returns to the first rank, which ends the step.
    * The reductions of a rank follow each other. The first one starts with the last task of the stage that is through first:
      by then all forward passes are done, and the backward passes of that stage and of later ones (of weights: all but one; where
      some backward passes are whole, of that stage all but one, as its last task may be one of those).
    * At each of the moments of `Costs.peaks` a rank holds the activations of every stage as often as that says. What exceeds its
      memory at the fullest one must be recomputed, and a layer frees at most its savings as often as its stage is held then; so
      many layers free no more than those that are held most often, and nothing fits where all of them free too little. Every byte
      costs at least the best price of any layer.
    """
    from meshwright._kernels.best import virtual_stages as kernel

    peaks = costs.peaks(config, n_microbatches)
    ends, own = _virtual_stages(costs, config)
    layers, of_rank, memory_bytes = _loads(costs, config, light)
    again = np.zeros(config.mesh.pipeline) if again_seconds is None else again_seconds
    stages = kernel.RankStages(ends[0], own, of_rank, peaks.held, peaks.at, memory_bytes, again)
    split = config.split_backward
    found: NDArray[np.float64] = kernel.least_steps(
        layers, stages, ends, float(n_microbatches), split, config.mixed_backward, only_least
    )
    return found


def played(
    costs: Costs, config: Config, n_microbatches: int, again_seconds: NDArray[np.float64] | None = None,
    on_links: LinkWork | None = None,
) -> float:  # fmt: skip
    """Return a proven lower bound on the simulated step of one spread of the layers: its tasks and transfers, played in order.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `bounds_of`; `config.fewer` says which spread.
    again_seconds : ndarray, shape (n_ranks,), or None
        What ranks recompute at least of a micro-batch, where that is known.
    on_links : LinkWork or None
        What the end of the step puts on links; None where that is left out.

    Returns
    -------
    float
        Seconds; 0 where tasks run in pairs, which take less than this has them take.

    Notes
    -----
    Lemma: `fitted_orders.least_of_order`, with what layers take without recomputation, and what ranks send each other at least
    (`_sent`): no plan of the spread takes less for any task or transfer. What follows a rank's last task is
    as in `bounds_of`.
    """
    if config.paired:
        return 0.0
    layers, of_rank, _ = _loads(costs, config, light=False)
    ends = _virtual_stages(costs, config)[0][0]
    order = fitted_orders.order_of(config.schedule, config.mesh.pipeline, config.chunks, n_microbatches)
    kind, n_ranks = of_rank[order.rank_of_stage], config.mesh.pipeline
    sums = layers.sums[kind, :, ends[1:]] - layers.sums[kind, :, ends[:-1]]
    sums[0] += layers.pinned[kind[0], 0]
    sums[-1] += layers.pinned[kind[-1], 1]
    _, forward, backward, inputs, *_ = sums.T
    end = end_seconds(costs, config, order.rank_of_stage)
    more = np.zeros(n_ranks) if again_seconds is None else again_seconds
    sends = _sent(costs, config, order.rank_of_stage)
    seconds = fitted_orders.StageSeconds(forward, backward, backward - inputs)
    return fitted_orders.least_of_order(order, seconds, sends, more, end, on_links)


def end_seconds(costs: Costs, config: Config, rank_of_stage: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what follows the last task of each rank of one spread at least: the last part of one of its reductions, and its updates.

    Parameters
    ----------
    costs, config
        As in `played`.
    rank_of_stage : ndarray, shape (n_stages,), int64
        Where the stages are.

    Returns: shape (n_ranks,), seconds.
    """
    layers, of_rank, _ = _loads(costs, config, light=False)
    ends, kind, n_ranks = _virtual_stages(costs, config)[0][0], of_rank[rank_of_stage], config.mesh.pipeline
    update = layers.sums[kind, -1, ends[1:]] - layers.sums[kind, -1, ends[:-1]]
    update[0] += layers.pinned[kind[0], 0, -1]
    update[-1] += layers.pinned[kind[-1], 1, -1]
    stages = zip(kind.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    last_reduce = np.full(n_ranks, np.inf)
    largest = [layers.reduce_seconds[own, start:stop].max(initial=0.0) for own, start, stop in stages]
    np.minimum.at(last_reduce, rank_of_stage, largest)
    found: NDArray[np.float64] = np.bincount(rank_of_stage, update, n_ranks) + last_reduce
    return found


def _sent(costs: Costs, config: Config, rank_of_stage: NDArray[np.int64]) -> NDArray[np.float64]:
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
        seconds = {pair: _send_seconds(costs, config, *pair, n_bytes) for pair in set(pairs) if pair[0] != pair[1]}
        own = found[way, 1:] if way else found[way, :-1]
        own[crosses] = [seconds[pair] for pair in pairs if pair[0] != pair[1]]
    return found


def _least_output(costs: Costs, config: Config) -> tuple[float, bool]:
    """Return the least bytes that a layer sends on, and whether something comes back for all of them."""
    rows = costs.rows(config)
    ends = {*costs.chain.rows, *costs.chain.prefix[-1:]}
    sent = [load for of_class in rows for (row, _), load in of_class.items() if row in ends]
    return min(load.output_bytes for load in sent), all(load.output_gradient for load in sent)


def _send_seconds(costs: Costs, config: Config, source: int, target: int, n_bytes: float) -> float:
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


def _loads(costs: Costs, config: Config, light: bool) -> Any:
    """Return the layers on every class of ranks, the class of each rank, and its memory: the same for all schedules of a mesh."""
    key = (*config.of_loads, light)
    if key not in costs.virtual_stages:
        memory_bytes = costs.memory_bytes(config) * (1.0 + ROUNDING_RATIO)
        costs.virtual_stages[key] = (
            costs.stacked(config, light=light), costs.classes(config, light=light).of_rank, memory_bytes
        )  # fmt: skip
    return costs.virtual_stages[key]


def _virtual_stages(costs: Costs, config: Config) -> Any:
    """Return how many layers are before each virtual stage, a row per spread, and the stages of each rank in order."""
    n_layers, n_ranks, n_chunks = len(costs.chain.layers), config.mesh.pipeline, config.chunks
    key = (config.schedule, n_ranks, n_chunks, config.fewer)
    if key not in costs.virtual_stages:
        every = [spread(n_layers, n_ranks, n_chunks, own) for own in spreads(costs, config)]
        rank_of_stage = schedules.load(config.schedule).placement(n_ranks, n_chunks)
        ends = np.cumsum([(0, *counts) for counts in every], axis=1)
        costs.virtual_stages[key] = ends, np.argsort(rank_of_stage, kind="stable").reshape(n_ranks, n_chunks)
    return costs.virtual_stages[key]


def spreads(costs: Costs, config: Config) -> tuple[tuple[int, int], ...]:
    """Return what `Config.fewer` is of a configuration, or of all that it stands for."""
    if config.fewer != ANY_SPREAD:
        return (config.fewer,)
    pinned = (bool(costs.chain.prefix), bool(costs.chain.suffix))
    return spreads_of(len(costs.chain.layers), config.mesh.pipeline, config.chunks, pinned)


def counts(costs: Costs, config: Config) -> tuple[int, ...]:
    """Return the layers of every stage of a configuration; the even spread where it stands for several."""
    fewer = (0, 0) if config.fewer == ANY_SPREAD else config.fewer
    return spread(len(costs.chain.layers), config.mesh.pipeline, config.chunks, fewer)


def fewer_of(costs: Costs, config: Config, own: tuple[int, ...]) -> tuple[int, int] | None:
    """Return `Config.fewer` of some layers per virtual stage; None where they are no spread of the space."""
    n_layers, mesh = len(costs.chain.layers), config.mesh
    for fewer in spreads(costs, replace(config, fewer=ANY_SPREAD)):
        if spread(n_layers, mesh.pipeline, config.chunks, fewer) == own:
            return fewer
    return None


def spread(n_layers: int, n_ranks: int, n_chunks: int, fewer: tuple[int, int] = (0, 0)) -> tuple[int, ...]:
    """Return how many layers each virtual stage gets: the quotient, and one more for some of them.

    What is left over goes to middle stages first, rank by rank, since the ends also hold embedding and head. Where the ends have
    `fewer` layers than that, all others are spread over the middle stages in the same way.
    """
    n_stages = n_ranks * n_chunks
    counts = [n_layers // n_stages] * n_stages
    for stage in [*range(1, n_stages - 1), *sorted({0, n_stages - 1})][: n_layers - sum(counts)]:
        counts[stage] += 1
    if any(fewer):
        first, last = counts[0] - fewer[0], counts[-1] - fewer[1]
        each, more = divmod(n_layers - first - last, n_stages - 2)
        counts = [first, *(each + (i < more) for i in range(n_stages - 2)), last]
    return tuple(counts)


def in_shape(graph: Graph, plan: Plan, virtual: int, split: tuple[int, ...], allowed: tuple[str, ...]) -> Iterator[Plan]:
    """Yield a plan in another shape, the one that recomputes least first; the plan itself where it has the shape.

    Parameters
    ----------
    graph : Graph
        The model.
    plan : Plan
        Its degrees and devices are kept.
    virtual : int
        Stages of each pipeline rank.
    split : tuple of int
        Layers of each stage; empty for an even spread.
    allowed : tuple of str
        What layers may recompute.

    Yields
    ------
    Plan
        With one recomputation for all layers that may choose; none where the plan's schedule or model cannot have the shape.
    """
    ranks = plan.ranks()
    n_ranks = len(ranks)
    if n_ranks == 1 and virtual > 1:
        return
    chain = chain_of(graph)
    counts = split or spread(len(chain.layers), n_ranks, virtual)
    if len(counts) != n_ranks * virtual:
        return
    ops, _ = chain.stages(counts)
    if not all(ops):
        return
    if tuple(stage.ops for stage in plan.stages) == tuple(ops):
        yield plan
        return
    schedule = plan.schedule
    if (schedule in VIRTUAL) != (virtual > 1):
        return
    places = schedules.load(schedule).placement(n_ranks, virtual)
    known = (word for word in RECOMPUTE if word in allowed)
    for word in (word for word in known if not (schedules.in_pairs(schedule) and repeats_dispatch(word))):
        stages = []
        for own, rank in zip(ops, places, strict=True):
            template = next(stage for stage in plan.stages if stage.devices == ranks[int(rank)])
            words = tuple(word if op in chain.layers else "none" for op in own)
            stages.append(Stage(own, template.devices, template.strategy, words, template.ring))
        yield replace(plan, stages=tuple(stages))
