"""From a configuration of the joint space to a whole plan: split the layers, choose what to recompute, name the devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright import schedules
from meshwright.core.plan import Plan, Stage
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best import inequalities
from meshwright.planners.best.costs import Costs, spread
from meshwright.planners.best.layer_sums import RowLoads
from meshwright.planners.best.space import Config
from meshwright.solvers.pipeline import layer_split

__all__ = ["bare", "build", "counts_of", "missing_bytes", "with_counts"]


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
        seconds, cut = layer_split.bottleneck(inequalities.chain_to_cut(costs, config, n_microbatches))
        return _without_gaps([int(count) for count in cut]) if math.isfinite(seconds) else None
    ranks, _, after = costs.pipeline_ranks(config, n_microbatches)
    found = layer_split.split(
        ranks,
        n,
        n_microbatches,
        split_backward=config.split_backward,
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
            plan = with_counts(costs.recomputing(word), config, n_microbatches, counts or ())
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
    rank_of_stage = [int(rank) for rank in schedules.load(config.schedule).placement(config.mesh.pipeline, config.chunks)]
    ops, rows = costs.stages(counts)
    if sum(counts) != len(costs.chain.layers) or min(counts) < 0 or not all(ops):
        return None
    words = _recompute_of_ranks(costs, config, n_microbatches, rows, rank_of_stage)
    return None if words is None else _plan(costs, config, n_microbatches, ops, words)


def bare(costs: Costs, config: Config, n_microbatches: int, counts: tuple[int, ...]) -> Plan | None:
    """Return the plan with a given number of layers per stage and nothing recomputed, whether it fits or not.

    Parameters
    ----------
    costs, config, n_microbatches, counts
        As in `with_counts`.

    Returns
    -------
    Plan or None
        The plan; None where a stage would be empty.
    """
    ops, _ = costs.stages(counts)
    return _plan(costs, config, n_microbatches, ops, [()] * len(ops)) if all(ops) else None


def _plan(costs: Costs, config: Config, n_microbatches: int, ops: list[tuple[int, ...]], words: list[tuple[str, ...]]) -> Plan:
    """Return the plan of a configuration whose stages are known."""
    mesh = config.mesh
    rank_of_stage = schedules.load(config.schedule).placement(mesh.pipeline, config.chunks)
    devices = costs.pool.ranks(config)
    stages = tuple(
        Stage(own, tuple(int(i) for i in devices[int(rank)]), config.strategy, word)
        for own, rank, word in zip(ops, rank_of_stage, words, strict=True)
    )
    return Plan(stages, n_microbatches, mesh.micro_batch, config.schedule, n_microbatches * mesh.data * mesh.micro_batch)


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


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """The layers of a rank, pinned ones included: rows are what they may recompute, columns layers."""

    words: tuple[str, ...]
    is_pinned: NDArray[np.bool_]  # these recompute nothing, whatever the row
    n_bytes: NDArray[np.float64]  # held all the time and by the micro-batches in flight
    largest: NDArray[np.float64]  # (..., 2): working and reserved bytes, of which the largest counts
    recompute_seconds: NDArray[np.float64]

    def held(self, choice: NDArray[np.int64]) -> float:
        """Return the peak memory of one device for a choice of each layer."""
        every = np.arange(len(choice))
        return float(self.n_bytes[choice, every].sum() + self.largest[choice, every].max(axis=0, initial=0.0).sum())


def _layers(costs: Costs, loads: RowLoads, rows: list[int], in_flight: float) -> _Layers:
    """Return the layers of a rank for the loads of its devices."""
    pinned = {*costs.chain.prefix, *costs.chain.suffix}
    words = costs.words(loads)
    own = [[loads[row, "none" if row in pinned else word] for row in rows] for word in words]
    return _Layers(
        words,
        np.array([row in pinned for row in rows], dtype=np.bool_),
        np.array([[load.static_bytes + in_flight * load.activation_bytes for load in way] for way in own]),
        np.array([[(load.working_bytes, load.reserved_bytes) for load in way] for way in own]).reshape(len(own), len(rows), 2),
        np.array([[load.recompute_seconds for load in way] for way in own]),
    )


def _recompute(costs: Costs, loads: RowLoads, rows: list[int], in_flight: float, memory_bytes: float) -> list[str] | None:
    """Choose what each layer of a rank recomputes: the least work that fits; exact where all layers are alike."""
    own = _layers(costs, loads, rows, in_flight)
    free, strongest = np.flatnonzero(~own.is_pinned), len(own.words) - 1
    best = choice = np.zeros(len(rows), dtype=np.int64)
    if own.held(choice) > memory_bytes:
        least = math.inf
        # for every number of layers that recompute everything, as few as possible of the others recompute their cheap activations
        for n_strong in range(len(free) + 1):
            trial = choice.copy()
            trial[free[:n_strong]] = strongest
            for i in free[n_strong:] if strongest == 2 else ():
                if own.held(trial) <= memory_bytes:
                    break
                trial[i] = 1
            work = float(own.recompute_seconds[trial, np.arange(len(rows))].sum())
            if work < least and own.held(trial) <= memory_bytes:
                least, best = work, trial
        if math.isinf(least):
            return None
    return ["none" if is_pinned else own.words[i] for i, is_pinned in zip(best, own.is_pinned, strict=True)]


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
    worst = -math.inf
    for rank in range(p):
        loads: dict[tuple[int, str], StageCost] = kinds[of_rank[rank]]
        flat = [row for stage in range(len(rows)) if rank_of_stage[stage] == rank for row in rows[stage]]
        own = _layers(costs, loads, flat, float(in_flight[rank]))
        worst = max(worst, own.held(np.full(len(flat), len(own.words) - 1)) - memory[rank])
    return worst
