"""Kernels: pick one choice per item at the least cost within a memory limit, greedily or exactly.

The inner problem of Piper (Tarnawski et al., NeurIPS 2021, section 4): items are the nodes of a stage, choices how each is run
(with recomputation or without), cost is time, and the sum of their bytes must fit. Piper itself chooses greedily: the fastest
of all, then swaps in the order of time lost per byte saved until they fit (`greedy`). The exact choice is ours, a
multiple-choice knapsack (Kellerer, Pferschy and Pisinger, 2004, chapter 11): the linear relaxation by swaps along each item's
lower convex hull, then a list of undominated partial choices, pruned by the Lagrangian bound at the relaxation's multiplier
(`exact`).
"""

from __future__ import annotations

import numpy as np

from meshwright._kernels.arrays import copy
from meshwright._kernels.compiling import kernel, part

__all__ = ["cheapest", "exact", "greedy", "hull"]

ENOUGH = 1e-9
"""Bytes below which the published greedy takes a saving for none and a need for met."""

MERGE_RATIO = 1e-14
"""Partial choices whose costs differ by less than this share of the total are merged."""

ROUNDING_RATIO = 1e-13
"""Share of the memory by which a sum of savings may be off; within it, what was chosen is added up anew."""

POOL = 120_000
"""Most partial choices kept by the exact method; beyond, it returns its bounds."""


@part
def cheapest(first, cost, memory, chosen):
    """Write the first cheapest choice of every item to `chosen`; return total cost and memory."""
    total = 0.0
    held = 0.0
    for i in range(len(first) - 1):
        best = first[i]
        for c in range(first[i] + 1, first[i + 1]):
            if cost[c] < cost[best]:
                best = c
        chosen[i] = best
        total += cost[best]
        held += memory[best]
    return total, held


@part
def _smallest(first, memory, low):
    """Write the first choice of least memory of every item to `low`; return the total memory."""
    held = 0.0
    for i in range(len(first) - 1):
        best = first[i]
        for c in range(first[i] + 1, first[i + 1]):
            if memory[c] < memory[best]:
                best = c
        low[i] = best
        held += memory[best]
    return held


@part
def _held(memory, chosen):
    """Return the memory of the chosen, added up in order."""
    held = 0.0
    for c in chosen:
        held += memory[c]
    return held


@kernel(allocates=True)
def greedy(first, cost, memory, limit, all_or_none, chosen):
    """Return the cost of Piper's greedy choice, infinite where nothing fits; write it to `chosen`.

    Parameters
    ----------
    first : ndarray, shape (n_items + 1,), int64
        First choice of each item.
    cost, memory : ndarray, shape (n_choices,), float64
        Of each choice.
    limit : float
        Memory allowed.
    all_or_none : bool
        Where the cheapest choices do not fit, take the smallest of every item instead of swapping one by one.
    chosen : ndarray, shape (n_items,), int64
        Written: the choice of each item.

    Returns
    -------
    float
        Total cost.
    """
    n = len(first) - 1
    total, held = cheapest(first, cost, memory, chosen)
    if held <= limit:
        return total
    low = np.empty(n, np.int64)
    if _smallest(first, memory, low) > limit:
        return np.inf
    if all_or_none:
        copy(chosen, low, n)
    else:
        need = held - limit
        pairs = True
        for i in range(n):
            pairs = pairs and first[i + 1] - first[i] <= 2
        if pairs:
            _swap_sorted(first, cost, memory, need, chosen)
        else:
            _swap_best(first, cost, memory, need, chosen)
    total = 0.0
    for i in range(n):
        total += cost[chosen[i]]
    return total


@part(allocates=True)
def _swap_sorted(first, cost, memory, need, chosen):
    """Swap in ascending order of cost per byte saved until the need is met (two choices per item)."""
    n = len(first) - 1
    item = np.empty(n, np.int64)
    swap = np.empty(n, np.int64)
    ratio = np.empty(n, np.float64)
    m = 0
    for i in range(n):
        for c in range(first[i], first[i + 1]):
            saving = memory[chosen[i]] - memory[c]
            if saving > ENOUGH:
                item[m] = i
                swap[m] = c
                ratio[m] = (cost[c] - cost[chosen[i]]) / saving
                m += 1
    order = np.argsort(ratio[:m], kind="mergesort")
    for j in order:
        i = item[j]
        need -= memory[chosen[i]] - memory[swap[j]]
        chosen[i] = swap[j]
        if need < ENOUGH:
            break


@part
def _swap_best(first, cost, memory, need, chosen):
    """Swap what costs least per byte of the need that it meets, again and again (any number of choices)."""
    n = len(first) - 1
    while need >= ENOUGH:
        best = np.inf
        best_item = -1
        best_choice = -1
        for i in range(n):
            for c in range(first[i], first[i + 1]):
                saving = memory[chosen[i]] - memory[c]
                if saving > ENOUGH:
                    ratio = (cost[c] - cost[chosen[i]]) / min(saving, need)
                    if ratio < best:
                        best = ratio
                        best_item = i
                        best_choice = c
        if best_item < 0:
            return
        need -= memory[chosen[best_item]] - memory[best_choice]
        chosen[best_item] = best_choice


@part(allocates=True)
def hull(first, cost, memory, chosen):
    """Return the steps of every item's lower convex hull from its cheapest choice on, sorted by cost per byte saved."""
    n = len(first) - 1
    size = len(cost)
    item = np.empty(size, np.int64)
    target = np.empty(size, np.int64)
    saving = np.empty(size, np.float64)
    price = np.empty(size, np.float64)
    ratio = np.empty(size, np.float64)
    m = 0
    for i in range(n):
        at = chosen[i]
        while True:
            best = np.inf
            to = -1
            for c in range(first[i], first[i + 1]):
                if memory[c] < memory[at]:
                    slope = (cost[c] - cost[at]) / (memory[at] - memory[c])
                    if slope < best or (slope == best and memory[c] < memory[to]):
                        best = slope
                        to = c
            if to < 0:
                break
            item[m] = i
            target[m] = to
            saving[m] = memory[at] - memory[to]
            price[m] = cost[to] - cost[at]
            ratio[m] = best
            m += 1
            at = to
    order = np.argsort(ratio[:m], kind="mergesort")
    return item[order], target[order], saving[order], price[order], ratio[order]


@kernel(allocates=True)
def exact(first, cost, memory, limit, budget, chosen):
    """Return bounds on the least cost within the limit, equal unless the decision against `budget` needed no more.

    Parameters
    ----------
    first, cost, memory, limit
        As in `greedy`.
    budget : float
        Only whether the least cost is within this matters; infinite to ask for the least cost itself.
    chosen : ndarray, shape (n_items,), int64
        Written: a choice of cost `upper` (where that is finite).

    Returns
    -------
    lower, upper : float
        Proven bounds; ``lower > budget`` or ``upper <= budget`` unless the pool overflowed.

    Notes
    -----
    Swaps along the convex hulls give the linear relaxation and a first choice; then items are added one by one to a list of
    undominated partial choices (Nemhauser and Ullmann), pruned by the Lagrangian bound at the relaxation's multiplier.

    References
    ----------
    Kellerer, Pferschy, Pisinger, "Knapsack Problems" (2004), chapter 11 (multiple choice).
    """
    n = len(first) - 1
    total, held = cheapest(first, cost, memory, chosen)
    for i in range(n):
        for c in range(first[i], first[i + 1]):
            if cost[c] == cost[chosen[i]] and memory[c] < memory[chosen[i]]:
                held += memory[c] - memory[chosen[i]]
                chosen[i] = c
    if held <= limit:
        return total, total
    low = np.empty(n, np.int64)
    if _smallest(first, memory, low) > limit:
        return np.inf, np.inf
    need = held - limit - ROUNDING_RATIO * held
    item, target, saving, price, ratio = hull(first, cost, memory, chosen)
    base = chosen.copy()
    lower = total
    upper = total
    met = 0.0
    multiplier = 0.0
    steps = 0
    while steps < len(item) and met < need:
        multiplier = ratio[steps]
        if met + saving[steps] >= need:  # the step that would be taken in part: here the linear relaxation ends
            lower = upper + multiplier * (need - met)
        met += saving[steps]
        upper += price[steps]
        chosen[item[steps]] = target[steps]
        steps += 1
    if met < need:
        lower = upper
    # whole steps are a choice; rounding in `met` may leave it a little too large still
    while steps < len(item) and _held(memory, chosen) > limit:
        met += saving[steps]
        upper += price[steps]
        chosen[item[steps]] = target[steps]
        steps += 1
    if _held(memory, chosen) > limit:
        copy(chosen, low, n)
        upper = 0.0
        for i in range(n):
            upper += cost[low[i]]
        steps = 0
    # the last whole step often saves more than is needed: take earlier ones back where that still fits
    for j in range(steps - 2, -1, -1):
        i = item[j]
        if chosen[i] == target[j] and met - saving[j] >= need:
            back = base[i]
            for earlier in range(j):
                if item[earlier] == i:
                    back = target[earlier]
            chosen[i] = back
            if _held(memory, chosen) > limit:
                chosen[i] = target[j]
            else:
                met -= saving[j]
                upper -= price[j]
    if upper <= budget and budget < np.inf:
        return lower, upper
    if lower > budget or upper - lower <= MERGE_RATIO * (abs(upper) + 1e-300):
        return lower, upper
    found = _refine(first, cost, memory, limit, need, multiplier, min(upper, budget), base, chosen)
    if found == -1.0:
        return lower, upper
    if found < np.inf:
        return min(found, upper), min(found, upper)
    if budget < upper:
        return np.nextafter(budget, np.inf), upper
    return upper, upper


@part(allocates=True)
def _refine(first, cost, memory, limit, need, multiplier, upper, base, chosen):
    """Return the least cost below or at `upper` (infinite for none, -1 when the pool overflows); write it to `chosen`."""
    n = len(first) - 1
    bound = multiplier * need
    for i in range(n):
        bound += cost[base[i]]
    floor = np.empty(n, np.float64)
    for i in range(n):
        least = np.inf
        for c in range(first[i], first[i + 1]):
            reduced = cost[c] - cost[base[i]] - multiplier * (memory[base[i]] - memory[c])
            least = min(least, reduced)
        floor[i] = least
        bound += least
    slack = upper * (1.0 + MERGE_RATIO) - bound
    total = 0.0
    for i in range(n):
        total += cost[base[i]]
    eps = MERGE_RATIO * (total + 1e-300)
    pool_cost = np.empty(POOL, np.float64)
    pool_saving = np.empty(POOL, np.float64)
    pool_parent = np.empty(POOL, np.int64)
    pool_choice = np.empty(POOL, np.int64)
    pool_reduced = np.empty(POOL, np.float64)
    pool_cost[0] = total
    pool_saving[0] = 0.0
    pool_reduced[0] = 0.0
    pool_parent[0] = -1
    start = 0
    end = 1
    for i in range(n):
        size = 0
        room = (end - start) * (first[i + 1] - first[i])
        if end + room > POOL:
            return -1.0
        for c in range(first[i], first[i + 1]):
            save = memory[base[i]] - memory[c]
            extra = cost[c] - cost[base[i]]
            deviation = extra - multiplier * save - floor[i]
            if deviation > slack:
                continue
            for j in range(start, end):
                reduced = pool_reduced[j] + deviation
                if reduced > slack:
                    continue
                at = end + size
                pool_cost[at] = pool_cost[j] + extra
                pool_saving[at] = pool_saving[j] + save
                pool_reduced[at] = reduced
                pool_parent[at] = j
                pool_choice[at] = c
                size += 1
        if size == 0:
            return np.inf
        order = np.argsort(-pool_saving[end : end + size], kind="mergesort") + end
        kept = np.empty(size, np.int64)
        m = 0
        best = np.inf
        for j in order:
            if pool_cost[j] < best - eps:
                best = pool_cost[j]
                kept[m] = j
                m += 1
        fresh_cost = pool_cost[kept[:m]]
        fresh_saving = pool_saving[kept[:m]]
        fresh_reduced = pool_reduced[kept[:m]]
        fresh_parent = pool_parent[kept[:m]]
        fresh_choice = pool_choice[kept[:m]]
        for new in range(m):
            at = end + new
            pool_cost[at], pool_saving[at], pool_reduced[at] = fresh_cost[new], fresh_saving[new], fresh_reduced[new]
            pool_parent[at], pool_choice[at] = fresh_parent[new], fresh_choice[new]
        start = end
        end += m
    picked = np.empty(n, np.int64)
    order = np.argsort(pool_cost[start:end], kind="mergesort") + start
    for last in order:
        if pool_cost[last] > upper:
            break
        if pool_saving[last] < need:
            continue
        at = last
        for i in range(n - 1, -1, -1):
            picked[i] = pool_choice[at]
            at = pool_parent[at]
        if _held(memory, picked) <= limit:
            copy(chosen, picked, n)
            return pool_cost[last]
    return np.inf
