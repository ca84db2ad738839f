"""Every plan of a small problem, as far as a bound does not rule it out: the proof that nothing is quicker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import distinct
from meshwright.planners.dapple.evaluate import Cut, Evaluator, PlanOutline

__all__ = ["Numbers", "placements", "proven"]


STEPS_PER_PLAN = 20
"""What playing a plan costs, in looks at a prefix."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """One number of micro-batches: what stages cost and what the rest at least takes.

    `n_microbatches`: micro-batches.
    `widths`, `n_samples`, shape (n_columns,), int64: replicas of a stage, and samples of its fullest; 0: not allowed.
    `sample_forward_seconds`, `sample_compute_seconds`, shape (n_nodes,), float64: of one sample, of everything before each
    node.
    `bound`, shape (2, n_nodes, n_devices + 1), float64: seconds until the rest has drained, and has ended, from each node on
    with so many devices left.
    """

    n_microbatches: int
    widths: NDArray[np.int64]
    n_samples: NDArray[np.int64]
    sample_forward_seconds: NDArray[np.float64]
    sample_compute_seconds: NDArray[np.float64]
    bound: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Stages chosen so far: node reached, forward and compute seconds of one micro-batch,
    a bound from the stages themselves.
    """

    node: int
    cuts: tuple[Cut, ...]
    used: tuple[int, ...]
    forward_seconds: float
    compute_seconds: float
    floor_seconds: float


def placements(used: tuple[int, ...], sizes: tuple[int, ...], n_cards: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to take devices from machines, those that differ only by exchanging unused machines of one size once.

    `used`, `sizes`: devices taken, and there, per machine.
    """

    def extend(machine: int, left: int, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if machine == len(sizes):
            if left == 0:
                yield taken
            return
        most = min(left, sizes[machine] - used[machine])
        for earlier in range(machine):
            if used[earlier] == used[machine] == 0 and sizes[earlier] == sizes[machine]:
                most = min(most, taken[earlier])
        for count in range(most, -1, -1):
            yield from extend(machine + 1, left - count, (*taken, count))

    yield from extend(0, n_cards, ())


def proven(
    evaluator: Evaluator,
    numbers: list[Numbers],
    following: list[list[int]],
    kept: list[int],
    best: tuple[float, PlanOutline],
    budget: int,
) -> tuple[float, PlanOutline] | None:
    """Return the quickest of all plans; None where that takes more than `budget` steps.

    `numbers`: one per number of micro-batches.
    `following`: nodes a stage may end at, by the node it begins at.
    `kept`: state of each node from 1 on.
    `best`: a plan found before.
    `budget`: most prefixes looked at; a whole plan, which is played, counts as `STEPS_PER_PLAN`.
    """
    machines = _machines(evaluator)
    sizes = tuple(len(machine) for machine in machines)
    for number in numbers:
        stack = [_Prefix(0, (), (0,) * len(sizes), 0.0, 0.0, 0.0)]
        while stack:
            prefix = stack.pop()
            budget -= 1
            if budget < 0:
                return None
            if prefix.node == len(kept):
                budget -= STEPS_PER_PLAN
                best = evaluator.best([PlanOutline(number.n_microbatches, prefix.cuts, "1f1b")], best[0]) or best
                continue
            stack.extend(
                longer
                for longer in _longer(prefix, number, following, kept, machines)
                if longer.floor_seconds < best[0] * (1.0 - 1e-12)
            )
    return best


def _machines(evaluator: Evaluator) -> list[tuple[int, ...]]:
    """Return the devices of each machine."""
    cluster = evaluator.problem.required_cluster
    node = cluster.node_of_device
    return [tuple(int(device) for device in np.flatnonzero(node == name)) for name in distinct(node)]


def _longer(
    prefix: _Prefix, number: Numbers, following: list[list[int]], kept: list[int], machines: list[tuple[int, ...]]
) -> Iterator[_Prefix]:
    """Yield the prefixes with one more stage, each with its bound."""
    sizes = tuple(len(machine) for machine in machines)
    left = sum(sizes) - sum(prefix.used)
    for node in following[prefix.node]:
        forward_of_sample = float(number.sample_forward_seconds[node] - number.sample_forward_seconds[prefix.node])
        compute_of_sample = float(number.sample_compute_seconds[node] - number.sample_compute_seconds[prefix.node])
        for width, n_samples in zip(number.widths.tolist(), number.n_samples.tolist(), strict=True):
            if n_samples == 0 or width > left:
                continue
            forward, compute = forward_of_sample * n_samples, compute_of_sample * n_samples
            floor = max(prefix.floor_seconds, prefix.compute_seconds + number.n_microbatches * compute)
            if node < len(kept):
                rest_drains, rest_ends = number.bound[:, node, left - width]
                floor = max(floor, prefix.compute_seconds + compute + float(rest_drains))
                floor = max(floor, prefix.forward_seconds + forward + float(rest_ends))
            if not math.isfinite(floor):
                continue
            for counts in placements(prefix.used, sizes, width):
                devices = tuple(
                    device
                    for machine, before, count in zip(machines, prefix.used, counts, strict=True)
                    for device in machine[before : before + count]
                )
                used = tuple(before + count for before, count in zip(prefix.used, counts, strict=True))
                yield _Prefix(
                    node,
                    (*prefix.cuts, Cut(kept[node - 1], devices)),
                    used,
                    prefix.forward_seconds + forward,
                    prefix.compute_seconds + compute,
                    floor,
                )
