"""A bound on convex partitions from how far each stage can reach, by linear programs;
for graphs whose ideals are too many to list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.partition.hypergraph import Units

__all__ = ["reach_bound"]

_CLOSE = 1e-3  # relative; bisection ends there
_STEP_RATIO = 0.06  # of the largest load: width of the window in which the end of a stage is looked for
_MOST_ENTRIES = 60_000  # of one program; larger ones say nothing, because they would take too long
_SLACK = 1e-9  # relative widening of every window, so that rounding of sums excludes nothing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def reach_bound(units: Units, scales: Floats, low_value: float, value: float) -> float:
    """Return a lower bound of the largest load over convex partitions into stages.

    `scales`, shape (2, n_stages), float64: factors on compute and communication of each stage.
    `low_value`: a bound already known.
    `value`: the largest load of some partition.
    Returns: between `low_value` and `value`.

    Notes
    -----
    Let all cuts after s stages have at most r compute in front. A stage of load at most U that begins at one of them ends, by a
    linear program over both of its ideals, with at most r' in front. Where stage after stage does not reach the end, U is too
    small; bisection finds the largest such U. A stage's end is looked for in narrow windows from above, in each of which units
    with too many ancestors or descendants stand on a known side.
    """
    frame = _Frame.of(units)
    low, high = low_value, value
    while high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _covers(frame, scales, middle) else (middle, high)
    return low


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """The graph as flat arrays: edges, and for each net but its first pin the pair of the first pin and this one."""

    units: Units
    source: Ints
    target: Ints
    net: Ints
    anchor: Ints
    pin: Ints

    @classmethod
    def of(cls, units: Units) -> _Frame:
        a = units.arrays
        sizes = np.diff(a.net_first)
        later = np.ones(len(a.net_pins), dtype=bool)
        later[a.net_first[:-1]] = False
        return cls(
            units, np.repeat(np.arange(len(units)), np.diff(a.succ_first)), a.succ,
            np.repeat(np.arange(len(sizes)), sizes)[later],
            np.repeat(a.net_pins[a.net_first[:-1]], sizes)[later] if len(sizes) else np.empty(0, np.int64), a.net_pins[later],
        )  # fmt: skip


def _covers(frame: _Frame, scales: Floats, value: float) -> bool:
    """Whether stages of at most this load may cover all compute, as far as the programs can tell."""
    total = frame.units.total
    reach = 0.0
    for scale in scales.T:
        reach = _farthest(frame, scale, reach, value)
        if reach >= total * (1 - _SLACK):
            return True
    return False


def _farthest(frame: _Frame, scale: Floats, begin: float, value: float) -> float:
    """Return a bound on the compute in front of the end of a stage that begins with at most `begin` in front."""
    length = value / float(scale[0])  # the most compute of a stage
    farthest = min(begin + length, frame.units.total)
    step = _STEP_RATIO * length
    while farthest > begin:
        at_least = max(farthest - step, begin)
        reached = _window(frame, scale, (begin, at_least, farthest), value)
        if reached > farthest - 0.25 * step:
            return max(min(reached, farthest), begin)
        farthest = max(reached, at_least)
    return begin


def _window(frame: _Frame, scale: Floats, window: tuple[float, float, float], value: float) -> float:
    """Return a bound on the end of a stage with `begin` or less in front and an end in [at_least, at_most]; -inf for none."""
    begin, at_least, at_most = window
    units = frame.units
    slack = _SLACK * (units.total + value)
    length = value / float(scale[0])
    rest = units.total - units.after  # in front of everything that need not come after a unit
    first = _Side.between(rest < at_least - length - slack, units.before > begin + slack)
    second = _Side.between(rest < at_least - slack, units.before > at_most + slack)
    if first is None or second is None:
        return -math.inf
    program = _Program.of(frame, scale, first, second)
    if program is None:
        return math.inf
    compute = units.arrays.compute
    limit = begin - float(compute[first.inside].sum()) + slack
    asked = at_least - float(compute[second.inside].sum())
    if limit < 0.0 or asked > float(compute[second.free].sum()) + slack:
        return -math.inf
    found = program.least_load(limit, asked)
    if found is None:
        return math.inf
    load, slope = found
    if load > value * (1 + _SLACK):
        return -math.inf
    return at_least + (value - load) / slope if slope > 0.0 else math.inf


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One ideal: units certainly in it, and the column of each undecided unit (-1 for the others)."""

    inside: NDArray[np.bool_]
    free: Ints
    column: Ints

    @classmethod
    def between(cls, inside: NDArray[np.bool_], outside: NDArray[np.bool_]) -> _Side | None:
        if (inside & outside).any():
            return None
        free = np.flatnonzero(~(inside | outside))
        column = np.full(len(inside), -1, dtype=np.int64)
        column[free] = np.arange(len(free))
        return cls(inside, free, column)


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """Least load of a stage between two ideals: columns are their undecided units, then the nets;
    all rows ask for >= `right`.
    """

    objective: Floats
    fixed_value: float
    rows: Ints
    columns: Ints
    factors: Floats
    right: Floats
    compute: tuple[Floats, Floats]

    @classmethod
    def of(cls, frame: _Frame, scale: Floats, first: _Side, second: _Side) -> _Program | None:
        a, n_first = frame.units.arrays, len(first.free)
        n_units = n_first + len(second.free)
        # a unit is in the stage as far as it is in the second ideal and not in the first; None of it is decided by the sides
        x, y = first.column, np.where(second.column >= 0, second.column + n_first, -1)
        known = second.inside.astype(np.float64) - first.inside.astype(np.float64)
        decided = (x < 0) & (y < 0)
        anchor, pin = frame.anchor, frame.pin
        settled = decided[anchor] & decided[pin]
        paid = np.zeros(len(a.net_cost), dtype=bool)
        paid[frame.net[settled & (known[anchor] != known[pin])]] = True
        open_ = ~settled & ~paid[frame.net]
        nets, place = np.unique(frame.net[open_], return_inverse=True)
        u, v, w = anchor[open_], pin[open_], n_units + place
        parts = [_order(x, frame.source, frame.target), _order(y, frame.source, frame.target)]
        both = np.flatnonzero((x >= 0) & (y >= 0))
        parts.append(_Rows.of([(y[both], 1.0), (x[both], -1.0)], np.zeros(len(both))))
        for s, t in ((u, v), (v, u)):
            parts.append(
                _Rows.of([(w, 1.0), (y[s], -1.0), (x[s], 1.0), (y[t], 1.0), (x[t], -1.0)], known[s] - known[t])
            )  # fmt: skip
        n_rows = np.cumsum([0, *(len(part.right) for part in parts)])
        if sum(len(part.rows) for part in parts) > _MOST_ENTRIES:
            return None
        in_first, in_second = scale[0] * a.compute[first.free], scale[0] * a.compute[second.free]
        fixed = float(
            scale[0] * (a.compute[second.inside].sum() - a.compute[first.inside].sum()) + scale[1] * a.net_cost[paid].sum()
        )
        return cls(
            np.concatenate([-in_first, in_second, scale[1] * a.net_cost[nets]]), fixed,
            np.concatenate([part.rows + k for part, k in zip(parts, n_rows, strict=False)]),
            np.concatenate([part.columns for part in parts]), np.concatenate([part.factors for part in parts]),
            np.concatenate([part.right for part in parts]), (a.compute[first.free], a.compute[second.free]),
        )  # fmt: skip

    def least_load(self, limit: float, asked: float) -> tuple[float, float] | None:
        """Return a bound on the load with `limit` or less in the first ideal's units and `asked` in the second's, and its slope
        in the latter.

        Whatever prices the solver returns prove the bound: they are put into the dual here.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        n_first, n_second, n_columns, n_rows = *(len(c) for c in self.compute), len(self.objective), len(self.right)
        if n_columns == 0:
            return self.fixed_value, 0.0
        ends = (np.arange(n_first), n_first + np.arange(n_second))
        row = np.concatenate([self.rows, np.full(n_first, n_rows), np.full(n_second, n_rows + 1)])
        column = np.concatenate([self.columns, *ends])
        factor = np.concatenate([self.factors, -self.compute[0], self.compute[1]])
        table = csr_array((factor, (row, column)), shape=(n_rows + 2, n_columns))
        right = np.concatenate([self.right, [-limit, asked]])
        solved = linprog(self.objective, A_ub=-table, b_ub=-right, bounds=(0.0, 1.0), method="highs")
        if solved.status != 0:
            return None
        price = np.maximum(-solved.ineqlin.marginals, 0.0)
        rest = np.minimum(self.objective - table.T @ price, 0.0)
        return self.fixed_value + float(price @ right) + float(rest.sum()), float(price[-1])


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows of a program, numbered from 0: the sum of factors times columns is at least `right`."""

    rows: Ints
    columns: Ints
    factors: Floats
    right: Floats

    @classmethod
    def of(cls, terms: list[tuple[Ints, float]], right: Floats) -> _Rows:
        """Return one row for each entry of `right`; a term has a column for each row, -1 for none."""
        every = np.arange(len(right))
        there = [columns >= 0 for columns, _ in terms]
        return cls(
            np.concatenate([every[has] for has in there]),
            np.concatenate([columns[has] for (columns, _), has in zip(terms, there, strict=True)]),
            np.concatenate([np.full(int(has.sum()), factor) for (_, factor), has in zip(terms, there, strict=True)]),
            right,
        )


def _order(column: Ints, source: Ints, target: Ints) -> _Rows:
    """Ask that a unit is in an ideal only where its predecessors are."""
    both = (column[source] >= 0) & (column[target] >= 0)
    u, v = column[source[both]], column[target[both]]
    return _Rows.of([(u, 1.0), (v, -1.0)], np.zeros(len(u)))
