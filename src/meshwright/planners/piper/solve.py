"""Run the pipeline solver on a Piper instance: best plan, plans nearly as good, least memory, whole curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshwright.base.errors import InputError
from meshwright.planners.piper.costs.piper import Evaluation, PiperStage, evaluate
from meshwright.planners.piper.menu import Options, buffer_bytes, menu_of, rooms
from meshwright.planners.piper.problem import PiperInstance
from meshwright.solvers.pipeline import curves, filling, nodes, search
from meshwright.solvers.pipeline.menu import StageMenu
from meshwright.solvers.pipeline.threshold import FoundPipeline

__all__ = ["Solution", "curve", "least_memory", "solve"]

UNPROVEN = "no plan was found, but it is not proven that there is none: the instance is too large to try all"
"""What is told where nothing was found and something may exist."""

SLACK_RATIOS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""How much slower than the best the slowest stage may be where a pipeline fills faster, or has fewer borders between nodes."""

N_REFINED, N_REFINED_LARGE = 12, 2
"""How often sizes of buffer are told apart where a plan needs it; for graphs of which not all downsets were searched."""

ROUNDING = 1e-12
"""Share of the memory by which sums may differ."""

CLOSE = 1.0 + 2e-12
"""Ratio of value and bound at which the bound counts as met."""


Rated = dict[tuple[PiperStage, ...], Evaluation]


@dataclass(frozen=True, slots=True)
class Solution:
    """The best plan (no stages: none found), a proven lower bound, plans nearly as good, and what to tell.

    `large`: not all downsets of the graph were searched.
    """

    stages: tuple[PiperStage, ...]
    lower_seconds: float
    method: str
    nearly: tuple[tuple[PiperStage, ...], ...]
    n_downsets: int
    notes: tuple[str, ...] = ()
    large: bool = False


def solve(instance: PiperInstance, options: Options, *, nearly_ratio: float) -> Solution:
    """Return the best plan of an instance.

    `nearly_ratio`: how much slower a plan may be that saves stages or devices.
    """
    distinct_levels: dict[int, frozenset[float]] = {}
    for turn in range(N_REFINED):
        menu = menu_of(instance, options, distinct_levels=distinct_levels)
        solution = _solved(instance, options, menu, distinct_levels, nearly_ratio)
        finer = _finer(instance, solution.stages, distinct_levels)
        if finer == distinct_levels:
            return solution
        distinct_levels = finer
        if turn + 1 >= N_REFINED_LARGE and solution.large:
            break
    menu = menu_of(instance, options, distinct_levels=distinct_levels, careful=True)
    careful = _solved(instance, options, menu, distinct_levels, nearly_ratio)
    if not careful.stages:
        return replace(careful, lower_seconds=solution.lower_seconds, method="relaxation", notes=(UNPROVEN,))
    gap = f"at most {evaluate(instance, careful.stages).seconds / solution.lower_seconds - 1.0:.2%} slower than the best"
    why = (
        f"recomputation buffers have many sizes, some of them rounded up for the plan and down for the bound: the plan is {gap}"
    )
    return replace(careful, lower_seconds=solution.lower_seconds, method="relaxation", notes=(*careful.notes, why))


def _solved(
    instance: PiperInstance,
    options: Options,
    menu: StageMenu,
    distinct_levels: dict[int, frozenset[float]],
    nearly_ratio: float,
) -> Solution:
    """Return the best plan of a menu; where the menu rounds buffers down, it may not fit."""
    if menu.tensor_once and not menu.alike:
        raise InputError(
            "--set tensor_once (of search piper): choices of one layer and degree have different sync terms or weights, so "
            "what "
            "crosses a border once is not defined; leave it off"
        )
    if not math.isfinite(search.relaxation(menu)):
        return Solution((), math.inf, "exact", (), 0)
    weighed = instance.counting.fill_drain or instance.counting.node_size > 0
    solved = search.solve(menu, slack_ratio=max(SLACK_RATIOS) if weighed else nearly_ratio)
    if solved.found is None:
        notes = () if solved.method == "exact" else (UNPROVEN,)
        return Solution((), solved.lower_seconds, solved.method, (), solved.n_downsets, notes, solved.along_orders)
    if weighed:
        return _weighed(instance, options, menu, solved, distinct_levels, nearly_ratio)
    best = search.fewest(solved.prepared, solved.found)
    if best.seconds > solved.found.seconds * (1.0 + 1e-11):
        best = solved.found  # an inner choice of the other was too large to be made exactly again
    if best.seconds > solved.lower_seconds * (1.0 + 1e-11) and solved.method == "exact":
        solved = replace(solved, method="relaxation", found=best)
    nearly = (_stages(menu, other) for other in search.savings(solved.prepared, best, nearly_ratio))
    return Solution(
        _stages(menu, best),
        solved.lower_seconds,
        solved.method,
        tuple(stages for stages in nearly if _fits(instance, stages)),
        solved.n_downsets,
        _ties(solved) if solved.method == "exact" else (_why_relaxed(solved),),
        solved.along_orders,
    )


def _fits(instance: PiperInstance, stages: tuple[PiperStage, ...]) -> bool:
    """Return whether a plan fits, within rounding."""
    return evaluate(instance, stages).missing_bytes <= ROUNDING * instance.memory_bytes


def _finer(
    instance: PiperInstance, stages: tuple[PiperStage, ...], distinct_levels: dict[int, frozenset[float]]
) -> dict[int, frozenset[float]]:
    """Return sizes of buffer to tell apart so that the stages of a plan that do not fit are not taken for fitting."""
    finer = dict(distinct_levels)
    if not stages or not instance.counting.layer_buffers:
        return finer
    for stage, cost in zip(stages, evaluate(instance, stages).stages, strict=True):
        if cost.memory_bytes <= instance.memory_bytes * (1.0 + ROUNDING):
            continue
        sizes = rooms(instance, stage.tensor)
        chosen = (
            next(choice for choice in instance.nodes[v].at(stage.tensor) if choice.id == name)
            for v, name in zip(stage.nodes, stage.choices, strict=True)
        )
        largest = max(buffer_bytes(instance.nodes[v], stage.tensor, c) for v, c in zip(stage.nodes, chosen, strict=True))
        at = sizes.index(largest)
        finer[stage.tensor] = finer.get(stage.tensor, frozenset()) | set(sizes[max(0, at - 1) : at + 1])
    return finer


def _ties(solved: search.Solved) -> tuple[str, ...]:
    """Say where equally good plans were not all compared."""
    if not solved.ties_near:
        return ()
    return (
        "the graph is large: among equally fast plans, and those within 1 %, only those with cuts near the plan's were "
        "compared",
    )


def _why_relaxed(solved: search.Solved) -> str:
    """Say why the bound is not met."""
    gap = solved.found.seconds / solved.lower_seconds - 1.0 if solved.found and solved.lower_seconds else 0.0
    if not solved.along_orders:
        return f"some inner choices could not be decided exactly: the plan is at most {gap:.2%} slower than the best"
    many = f"more than {-solved.n_downsets}" if solved.n_downsets < 0 else str(solved.n_downsets)
    return (
        f"the graph has {many} downsets, too many stages to try all: the plan is the best along several topological orders, "
        f"and at most {gap:.2%} slower than any"
    )


def _weighed(
    instance: PiperInstance,
    options: Options,
    menu: StageMenu,
    solved: search.Solved,
    distinct_levels: dict[int, frozenset[float]],
    nearly_ratio: float,
) -> Solution:
    """Return the plan of least time among many, where fill and drain or nodes make the time more than the search's
    threshold.
    """
    assert solved.found is not None
    rated = _fitting(instance, _rated(instance, menu, solved))
    for links in ("between", "aligned") if instance.counting.node_size else ():
        if min(evaluation.seconds for evaluation in rated.values()) <= solved.lower_seconds * CLOSE:
            break
        other = menu_of(instance, options, distinct_levels=distinct_levels, links=links)
        again = search.solve(other, slack_ratio=max(SLACK_RATIOS))
        if again.found is not None:
            rated = _fitting(instance, rated | _fitting(instance, _rated(instance, other, again)))
    lower, more = _proven(instance, solved, min(evaluation.seconds for evaluation in rated.values()))
    along = (_stages(menu, found) for found in more)
    rated = _fitting(instance, rated | {stages: evaluate(instance, stages) for stages in along})
    pool = tuple(rated)
    least = min(evaluation.seconds for evaluation in rated.values())

    def key(stages: tuple[PiperStage, ...]) -> tuple[int, int, float]:
        n_devices = sum(stage.data * stage.tensor for stage in stages)
        return len(stages), n_devices, max(cost.memory_bytes for cost in rated[stages].stages)

    within = {
        ratio: [stages for stages in pool if rated[stages].seconds <= least * (1.0 + ratio)] for ratio in (1e-12, nearly_ratio)
    }
    best = min(within[1e-12], key=key)
    picked = dict.fromkeys(
        (min(within[nearly_ratio], key=key), min(within[nearly_ratio], key=lambda stages: (key(stages)[1], *key(stages))))
    )
    nearly = tuple(stages for stages in picked if key(stages)[0] < key(best)[0] or key(stages)[1] < key(best)[1])
    lower = min(lower, least)
    if least <= lower * CLOSE and solved.method == "exact":
        return Solution(best, lower, "exact", nearly, solved.n_downsets)
    counted = [
        *(["fill and drain"] if instance.counting.fill_drain else []),
        *(["nodes"] if instance.counting.node_size else []),
    ]
    large = solved.along_orders or solved.ties_near
    proven = "proven is the time of the slowest stage with the fastest links only, so it is" if large else "by its bound it is"
    told = (
        f"{' and '.join(counted)} counted: the best of {len(pool)} plans with thresholds up to {max(SLACK_RATIOS):.0%} above "
        "the best; "
        f"{proven} at most {least / lower - 1.0:.2%} slower than any"
    )
    return Solution(best, lower, "relaxation", nearly, solved.n_downsets, (told,), solved.along_orders)


def _proven(instance: PiperInstance, solved: search.Solved, least: float) -> tuple[float, tuple[FoundPipeline, ...]]:
    """Return a bound that counts nodes, and fill and drain, where all downsets were searched; and plans found on the way."""
    assert solved.found is not None
    counting = instance.counting
    known = least if solved.complete else min(least, solved.found.seconds * (1.0 + max(SLACK_RATIOS)))
    lower, more = min(solved.lower_seconds, known), tuple[FoundPipeline, ...]()
    if solved.along_orders or solved.ties_near or known <= lower * CLOSE:
        return lower, more
    if counting.node_size:
        ratio = counting.node_bytes_per_second / instance.bandwidth
        lower, more = nodes.lower_bound(solved.prepared, counting.node_size, ratio, lower, known)
    if counting.fill_drain:
        lower = filling.lower_bound(solved.prepared, lower, known, instance.n_microbatches)
    return lower, more


def _rated(instance: PiperInstance, menu: StageMenu, solved: search.Solved) -> Rated:
    """Return plans of every number of stages at several thresholds with their cost."""
    assert solved.found is not None
    every = dict.fromkeys(
        _stages(menu, found) for ratio in SLACK_RATIOS for found in search.by_stages(solved.prepared, solved.found, ratio)
    )
    return {stages: evaluate(instance, stages) for stages in every}


def _fitting(instance: PiperInstance, rated: Rated) -> Rated:
    """Return the plans that fit, within rounding; all where none does."""
    most = ROUNDING * instance.memory_bytes
    return {stages: cost for stages, cost in rated.items() if cost.missing_bytes <= most} or rated


def _stages(menu: StageMenu, found: FoundPipeline) -> tuple[PiperStage, ...]:
    """Return a found pipeline in Piper's terms."""
    stages = []
    for stage in found.stages:
        degree = int(menu.degrees[stage.degree])
        names = tuple(menu.names[c] for c in stage.choices)
        stages.append(PiperStage(stage.nodes, int(menu.replicas[stage.option]), degree, names))
    return tuple(stages)


def least_memory(instance: PiperInstance, options: Options) -> tuple[float, int]:
    """Return the memory at which some plan fits, and how many devices of the given memory would do.

    `instance`: an instance in which nothing fits.

    Returns `memory_bytes`: enough for some plan (the least one along a few topological orders); infinite for none; `n_devices`:
    enough devices of the instance's memory, at most 10,000; 0 for none.
    """
    menu = menu_of(instance, options)
    if not math.isfinite(search.relaxation(menu)):
        return math.inf, 0
    needed = search.least_memory(menu)
    n_devices = instance.n_devices
    while n_devices < 10_000:
        n_devices = min(2 * n_devices, 10_000)
        larger = menu_of(replace(instance, n_devices=n_devices), options)
        if search.fits(larger):
            return needed, n_devices
    return needed, 0


def curve(instance: PiperInstance, options: Options, over: str) -> list[dict[str, float | int]]:
    """Return the best time for every number of devices, or of replicas in all, up to the instance's.

    `over`: ``devices`` or ``replicas``.
    Returns: points where the best time changes: ``{"devices": k, "seconds_per_microbatch": x}`` holds from k up to the next
    point.
    Raises `InputError` when the model counts fill and drain, nodes, or buffers per layer, for which curves are not made.
    """
    if instance.counting != replace(instance.counting, layer_buffers=False, fill_drain=False, node_size=0):
        raise InputError(
            "--set curve (of search piper) goes with none of layer_buffers, fill_drain and node_size; leave those off"
        )
    points = curves.steps(menu_of(instance, options), over)
    return [{over: count, "seconds_per_microbatch": seconds} for count, seconds in points]
