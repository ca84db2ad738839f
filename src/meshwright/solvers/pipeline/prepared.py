"""An instance of the pipeline problem as the kernels take it: downsets, the stages between them, choices and scratch space."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright._kernels.pipeline import choice
from meshwright._kernels.pipeline import pairs as stage_pairs
from meshwright._kernels.pipeline import threshold as kernel
from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline import menu as stage_menu
from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["CLOSE_RATIO", "Prepared", "picked_columns", "prepare"]

CLOSE_RATIO = 1e-12
"""Relative distance at which a lower bound counts as met; rounding in sums is about 1e-15."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """An instance in the kernels' form over a family of downsets, with scratch space."""

    menu: StageMenu
    space: stage_pairs.Space
    pairs: kernel.Pairs
    kernel_menu: choice.Menu
    rules: choice.Rules
    memo: choice.Memo


def prepare(
    menu: StageMenu, family: downsets.Family, *, seconds: float = math.inf, n_pairs: int = 20_000_000, n_steps: int = 10**12
) -> Prepared | None:
    """Return an instance ready to be solved over a family of downsets, or None when it has too many stages to choose from.

    Parameters
    ----------
    menu : StageMenu
        The instance.
    family : tuple
        Downsets, of `meshwright.solvers.pipeline.downsets`.
    seconds : float
        Value of a known plan: stages that cannot be part of a better one are left out.
    n_pairs, n_steps : int
        Most stages to keep, and to look at.

    Returns
    -------
    Prepared or None
        The instance.
    """
    space = stage_menu.space(menu, family)
    rules = stage_menu.rules(menu)
    next_replica = np.where(rules.next_replica >= 0, menu.replicas[rules.next_replica], 0)
    next_replica.setflags(write=False)
    limits = np.array([seconds * (1.0 + CLOSE_RATIO), menu.memory_bytes, menu.n_devices, menu.n_replicas])
    widest = stage_menu.widest(menu)
    crossing = stage_menu.crossing(menu)
    count, first, lower, border = stage_pairs.list_pairs(
        space._replace(sums=picked_columns(space.sums, widest)),
        crossing._replace(into=picked_columns(crossing.into, widest), out_of=picked_columns(crossing.out_of, widest)),
        picked_columns(menu.degrees, widest), next_replica, limits, n_pairs, n_steps,
    )  # fmt: skip
    if count < 0:
        return None
    for array in (first, lower, border):
        array.setflags(write=False)
    return Prepared(menu, space, kernel.Pairs(first, lower, border), stage_menu.kernel_menu(menu), rules, _memo(menu, count))


def picked_columns(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the columns (entries, of one dimension) in these positions, read-only;
    the same array where they are all of them.
    """
    if values.ndim == 1:
        picked = np.asarray(values[which])
    elif len(which) == values.shape[1]:
        return values
    else:
        picked = np.ascontiguousarray(values[:, which])
    picked.setflags(write=False)
    return picked


def _memo(menu: StageMenu, n_pairs: int) -> choice.Memo:
    """Return an empty cache whose size suits the number of stages."""
    size = 1 << max(12, min(20, int(n_pairs).bit_length() + 3))
    n_swaps = _most_choices(menu)
    n_flights = min(menu.n_replicas + 2, max(2, 3_000_000 // (menu.n_degrees * n_swaps + 1)))
    shape = (menu.n_degrees, n_flights, n_swaps)
    return choice.Memo(
        np.full(size, -1, np.int64),
        np.full(size, -1, np.int64),
        np.zeros(size),
        np.zeros(size),
        np.full(shape[:2], -1, np.int32),
        np.empty(shape, np.int32),
        np.empty(shape),
        np.empty(shape),
    )


def _most_choices(menu: StageMenu) -> int:
    """Return the largest number of choices of all nodes together at one degree."""
    sizes = np.diff(menu.first).reshape(menu.n_nodes, menu.n_degrees)
    return int(sizes.sum(axis=0).max())
