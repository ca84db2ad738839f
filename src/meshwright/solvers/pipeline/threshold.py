"""Cut a graph into the pipeline whose slowest stage is fastest: a search on the threshold with Pareto labels on downsets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright._kernels.pipeline import choice
from meshwright._kernels.pipeline import knapsack as knapsack_kernel
from meshwright._kernels.pipeline import threshold as kernel
from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline.prepared import CLOSE_RATIO, Prepared

__all__ = [
    "FoundPipeline",
    "Reached",
    "StageChoice",
    "best_label",
    "check",
    "empty_labels",
    "found",
    "minimise",
]

NEAR_RATIO = 1.02
"""Distance to the lower bound from which on probes just below the best pipeline are worth their time."""

LIKELY_RATIO = 0.998
"""Share of a known pipeline's time below which the best is seldom."""

GROWTH = (1.01, 1.03, 1.1, 1.3, 2.0, 4.0, 16.0, 256.0, math.inf)
"""Multiples of the lower bound tried for a first plan."""


@dataclass(frozen=True, slots=True)
class StageChoice:
    """One stage of a found pipeline.

    Parameters
    ----------
    nodes : tuple of int
        Nodes, ascending.
    degree, option : int
        Positions of the tensor degree and of the number of replicas.
    choices : tuple of int
        Choice of each node, as positions in the menu.
    seconds : float
        Time per micro-batch of the batch.
    memory_bytes : float
        Memory of each device.
    in_flight : int
        Micro-batches in flight per replica.
    """

    nodes: tuple[int, ...]
    degree: int
    option: int
    choices: tuple[int, ...]
    seconds: float
    memory_bytes: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A pipeline: its stages from the model's input on, the slowest stage's time, and its totals."""

    stages: tuple[StageChoice, ...]
    seconds: float
    n_devices: int
    n_replicas: int
    memory_bytes: float


def empty_labels(prepared: Prepared, size: int, n_layers: int, n_replicas: int) -> kernel.Labels:
    """Return empty labels."""
    cells = (n_layers, n_replicas + 1)
    first = np.zeros(len(prepared.space.words) + 1, np.int64)
    free, floor = np.full((2, *cells), np.iinfo(np.int32).max, np.int32)
    replicas, devices, stages, below, lower, option = np.empty((6, size), np.int32)
    cell_below, cell_lower, cell_option = np.empty((3, *cells), np.int32)
    return kernel.Labels(
        first, replicas, devices, stages, below, lower, option, free, floor, cell_below, cell_lower, cell_option
    )


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """Labels at one threshold, and how many inner choices stayed undecided."""

    labels: kernel.Labels
    n_labels: int
    n_undecided: int

    @property
    def answers(self) -> range:
        """Labels of the whole model."""
        return range(int(self.labels.first[-2]), int(self.labels.first[-1]))


def check(
    prepared: Prepared,
    seconds: float,
    *,
    memory_bytes: float = math.inf,
    n_devices: int = 0,
    n_replicas: int = 0,
    n_stages: int = 0,
    optimistic: bool = False,
) -> Reached:
    """Return the ways to run the whole model with no stage slower than a threshold.

    `seconds`: the threshold.
    `memory_bytes`: memory of a device, where less than the instance's.
    `n_devices`, `n_replicas`: limits below the instance's; 0 for its own.
    `n_stages`: most stages, and fewer count as better; 0 to ignore their number.
    `optimistic`: whether an undecided inner choice counts as fitting, as a lower bound needs.
    Returns: labels; those of the whole model are undominated in replicas and devices (and stages).
    """
    menu = prepared.menu
    n_devices = n_devices or menu.n_devices
    n_replicas = n_replicas or menu.n_replicas
    memory = min(memory_bytes, menu.memory_bytes)
    rules = prepared.rules._replace(optimistic=int(optimistic))
    memo = prepared.memo
    if memory < menu.memory_bytes:
        # Bounds of inner choices hold for one memory only; the sorted swaps do not depend on it.
        size = 1 << 12
        memo = memo._replace(
            pair=np.full(size, -1, np.int64), rest=np.full(size, -1, np.int64), lower=np.zeros(size), upper=np.zeros(size)
        )
    size = max(1 << 14, 8 * len(prepared.space.words))
    n_layers = n_stages + 1 if n_stages else 1
    limits = np.array([min(seconds, 1e300), memory, n_devices, n_replicas])
    while True:
        labels = empty_labels(prepared, size, n_layers, n_replicas)
        count, undecided = kernel.reach(
            prepared.space, prepared.pairs, prepared.kernel_menu, rules, memo, labels, limits, int(n_stages > 0)
        )
        if count >= 0:
            return Reached(labels, count, undecided)
        size *= 4


def found(prepared: Prepared, reached: Reached, label: int, *, memory_bytes: float = math.inf) -> FoundPipeline:
    """Return the pipeline of one label, its inner choices made anew.

    `label`: a label of the whole model.
    `memory_bytes`: memory of a device, where less than the instance's.
    """
    labels, menu = reached.labels, prepared.menu
    upper = len(prepared.space.words) - 1
    n_devices, n_replicas = int(labels.devices[label]), int(labels.replicas[label])
    stages = []
    while label > 0:
        lower, below = int(labels.lower[label]), int(labels.below[label])
        degree, option = divmod(int(labels.option[label]), len(menu.replicas))
        replicas = int(menu.replicas[option])
        in_flight = 1 + -(-int(labels.replicas[below]) // replicas)
        stages.append(_stage(prepared, upper, lower, degree, option, in_flight, min(memory_bytes, menu.memory_bytes)))
        upper, label = lower, below
    return FoundPipeline(
        tuple(stages),
        max(stage.seconds for stage in stages),
        n_devices,
        n_replicas,
        max(stage.memory_bytes for stage in stages),
    )


def _stage(prepared: Prepared, upper: int, lower: int, degree: int, option: int, in_flight: int, memory: float) -> StageChoice:
    """Make the inner choice of one stage."""
    menu = prepared.menu
    first, cost, held, position = choice.stage_items(
        prepared.space, prepared.kernel_menu, prepared.rules, upper, lower, degree, option, in_flight
    )
    chosen = np.empty(len(first) - 1, np.int64)
    reserve = float(prepared.rules.reserve[degree])
    if menu.exact:
        knapsack_kernel.exact(first, cost, held, memory - reserve, np.inf, chosen)
    else:
        knapsack_kernel.greedy(first, cost, held, memory - reserve, menu.all_or_none, chosen)
    seconds = float(cost[chosen].sum())
    if menu.tensor_once:
        # The items charge every edge; the list of stages has what crosses the border when tensors cross it once.
        pairs = slice(int(prepared.pairs.first[upper]), int(prepared.pairs.first[upper + 1]))
        at = pairs.start + int(np.flatnonzero(prepared.pairs.lower[pairs] == lower)[0])
        picked = position[chosen]
        inside = (
            menu.seconds[picked].sum()
            + prepared.pairs.seconds[at, prepared.rules.column[degree]] * prepared.rules.border[degree, option]
        )
        seconds = float(inside * menu.share[option] + (menu.weight_bytes[picked] * menu.reduce_seconds[degree, option]).sum())
    return StageChoice(
        downsets.bits(prepared.space.words, upper, lower, menu.n_nodes),
        degree,
        option,
        tuple(int(c) for c in position[chosen]),
        seconds,
        float(held[chosen].sum()) + reserve,
        in_flight,
    )


def best_label(reached: Reached) -> int:
    """Return the whole model's label of fewest devices (-1 for none)."""
    return min(reached.answers, key=lambda label: (reached.labels.devices[label], label), default=-1)


def minimise(
    prepared: Prepared, lower_seconds: float, known: FoundPipeline | None = None, *, n_devices: int = 0, n_replicas: int = 0
) -> tuple[FoundPipeline | None, float]:
    """Return the pipeline whose slowest stage is fastest, and a proven lower bound over the instance's downsets.

    `lower_seconds`: a proven lower bound to start from.
    `known`: a pipeline to start from.
    `n_devices`, `n_replicas`: limits below the instance's; 0 for its own.

    Returns
    -------
    pipeline : FoundPipeline or None
        None when nothing fits.
    lower_seconds : float
        No pipeline over these downsets is faster.

    Notes
    -----
    Bisection, in turn with probes just below the best pipeline known: a probe that fails ends the search.
    """

    memory = prepared.menu.memory_bytes

    def attempt(seconds: float) -> tuple[tuple[Reached, int, float] | None, bool]:
        """Return labels with one within the threshold and its time, and whether there provably is none."""
        reached = check(prepared, seconds, n_devices=n_devices, n_replicas=n_replicas)
        label = best_label(reached)
        if label >= 0:
            value = kernel.label_seconds(
                prepared.space,
                prepared.pairs,
                prepared.kernel_menu,
                prepared.rules,
                reached.labels,
                label,
                memory,
                prepared.menu.tensor_once,
            )
            return (reached, label, value), False
        if not reached.n_undecided:
            return None, True
        hopeful = check(prepared, seconds, n_devices=n_devices, n_replicas=n_replicas, optimistic=True)
        return None, not len(hopeful.answers)

    low = proven = lower_seconds
    value = math.inf if known is None else known.seconds
    best: tuple[Reached, int, float] | None = None
    certain = True
    for factor in GROWTH if known is None else ():
        seconds = low * factor if low > 0.0 else math.inf
        best, none = attempt(seconds)
        if best is not None:
            value = best[2]
            break
        certain = certain and none
        proven = seconds if certain else proven
        if seconds == math.inf:
            return None, proven
    low = max(low, proven)
    probe, near = False, known is not None
    while value > low * (1.0 + CLOSE_RATIO):
        middle = math.sqrt(low * value) if low > 0.0 else value / 2.0
        middle = max(middle, value * LIKELY_RATIO) if near else middle
        near = False
        probe = not probe and value <= NEAR_RATIO * low
        seconds = value * (1.0 - CLOSE_RATIO) if probe else middle
        better, none = attempt(seconds)
        if better is not None and better[2] < value:
            best, value = better, better[2]
        else:
            low = max(low, min(seconds, value))
            proven = max(proven, low) if none else proven
    result = known if best is None else found(prepared, best[0], best[1])
    return result, min(proven, value)
