"""From a configuration of the joint space to a whole plan: split the layers, choose what to recompute, name the devices."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from meshwright import schedules, sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.planners.best import inequalities, virtual
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import RowLoads
from meshwright.planners.best.limits import runnable
from meshwright.planners.best.memory import ROUNDING_RATIO, Peaks, RankLayers, RowFigures, peaks_of
from meshwright.planners.best.space import Config
from meshwright.solvers.pipeline import layer_split

__all__ = [
    "bare", "build", "closest", "counts_of", "even", "missing_bytes", "never_fits", "only_split_never_fits", "own_peaks", "ranks_of",
    "with_counts", "without_gaps",
]  # fmt: skip

_Missing = tuple[float, bool, bool, Config, int, bool]
"""Bytes that a configuration misses, whether of all ranks, and what `closest` orders and looks at again."""


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
    n = len(costs.chain.layers)
    if config.chunks > 1:
        return virtual.counts(costs, config)
    if not costs.chain.equal:
        seconds, cut = layer_split.bottleneck(inequalities.chain_to_cut(costs, config, n_microbatches, building=True))
        pinned = (bool(costs.chain.prefix), bool(costs.chain.suffix))
        return without_gaps([int(count) for count in cut], pinned) if math.isfinite(seconds) else None
    ranks, _, after = costs.pipeline_ranks(config, n_microbatches, building=True)
    found = layer_split.split(
        ranks,
        n,
        n_microbatches,
        split_backward=config.split_backward,
        step_seconds=max(bound_seconds - after, 0.0),
    )
    return None if found is None else tuple(int(count) for count in found)


def without_gaps(counts: list[int], pinned: tuple[bool, bool]) -> tuple[int, ...]:
    """Return the counts with no empty stage: a stage that greedy cutting left without layers takes one from its neighbour.

    `pinned`: whether the first and the last stage have layers beside those counted.
    """
    for i in range(len(counts)):
        if counts[i] == 0 and not (pinned[0] and i == 0) and not (pinned[1] and i == len(counts) - 1):
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
        for word in costs.words(costs.bound_rows(config)[0]):
            plan = with_counts(costs.recomputing((word,)), config, n_microbatches, counts or ())
            if plan is not None:
                return plan
        return None
    counts = counts_of(costs, config, n_microbatches, bound_seconds)
    return None if counts is None else with_counts(costs, config, n_microbatches, counts)


def with_counts(costs: Costs, config: Config, n_microbatches: int, counts: tuple[int, ...]) -> Plan | None:
    """Return the plan with a given number of layers per stage, recomputing as little as fits; None where none was found.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `counts_of`.
    counts : tuple of int
        Layers of each stage.

    Returns
    -------
    Plan or None
        The plan. None proves that nothing fits where layers are alike and each rank has one stage; see `never_fits` for the rest.

    Notes
    -----
    Orders of virtual stages that are fitted to durations may hold more than `Costs.peaks` says, which is the least, although they keep
    to the memory where they can: a plan that does not fit after all is made once more for what its own order holds.
    """
    ops, rows = costs.chain.stages(counts)
    if sum(counts) != len(costs.chain.layers) or min(counts) < 0 or not all(ops):
        return None
    peaks = costs.peaks(config, n_microbatches)
    for _ in range(2):
        words = (_blocks_of_ranks if costs.blocks else _recompute_of_ranks)(costs, config, rows, peaks)
        if words is None:
            return None
        plan = _plan(costs, config, n_microbatches, ops, words)
        if not config.fitted:
            return plan
        peaks = own_peaks(costs, config, plan)
        if _fits(costs, config, rows, words, peaks):
            return plan
    return None


def own_peaks(costs: Costs, config: Config, plan: Plan) -> Peaks:
    """Return what ranks hold at the fullest moments of a plan's own order."""
    return peaks_of(sim.order(costs.problem, plan, costs.stage_costs(config, plan)))


def bare(costs: Costs, config: Config, n_microbatches: int, counts: tuple[int, ...]) -> Plan | None:
    """Return the plan with a given number of layers per stage and the least recomputed, whether it fits or not.

    Parameters
    ----------
    costs, config, n_microbatches, counts
        As in `with_counts`.

    Returns
    -------
    Plan or None
        The plan; None where a stage would be empty.
    """
    ops, rows = costs.chain.stages(counts)
    if not all(ops):
        return None
    least = costs.recompute[0] if len(costs.recompute) == 1 else "none"
    return _plan(costs, config, n_microbatches, ops, [tuple(costs.word_of(row, least) for row in stage) for stage in rows])


def even(costs: Costs, config: Config, n_microbatches: int) -> Plan | None:
    """Return the plan with layers spread as the configuration says and the least recomputed, whether it fits or not.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `with_counts`.

    Returns
    -------
    Plan or None
        The plan; None with an empty stage.
    """
    return bare(costs, config, n_microbatches, virtual.counts(costs, config))


def only_split_never_fits(costs: Costs, config: Config, n_microbatches: int) -> bool:
    """Return whether no plan fits of a configuration that building found none of: proven for its only split.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `with_counts`.
    """
    if not config.one_way:
        return False
    if costs.one_setting or (config.mesh.pipeline == 1 and costs.chain.equal):
        return True  # what it recomputes was searched through
    return never_fits(costs, config, n_microbatches, virtual.counts(costs, config))


def _plan(costs: Costs, config: Config, n_microbatches: int, ops: list[tuple[int, ...]], words: list[tuple[str, ...]]) -> Plan:
    """Return the plan of a configuration whose stages are known."""
    mesh = config.mesh
    rank_of_stage = schedules.load(config.schedule).placement(mesh.pipeline, config.chunks)
    devices = [tuple(own.tolist()) for own in costs.pool.ranks(config)]  # stages of a rank share one tuple
    stages = tuple(
        Stage(own, devices[int(rank)], config.strategy, word) for own, rank, word in zip(ops, rank_of_stage, words, strict=True)
    )
    return Plan(stages, n_microbatches, mesh.micro_batch, config.schedule, n_microbatches * mesh.data * mesh.micro_batch)


def ranks_of(
    costs: Costs, config: Config, rows: list[tuple[int, ...]], peaks: Peaks, *, light: bool = False, n_first: int | None = None
) -> list[RankLayers]:
    """Return the layers of every rank, or of the first ones; with `light`, loads leave out what is slow to find, as for bounds.

    Parameters
    ----------
    costs, config
        As in `counts_of`.
    rows : list of tuple of int
        Distinct layers of each stage.
    peaks : Peaks
        Their fullest moments.
    """
    classes, of_class = costs.classes(config, light=light), costs.bound_rows(config, light=light)
    rank_of_stage = schedules.load(config.schedule).placement(config.mesh.pipeline, config.chunks)
    figures = [_figures(costs, stage_costs) for stage_costs in of_class]
    return [
        figures[own].layers(
            [rows[stage] for stage in np.flatnonzero(rank_of_stage == rank).tolist()],
            peaks.held[rank],
            peaks.at[rank],
            None if peaks.beside is None else peaks.beside[rank],
        )
        for rank, own in enumerate(classes.of_rank[:n_first].tolist())
    ]


def _figures(costs: Costs, rows: RowLoads) -> RowFigures:
    """Return what layers hold on a class of ranks as arrays, remembered with the costs."""
    if id(rows) not in costs.figures:  # rows are kept, so that none is another
        ends = {*costs.chain.prefix, *costs.chain.suffix}
        costs.figures[id(rows)] = RowFigures.of(costs.settled(rows), costs.words(rows), ends)
    return costs.figures[id(rows)]


def _recompute_of_ranks(
    costs: Costs, config: Config, rows: list[tuple[int, ...]], peaks: Peaks
) -> list[tuple[str, ...]] | None:
    """Choose what each layer of each stage recomputes so that every rank fits its memory; None when one cannot."""
    rank_of_stage = schedules.load(config.schedule).placement(config.mesh.pipeline, config.chunks)
    memory = costs.memory_bytes(config)
    words: list[tuple[str, ...]] = [()] * len(rows)
    least = costs.recompute[0]
    for rank, own in enumerate(ranks_of(costs, config, rows, peaks)):
        chosen = own.chosen(memory[rank])
        if chosen is None:
            return None
        start = 0
        for stage in np.flatnonzero(rank_of_stage == rank):
            own_words = zip(rows[stage], chosen[start : start + len(rows[stage])], strict=True)
            words[stage] = tuple(costs.word_of(row, word if len(costs.recompute) > 1 else least) for row, word in own_words)
            start += len(rows[stage])
    return words


def _blocks_of_ranks(costs: Costs, config: Config, rows: list[tuple[int, ...]], peaks: Peaks) -> list[tuple[str, ...]] | None:
    """Return the words of stages whose first layers recompute all, as few of each as fit on every rank; None where none fit.

    The fewest are the quickest: every layer more takes longer and shortens nothing. So it is where their activations go to the
    host; there one layer at least keeps its own.
    """
    strongest = costs.recompute[-1]
    pinned = {*costs.chain.prefix, *costs.chain.suffix}
    sizes = [sum(row not in pinned for row in stage) for stage in rows]
    for n_full in range(1 if config.paired else max(sizes) + 1 - int(costs.offloads)):
        words = []
        for stage in rows:
            inner = iter(range(len(stage)))
            words.append(tuple("none" if row in pinned or next(inner) >= n_full else strongest for row in stage))
        if _fits(costs, config, rows, words, peaks):
            return words
    return None


def _fits(costs: Costs, config: Config, rows: list[tuple[int, ...]], words: list[tuple[str, ...]], peaks: Peaks) -> bool:
    """Return whether what stages recompute makes every rank fit its memory at given moments."""
    rank_of_stage = schedules.load(config.schedule).placement(config.mesh.pipeline, config.chunks)
    for rank, (own, memory) in enumerate(zip(ranks_of(costs, config, rows, peaks), costs.memory_bytes(config), strict=True)):
        chosen = [word for stage in np.flatnonzero(rank_of_stage == rank) for word in words[stage]]
        choice = np.array([0 if pinned else own.words.index(word) for word, pinned in zip(chosen, own.is_pinned, strict=True)])
        if own.peak_bytes(choice) > memory:
            return False
    return True


def never_fits(costs: Costs, config: Config, n_microbatches: int, counts: tuple[int, ...]) -> bool:
    """Return whether a split of the layers is proven not to fit, whatever they recompute.

    Lemma: `Costs.peaks` are moments that every order goes through, and at them a rank holds at least the least of every figure of
    each of its layers (`RankLayers.least_bytes`).

    Parameters
    ----------
    costs, config, n_microbatches, counts
        As in `with_counts`.
    """
    _, rows = costs.chain.stages(counts)
    ranks = ranks_of(costs, config, rows, costs.peaks(config, n_microbatches))
    memory_bytes = costs.memory_bytes(config) * (1.0 + ROUNDING_RATIO)
    return any(own.least_bytes > memory for own, memory in zip(ranks, memory_bytes, strict=True))


def missing_bytes(
    costs: Costs, config: Config, n_microbatches: int, *, light: bool = True, n_first: int | None = None
) -> float:
    """Return by how much the fullest device exceeds its memory at least when layers are spread evenly.

    Parameters
    ----------
    costs, config, n_microbatches
        As in `counts_of`.
    light : bool
        Whether the loads may leave out what is slow to find, as for bounds.
    n_first : int or None
        How many ranks are looked at, from the first on; None for all of them.

    Returns
    -------
    float
        Bytes with everything recomputed; not positive where it fits. Of the first ranks only: no more than of all.
    """
    _, rows = costs.chain.stages(virtual.counts(costs, config))
    ranks = ranks_of(costs, config, rows, costs.peaks(config, n_microbatches), light=light, n_first=n_first)
    found = []
    for own, memory in zip(ranks, costs.memory_bytes(config), strict=False):
        choice = np.full(len(own.stage), len(own.words) - 1)
        if costs.offloads:
            choice[np.flatnonzero(~own.is_pinned)[-1]] = 0  # one layer keeps its own
        found.append(own.peak_bytes(choice) - memory)
    return float(max(found))


def closest(
    problem: Problem,
    costs: Sequence[Costs],
    too_large: Sequence[tuple[int, Config, bool]],
    shards: tuple[int, ...],
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[float, Config] | None:
    """Return what misses the least memory of all that is too large, layers spread evenly, and how much; None where nothing is.

    Parameters
    ----------
    problem : Problem
        The question.
    costs : sequence of Costs
        Loads of the layers.
    too_large : sequence of tuple
        Of each: which of the costs, the configuration, and whether its loads may leave out what is slow to find.
    shards : tuple of int
        Sharding levels allowed.
    is_over : callable
        Says when to stop; from then on only the one that looks nearest is looked at whole.

    Notes
    -----
    What all shardings miss at least tells which meshes are worth a look at each of theirs; what the first rank misses, which
    under most schedules holds the most micro-batches, tells which configurations are worth a look at all ranks. Neither is more
    than what is missed in the end, so the first that comes out whole misses the least.
    """

    def missing(place: int, config: Config, light: bool, n_first: int | None) -> _Missing:
        n_microbatches = problem.batch.global_batch // (config.mesh.data * config.mesh.micro_batch)
        n_bytes = missing_bytes(costs[place], config, n_microbatches, light=light, n_first=n_first)
        return n_bytes, n_first is None, config.exchange != "ring", config, place, light

    heap: list[_Missing] = []
    aside: list[_Missing] = []
    for own in too_large:
        heap.append(missing(*own, 1))
        if is_over():
            break
    heapq.heapify(heap)
    while heap or aside:
        n_bytes, is_whole, _, config, place, light = heapq.heappop(heap or aside)
        if is_whole and not config.is_any:
            if n_bytes > 0.0:
                return n_bytes, config
            continue
        if is_over():
            aside, heap = [*aside, *heap], []
        if not is_whole:
            heapq.heappush(heap, missing(place, config, light, None))
            continue
        known = costs[place]
        of_mesh = known.exchanges.of(config.mesh)
        for variant in runnable(config, problem, known.pool, shards, of_mesh, known.exchanges.offloads):
            heapq.heappush(heap, missing(place, variant, True, 1))
    return None
