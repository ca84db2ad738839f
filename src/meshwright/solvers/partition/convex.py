"""The least largest load over convex partitions of a graph into stages, with proof: windows of ideals and a dynamic program
over them.

A stage is the difference of two ideals (down-sets) of the graph. Given an upper bound U on the largest load, the ideal after s
stages has compute at most s U and leaves at most (S - s) U, and each tensor it cuts is paid on either side; few ideals remain,
all of them are listed, and a dynamic program over pairs finds the best chain. Where the list is too long, a part of it improves
the answer and smaller U prove a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.partition import convex as kernel
from meshwright.solvers.partition.annealing import annealed
from meshwright.solvers.partition.cheap_cuts import cheap_pool
from meshwright.solvers.partition.hypergraph import Units, loads_of
from meshwright.solvers.partition.ideal_pool import Task, WindowedPool, build_pool
from meshwright.solvers.partition.orders import orders
from meshwright.solvers.partition.reach_bound import reach_bound
from meshwright.solvers.partition.recutting import recut

__all__ = ["Partition", "partition"]

_TOLERANCE = 1e-9  # relative; sums of times in different orders differ by less
_CLOSE = 1e-4  # relative; listing ideals for less is not worth its time
_PROGRAMS = 6  # neighbours cut anew after annealing, which leaves them little to gain


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A chain of devices.

    Parameters
    ----------
    groups : tuple of tuple of int
        Units of each device in pipeline order; only accelerators may be empty, at the end.
    hosts : tuple of bool
        Which of them are host devices.
    loads : tuple of float
        Load of each device.
    bound_value : float
        Proven lower bound of the largest load.
    exact : bool
        Whether the largest load is proven to be the least (to a relative 1e-9).
    n_ideals : int
        Ideals looked at in the last round.
    feasible : bool
        Whether `groups` is a partition within the limits; False when nothing is, or nothing was found.
    """

    groups: tuple[tuple[int, ...], ...]
    hosts: tuple[bool, ...]
    loads: tuple[float, ...]
    bound_value: float
    exact: bool
    n_ideals: int
    feasible: bool = True

    @property
    def value(self) -> float:
        """The largest load."""
        return max(self.loads, default=math.inf)


def partition(
    units: Units,
    n_stages: int,
    *,
    n_hosts: int = 0,
    memory_limit_bytes: float = math.inf,
    scales: NDArray[np.float64] | None = None,
    seed: int = 0,
    n_ideals: int = 200_000,
    n_pairs: int = 3_000_000_000,
    programs: bool = True,
) -> Partition:
    """Return the partition with the least largest load, then the fewest empty stages, then the least sum of squared loads.

    Parameters
    ----------
    units : Units
        What to partition.
    n_stages : int
        Accelerators in the chain; a stage may stay empty.
    n_hosts : int
        Host devices, each a stage of its own anywhere in the chain.
    memory_limit_bytes : float
        Of one accelerator.
    scales : ndarray, shape (2, n_stages), float64, or None
        Factors on compute and communication of each accelerator, for unequal devices or links; None for ones. With factors, the
        partition's stages keep their positions in the chain.
    seed : int
        Of the noisy starting orders.
    n_ideals, n_pairs : int
        Most ideals to list and pairs to look at in one round; beyond, the answer has a bound instead of a proof.
    programs : bool
        Whether to better the cut by annealing and integer programs where the windows do not close; a quick estimate goes
        without.

    Returns
    -------
    Partition
        With bound and proof; ``feasible=False`` when nothing keeps the limits.

    References
    ----------
    .. [1] J. Tarnawski et al., NeurIPS 2020, section 4: the load and the dynamic program over all ideals.
    .. [2] A. Archer et al., ICML 2024 (arXiv 2311.03703): interval cuts of topological orders as upper bounds.

    Notes
    -----
    New here are the windows, which make the first exact and quick on graphs with far too many ideals, and, where they do not
    close, annealing, integer programs that cut neighbouring stages anew, and a bound from how far each stage can reach.
    """
    equal = scales is None
    scales = np.ones((2, n_stages)) if scales is None else np.ascontiguousarray(scales, dtype=np.float64)
    scales.setflags(write=False)
    task = Task(units, n_stages, n_hosts, memory_limit_bytes, scales, n_ideals, n_pairs)
    start = _start(task, seed)
    found, bound, exact, n_listed = _improve(task, start, seed, programs and n_hosts == 0 and n_stages > 1)
    if found is None:
        return Partition((), (), (), bound, exact, n_listed, feasible=False)
    groups, hosts = found
    loads = loads_of(units, groups, hosts, scales)
    value = max(loads)
    if equal:
        # the second criterion: among partitions of this value, no needless empty stage, even loads
        second = _even(task, value, groups)
        if second is not None:
            groups, hosts = second
            loads = loads_of(units, groups, hosts, scales)
    if exact or value <= bound * (1 + _TOLERANCE):
        bound, exact = value, True
    return Partition(groups, hosts, loads, bound, exact, n_listed)


_Chain = tuple[tuple[tuple[int, ...], ...], tuple[bool, ...]]


def _value(task: Task, chain: _Chain | None) -> float:
    """Return the largest load of a chain, or infinity for none."""
    return math.inf if chain is None else max(loads_of(task.units, *chain, task.scales))


def _start(task: Task, seed: int) -> _Chain | None:
    """Return the best cut of many topological orders into accelerator stages; None where none keeps the memory."""
    if task.n_stages == 0:
        return None
    n = len(task.units)
    n_orders = max(6, min(30, 60_000 // max(n, 1)))
    best, limit, cuts_of = math.inf, 1.25 * task.floor(), None
    for order in orders(task.units, n_orders, seed):
        order.setflags(write=False)
        while True:  # a tight limit makes the cut quick; loosen it until the first order can be cut at all
            value, cuts = kernel.cut_order(
                task.units.arrays, order, task.n_stages, limit, task.memory_limit_bytes, task.scales[0], task.scales[1]
            )
            if math.isfinite(value) or math.isfinite(best) or limit >= task.ceiling:
                break
            limit = min(1.5 * limit, task.ceiling) if limit > 0 else task.ceiling
        if value < best:
            best, limit, cuts_of = value, value, (order, cuts)
    if cuts_of is None:
        return None
    order, cuts = cuts_of
    groups = tuple(tuple(sorted(int(v) for v in order[cuts[s] : cuts[s + 1]])) for s in range(task.n_stages))
    return groups, (False,) * task.n_stages


def _improve(task: Task, start: _Chain | None, seed: int, programs: bool) -> tuple[_Chain | None, float, bool, int]:
    """Return the best chain, a bound on it, whether it is proven best, and the ideals of the last complete round."""
    best, value = start, _value(task, start)
    bound, n_listed = task.floor(), 0
    high = value
    limit = min(value, task.ceiling)
    programs = programs and start is not None
    for attempt in range(8):
        if value <= bound * (1 + _TOLERANCE):
            return best, value, True, n_listed
        pool, overflow = _pool(task, limit, first=attempt == 0, sparing=programs)
        finished, new = False, math.inf
        if pool is not None:
            n_listed = len(pool.arrays.compute)
            effort = task if pool.complete else replace(task, n_pairs=task.n_pairs // 10)
            found, finished = _solve(effort, pool.arrays, pool.windows, limit * (1 - _TOLERANCE), squares=False)
            new = _value(task, found)
            if new < value:
                best, value = found, new
        if finished and pool is not None and pool.complete:
            if math.isfinite(new) or limit == min(high, task.ceiling):
                return best, value, True, n_listed
            bound = max(bound, limit)
        else:
            high = min(high, limit)
        if limit == task.ceiling and not (math.isfinite(value) or finished):
            break
        if programs and attempt == 0:
            assert best is not None
            best, value, bound, n_cheap = _programs(task, best, bound, seed)
            n_listed = n_cheap or n_listed
            if value <= bound * (1 + _CLOSE):
                break
            high = limit = value  # the whole window once more, narrower now
            continue
        if programs and overflow:
            break
        # the next limit halves what is open; a window that closed below proves a bound, one that did not is not tried again
        limit = 0.5 * (bound + min(high, value))
        if attempt > 0 and min(high, value) - bound <= 1e-4 * value:
            break
    return best, bound, False, n_listed


def _pool(task: Task, limit: float, *, first: bool, sparing: bool) -> tuple[WindowedPool | None, bool]:
    """Return the ideals of a round and whether they were too many; a first list is shorter where something is left to try."""
    pool = build_pool(replace(task, n_ideals=task.n_ideals // 4) if first and sparing else task, limit)
    if pool is None and first:
        return build_pool(replace(task, n_ideals=task.n_ideals // 20), limit, partial=True), True
    return pool, pool is None


def _programs(task: Task, best: _Chain, bound: float, seed: int) -> tuple[_Chain, float, float, int]:
    """Return a chain bettered by annealing and integer programs, its largest load, a bound, and the ideals that prove it: those
    that cut few nets, where all of them can be listed, and none where linear programs do.
    """
    scales, most = task.scales, task.memory_limit_bytes
    groups = annealed(task.units, best[0], scales=scales, memory_limit_bytes=most, seed=seed)
    groups = recut(task.units, groups, scales=scales, memory_limit_bytes=most, n_programs=_PROGRAMS)
    best = (groups, best[1])
    value = _value(task, best)
    pool = cheap_pool(task, value) if (scales == 1.0).all() else None
    if pool is not None:
        found, finished = _solve(task, pool.arrays, pool.windows, value * (1 - _TOLERANCE), squares=False)
        best = best if found is None else found
        value = _value(task, best)
        if finished:
            return best, value, value, len(pool.arrays.compute)
    return best, value, reach_bound(task.units, scales, bound, value), 0


def _solve(
    task: Task, pool: kernel.Pool, windows: NDArray[np.int64], limit: float, *, squares: bool
) -> tuple[_Chain | None, bool]:
    """Return the best chain through a pool below a limit, or None, and whether every pair was looked at."""
    limits = np.array([limit, task.memory_limit_bytes, task.n_pairs])
    value, origin, n_pairs = kernel.solve_pool(task.units.arrays, pool, windows, task.scales, task.n_hosts, limits, squares)
    finished = n_pairs <= task.n_pairs
    last = value[-1]
    if not np.isfinite(last).any():
        return None, finished
    if squares:  # most stages first, then the least sum
        used = np.add.outer(np.arange(last.shape[0]), np.arange(last.shape[1]))
        used[~np.isfinite(last)] = -1
        last = np.where(used == used.max(), last, np.inf)
    stages, hosts = (int(k) for k in np.unravel_index(np.argmin(last), last.shape))
    return _trace(task, pool, origin, stages, hosts), finished


def _trace(task: Task, pool: kernel.Pool, origin: NDArray[np.int32], stages: int, hosts: int) -> _Chain:
    """Walk back from the full ideal."""
    backwards: list[tuple[tuple[int, ...], bool]] = []
    trailing = task.n_stages - stages
    i = len(pool.compute) - 1
    while i != 0:
        j, on_host = divmod(int(origin[i, stages, hosts]), 2)
        members = task.members(pool, i) - task.members(pool, j) if i != j else set()
        if members or not on_host:
            backwards.append((tuple(sorted(members)), bool(on_host)))
        i, stages, hosts = j, stages - (1 - on_host), hosts - on_host
    chain = [((), False)] * stages + backwards[::-1] + [((), False)] * trailing
    return tuple(group for group, _ in chain), tuple(kind for _, kind in chain)


def _even(task: Task, value: float, groups: tuple[tuple[int, ...], ...]) -> _Chain | None:
    """Return a chain of the same largest load with the fewest empty stages and the least sum of squares, or None."""
    few = 30_000 if len(task.units) <= 512 else 5_000
    pool = build_pool(replace(task, n_ideals=min(task.n_ideals, few)), value * (1 + _TOLERANCE), chains=(groups,))
    assert pool is not None
    found, _ = _solve(
        replace(task, n_pairs=min(task.n_pairs, 500_000_000)), pool.arrays, pool.windows, value * (1 + _TOLERANCE), squares=True
    )
    if found is None:
        return None
    filled = [(group, kind) for group, kind in zip(*found, strict=True) if group]
    empty = task.n_stages - sum(not k for _, k in filled)
    chain = [*filled, *[((), False)] * empty]
    return tuple(g for g, _ in chain), tuple(k for _, k in chain)
