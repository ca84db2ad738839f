"""Loops of the convex partitioner: cuts along an order, and the dynamic program over a pool of ideals.

The dynamic program is that of Tarnawski et al. (NeurIPS 2020, section 4): ``dp[I][k][l]``, the least largest load when ideal I
is run by k accelerators and l host devices (CPUs there), is the least over ideals I' within I of
``max(dp[I'][k - 1][l], acc(I - I'))`` and ``max(dp[I'][k][l - 1], cpu(I - I'))``. Here I and I' are the positions `i` and `j`
in a `Pool`, k is `s` (accelerators may differ, so it is a stage), l is `h`, and ``value[i, s, h]`` is ``dp[I][k][l]``. The load
acc(S) is compute and the cost of the nets that S cuts; inf where S does not fit or is not supported.

Where this differs from the paper: ideals are those of a pool, not all; loads beyond a limit are left out, as are numbers of
stages that a window excludes; the sum of squared loads may be minimised instead (`squares`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.arrays import smallest
from meshwright._kernels.compiling import inlined, kernel, part

__all__ = ["Arrays", "Pool", "cut_order", "interval_loads", "solve_pool"]


class Arrays(NamedTuple):
    """A partition problem as arrays; units are numbered topologically.

    Parameters
    ----------
    compute, host, memory : ndarray, shape (n,), float64
        Time on an accelerator, time on a host device, bytes.
    supported : ndarray, shape (n,), uint8
        Whether an accelerator can run the unit.
    pred_first, pred, succ_first, succ : ndarray, int64
        Direct predecessors and successors, compressed rows.
    net_first, net_pins, net_cost : ndarray
        Pins of each net (units that produce or read one tensor), and what a device pays for it when some pin lies elsewhere.
    unit_first, unit_nets : ndarray, int64
        Nets of each unit.
    """

    compute: NDArray[np.float64]
    host: NDArray[np.float64]
    memory: NDArray[np.float64]
    supported: NDArray[np.uint8]
    pred_first: NDArray[np.int64]
    pred: NDArray[np.int64]
    succ_first: NDArray[np.int64]
    succ: NDArray[np.int64]
    net_first: NDArray[np.int64]
    net_pins: NDArray[np.int64]
    net_cost: NDArray[np.float64]
    unit_first: NDArray[np.int64]
    unit_nets: NDArray[np.int64]


class Pool(NamedTuple):
    """Ideals (down-sets) sorted by compute, with the nets each one cuts.

    Parameters
    ----------
    bits : ndarray, shape (n_ideals, n_words), uint64
        Members among the units of words ``offset .. offset + n_words - 1``; every unit before is in, every unit after is out.
    offset : ndarray, shape (n_ideals,), int64
        First word.
    compute, host, memory, n_unsupported, cut_cost : ndarray, shape (n_ideals,), float64
        Sums over the members; cost of the nets cut.
    cut_first, cut_net, cut_inside : ndarray, int64
        Nets cut by each ideal in ascending order and how many of their pins lie inside.
    """

    bits: NDArray[np.uint64]
    offset: NDArray[np.int64]
    compute: NDArray[np.float64]
    host: NDArray[np.float64]
    memory: NDArray[np.float64]
    n_unsupported: NDArray[np.float64]
    cut_cost: NDArray[np.float64]
    cut_first: NDArray[np.int64]
    cut_net: NDArray[np.int64]
    cut_inside: NDArray[np.int64]


@part
def interval_loads(a, order, start, limit_value, memory_limit, inside, loads):
    """Fill ``loads[i]`` with the accelerator load of ``order[start:i]`` for i > start; return the first i beyond `limit_value`
    compute or memory.

    `inside` (one count per net) must be zero and is zero again on return.
    """
    n = len(order)
    compute = 0.0
    memory = 0.0
    communication = 0.0
    end = n + 1
    last = n
    for i in range(start, n):
        v = order[i]
        compute += a.compute[v]
        memory += a.memory[v]
        if compute > limit_value or memory > memory_limit or a.supported[v] == 0:
            end = i + 1
            last = i
            break
        for k in range(a.unit_first[v], a.unit_first[v + 1]):
            net = a.unit_nets[k]
            inside[net] += 1
            if inside[net] == 1:
                communication += a.net_cost[net]
            if inside[net] == a.net_first[net + 1] - a.net_first[net]:
                communication -= a.net_cost[net]
        loads[i + 1] = compute + communication
    for i in range(start, last):
        v = order[i]
        for k in range(a.unit_first[v], a.unit_first[v + 1]):
            inside[a.unit_nets[k]] = 0
    return end


@kernel(allocates=True)
def cut_order(a, order, n_stages, limit_value, memory_limit, compute_scale, communication_scale):
    """Return the best cuts of one topological order into at most n_stages intervals: the largest load, and the cut positions.

    The load of stage s is ``compute_scale[s] * compute + communication_scale[s] * communication``.
    """
    n = len(order)
    best = np.full((n_stages + 1, n + 1), np.inf)
    origin = np.zeros((n_stages + 1, n + 1), np.int64)
    best[0, 0] = 0.0
    inside = np.zeros(len(a.net_cost), np.int64)
    loads = np.zeros(n + 1)
    fastest = smallest(compute_scale)
    equal = True
    for s in range(1, n_stages):
        if compute_scale[s] != compute_scale[0] or communication_scale[s] != communication_scale[0]:
            equal = False
    prefix = np.zeros(n + 1)
    for i in range(n):
        prefix[i + 1] = prefix[i] + a.compute[order[i]]
    left = np.zeros(n_stages + 1)
    for s in range(n_stages, 0, -1):
        left[s - 1] = left[s] + limit_value / compute_scale[s - 1]
    for start in range(n):
        rest = prefix[n] - prefix[start]
        reached = best[0, start] < limit_value and rest <= left[0]
        for s in range(1, n_stages + 1):  # a stage may stay empty
            if best[s - 1, start] <= best[s, start]:
                best[s, start] = best[s - 1, start]
                origin[s, start] = start
            reached = reached or (best[s, start] < limit_value and rest <= left[s])
        if not reached:
            continue
        end = interval_loads(a, order, start, limit_value / fastest, memory_limit, inside, loads)
        for s in range(n_stages):
            before = best[s, start]
            if before >= limit_value or rest > left[s] or (equal and s > 0 and origin[s, start] == start):
                continue
            for i in range(start + 1, end):
                compute = prefix[i] - prefix[start]
                load = compute_scale[s] * compute + communication_scale[s] * (loads[i] - compute)
                after = max(before, load)
                if after < best[s + 1, i]:
                    best[s + 1, i] = after
                    origin[s + 1, i] = start
    last = 0
    for s in range(n_stages + 1):
        if best[s, n] < best[last, n]:
            last = s
    cuts = np.full(n_stages + 1, n, np.int64)
    position = n
    for s in range(last, 0, -1):
        cuts[s] = position
        position = origin[s, position]
    cuts[0] = 0
    return best[last, n], cuts


@part
def _subset(pool, j, i):
    """Whether ideal j is a subset of ideal i."""
    n_words = pool.bits.shape[1]
    offset_j = pool.offset[j]
    offset_i = pool.offset[i]
    for word in range(offset_i, min(offset_j, offset_i + n_words)):
        if pool.bits[i, word - offset_i] != ~np.uint64(0):
            return False
    if offset_j > offset_i + n_words:
        return False
    for word in range(max(offset_j, offset_i), offset_j + n_words):
        mine = pool.bits[j, word - offset_j]
        theirs = pool.bits[i, word - offset_i] if word < offset_i + n_words else np.uint64(0)
        if mine & ~theirs:
            return False
    return True


@part
def _communication(a, pool, j, i):
    """Cost of the nets with a pin in ideal i but not in j, and a pin elsewhere:
    both cuts less what is counted twice or not here.
    """
    x = pool.cut_first[j]
    y = pool.cut_first[i]
    end_x = pool.cut_first[j + 1]
    end_y = pool.cut_first[i + 1]
    cost = pool.cut_cost[j] + pool.cut_cost[i]
    while x < end_x and y < end_y:
        p = pool.cut_net[x]
        q = pool.cut_net[y]
        if p < q:
            x += 1
        elif q < p:
            y += 1
        else:
            cost -= a.net_cost[p] if pool.cut_inside[x] < pool.cut_inside[y] else 2.0 * a.net_cost[p]
            x += 1
            y += 1
    return cost


COMPUTE, CUT, MEMORY, FIRST, LAST = 0, 1, 2, 3, 4
"""Columns of the first tests: of an ideal that was reached, its sums and the fewest and the most accelerators that reach it."""


@inlined
def _lower(value, origin, i, s, h, after, came_from):
    """Lower a value to `after`, if that is less; return whether it is."""
    lower = after < value[i, s, h]
    if lower:
        value[i, s, h] = after
        origin[i, s, h] = came_from
    return lower


@inlined
def _add_accelerator(value, origin, scales, i, j, stages, compute, communication, limit, squares):
    """Let one more accelerator run what ideal i has and j has not; return whether that is better than what was known."""
    reached = False
    for s in range(stages[0], stages[1] + 1):
        load = scales[0, s - 1] * compute + scales[1, s - 1] * communication
        if load > limit:
            continue
        for h in range(value.shape[2]):
            before = value[j, s - 1, h]
            after = before + load * load if squares else max(before, load)
            reached |= _lower(value, origin, i, s, h, after, 2 * j)
    return reached


@inlined
def _add_host(value, origin, i, j, host, squares):
    """Let one more host run what ideal i has and j has not; return whether that is better than what was known."""
    reached = False
    for s in range(value.shape[1]):
        for h in range(1, value.shape[2]):
            before = value[j, s, h - 1]
            after = before + host * host if squares else max(before, host)
            reached |= _lower(value, origin, i, s, h, after, 2 * j + 1)
    return reached


@inlined
def _leave_empty(value, origin, i, low, high):
    """Let devices stay empty: more of them are no worse. Not for squares, where stages that are empty are not counted."""
    for s in range(low, high + 1):
        for h in range(value.shape[2]):
            if s > low:
                _lower(value, origin, i, s, h, value[i, s - 1, h], 2 * i)
            if h > 0:
                _lower(value, origin, i, s, h, value[i, s, h - 1], 2 * i + 1)


@inlined
def _remember(first_tests, at, pool, i, value):
    """Write what the first tests of later ideals need of ideal i, side by side with those of others."""
    n_stages = value.shape[1] - 1
    first_tests[at, COMPUTE] = pool.compute[i]
    first_tests[at, CUT] = pool.cut_cost[i]
    first_tests[at, MEMORY] = pool.memory[i]
    first_tests[at, FIRST] = n_stages
    for s in range(n_stages, -1, -1):
        if np.isfinite(value[i, s].min()):
            first_tests[at, FIRST] = s
            first_tests[at, LAST] = max(first_tests[at, LAST], s)


@kernel(allocates=True)
def solve_pool(a, pool, windows, scales, n_hosts, limits, squares):
    """Dynamic program over pairs of ideals: the least largest load (or sum of squared loads) of every ideal and device count.

    Parameters
    ----------
    a : Arrays
        The problem.
    pool : Pool
        Ideals sorted by (compute, number of members); the first is empty, the last is everything.
    windows : ndarray, shape (n_ideals, 2), int64
        Smallest and largest number of accelerator stages after which each ideal may stand.
    scales : ndarray, shape (2, n_stages), float64
        Factors on compute and on communication of each accelerator stage.
    n_hosts : int
        Host devices.
    limits : ndarray, shape (3,), float64
        Largest load allowed, memory of an accelerator, and the most pairs to look at.
    squares : bool
        Minimise the sum of squared loads over non-empty stages instead of the largest load.

    Returns
    -------
    value : ndarray, shape (n_ideals, n_stages + 1, n_hosts + 1)
        The least value, inf where nothing reaches the ideal.
    origin : ndarray, same shape, int32
        The ideal before the last device; doubled, plus 1 where that device is a host.
    n_pairs : float
        Pairs looked at; more than ``limits[2]``: stopped early.
    """
    n, n_stages = len(pool.compute), scales.shape[1]
    value = np.full((n, n_stages + 1, n_hosts + 1), np.inf)
    origin = np.full((n, n_stages + 1, n_hosts + 1), -1, np.int32)
    value[0, 0, 0] = 0.0
    if not squares:
        value[0] = 0.0
        origin[0] = 0
    limit, memory_limit = limits[0], limits[1]
    fastest = smallest(scales[0]) if n_stages else 0.0
    slowest = smallest(scales[1]) if n_stages else 0.0
    alive = np.zeros(n, np.int64)
    first_tests = np.zeros((n, 5))
    first_tests[0, LAST] = 0.0 if squares else n_stages
    n_alive, begin, n_pairs = 1, 0, 0.0
    for i in range(1, n):
        low, high = windows[i, 0], windows[i, 1]
        compute_i, cut_i = pool.compute[i], pool.cut_cost[i]
        if n_hosts == 0:  # ideals are sorted by compute: those that lie too far below are so for all later ones
            while begin < n_alive and fastest * (compute_i - first_tests[begin, COMPUTE]) > limit:
                begin += 1
        reached = False
        for k in range(begin, n_alive):
            # tests in the order of what they cost: most pairs fail the first ones
            n_pairs += 1.0
            if first_tests[k, FIRST] >= high + n_hosts or first_tests[k, LAST] + 1 + n_hosts < low:
                continue
            compute = compute_i - first_tests[k, COMPUTE]
            # what two ideals cut differs by no more than the nets that the units between them have elsewhere
            on_accelerator = fastest * compute + slowest * abs(cut_i - first_tests[k, CUT]) <= limit
            if not on_accelerator and n_hosts == 0:
                continue
            j = alive[k]
            host = pool.host[i] - pool.host[j]
            on_accelerator = (
                on_accelerator
                and pool.memory[i] - first_tests[k, MEMORY] <= memory_limit
                and pool.n_unsupported[i] <= pool.n_unsupported[j]
            )
            on_host = n_hosts > 0 and host <= limit
            if not (on_accelerator or on_host) or not _subset(pool, j, i):
                continue
            if on_accelerator:
                communication = _communication(a, pool, j, i)
                if fastest * compute + slowest * communication <= limit:
                    stages = (max(low, windows[j, 0] + 1), min(high, windows[j, 1] + 1))
                    better = _add_accelerator(value, origin, scales, i, j, stages, compute, communication, limit, squares)
                    reached = reached or better
            if on_host:
                better = _add_host(value, origin, i, j, host, squares)
                reached = reached or better
        if not squares:
            _leave_empty(value, origin, i, low, high)
        if reached:
            alive[n_alive] = i
            _remember(first_tests, n_alive, pool, i, value)
            n_alive += 1
        if n_pairs > limits[2]:
            break
    return value, origin, n_pairs
