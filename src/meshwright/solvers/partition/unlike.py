"""Convex partitions onto devices of unlike speed and memory: which stage stands where is part of the question.

A stage is the difference of two ideals (down-sets) of the graph, as for equal devices; the dynamic program over pairs of
ideals also counts how many devices of each kind the stages before took. Devices of one kind are the same device to it, so no
numbering of devices changes the answer. Where all ideals are listed the answer is exact, and that there is none is a proof;
otherwise the ideals of some topological orders are listed, and the bound is that of devices that are each as quick and as
large as the best of all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.solvers.partition import operator_stages
from meshwright.solvers.partition.hypergraph import Operators, Units, contract
from meshwright.solvers.partition.orders import orders

__all__ = ["DeviceKind", "UnlikeStages", "cut_unlike", "least_excess"]

_IDEALS = 2_000  # listed at most for an exact answer
_ORDERS = 6  # topological orders whose ideals are listed otherwise
_OF_ORDERS = 600  # ideals of them altogether
_STATES = 4_000  # most counts of devices taken, over all kinds
_WORK = 1_000_000_000  # pairs of ideals times counts and tensors, for an exact answer
_TOLERANCE = 1e-9  # relative; sums of times in different orders differ by less


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKind:
    """Devices that are the same to a partition.

    Parameters
    ----------
    compute : ndarray, shape (n_ops,), float64
        Time of each operator.
    free_bytes : float
        What the operators of a stage may hold; infinity for no limit.
    n_devices : int
        How many there are.
    """

    compute: NDArray[np.float64]
    free_bytes: float
    n_devices: int


@dataclass(frozen=True, slots=True, eq=False)
class UnlikeStages:
    """A partition onto unlike devices.

    Parameters
    ----------
    groups : tuple of tuple of int
        Operators of each stage in pipeline order; empty where none was found.
    kinds : tuple of int
        Kind of device of each stage.
    loads : tuple of float
        Load of each stage.
    bound_value : float
        Proven lower bound of the largest load; infinite where it is proven that nothing fits.
    exact : bool
        Whether the largest load is proven to be the least; of an empty answer, whether it is proven that there is none.
    n_ideals : int
        Ideals looked at.
    n_units : int
        Units that operators were joined to.
    """

    groups: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]
    loads: tuple[float, ...]
    bound_value: float
    exact: bool
    n_ideals: int
    n_units: int

    @property
    def value(self) -> float:
        """The largest load; infinite where there is no partition."""
        return max(self.loads, default=math.inf)


def cut_unlike(operators: Operators, kinds: Sequence[DeviceKind], n_stages: int, *, seed: int = 0) -> UnlikeStages:
    """Return the convex partition with the least largest load over the order of the devices too.

    Parameters
    ----------
    operators : Operators
        What to partition; its ``compute`` is not looked at, host devices are not known here.
    kinds : sequence of DeviceKind
        The devices.
    n_stages : int
        Most devices to use.
    seed : int
        Of noisy topological orders, where not all ideals are listed.

    Returns
    -------
    UnlikeStages
        With bound and proof. Each device takes one stage; some may stay empty.

    Notes
    -----
    The bound where not all ideals are listed: give every device the least time that any kind takes for each operator, and the
    memory of the largest; a partition onto the real devices is one of these, with a load no less.
    """
    quickest = np.min([kind.compute for kind in kinds], axis=0)
    largest = max(kind.free_bytes for kind in kinds)
    relaxed = replace(operators, compute=quickest)
    if not operators.supported.all():
        return UnlikeStages((), (), (), math.inf, True, 0, 0)
    # joined are only operators that cost nothing on any kind and hold nothing
    units = contract(replace(operators, compute=np.sum([kind.compute for kind in kinds], axis=0)), weigh_memory=True)
    task = _Task.of(units, kinds, n_stages)
    pool = _all_ideals(units)
    complete = pool is not None and not task.capped and len(pool) ** 2 / 2 * task.width <= _WORK
    if pool is None or not complete:
        pool = _of_orders(units, seed)
    groups, of = task.solve(pool)
    if complete:
        loads = task.loads(groups, of)
        return UnlikeStages(_told(units, groups), of, loads, max(loads, default=math.inf), True, len(pool), len(units))
    free = operator_stages.cut(
        relaxed, min(n_stages, sum(kind.n_devices for kind in kinds)), memory_limit_bytes=largest, seed=seed
    )
    nothing = not free.partition.feasible and free.partition.exact
    loads = task.loads(groups, of)
    bound = math.inf if nothing else free.partition.bound_value
    exact = nothing or (bool(groups) and max(loads) <= bound * (1 + _TOLERANCE))
    return UnlikeStages(_told(units, groups), of, loads, bound, exact, len(pool), len(units))


def least_excess(operators: Operators, kinds: Sequence[DeviceKind], n_stages: int, *, seed: int = 0) -> float:
    """Return by how many bytes the fullest device is exceeded at least over the partitions looked at; not above zero where one
    fits.

    Parameters
    ----------
    operators, kinds, n_stages, seed
        As of `cut_unlike`.
    """
    units = contract(replace(operators, compute=np.sum([kind.compute for kind in kinds], axis=0)), weigh_memory=True)
    task = _Task.of(units, kinds, n_stages)
    pool = _all_ideals(units)
    value, _ = task.reach(_of_orders(units, seed) if pool is None else pool, by_memory=True)
    return float(value[-1].min())


def _told(units: Units, groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return groups of units as groups of operators."""
    return tuple(tuple(sorted(op for unit in group for op in units.members[unit])) for group in groups)


def _all_ideals(units: Units) -> NDArray[np.bool_] | None:
    """Return every ideal as flags of units, the smaller ones first; None where there are too many."""
    arrays, n = units.arrays, len(units)
    before = [sum(1 << int(u) for u in arrays.pred[arrays.pred_first[v] : arrays.pred_first[v + 1]]) for v in range(n)]
    found = layer = {0}
    while layer:
        layer = {ideal | 1 << v for ideal in layer for v in range(n) if not ideal >> v & 1 and before[v] & ~ideal == 0}
        found = found | layer
        if len(found) > _IDEALS:
            return None
    return _flags(found, n)


def _flags(ideals: set[int], n: int) -> NDArray[np.bool_]:
    """Return ideals as rows of flags, by size and then by value."""
    ordered = sorted(ideals, key=lambda ideal: (ideal.bit_count(), ideal))
    return np.array([[bool(ideal >> v & 1) for v in range(n)] for ideal in ordered], dtype=bool).reshape(len(ordered), n)


def _of_orders(units: Units, seed: int) -> NDArray[np.bool_]:
    """Return the ideals of some topological orders, thinned out evenly where there are too many."""
    n, found = len(units), {0, (1 << len(units)) - 1}
    for order in orders(units, _ORDERS, seed):
        step = -(-(n + 1) // max(2, _OF_ORDERS // _ORDERS)) if n * _ORDERS > _OF_ORDERS else 1
        ideal = 0
        for i, v in enumerate(order.tolist()):
            ideal |= 1 << v
            if i % step == 0:
                found.add(ideal)
    return _flags(found, n)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """The dynamic program: units, kinds, and the counts of devices taken as numbers in a mixed radix."""

    units: Units
    compute: NDArray[np.float64]  # (n_kinds, n_units)
    free_bytes: tuple[float, ...]
    sizes: tuple[int, ...]  # counts of each kind, 0 included
    n_stages: int
    capped: bool
    pins: NDArray[np.int16]  # (n_units, n_nets)

    @classmethod
    def of(cls, units: Units, kinds: Sequence[DeviceKind], n_stages: int) -> _Task:
        most = [min(kind.n_devices, len(units), n_stages) for kind in kinds]
        kept = list(most)
        while math.prod(count + 1 for count in kept) > _STATES:
            kept[int(np.argmax(kept))] -= 1
        arrays = units.arrays
        pins = np.zeros((len(units), len(arrays.net_cost)), dtype=np.int16)
        for net in range(len(arrays.net_cost)):
            pins[arrays.net_pins[arrays.net_first[net] : arrays.net_first[net + 1]], net] = 1
        compute = np.array([[float(kind.compute[list(group)].sum()) for group in units.members] for kind in kinds])
        sizes = tuple(count + 1 for count in kept)
        return cls(units, compute, tuple(kind.free_bytes for kind in kinds), sizes, n_stages, kept != most, pins)

    @property
    def width(self) -> int:
        """Steps for one pair of ideals."""
        return int(math.prod(self.sizes) * len(self.sizes) + self.pins.shape[1])

    def loads(self, groups: tuple[tuple[int, ...], ...], of: tuple[int, ...]) -> tuple[float, ...]:
        """Return the load of each stage, straight from the definition."""
        found = []
        sizes, cost = self.pins.sum(axis=0), self.units.arrays.net_cost
        for group, kind in zip(groups, of, strict=True):
            inside = self.pins[list(group)].sum(axis=0)
            found.append(math.fsum((*self.compute[kind, list(group)], *cost[(inside > 0) & (inside < sizes)])))
        return tuple(found)

    def reach(self, pool: NDArray[np.bool_], *, by_memory: bool = False) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Return for each ideal and counts of devices taken the least largest load of a chain there, and the ideal and kind
        before.

        By memory, the load of a stage is what it holds beyond what its device has, and nothing is too large.
        """
        n_kinds, n_states = len(self.sizes), math.prod(self.sizes)
        digits, strides = self._digits()
        targets = [np.flatnonzero((digits[k] > 0) & (digits.sum(axis=0) <= self.n_stages)) for k in range(n_kinds)]
        held, done = pool @ self.units.arrays.memory, pool @ self.compute.T
        inside, size = pool.astype(np.int16) @ self.pins, self.pins.sum(axis=0)
        words = np.packbits(pool, axis=1)
        value = np.full((len(pool), n_states), np.inf)
        value[0, 0] = -np.inf
        origin = np.full((len(pool), n_states, 2), -1, dtype=np.int32)
        for i in range(1, len(pool)):
            before = np.flatnonzero(~(words[:i] & ~words[i]).any(axis=1))
            pinned = inside[i] - inside[before]
            cut = ((pinned > 0) & (pinned < size)) @ self.units.arrays.net_cost
            for k in range(n_kinds):
                excess = held[i] - held[before] - self.free_bytes[k]
                load = excess if by_memory else np.where(excess <= 0.0, done[i, k] - done[before, k] + cut, np.inf)
                reached = np.maximum(value[before][:, targets[k] - strides[k]], load[:, np.newaxis])
                first = reached.argmin(axis=0)
                least = reached[first, np.arange(len(first))]
                better = least < value[i, targets[k]]
                state = targets[k][better]
                value[i, state] = least[better]
                origin[i, state, 0], origin[i, state, 1] = before[first[better]], k
        return value, origin

    def _digits(self) -> tuple[NDArray[np.int64], list[int]]:
        """Return the counts that each number stands for, one row per kind, and what one device of a kind adds to the number."""
        strides = [math.prod(self.sizes[k + 1 :]) for k in range(len(self.sizes))]
        states = np.arange(math.prod(self.sizes))
        return np.stack([states // stride % size for stride, size in zip(strides, self.sizes, strict=True)]), strides

    def solve(self, pool: NDArray[np.bool_]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """Return the best chain of ideals, as groups of units, and the kind of each group; nothing where none fits."""
        value, origin = self.reach(pool)
        digits, strides = self._digits()
        last = value[-1]
        if not np.isfinite(last).any():
            return (), ()
        # of equal values, that with the fewest empty devices
        near = last <= last.min() * (1 + _TOLERANCE)
        state, i = int(np.argmax(np.where(near, digits.sum(axis=0), -1))), len(pool) - 1
        groups: list[tuple[int, ...]] = []
        kinds: list[int] = []
        while i:
            j, k = (int(part) for part in origin[i, state])
            groups.append(tuple(int(v) for v in np.flatnonzero(pool[i] & ~pool[j])))
            kinds.append(k)
            i, state = j, state - strides[k]
        return tuple(groups[::-1]), tuple(kinds[::-1])
