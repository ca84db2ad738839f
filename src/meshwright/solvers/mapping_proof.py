"""Proof of a stage mapping by constraint programming: is there a mapping whose largest cost is smaller?"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from meshwright._kernels.mapping import MapArrays

__all__ = ["Proof", "available", "prove"]

_SCALE = 10**9  # whole units in the cost to be beaten
_WORK = 10.0  # deterministic time of the solver, about as many seconds of one core


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """What the solver found.

    Parameters
    ----------
    place : ndarray, shape (n_slots,), int64, or None
        Device of each slot of a better mapping; None where none was found.
    rings : ndarray, shape (n_stages, n_replicas), int64, or None
        Its ring orders.
    bound_seconds : float
        No mapping costs less.
    """

    place: NDArray[np.int64] | None
    rings: NDArray[np.int64] | None
    bound_seconds: float


def available() -> bool:
    """Return whether the solver is installed (the optional extra ``proof``)."""
    return importlib.util.find_spec("ortools") is not None


def prove(packed: MapArrays, n_replicas: int, place: NDArray[np.int64], seconds: float, *, seed: int = 0) -> Proof:
    """Search all mappings and ring orders for the least largest cost.

    Parameters
    ----------
    packed : MapArrays
        The stage graph and the seconds per byte between devices.
    n_replicas : int
        Copies of the graph.
    place : ndarray, shape (n_slots,), int64
        A mapping to begin with.
    seconds : float
        Its largest cost.
    seed : int
        Of the solver, which works on one thread for a number of steps: answers repeat.

    Returns
    -------
    Proof
        A better mapping if there is one; a bound that is `seconds` (to a relative 1e-8) where there is none.

    Notes
    -----
    A 0/1 variable says that a slot stands on a device. The slowness of a link between two slots is one of the values of the
    table; a variable for each value says that the link is no slower, and asks the other slot to stand near enough. Gradient
    rings are circuits through the devices of a stage. Replicas are alike: those of the first stage stand in ascending order.
    Costs are rounded down to whole parts of 1e-9 of `seconds`, so that the bound holds.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    n_slots, n_devices = len(place), len(packed.slow)
    levels = np.unique(packed.slow[~np.eye(n_devices, dtype=bool)])
    level = np.searchsorted(levels, packed.slow)
    unit = seconds / _SCALE
    on = [[model.new_bool_var("") for _ in range(n_devices)] for _ in range(n_slots)]
    for row in on:
        model.add_exactly_one(row)
    for d in range(n_devices):
        model.add_at_most_one(row[d] for row in on)
    for r in range(n_replicas - 1):  # replicas are alike
        first, second = (sum(d * x for d, x in enumerate(on[k])) for k in (r, r + 1))
        model.add(first < second)
    top = model.new_int_var(0, _SCALE, "")
    ring = [_ring(model, on, packed, s, n_replicas, (levels, level), unit) for s in range(len(packed.compute))]
    links: dict[tuple[int, int], list[Any]] = {}
    for a, b in _links(packed, n_replicas):
        links[a, b] = _within(model, on[a], on[b], level, len(levels))
    for slot in range(n_slots):
        s, r = divmod(slot, n_replicas)
        cost: Any = math.floor(packed.compute[s] / unit * (1 - 1e-15))
        for e in range(packed.first[s], packed.first[s + 1]):
            other = int(packed.stage[e]) * n_replicas + r
            cost += _seconds(links[min(slot, other), max(slot, other)], levels * float(packed.volume[e]) / unit)
        model.add(cost + ring[s] <= top)
    table = place.reshape(-1, n_replicas)
    hint = table[:, np.argsort(table[0])].ravel()
    for slot in range(n_slots):
        for d in range(n_devices):
            model.add_hint(on[slot][d], int(hint[slot] == d))
    model.minimize(top)
    return _answer(cp_model, model, on, packed, n_replicas, unit, seed)


def _links(packed: MapArrays, n_replicas: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of slots that exchange tensors, each once."""
    for s in range(len(packed.compute)):
        for t in sorted({int(packed.stage[e]) for e in range(packed.first[s], packed.first[s + 1]) if packed.stage[e] > s}):
            for r in range(n_replicas):
                yield s * n_replicas + r, t * n_replicas + r


def _steps(whole: NDArray[np.float64]) -> list[int]:
    """Return values rounded down to whole numbers."""
    return [math.floor(value * (1 - 1e-15)) for value in whole]


def _seconds(within: list[Any], whole: NDArray[np.float64]) -> Any:
    """Return the cost of a link as an expression: the slowest level, less each step that it is within."""
    costs = _steps(whole)
    return costs[-1] - sum((high - low) * x for low, high, x in zip(costs[:-1], costs[1:], within, strict=True))


def _within(model: Any, here: list[Any], there: list[Any], level: NDArray[np.int64], n_levels: int) -> list[Any]:
    """Return variables: is the link between two slots within each level (but the last)?"""
    within = [model.new_bool_var("") for _ in range(n_levels - 1)]
    for low, high in itertools.pairwise(within):
        model.add_implication(low, high)
    for k, x in enumerate(within):
        for d in range(len(here)):
            near = [e for e in range(len(here)) if e != d and level[d, e] <= k]
            model.add_bool_or([*(there[e] for e in near), here[d].negated(), x.negated()])
            model.add_bool_or([*(here[e] for e in near), there[d].negated(), x.negated()])
    return within


def _ring(
    model: Any,
    on: list[list[Any]],
    packed: MapArrays,
    s: int,
    n_replicas: int,
    tables: tuple[NDArray[np.float64], NDArray[np.int64]],
    unit: float,
) -> Any:
    """Return the cost of the gradient ring of a stage as an expression."""
    levels, level = tables
    if n_replicas < 2 or packed.ring[s] == 0.0:
        return 0
    n_devices = len(packed.slow)
    if n_replicas == 2:
        within = _within(model, on[s * 2], on[s * 2 + 1], level, len(levels))
        return _seconds(within, levels * float(packed.ring[s]) / unit)
    within = [model.new_bool_var("") for _ in range(len(levels) - 1)]
    for low, high in itertools.pairwise(within):
        model.add_implication(low, high)
    arcs = []
    for d in range(n_devices):
        used = model.new_bool_var("")
        model.add(sum(on[s * n_replicas + r][d] for r in range(n_replicas)) == used)
        arcs.append((d, d, used.negated()))
        near = []
        for e in range(n_devices):
            if e != d:
                arc = model.new_bool_var("")
                arcs.append((d, e, arc))
                near.append((int(level[d, e]), arc))
                if level[d, e] > 0:
                    model.add_implication(arc, within[int(level[d, e]) - 1].negated())
    model.add_circuit(arcs)
    return _seconds(within, levels * float(packed.ring[s]) / unit)


def _answer(
    cp_model: Any, model: Any, on: list[list[Any]], packed: MapArrays, n_replicas: int, unit: float, seed: int
) -> Proof:
    """Solve, and return what was found."""
    from meshwright._kernels.mapping_search import best_ring

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = _WORK
    solver.parameters.symmetry_level = 2
    status = solver.solve(model)
    bound = max(0.0, solver.best_objective_bound) * unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Proof(None, None, 0.0 if status != cp_model.INFEASIBLE else _SCALE * unit)
    place = np.array([next(d for d, x in enumerate(row) if solver.value(x)) for row in on], dtype=np.int64)
    rings = np.stack([best_ring(packed.slow, row) for row in place.reshape(-1, n_replicas)])
    return Proof(place, rings, bound)
