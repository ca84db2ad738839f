"""Pools of ideals for the convex partitioner: every down-set that may end a stage, found window by window."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.partition import convex as kernel
from meshwright._kernels.partition import ideals
from meshwright.solvers.partition.hypergraph import Units

__all__ = ["Task", "WindowedPool", "build_pool", "pool_of"]

_SLACK = 1e-9  # relative widening of every window, so that rounding of sums excludes nothing
_WORDS = 30_000_000  # most 64-bit words of one window's list of ideals


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One partition question.

    Parameters
    ----------
    units : Units
        What to partition.
    n_stages, n_hosts : int
        Devices of either kind.
    memory_limit_bytes : float
        Of one accelerator.
    scales : ndarray, shape (2, n_stages), float64
        Factors on compute and communication of each accelerator.
    n_ideals : int
        Most ideals to list.
    n_pairs : int
        Most pairs to look at.
    """

    units: Units
    n_stages: int
    n_hosts: int
    memory_limit_bytes: float
    scales: NDArray[np.float64]
    n_ideals: int
    n_pairs: int

    @property
    def ceiling(self) -> float:
        """A value no sensible largest load exceeds: everything on the worst device, every tensor paid."""
        a = self.units.arrays
        value = 0.0
        if self.n_stages:
            value = float((self.scales[0] * a.compute.sum() + self.scales[1] * a.net_cost.sum()).max())
        if self.n_hosts:
            value = max(value, float(a.host.sum()))
        return value * (1 + 1e-6) + 1e-300

    def floor(self) -> float:
        """Return a simple lower bound of the largest load: the compute over all accelerators, and the heaviest unit."""
        a = self.units.arrays
        if self.n_hosts or not self.n_stages:
            return 0.0
        speed = float((1.0 / self.scales[0]).sum())
        return max(float(a.compute.sum()) / speed, float(a.compute.max(initial=0.0)) * float(self.scales[0].min()))

    def members(self, pool: kernel.Pool, i: int) -> set[int]:
        """Return the units of one ideal of a pool."""
        base = int(pool.offset[i]) * 64
        flags = np.unpackbits(np.ascontiguousarray(pool.bits[i]).view(np.uint8), bitorder="little")
        return set(range(min(base, len(self.units)))) | {base + int(k) for k in np.flatnonzero(flags)}


@dataclass(frozen=True, slots=True, eq=False)
class WindowedPool:
    """Ideals with the stages each may end; `complete` when none that may is missing."""

    arrays: kernel.Pool
    windows: NDArray[np.int64]
    complete: bool


def build_pool(
    task: Task, limit: float, *, chains: tuple[tuple[tuple[int, ...], ...], ...] = (), partial: bool = False
) -> WindowedPool | None:
    """Return the ideals that may stand after some stage of a partition whose largest load is at most `limit`.

    `limit`: largest load allowed.
    `chains`: partitions whose ideals are included whatever the windows say.
    `partial`: whether a list that is cut off is of use.
    Returns: sorted by compute; None where a window holds more than ``task.n_ideals`` and the part that was listed is of no
    use.
    """
    total = task.units.total
    slack = _SLACK * (total + limit)  # sums of ideals are kept up one by one: none or all of the compute may be a little off
    if task.n_hosts:
        intervals = [(-slack, total + slack)]
    else:
        speed = np.concatenate([[0.0], np.cumsum(limit / task.scales[0])])
        intervals = [(total - (speed[-1] - speed[s]) - slack, speed[s] + slack) for s in range(1, task.n_stages)]
        intervals = [(max(low, -slack), min(high, total + slack)) for low, high in intervals if low <= high]
    words: list[tuple[NDArray[np.uint64], int]] = []
    complete = True
    for low, high in _pieces(_merge(intervals), limit, len(task.units)):
        bits, offset, whole = _window(task, low, high)
        complete = complete and whole
        if not complete and not chains and not partial:
            return None
        words.append((bits, offset))
    return replace(pool_of(task, limit, words, chains), complete=complete)


def pool_of(
    task: Task,
    limit: float,
    words: list[tuple[NDArray[np.uint64], int]],
    chains: tuple[tuple[tuple[int, ...], ...], ...] = (),
) -> WindowedPool:
    """Return listed ideals, the empty and the full one, and those of chains as a complete pool.

    `limit`: largest load allowed.
    `words`: lists of different ideals, one a row, and the first word of each list.
    `chains`: partitions whose ideals are included whatever the windows say.
    Returns: sorted by compute, without those that no stage may end with.
    """
    n = len(task.units)
    added = [_word_of(prefix, n) for prefix in _prefixes(chains, n)]
    words = words + [one for one in added if not any(_listed(one, *part) for part in words if len(part[0]))]
    pool = _assemble(task, [part for part in words if len(part[0])])
    windows = _stages_of(task, pool, limit)
    keep = np.flatnonzero(windows[:, 0] <= windows[:, 1])
    return WindowedPool(_take(pool, keep), np.ascontiguousarray(windows[keep]), True)


def _merge(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join intervals that overlap."""
    merged: list[tuple[float, float]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def _pieces(intervals: list[tuple[float, float]], limit: float, n: int) -> list[tuple[float, float]]:
    """Cut long intervals of large graphs: the ideals of a short one differ in few units, so they are quick to list."""
    if n <= 512:
        return intervals
    pieces: list[tuple[float, float]] = []
    for low, high in intervals:
        edges = np.linspace(low, high, max(1, math.ceil((high - low) / limit)) + 1)
        pieces += [(float(x), float(y)) for x, y in zip(edges[:-1], np.nextafter(edges[1:], -np.inf))]
        pieces[-1] = (pieces[-1][0], high)
    return pieces


def _window(task: Task, low: float, high: float) -> tuple[NDArray[np.uint64], int, bool]:
    """List the ideals with compute in [low, high]: bits, first word, complete or cut off."""
    units, a = task.units, task.units.arrays
    n = len(units)
    slack = _SLACK * (units.total + 1e-300)
    largest = 0.0
    always_in = always_out = np.zeros(n, dtype=bool)
    for _ in range(2):  # the walk leaves the window by the largest active unit; which units are active depends on that
        middle = 0.5 * (low + high)
        wide_low, wide_high = min(low, middle - largest) - 2 * slack, max(high, middle + largest) + 2 * slack
        always_in = units.total - units.after < wide_low
        always_out = units.before > wide_high
        active = ~(always_in | always_out)
        largest = float(a.compute[active].max(initial=0.0))
    active_ids = np.flatnonzero(active)
    begin = int(min([*np.flatnonzero(~always_in)[:1], n])) // 64
    end = int(max([*np.flatnonzero(~always_out)[-1:], 0])) // 64 + 1
    start = np.zeros(max(end - begin, 1), dtype=np.uint64)
    compute, middle = 0.0, 0.5 * (low + high)
    compute = float(a.compute[always_in].sum())
    for v in range(n):
        inside = bool(always_in[v])
        if active[v] and compute < middle:
            compute += float(a.compute[v])
            inside = True
        if inside and v // 64 >= begin:
            start[v // 64 - begin] |= np.uint64(1) << np.uint64(v % 64)
    capacity = max(16, min(task.n_ideals, _WORDS // len(start)))
    active_ids.setflags(write=False)
    start.setflags(write=False)
    bits, sums, complete = ideals.enumerate_window(a, active_ids, start, begin, low, high, capacity)
    inside_window = (sums >= low) & (sums <= high)
    return bits[inside_window], begin, bool(complete)


def _prefixes(chains: tuple[tuple[tuple[int, ...], ...], ...], n: int) -> list[set[int]]:
    """Return the ideals along chains, with the empty and the full one."""
    prefixes: list[set[int]] = [set(), set(range(n))]
    for groups in chains:
        done: set[int] = set()
        for group in groups[:-1]:
            done = done | set(group)
            prefixes.append(done)
    return prefixes


def _word_of(members: set[int], n: int) -> tuple[NDArray[np.uint64], int]:
    """Return one ideal as words: the smallest range that tells it."""
    first_out = next((v for v in range(n) if v not in members), n)
    begin = first_out // 64
    end = max(max(members, default=0) // 64 + 1, begin + 1)
    bits = np.zeros((1, end - begin), dtype=np.uint64)
    for v in members:
        if v // 64 >= begin:
            bits[0, v // 64 - begin] |= np.uint64(1) << np.uint64(v % 64)
    return bits, begin


def _listed(one: tuple[NDArray[np.uint64], int], bits: NDArray[np.uint64], begin: int) -> bool:
    """Whether a list of ideals has this one."""
    before = one[1] - begin
    tail = np.trim_zeros(one[0][0], "b")
    if before < 0 or before + len(tail) > bits.shape[1]:
        return False
    row = np.zeros(bits.shape[1], dtype=np.uint64)
    row[:before] = ~np.uint64(0)
    row[before : before + len(tail)] = tail
    return bool((bits == row).all(axis=1).any())


def _trim(bits: NDArray[np.uint64], begin: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the same ideals in the fewest words, each with a first word of its own."""
    n_words = bits.shape[1]
    full = bits == ~np.uint64(0)
    skip = np.where(full.all(axis=1), n_words - 1, np.argmin(full, axis=1))
    last = np.where((bits == 0).all(axis=1), 0, n_words - 1 - np.argmax((bits != 0)[:, ::-1], axis=1))
    width = int(np.max(np.maximum(last - skip, 0))) + 1
    columns = skip[:, None] + np.arange(width)
    padded = np.pad(bits, ((0, 0), (0, width)))
    return np.take_along_axis(padded, columns, axis=1), begin + skip


def _assemble(task: Task, parts: list[tuple[NDArray[np.uint64], int]]) -> kernel.Pool:
    """Compute sums and cut lists of all ideals, bring them to one width and sort them by (compute, size)."""
    a, n = task.units.arrays, len(task.units)
    pieces: list[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    for bits, begin in parts:
        nets = _candidates(task, bits, begin)
        pieces.append(ideals.cut_lists(a, np.ascontiguousarray(bits), begin, nets, min(begin * 64, n)))
    sums = np.concatenate([piece[0] for piece in pieces])
    lengths = np.concatenate([np.diff(piece[1]) for piece in pieces])
    first = np.concatenate([[0], np.cumsum(lengths)])
    nets_cut, inside = (np.concatenate([piece[k] for piece in pieces]) for k in (2, 3))
    trimmed = [_trim(bits, begin) for bits, begin in parts]
    width = max(bits.shape[1] for bits, _ in trimmed)
    bits = np.concatenate([np.pad(bits, ((0, 0), (0, width - bits.shape[1]))) for bits, _ in trimmed])
    offset = np.concatenate([offset for _, offset in trimmed])
    order = np.lexsort((np.arange(len(sums)), sums[:, 5], sums[:, 0]))
    columns = [np.ascontiguousarray(sums[:, k]) for k in range(5)]
    c, h, m, u, t = columns
    return _take(kernel.Pool(bits, offset, c, h, m, u, t, first, nets_cut, inside), order)


def _candidates(task: Task, bits: NDArray[np.uint64], begin: int) -> NDArray[np.int64]:
    """Return the nets that some of the ideals may cut: not wholly in the part that all share, nor wholly in what none has."""
    a, n = task.units.arrays, len(task.units)
    if len(bits) == 0:
        return np.zeros(0, dtype=np.int64)
    state = np.ones(n, dtype=np.int8)  # 0 in all, 1 differs, 2 in none
    state[: begin * 64] = 0
    state[(begin + bits.shape[1]) * 64 :] = 2
    every, some = np.bitwise_and.reduce(bits, axis=0), np.bitwise_or.reduce(bits, axis=0)
    local = slice(begin * 64, min((begin + bits.shape[1]) * 64, n))
    count = local.stop - local.start
    in_all = np.unpackbits(every.view(np.uint8), bitorder="little")[:count].astype(bool)
    in_some = np.unpackbits(some.view(np.uint8), bitorder="little")[:count].astype(bool)
    state[local] = np.where(in_all, 0, np.where(in_some, 1, 2))
    if len(a.net_cost) == 0:
        return np.zeros(0, dtype=np.int64)
    pins = state[a.net_pins]
    least = np.minimum.reduceat(pins, a.net_first[:-1])
    most = np.maximum.reduceat(pins, a.net_first[:-1])
    return np.flatnonzero((least < 2) & (most > 0) & ~((least == most) & (most != 1))).astype(np.int64)


def _stages_of(task: Task, pool: kernel.Pool, limit: float) -> NDArray[np.int64]:
    """Return the least and the largest number of accelerator stages after which each ideal may stand."""
    windows = np.zeros((len(pool.compute), 2), dtype=np.int64)
    windows[:, 1] = task.n_stages
    if task.n_hosts or not task.n_stages:
        return windows
    total = task.units.total
    speed = np.concatenate([[0.0], np.cumsum(limit / task.scales[0])])
    slack = _SLACK * (total + limit)
    # a cut tensor is paid at least once on either side, in time that compute on those devices cannot use
    cut = pool.cut_cost * float((task.scales[1] / task.scales[0]).min())
    windows[:, 0] = np.searchsorted(speed, pool.compute + cut - slack, side="left")
    windows[:, 1] = np.searchsorted(speed, speed[-1] - (total - pool.compute + cut) + slack, side="right") - 1
    windows[0] = (0, task.n_stages)
    windows[-1] = (0, task.n_stages)
    return windows


def _take(pool: kernel.Pool, keep: NDArray[np.int64]) -> kernel.Pool:
    """Return some ideals of a pool, in the order given."""
    lengths = np.diff(pool.cut_first)[keep]
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    index = np.repeat(pool.cut_first[keep] - first[:-1], lengths) + np.arange(first[-1])
    taken = kernel.Pool(
        np.ascontiguousarray(pool.bits[keep]), pool.offset[keep], pool.compute[keep], pool.host[keep], pool.memory[keep],
        pool.n_unsupported[keep], pool.cut_cost[keep], first, pool.cut_net[index], pool.cut_inside[index],
    )  # fmt: skip
    for array in taken:
        array.setflags(write=False)
    return taken
