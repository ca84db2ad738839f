"""A PaSE problem under a memory limit, and what to say when nothing fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base import units
from meshwright.core.problem import Stop
from meshwright.planners.pase.memory import held_bytes
from meshwright.planners.pase.question import PaseQuestion
from meshwright.planners.pase.tables import PaseTables, tables
from meshwright.solvers.pairwise.budget import Budgeted, solve_within

__all__ = ["Shortage", "shortage", "solve_within_memory"]


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is missing when nothing fits, and the nearest problem that does, in words."""

    missing_bytes: float
    nearest: str


def solve_within_memory(costs: PaseTables, memory_bytes: float | None, stop: Stop, gap_ratio: float = 0.0) -> Budgeted | None:
    """Return the splits of least cost that fit; None when nothing does.

    `memory_bytes`: most bytes a device may hold; None for no limit.
    `stop`: when to end branching and integer programming, where they are needed; after 600 s without a limit.
    `gap_ratio`: how far from proven best the answer may stay.
    """
    return solve_within(
        costs.problem, held_bytes(costs), np.inf if memory_bytes is None else memory_bytes, seconds=stop.seconds or 600.0,
        gap_ratio=gap_ratio, asked=stop.is_asked,
    )  # fmt: skip


def shortage(question: PaseQuestion, costs: PaseTables, memory_bytes: float) -> Shortage:
    """Return by how much the leanest splits exceed the memory, and how many processors would do.

    `memory_bytes`: most bytes a device may hold.
    """
    missing = _least(costs) - memory_bytes
    p = question.n_processors
    while p < 65536:
        p *= 2
        need = _least(tables(question.network, p, question.word_flop))
        if need <= memory_bytes:
            return Shortage(missing, f"{p} processors: the leanest splits hold {units.format_bytes(need)} per device")
    return Shortage(missing, "")


def _least(costs: PaseTables) -> float:
    """Return what the leanest splits hold on a device."""
    return float(np.minimum.reduceat(held_bytes(costs), costs.problem.first[:-1]).sum())
