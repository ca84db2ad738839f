"""An integer program for the best cut of two neighbouring stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.partition import ideals
from meshwright.solvers.partition.hypergraph import Units, entries, sums_of_rows

__all__ = ["halve"]

_NODES = 40  # of one branch and bound; a count, so that answers repeat
_NEAR = 200  # most undecided units on either side of a cut: a program of 400 takes about a second, one of 1,000 five


class _Rows:
    """Constraints of a program, collected entry by entry."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.factor: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
        """Add ``low <= sum of factor times variable <= high``."""
        for column, factor in entries:
            self.row.append(len(self.low))
            self.column.append(column)
            self.factor.append(factor)
        self.low.append(low)
        self.high.append(high)


def halve(
    units: Units,
    members: NDArray[np.int64],
    scales: NDArray[np.float64],
    limit_value: float,
    memory_limit_bytes: float,
    n_nodes: int = _NODES,
    in_first: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.bool_] | None, float]:
    """Cut the units of two neighbouring stages anew so that the larger of their loads is least.

    `members`, shape (n,), int64: units of both stages.
    `scales`, shape (2, 2), float64: factors on compute (row 0) and communication (row 1) of the two.
    `limit_value`: only cuts below this are of use.
    `memory_limit_bytes`: of each.
    `n_nodes`: most nodes of its branch and bound.
    `in_first`, shape (n,), bool, or None: which stand in the first stage now. Of very many undecided units only those next
    to this cut, as they are numbered, stay undecided: what a program takes grows faster than its units.

    Returns
    -------
    in_first : ndarray, shape (n,), bool, or None
        Which of the members stand in the first stage; None where no cut below the limit was found.
    bound : float
        No cut of the undecided units is better.
    """
    a = units.arrays
    state = _forced(units, members, scales[0], limit_value)
    if state is None:
        return None, limit_value
    if in_first is not None:
        state = _near(state, in_first)
    loose_units = members[state == 0]
    column = np.full(len(units), -1, dtype=np.int64)
    column[loose_units] = np.arange(len(loose_units))
    inside = np.zeros(len(units), dtype=bool)
    inside[members[state > 0]] = True
    outside = np.zeros(len(units), dtype=bool)
    outside[members[state < 0]] = True
    rows = _Rows()
    top = len(loose_units)  # the larger load, in units of the limit
    cost = [0.0] * top + [1.0]
    _precede(units, loose_units, column, rows)
    load = _Loads(scales / limit_value)
    load.compute(a.compute[loose_units], float(a.compute[inside].sum()), float(a.compute[outside].sum()))
    nets = np.unique(entries(a.unit_first, a.unit_nets, members)[0])
    pins, n_pins = entries(a.net_first, a.net_pins, nets)
    n_in, n_out, n_loose = (sums_of_rows(held[pins].astype(np.int64), n_pins) for held in (inside, outside, column >= 0))
    loose_pins = iter(column[pins][column[pins] >= 0].tolist())
    of_net = (n_in > 0, n_out > 0, n_pins > n_loose + n_in + n_out, n_loose, a.net_cost[nets])
    for some_in, some_out, beyond, count, price in zip(*(values.tolist() for values in of_net), strict=True):
        loose = list(islice(loose_pins, count))
        most = least = -1
        if loose and not (some_in and some_out):
            most, least = _ends(rows, cost, loose)
        load.net(price, (some_in, most), (some_out, least), beyond)
    for terms, fixed in zip(load.terms, load.fixed, strict=True):
        rows.add([(top, 1.0), *((i, -factor) for i, factor in terms)], fixed, math.inf)
    if math.isfinite(memory_limit_bytes) and memory_limit_bytes > 0.0:
        held = [(i, float(m) / memory_limit_bytes) for i, m in enumerate(a.memory[loose_units])]
        first, second = (float(a.memory[part].sum()) / memory_limit_bytes for part in (inside, outside))
        rows.add(held, sum(m for _, m in held) + second - 1.0, 1.0 - first)
    value, found = _solve(np.array(cost), rows, top=top, n_nodes=n_nodes)
    if found is None:
        return None, value * limit_value
    chosen = state > 0
    chosen[state == 0] = found[:top] > 0.5
    return chosen, value * limit_value


class _Loads:
    """The loads of two stages, linear in the variables; `scales` are the factors on compute and communication of either."""

    def __init__(self, scales: NDArray[np.float64]) -> None:
        self.scales = scales
        self.terms: tuple[list[tuple[int, float]], list[tuple[int, float]]] = ([], [])
        self.fixed = [0.0, 0.0]

    def compute(self, loose: NDArray[np.float64], first: float, second: float) -> None:
        """Add the compute of the undecided units, and of those that stand in the first or the second stage anyway."""
        self.terms[0].extend(enumerate((self.scales[0, 0] * loose).tolist()))
        self.terms[1].extend(enumerate((-self.scales[0, 1] * loose).tolist()))
        self.fixed[0] += float(self.scales[0, 0] * first)
        self.fixed[1] += float(self.scales[0, 1] * (second + loose.sum()))

    def net(self, price: float, in_first: tuple[bool, int], in_second: tuple[bool, int], beyond: bool) -> None:
        """Add a net; whether some pin is certainly in a stage, and else the variable: any pin in the first,
        all in the first.
        """
        (some_in, most), (some_out, least) = in_first, in_second
        for stage in (0, 1):
            cost = float(self.scales[1, stage]) * price
            if cost < 1e-12:
                continue
            if beyond:  # paid wherever a pin stands
                if some_in if stage == 0 else some_out:
                    self.fixed[stage] += cost
                elif (most if stage == 0 else least) >= 0:
                    self.fixed[stage] += 0.0 if stage == 0 else cost
                    self.terms[stage].append((most, cost) if stage == 0 else (least, -cost))
            elif some_in and some_out:
                self.fixed[stage] += cost
            elif most >= 0:  # paid where some pin is in and some is not
                self.fixed[stage] += cost if some_in else 0.0
                if not some_in:
                    self.terms[stage].append((most, cost))
                if not some_out:
                    self.terms[stage].append((least, -cost))


def _forced(
    units: Units, members: NDArray[np.int64], speed: NDArray[np.float64], limit_value: float
) -> NDArray[np.int64] | None:
    """Return 1 for members that must stand in the first stage, -1 in the second, 0 for undecided;
    None if none keeps the limit.
    """
    a, n = units.arrays, len(members)
    column = np.full(len(units), -1, dtype=np.int64)
    column[members] = np.arange(n)  # members are numbered topologically
    weight = a.compute[members]

    def reached(first: NDArray[np.int64], values: NDArray[np.int64], descending: bool) -> NDArray[np.float64]:
        near, counts = entries(first, values, members)
        is_member = column[near] >= 0
        starts = np.concatenate([[0], np.cumsum(sums_of_rows(is_member.astype(np.int64), counts))])
        return np.asarray(ideals.closures(starts, column[near[is_member]], weight, descending))

    after, before = reached(a.succ_first, a.succ, True), reached(a.pred_first, a.pred, False)
    slack = 1e-9 * limit_value
    must_first, must_second = speed[1] * after > limit_value + slack, speed[0] * before > limit_value + slack
    if (must_first & must_second).any():
        return None
    return np.asarray(must_first.astype(np.int64) - must_second.astype(np.int64))


def _near(state: NDArray[np.int64], in_first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return what is decided with units far from the cut left where they are: numbers are topological, so the last units of
    the first stage have all their successors in it among them, and the first of the second all their predecessors.
    """
    near = state.copy()
    before, after = np.flatnonzero((state == 0) & in_first), np.flatnonzero((state == 0) & ~in_first)
    near[before[: max(len(before) - _NEAR, 0)]] = 1
    near[after[_NEAR:]] = -1
    return near


def _precede(units: Units, chosen: NDArray[np.int64], column: NDArray[np.int64], rows: _Rows) -> None:
    """Ask that a unit is in only where its predecessors are."""
    a = units.arrays
    following, counts = entries(a.succ_first, a.succ, chosen)
    for u, v in zip(np.repeat(column[chosen], counts).tolist(), column[following].tolist(), strict=True):
        if v >= 0:
            rows.add([(u, 1.0), (v, -1.0)], 0.0, math.inf)


def _ends(rows: _Rows, cost: list[float], loose: list[int]) -> tuple[int, int]:
    """Return variables for whether any and whether all of some pins are in (their costs push them the right way)."""
    if len(loose) == 1:
        return loose[0], loose[0]
    most, least = len(cost), len(cost) + 1
    cost += [0.0, 0.0]
    for pin in loose:
        rows.add([(most, 1.0), (pin, -1.0)], 0.0, math.inf)
        rows.add([(least, 1.0), (pin, -1.0)], -math.inf, 0.0)
    return most, least


def _solve(
    cost: NDArray[np.float64], rows: _Rows, *, top: int = -1, n_nodes: int = _NODES
) -> tuple[float, NDArray[np.float64] | None]:
    """Return a lower bound of the least cost, and the variables of the best solution found."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    shape = (len(rows.low), len(cost))
    table = csr_array((np.array(rows.factor), (np.array(rows.row), np.array(rows.column))), shape=shape)
    whole = np.ones(len(cost))  # auxiliary variables are whole anyway; saying so keeps solutions exact
    if top >= 0:
        whole[top] = 0
    found = milp(
        cost, integrality=whole, bounds=Bounds(0.0, 1.0), constraints=LinearConstraint(table, rows.low, rows.high),
        options={"node_limit": n_nodes, "mip_rel_gap": 0.0},
    )  # fmt: skip
    if found.status == 2:
        return math.inf, None
    bound = found.mip_dual_bound
    return (0.0 if bound is None or not math.isfinite(bound) else float(bound)), found.x
