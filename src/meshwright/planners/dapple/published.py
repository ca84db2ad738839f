"""DAPPLE's published planner, quirks included: what its code answers, to the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.planners.dapple import placement

__all__ = ["Candidate", "Instance", "Setting", "baselines", "candidates", "recursive_speedup", "scaled"]

DEVICE_BYTES = 16e9
"""Memory of one device in the published code."""

MOST_MOVES = 300_000
"""Moves between occupancies beyond which the straight search would run out of memory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The published planner's settings.

    `profile_batch`, `global_batch`, `min_micro_batch`: samples of the profile, of a step, and of a micro-batch.
    `sizes`: devices of each machine.
    `optimizer_scaling_ratio`: bytes held per byte of weights.
    `peak_activation_bytes`: activation bytes of one sample at their peak.
    """

    profile_batch: int
    global_batch: int
    min_micro_batch: int
    sizes: tuple[int, ...]
    optimizer_scaling_ratio: float
    peak_activation_bytes: float

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """Tables scaled to the global batch, and predecessors.

    `seconds`, `parameter_bytes`, shape (n_states + 1, n_states), float64: of the stage from state i to state j; -1 where j < i.
    `cut_bytes`, shape (n_states,), float64: crossing a cut after each state.
    `before_first`, `before`: predecessors of each state, in the order they are visited.
    """

    seconds: NDArray[np.float64]
    parameter_bytes: NDArray[np.float64]
    cut_bytes: NDArray[np.float64]
    before_first: NDArray[np.int64]
    before: NDArray[np.int64]

    @property
    def total_seconds(self) -> float:
        """Forward and backward of the global batch on one device."""
        return float(self.seconds[0, -1])

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.cut_bytes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan in the published form.

    `speedup_ratio`: over one device.
    `replication`: copies of the whole pipeline.
    `stages` (tuple of (int, int, int, tuple of int)): first state, stop (exclusive; of the last stage the last state), devices
    per copy, and devices taken of each machine.
    `cards`: ids of the devices of each stage.
    """

    speedup_ratio: float
    replication: int
    stages: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    cards: tuple[tuple[int, ...], ...]


def scaled(
    seconds: NDArray[np.float64],
    parameter_bytes: NDArray[np.float64],
    cut_bytes: NDArray[np.float64],
    before: tuple[NDArray[np.int64], NDArray[np.int64]],
    batch_ratio: float,
) -> Instance:
    """Return the tables for the global batch, which is `batch_ratio` times the profile's; weights do not grow."""
    return Instance(seconds * batch_ratio, parameter_bytes, cut_bytes * batch_ratio, before[0], before[1])


def _reduce_seconds(setting: Setting, n_bytes: float) -> float:
    """Return the time of an all-reduce over all devices."""
    from meshwright._kernels.dapple import published as kernel

    return float(kernel.all_reduce_seconds(setting.n_devices, 0, len(setting.sizes) - 1, n_bytes))


def _overlap_offset(instance: Instance, setting: Setting, part: float, *, inter: bool) -> float:
    """Return how much of the all-reduce is not hidden when layers reduce as soon as their backward is done.

    With `inter` the next step's forward hides more of it; its times sit on the mirrored layers, as in the original.
    """
    n = instance.n_states
    seconds = [float(instance.seconds[i, i]) for i in range(n)]
    needed, available, current = [], [], 0.0
    for i in range(n - 1, -1, -1):
        needed.append(_reduce_seconds(setting, float(instance.parameter_bytes[i, i])))
        current += seconds[i] * part / 2.0
        available.append(current)
    ahead = [second * part / 2.0 if inter else 0.0 for second in seconds]
    offset, excess = needed[n - 1], 0.0
    for b in range(n - 2, -1, -1):
        slot = (available[b + 1] - available[b]) + ahead[b + 1]
        if slot < needed[b]:
            missing = needed[b] - slot
            if missing < excess:
                excess -= missing
            else:
                offset += missing - excess
                excess = 0.0
        else:
            excess += slot - needed[b]
    return offset


def _largest_batch(instance: Instance, setting: Setting) -> int:
    """Return how many samples fit one device."""
    weights = 0.0
    for i in range(instance.n_states):
        weights += float(instance.parameter_bytes[i, i])
    free = DEVICE_BYTES - setting.optimizer_scaling_ratio * weights
    if setting.peak_activation_bytes <= 0.0:
        return setting.global_batch if free > 0 else 0
    return max(0, min(2**32 - 1, math.trunc(free / setting.peak_activation_bytes)))


def baselines(instance: Instance, setting: Setting) -> dict[str, float | None]:
    """Return the published data-parallel speed-ups over one device.

    Returns: ``dp_no_overlap``, ``dp_p3``, ``dp_ga_p3``, ``dp_ga_normal_overlap``, ``dp_optga_p3``; None where gradient
    accumulation needs a sample to fit one device and none does (the original divides by zero).
    """
    total, n, batch = instance.total_seconds, setting.n_devices, setting.global_batch
    weights = float(instance.parameter_bytes[0, -1])

    def overlapped(accumulated: int, *, inter: bool) -> float:
        part = accumulated / batch
        return total / (total / n + _overlap_offset(instance, setting, part, inter=inter))

    largest = _largest_batch(instance, setting)
    found: dict[str, float | None] = {
        "dp_no_overlap": total / (total / n + _reduce_seconds(setting, weights)),
        "dp_p3": total / (total / n + _overlap_offset(instance, setting, 1.0, inter=True)),
    }
    if largest == 0:
        return found | dict.fromkeys(("dp_ga_p3", "dp_ga_normal_overlap", "dp_optga_p3"))
    current = batch
    if largest < batch:
        n_rounds = math.ceil(batch / largest)
        while n_rounds < batch // 2 + 1 and batch % n_rounds != 0:
            n_rounds += 1
        current = batch // n_rounds
    optimal = batch if largest >= batch else batch // 2 if 2 * largest >= batch else largest
    found["dp_ga_p3"] = overlapped(current, inter=True)
    found["dp_ga_normal_overlap"] = overlapped(current, inter=False)
    found["dp_optga_p3"] = overlapped(optimal, inter=True)
    return found


def candidates(instance: Instance, setting: Setting) -> tuple[list[Candidate], list[str]]:
    """Return the plans that the published search can answer, in its order, and notes on what could not be tried.

    Returns `candidates`: one stage on every number of devices; straight pipelines; the best two stages. The last of the best is
    the answer; `notes`: where the original would have crashed.
    Raises `InputError` when the machines allow more occupancies than the straight search can hold.

    Notes
    -----
    The original also runs its dynamic program for every number of units; its first cell is one stage on all devices without any
    all-reduce, whose bottleneck no split beats, so the answer is always that one stage and we evaluate it directly.
    """
    n, notes = setting.n_devices, []
    found = [_one_stage(instance, setting, i) for i in range(2, n + 1)]
    for n_units in (2, n) if n > 2 and n % 2 == 0 else (n,):
        plan = _straight(instance, setting, n_units)
        if plan is None:
            notes.append(
                f"no straight pipeline of {n_units} stages: there are {instance.n_states} states (the published planner "
                "crashes here)"
            )
        else:
            found.append(plan)
    if n > 1 and instance.n_states > 1:
        found.append(_bipartition(instance, setting))
    return found, notes


def _cards(before: tuple[int, ...], after: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids of the devices that lie between two occupancies."""
    starts = [0, *accumulate(sizes)]
    return tuple(starts[machine] + i for machine in range(len(sizes)) for i in range(before[machine], after[machine]))


def _judged(
    instance: Instance,
    setting: Setting,
    replication: int,
    block: float,
    stages: list[tuple[int, int, int, tuple[int, ...]]],
    cards: list[tuple[int, ...]],
) -> Candidate:
    """Return a candidate with the published closed form as its speed-up."""
    from meshwright._kernels.dapple import published as kernel

    tables = kernel.Tables(instance.seconds, instance.parameter_bytes, instance.cut_bytes)
    speedup = kernel.analytical_speedup(
        tables,
        setting.global_batch // replication // setting.min_micro_batch,
        replication,
        block,
        np.array([stage[0] for stage in stages]),
        np.array([stage[1] for stage in stages]),
        np.array([stage[3] for stage in stages]),
    )
    return Candidate(float(speedup), replication, tuple(stages), tuple(cards))


def _one_stage(instance: Instance, setting: Setting, n_units: int) -> Candidate:
    """Return the whole model as one stage of `n_units` devices per copy."""
    replication = setting.n_devices // n_units
    empty = (0,) * len(setting.sizes)
    counts = placement.fresh_first(empty, setting.sizes, n_units * replication)
    assert counts is not None
    block = max(instance.total_seconds / n_units / replication, 0.0)
    stage = (0, instance.n_states - 1, n_units, counts)
    return _judged(instance, setting, replication, block, [stage], [_cards(empty, counts, setting.sizes)])


def _bipartition(instance: Instance, setting: Setting) -> Candidate:
    """Return the best two stages over all cuts, device counts and placements."""
    from meshwright._kernels.dapple import published as kernel

    sizes, empty = setting.sizes, (0,) * len(setting.sizes)
    placements = [counts for n_first in range(1, setting.n_devices) for counts in placement.next_cards(empty, sizes, n_first)]
    tables = kernel.Tables(instance.seconds, instance.parameter_bytes, instance.cut_bytes)
    first = np.array(placements, dtype=np.int64)
    n_micro_batches = setting.global_batch // setting.min_micro_batch
    speedup, state, i = kernel.bipartition(tables, n_micro_batches, np.array(sizes), first, first.sum(axis=1))
    counts = placements[i]
    rest = tuple(size - count for size, count in zip(sizes, counts, strict=True))
    stages = (
        (0, int(state) + 1, sum(counts), counts),
        (int(state) + 1, instance.n_states - 1, sum(rest), rest),
    )
    return Candidate(float(speedup), 1, stages, (_cards(empty, counts, sizes), _cards(counts, sizes, sizes)))


def _straight(instance: Instance, setting: Setting, n_units: int) -> Candidate | None:
    """Return the pipeline of `n_units` stages of equally many devices; None when there are fewer states."""
    from meshwright._kernels.dapple import published as kernel

    sizes, replication = setting.sizes, setting.n_devices // n_units
    empty = (0,) * len(sizes)
    start = placement.fresh_first(empty, sizes, replication)
    assert start is not None
    levels, moves = [[start]], {}
    for _ in range(n_units - 1):
        outcomes = placement.reachable(levels[-1], sizes, replication)
        moves.update(outcomes)
        levels.append(sorted({counts for found in outcomes.values() for counts in found}))
        if sum(len(found) for found in moves.values()) > MOST_MOVES:
            raise InputError(
                f"mode=published: machines of {len(sizes)} x {max(sizes)} devices allow more than {MOST_MOVES} moves between "
                "occupancies; use mode=corrected, or fewer devices"
            )
    cells = [counts for level in levels for counts in level]
    position = {counts: i for i, counts in enumerate(cells)}
    arcs = [(source, target) for source in cells for target in moves.get(source, ())] + [(empty, start)]
    first = np.concatenate(([0], np.cumsum([len(moves.get(source, ())) for source in cells]))).astype(np.int64)
    status, block, stops, taken = kernel.straight(
        kernel.Tables(instance.seconds, instance.parameter_bytes, instance.cut_bytes),
        instance.before_first,
        instance.before,
        replication,
        kernel.Arcs(
            first,
            np.array([position.get(source, -1) for source, _ in arcs], dtype=np.int64),
            np.array([position[target] for _, target in arcs], dtype=np.int64),
            np.array([np.subtract(target, source) for source, target in arcs], dtype=np.int64),
        ),
        np.cumsum([0, *(len(level) for level in levels)]).astype(np.int64),
    )
    if status:
        return None
    begins = [0, *(int(stop) for stop in stops[:-1])]
    chosen = [arcs[arc] for arc in taken]
    stages = [
        (begin, int(stop), 1, tuple(int(card) for card in np.subtract(target, source)))
        for begin, stop, (source, target) in zip(begins, stops, chosen, strict=True)
    ]
    return _judged(
        instance, setting, replication, float(block), stages, [_cards(source, target, sizes) for source, target in chosen]
    )


def recursive_speedup(instance: Instance, setting: Setting, plan: Candidate) -> float:
    """Return the speed-up that the authors' own event simulation gives a plan, its errors included.

    Notes
    -----
    It counts one state twice per cut, and lets backward passes overlap on one device while the pipeline drains, so it is a
    number to compare with the published figures and with nothing else.
    """
    from meshwright._kernels.dapple import published as kernel

    n_micro_batches = setting.global_batch // plan.replication // setting.min_micro_batch
    if n_micro_batches == 0:
        return 0.0
    blocks, reduces = [], []
    for i, (begin, stop, per_copy, counts) in enumerate(plan.stages):
        blocks.append(float(instance.seconds[begin, stop]) / per_copy / plan.replication / n_micro_batches / 2.0)
        low, high = kernel.ends(np.array(counts))
        reduces.append(float(kernel.all_reduce_seconds(sum(counts), low, high, float(instance.parameter_bytes[begin, stop]))))
        if i + 1 < len(plan.stages):
            n_bytes = float(instance.cut_bytes[stop - 1]) / n_micro_batches
            following = np.array(plan.stages[i + 1][3])
            blocks.append(float(kernel.split_concat_seconds(np.array(counts), following, n_bytes)))
    return instance.total_seconds / float(kernel.recursive_seconds(np.array(blocks), n_micro_batches, np.array(reduces)))
