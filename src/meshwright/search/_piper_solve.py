"""Run the pipeline solver on a Piper instance: best plan, plans nearly as good, least memory, whole curves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.costs._piper_menu import Options, buffer_bytes, menu_of
from meshwright.costs.piper import PiperStage, evaluate
from meshwright.errors import InputError
from meshwright.readers._piper_instance import PiperInstance
from meshwright.solvers import stage_curves, stage_search
from meshwright.solvers.stage_menu import StageMenu
from meshwright.solvers.stage_pipeline import Found

__all__ = ["Solution", "curve", "least_memory", "solve"]

FILL_RATIOS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""How much slower than the best a slowest stage may be where a shorter pipeline fills faster."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best plan (no stages: nothing fits), a proven lower bound, plans nearly as good, and what to tell."""

    stages: tuple[PiperStage, ...]
    lower_seconds: float
    method: str
    nearly: tuple[tuple[PiperStage, ...], ...]
    n_downsets: int
    notes: tuple[str, ...] = ()


def solve(instance: PiperInstance, options: Options, *, nearly_ratio: float) -> Solution:
    """Return the best plan of an instance.

    Parameters
    ----------
    instance : PiperInstance
        The instance.
    options : Options
        What plans may use.
    nearly_ratio : float
        How much slower a plan may be that saves stages or devices.

    Returns
    -------
    Solution
        The plan with its proof.
    """
    best: Solution | None = None
    best_seconds = math.inf
    for reserve in _reserves(instance):
        solution = _solve_with(instance, options, reserve, nearly_ratio)
        if solution.stages:
            seconds = evaluate(instance, solution.stages).seconds
            if seconds < best_seconds * (1.0 - 1e-12):
                best, best_seconds = solution, seconds
        elif best is None:
            best = solution
    assert best is not None
    if not instance.counting.layer_buffers or not best.stages:
        return best
    free = replace(menu_of(instance, options, math.inf), memory_bytes=instance.memory_bytes)
    bound = stage_search.solve(free)
    return replace(best, lower_seconds=min(bound.lower_seconds, best_seconds), method="relaxation")


def _reserves(instance: PiperInstance) -> Iterator[float]:
    """Yield the rooms to keep for recomputation: 0, or each size of buffer where they are counted per layer."""
    sizes = {0.0}
    if instance.counting.layer_buffers:
        for node in instance.nodes:
            for degree, choices in node.choices:
                sizes |= {buffer_bytes(node, degree, choice) for choice in choices}
    yield from sorted(size for size in sizes if size < instance.memory_bytes)


def _solve_with(instance: PiperInstance, options: Options, reserve: float, nearly_ratio: float) -> Solution:
    """Solve with a fixed room for recomputation."""
    menu = menu_of(instance, options, reserve)
    if menu.tensor_once and not menu.alike:
        raise InputError(
            "--set tensor_once (of search piper): choices of one layer and degree have different sync terms or weights, so what "
            "crosses a border once is not defined; leave it off"
        )
    if not math.isfinite(stage_search.relaxation(menu)):
        return Solution((), math.inf, "exact", (), 0)
    fill = instance.counting.fill_drain
    slack = max(FILL_RATIOS) if fill else nearly_ratio
    solved = stage_search.solve(menu, slack_ratio=slack)
    if solved.found is None:
        return Solution((), solved.lower_seconds, solved.method, (), solved.n_downsets)
    if fill:
        plan, candidates = _fastest_filled(instance, menu, solved)
        return Solution(plan, solved.lower_seconds, "relaxation", (), solved.n_downsets, (
            f"fill and drain are counted; the best of {candidates} plans with thresholds up to {max(FILL_RATIOS):.0%} above the "
            "best steady state",
        ))  # fmt: skip
    best = stage_search.fewest(solved.prepared, solved.found)
    nearly = stage_search.savings(solved.prepared, best, nearly_ratio)
    return Solution(
        _stages(instance, menu, best),
        solved.lower_seconds,
        solved.method,
        tuple(_stages(instance, menu, other) for other in nearly),
        solved.n_downsets,
        () if solved.method == "exact" else (_why_relaxed(solved),),
    )


def _why_relaxed(solved: stage_search.Solved) -> str:
    """Say why the bound is not met."""
    gap = solved.found.seconds / solved.lower_seconds - 1.0 if solved.found and solved.lower_seconds else 0.0
    if not solved.along_orders:
        return f"some inner choices could not be decided exactly: the plan is at most {gap:.2%} slower than the best"
    many = f"more than {-solved.n_downsets}" if solved.n_downsets < 0 else str(solved.n_downsets)
    return (
        f"the graph has {many} downsets, too many stages to try all: the plan is the best along several topological orders, "
        f"and at most {gap:.2%} slower than any"
    )


def _fastest_filled(
    instance: PiperInstance, menu: StageMenu, solved: stage_search.Solved
) -> tuple[tuple[PiperStage, ...], int]:
    """Return the plan of least time with fill and drain among those of every number of stages at several thresholds."""
    assert solved.found is not None
    plans: dict[tuple[PiperStage, ...], None] = {}
    for ratio in FILL_RATIOS:
        for found in stage_search.by_stages(solved.prepared, solved.found, ratio):
            plans[_stages(instance, menu, found)] = None
    best = min(plans, key=lambda stages: (evaluate(instance, stages).seconds, len(stages)))
    return best, len(plans)


def _stages(instance: PiperInstance, menu: StageMenu, found: Found) -> tuple[PiperStage, ...]:
    """Return a found pipeline in Piper's terms."""
    stages = []
    for stage in found.stages:
        degree = int(menu.degrees[stage.degree])
        names = tuple(menu.names[c] for c in stage.choices)
        stages.append(PiperStage(stage.nodes, int(menu.replicas[stage.option]), degree, names))
    return tuple(stages)


def least_memory(instance: PiperInstance, options: Options) -> tuple[float, int]:
    """Return the memory at which some plan fits, and how many devices of the given memory would do.

    Parameters
    ----------
    instance : PiperInstance
        An instance in which nothing fits.
    options : Options
        What plans may use.

    Returns
    -------
    memory_bytes : float
        Enough for some plan (the least one along a few topological orders); infinite for none.
    n_devices : int
        Enough devices of the instance's memory, at most 10,000; 0 for none.
    """
    reserve = max(_reserves(instance)) if instance.counting.layer_buffers else 0.0
    menu = menu_of(instance, options, reserve)
    if not math.isfinite(stage_search.relaxation(menu)):
        return math.inf, 0
    needed = stage_search.least_memory(menu) + reserve
    n_devices = instance.n_devices
    while n_devices < 10_000:
        n_devices = min(2 * n_devices, 10_000)
        larger = menu_of(replace(instance, n_devices=n_devices), options, reserve)
        if stage_search.fits(larger):
            return needed, n_devices
    return needed, 0


def curve(instance: PiperInstance, options: Options, over: str) -> list[dict[str, float | int]]:
    """Return the best time for every number of devices, or of replicas in all, up to the instance's.

    Parameters
    ----------
    instance : PiperInstance
        The instance, in the published model.
    options : Options
        What plans may use.
    over : str
        ``devices`` or ``replicas``.

    Returns
    -------
    list of dict
        Points where the best time changes: ``{"devices": k, "seconds_per_microbatch": x}`` holds from k up to the next point.

    Raises
    ------
    InputError
        When the model counts fill and drain, or buffers per layer, for which curves are not made.
    """
    if instance.counting != replace(instance.counting, layer_buffers=False, fill_drain=False):
        raise InputError("--set curve (of search piper) goes with neither layer_buffers nor fill_drain; leave those off")
    points = stage_curves.steps(menu_of(instance, options), over)
    return [{over: count, "seconds_per_microbatch": seconds} for count, seconds in points]
