"""From a configuration of the joint space to a whole plan: split the layers, choose what to recompute, name the devices."""

from __future__ import annotations

import math
from dataclasses import replace

from meshwright import schedules
from meshwright.plan import Plan, Stage
from meshwright.search import _joint_inequalities as inequalities
from meshwright.search._joint_costs import Costs, spread
from meshwright.search._joint_digest import RowLoads
from meshwright.search._joint_space import Config
from meshwright.solvers import pipeline_split
from meshwright.table import StageLoad

__all__ = ["build", "counts_of", "missing_bytes", "with_counts"]


def counts_of(costs: Costs, config: Config, n_microbatches: int, bound_seconds: float) -> tuple[int, ...] | None:
    """Return how many layers each stage takes (virtual stages counted apart), or None when they do not fit.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    config : Config
        The configuration.
    n_microbatches : int
        Micro-batches of a step.
    bound_seconds : float
        The configuration's bound on the step.

    Returns
    -------
    tuple of int or None
        Layers per stage, in pipeline order.
    """
    p, v, n = config.mesh.pipeline, config.chunks, len(costs.chain.layers)
    if v > 1:
        return spread(n, p, v)
    if not costs.chain.equal:
        seconds, cut = pipeline_split.bottleneck(inequalities.chain_to_cut(costs, config, n_microbatches))
        return _without_gaps([int(count) for count in cut]) if math.isfinite(seconds) else None
    ranks, _, after = costs.pipeline_ranks(config, n_microbatches)
    found = pipeline_split.split(
        ranks,
        n,
        n_microbatches,
        split_backward=config.schedule.startswith("zb"),
        step_seconds=max(bound_seconds - after, 0.0),
    )
    return None if found is None else tuple(int(count) for count in found)


def _without_gaps(counts: list[int]) -> tuple[int, ...]:
    """Return the counts with no empty stage: a stage that greedy cutting left without layers takes one from its neighbour."""
    for i in range(len(counts)):
        if counts[i] == 0:
            donor = max((j for j in range(len(counts)) if counts[j] > 1), key=lambda j: (-abs(j - i), counts[j]), default=-1)
            if donor < 0:
                break
            counts[donor] -= 1
            counts[i] += 1
    return tuple(counts)


def build(costs: Costs, config: Config, n_microbatches: int, bound_seconds: float, *, uniform: bool = False) -> Plan | None:
    """Return the plan of a configuration, or None when its layers do not fit the memory.

    Parameters
    ----------
    costs, config, n_microbatches, bound_seconds
        As in `counts_of`.
    uniform : bool
        Whether every stage gets equally many layers, and every layer recomputes the same: as little as fits everywhere.
    """
    if uniform:
        n_stages = config.mesh.pipeline * config.chunks
        counts: tuple[int, ...] | None = (len(costs.chain.layers) // n_stages,) * n_stages
        for word in costs.words(costs.rows(config)[0]):
            plan = with_counts(replace(costs, recompute=(word,)), config, n_microbatches, counts or ())
            if plan is not None:
                return plan
        return None
    counts = counts_of(costs, config, n_microbatches, bound_seconds)
    return None if counts is None else with_counts(costs, config, n_microbatches, counts)


def with_counts(costs: Costs, config: Config, n_microbatches: int, counts: tuple[int, ...]) -> Plan | None:
    """Return the plan with a given number of layers per stage, recomputing as little as fits; None when nothing fits.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `counts_of`.
    counts : tuple of int
        Layers of each stage.

    Returns
    -------
    Plan or None
        The plan.
    """
    chain, p = costs.chain, config.mesh.pipeline
    if sum(counts) != len(chain.layers) or min(counts) < 0:
        return None
    schedule = schedules.load(config.schedule)
    rank_of_stage = [int(rank) for rank in schedule.placement(p, config.chunks)]
    ops, rows = costs.stages(counts)
    if not all(ops):
        return None
    words = _recompute_of_ranks(costs, config, n_microbatches, rows, rank_of_stage)
    if words is None:
        return None
    devices = costs.pool.ranks(config)
    stages = tuple(
        Stage(ops[stage], tuple(int(i) for i in devices[rank_of_stage[stage]]), config.strategy, words[stage])
        for stage in range(len(counts))
    )
    data = config.mesh.data
    return Plan(
        stages, n_microbatches, config.mesh.micro_batch, config.schedule, n_microbatches * data * config.mesh.micro_batch
    )


def _recompute_of_ranks(
    costs: Costs, config: Config, n_microbatches: int, rows: list[tuple[int, ...]], rank_of_stage: list[int]
) -> list[tuple[str, ...]] | None:
    """Choose what each layer of each stage recomputes so that every rank fits its memory; None when one cannot."""
    p = config.mesh.pipeline
    in_flight = costs.in_flight(config, n_microbatches)
    kinds, of_rank, memory = costs.rows(config), costs.kind_of_rank(config), costs.memory_bytes(config)
    words: list[tuple[str, ...]] = [()] * len(rows)
    for rank in range(p):
        stages = [stage for stage in range(len(rows)) if rank_of_stage[stage] == rank]
        loads = kinds[of_rank[rank]]
        flat = [row for stage in stages for row in rows[stage]]
        chosen = _recompute(costs, loads, flat, float(in_flight[rank]), memory[rank])
        if chosen is None:
            return None
        start = 0
        for stage in stages:
            words[stage] = tuple(chosen[start : start + len(rows[stage])])
            start += len(rows[stage])
    return words


def _recompute(costs: Costs, loads: RowLoads, rows: list[int], in_flight: float, memory_bytes: float) -> list[str] | None:
    """Choose what each layer of a rank recomputes: the least work that fits; exact where all layers are alike."""
    pinned = {*costs.chain.prefix, *costs.chain.suffix}
    choices = costs.words(loads)
    chosen = ["none" if row in pinned else choices[0] for row in rows]
    excess = _held(loads, rows, chosen, in_flight) - memory_bytes
    if excess <= 0:
        return chosen
    layers = [i for i, row in enumerate(rows) if row not in pinned]
    best: tuple[float, list[str]] | None = None
    # for every number of layers that recompute everything, as few as possible of the others recompute their cheap activations
    for n_strong in range(len(layers) + 1):
        trial = list(chosen)
        for i in layers[:n_strong]:
            trial[i] = choices[-1]
        for i in layers[n_strong:]:
            if len(choices) < 3 or _held(loads, rows, trial, in_flight) <= memory_bytes:
                break
            trial[i] = choices[1]
        if _held(loads, rows, trial, in_flight) <= memory_bytes:
            work = sum(loads[row, word].recompute_seconds for row, word in zip(rows, trial, strict=True))
            best = (work, trial) if best is None or work < best[0] else best
    return None if best is None else best[1]


def _held(loads: RowLoads, rows: list[int], words: list[str], in_flight: float) -> float:
    """Return the peak memory of one device of a rank."""
    own = [loads[row, word] for row, word in zip(rows, words, strict=True)]
    return (
        sum(load.static_bytes + in_flight * load.activation_bytes for load in own)
        + max((load.working_bytes for load in own), default=0.0)
        + max((load.reserved_bytes for load in own), default=0.0)
    )


def missing_bytes(costs: Costs, config: Config, n_microbatches: int, *, light: bool = True) -> float:
    """Return by how much the fullest device exceeds its memory when everything is recomputed and layers are spread evenly.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `counts_of`.
    light : bool
        Whether the loads may leave out what is slow to find, as for bounds.

    Returns
    -------
    float
        Bytes; not positive where it fits.
    """
    chain, p = costs.chain, config.mesh.pipeline
    counts = spread(len(chain.layers), p, config.chunks)
    in_flight = costs.in_flight(config, n_microbatches)
    rank_of_stage = schedules.load(config.schedule).placement(p, config.chunks)
    _, rows = costs.stages(counts)
    kinds, of_rank, memory = costs.rows(config, light=light), costs.kind_of_rank(config), costs.memory_bytes(config)
    pinned = {*chain.prefix, *chain.suffix}
    worst = -math.inf
    for rank in range(p):
        loads: dict[tuple[int, str], StageLoad] = kinds[of_rank[rank]]
        flat = [row for stage in range(len(rows)) if rank_of_stage[stage] == rank for row in rows[stage]]
        words = ["none" if row in pinned else costs.words(loads)[-1] for row in flat]
        worst = max(worst, _held(loads, flat, words, float(in_flight[rank])) - memory[rank])
    return worst
