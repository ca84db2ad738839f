"""A profile, a cluster and limits as the arrays of the search kernel: which states a stage may end at, on how many devices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.planners.dapple import device_orders
from meshwright.planners.dapple.profile import ProfiledTraining
from meshwright.planners.dapple.states import States

__all__ = ["PlanLimits", "PlanSpace", "kept_states", "samples", "space_of"]

MOST_WORK = 2e10
"""Steps of the search kernel beyond which fewer stages are tried; most are cut off, so this is well below a minute."""

MOST_POSITIONS = 512
"""Positions in an order of devices; on more devices, stages take them in units of a power of two."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What plans may look like.

    `min_micro_batch`: fewest samples of a micro-batch, over all replicas of a stage.
    `micro_batch`: samples of a micro-batch where the user fixes them; 0 for any.
    `recompute`: ``choose``, ``never`` or ``always``.
    `uneven`: whether replicas may take different whole numbers of samples.
    `max_stages`: most stages; 0 for no limit.
    `proof_steps`: effort for ruling out all other plans of a small problem.
    """

    min_micro_batch: int
    micro_batch: int
    recompute: str
    uneven: bool
    max_stages: int
    proof_steps: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanSpace:
    """The problem as arrays: cut graph, numbers of micro-batches, numbers of replicas, device orders."""

    kept: tuple[int, ...]
    layers: tuple[NDArray[Any], ...]
    n_microbatches: tuple[int, ...]
    n_replicas: NDArray[np.int64]
    unit: int
    orders: tuple[tuple[int, ...], ...]
    max_stages: int


def kept_states(states: States, most: int) -> list[int]:
    """Return the states that stages may end with: all, or the one with the least traffic in each of equal intervals of time."""
    if states.n_states <= most:
        return list(range(states.n_states))
    share = states.compute_seconds / max(float(states.compute_seconds[-1]), 1e-300)
    interval = np.minimum((share * most).astype(np.int64), most - 1)
    kept: dict[int, int] = {}
    for state in range(states.n_states - 1):
        rival = kept.setdefault(int(interval[state]), state)
        if states.needed_bytes[state] < states.needed_bytes[rival]:
            kept[int(interval[state])] = state
    return [*sorted(kept.values()), states.n_states - 1]


def space_of(problem: Problem, training: ProfiledTraining, states: States, kept: list[int], limits: PlanLimits) -> PlanSpace:
    """Return the problem as arrays."""
    batch, n_devices = problem.batch.global_batch, problem.required_cluster.n_devices
    sizes = [size for size in range(1, batch + 1) if batch % size == 0 and size >= limits.min_micro_batch]
    if limits.micro_batch:
        sizes = [size for size in sizes if size == limits.micro_batch]
    if not sizes:
        raise InputError(
            f"global batch {batch} has no divisor that is a micro-batch of {limits.micro_batch or limits.min_micro_batch} "
            "samples "
            "or more; choose sizes that divide"
        )
    widest = min(n_devices, sizes[-1])
    widths = [width for width in range(1, widest + 1) if limits.uneven or any(size % width == 0 for size in sizes)]
    if limits.uneven and widest > 64:
        widths = [width for width in widths if width <= 16 or width % 8 == 0 or batch % width == 0]
        widths = [width for width in widths if width <= 64 or width & (width - 1) == 0 or width == widest or batch % width == 0]
    per_sample = 1.0 / training.profile_batch

    def nodes(values: NDArray[np.float64], ratio: float = 1.0) -> NDArray[np.float64]:
        return np.concatenate(([0.0], values[kept] * ratio))

    layers = (
        nodes(states.forward_seconds, per_sample),
        nodes(states.backward_seconds, per_sample),
        nodes(states.activation_bytes, per_sample * training.activation_ratio),
        nodes(states.parameter_bytes),
        nodes(states.needed_bytes, per_sample),
        *_following(states, kept),
    )
    orders = device_orders.orders(problem.required_cluster)
    unit = 1 << max(0, math.ceil(math.log2(n_devices / MOST_POSITIONS)))
    if not any(width % unit == 0 for width in widths):
        raise InputError(
            f"{n_devices} devices: beyond {MOST_POSITIONS} a stage takes them in multiples of {unit}, but global batch {batch} "
            "cannot be "
            f"split over so many replicas; give at most {MOST_POSITIONS * max(width & -width for width in widths)} devices, or "
            "a larger batch"
        )
    n_arcs, longest = len(layers[6]), limits.max_stages or n_devices
    work = n_arcs * n_devices * len(widths) * len(sizes) * len(orders) // unit
    max_stages = max(1, min(longest, len(kept), n_devices, max(8, int(MOST_WORK / work))))
    return PlanSpace(tuple(kept), layers, tuple(batch // size for size in sizes), np.array(widths), unit, orders, max_stages)


def _following(states: States, kept: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the nodes a stage may end at, by the node it begins at; node 0 is before the first state."""
    new = {state: i + 1 for i, state in enumerate(kept)}
    following: list[list[int]] = [list(range(1, len(kept) + 1))] + [[] for _ in kept]
    for state in kept:
        for before in states.before[states.before_first[state] : states.before_first[state + 1]]:
            if int(before) in new and state != kept[-1]:
                following[new[int(before)]].append(new[state])
    for i in range(1, len(kept)):
        following[i].append(len(kept))
    rows = [np.array(sorted(row), dtype=np.int64) for row in following]
    return np.cumsum([0, *(len(row) for row in rows)]), np.concatenate(rows)


def samples(space: PlanSpace, n_samples: int, limits: PlanLimits) -> NDArray[np.int64]:
    """Return the samples of the fullest replica for each number of replicas; 0 where it is not allowed."""
    widths = space.n_replicas
    if limits.uneven:
        return np.where(widths <= n_samples, -(-n_samples // widths), 0)
    return np.where(n_samples % widths == 0, n_samples // widths, 0)
