"""Kernel: whether the nodes of one stage have choices that fit its memory and keep its time, with bounds remembered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.compiling import kernel, part
from meshwright._kernels.pipeline import knapsack

__all__ = ["Memo", "Menu", "Rules", "decide", "stage_items", "swap_bounds"]

ONE = np.uint64(1)


class Menu(NamedTuple):
    """Choices of every node at every degree; choices of node v at degree t are ``first[v * n_degrees + t]`` and on.

    Parameters
    ----------
    first : ndarray, shape (n_nodes * n_degrees + 1,), int64
        First choice.
    seconds, weight, per_microbatch, fixed : ndarray, shape (n_choices,), float64
        Time of one micro-batch, weight bytes, memory per micro-batch in flight and fixed memory.
    in_first, in_node, in_seconds : ndarray
        Edges into each node: tail, and seconds per micro-batch that the edge itself costs its consumer.
    out_first, out_node, out_seconds : ndarray
        Edges out of each node: head, and seconds that the edge itself costs its producer.
    sync_in_first, sync_in, sync_out_first, sync_out : ndarray
        Further seconds of each choice per edge into and out of its node.
    alike : bool
        Whether the choices of a node and degree differ in seconds and memory only.
    paired : bool
        Whether no node has more than two choices at a degree.
    """

    first: NDArray[np.int64]
    seconds: NDArray[np.float64]
    weight: NDArray[np.float64]
    per_microbatch: NDArray[np.float64]
    fixed: NDArray[np.float64]
    in_first: NDArray[np.int64]
    in_node: NDArray[np.int64]
    in_seconds: NDArray[np.float64]
    out_first: NDArray[np.int64]
    out_node: NDArray[np.int64]
    out_seconds: NDArray[np.float64]
    sync_in_first: NDArray[np.int64]
    sync_in: NDArray[np.float64]
    sync_out_first: NDArray[np.int64]
    sync_out: NDArray[np.float64]
    alike: bool
    paired: bool


class Rules(NamedTuple):
    """What a stage may be.

    Parameters
    ----------
    degrees : ndarray, shape (n_degrees,), int64
        Tensor degrees.
    replicas : ndarray, shape (n_replicas,), int64
        Allowed numbers of replicas, ascending.
    share : ndarray, shape (n_replicas,), float64
        Share of the micro-batches that one replica runs.
    sync : ndarray, shape (n_degrees, n_replicas), float64
        Seconds per weight byte and micro-batch of gradient reduction.
    next_replica : ndarray, shape (n + 1,), int64
        Position in `replicas` of the smallest that is at least the position here; -1 for none.
    exact, all_or_none, sharded : int
        Inner choice exact (1) or greedy (0); Piper's all-or-none flag; whether replicas shard the second copy of weights.
    optimistic : int
        Whether an undecided inner choice counts as fitting (for a lower bound).
    reserve : ndarray, shape (n_degrees,), float64
        Bytes that a stage of the degree holds beside its nodes.
    border : ndarray, shape (n_degrees, n_replicas), float64
        Multiple, at least 1, of what the menu says that crossing tensors cost.
    column : ndarray, shape (n_degrees,), int64
        Column of `Pairs.seconds` of each degree.
    """

    degrees: NDArray[np.int64]
    replicas: NDArray[np.int64]
    share: NDArray[np.float64]
    sync: NDArray[np.float64]
    next_replica: NDArray[np.int64]
    exact: int
    all_or_none: int
    sharded: int
    optimistic: int
    reserve: NDArray[np.float64]
    border: NDArray[np.float64]
    column: NDArray[np.int64]


class Memo(NamedTuple):
    """Bounds on inner choices already made (a direct-mapped cache)
    and swaps sorted once per degree and micro-batches in flight.
    """

    pair: NDArray[np.int64]
    rest: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    sorted: NDArray[np.int32]
    node: NDArray[np.int32]
    saving: NDArray[np.float64]
    price: NDArray[np.float64]


@part
def _inside(words, upper, lower, v):
    """Return whether node v is in the stage between two sets."""
    w = v >> 6
    return ((words[upper, w] & ~words[lower, w]) >> np.uint64(v & 63)) & ONE != 0


@kernel(allocates=True)
def stage_items(space, menu, rules, upper, lower, t, r, y):
    """Return first choice, cost, memory and menu position of every choice of every node of a stage.

    Parameters
    ----------
    space, menu, rules : Space, Menu, Rules
        The instance.
    upper, lower : int
        The sets between which the stage lies.
    t, r : int
        Positions of the tensor degree and of the number of replicas.
    y : int
        Micro-batches in flight.

    Returns
    -------
    first : ndarray, shape (n_items + 1,), int64
        First choice of each node, nodes ascending.
    cost, memory : ndarray, shape (n_choices,), float64
        Seconds per micro-batch of the batch, bytes.
    position : ndarray, shape (n_choices,), int64
        Where in the menu each choice is.
    """
    words = space.words
    n_degrees = len(rules.degrees)
    n = (len(menu.first) - 1) // n_degrees
    first = np.zeros(n + 1, np.int64)
    size = len(menu.seconds)
    cost = np.empty(size, np.float64)
    memory = np.empty(size, np.float64)
    position = np.empty(size, np.int64)
    m = 0
    items = 0
    share = rules.share[r]
    shard = rules.sharded * (1.0 - 1.0 / rules.replicas[r])
    for v in range(n):
        if not _inside(words, upper, lower, v):
            continue
        base = 0.0
        for e in range(menu.in_first[v], menu.in_first[v + 1]):
            if not _inside(words, upper, lower, menu.in_node[e]):
                base += menu.in_seconds[e]
        for e in range(menu.out_first[v], menu.out_first[v + 1]):
            if not _inside(words, upper, lower, menu.out_node[e]):
                base += menu.out_seconds[e]
        for c in range(menu.first[v * n_degrees + t], menu.first[v * n_degrees + t + 1]):
            edge = base
            at = menu.sync_in_first[c] - menu.in_first[v]
            for e in range(menu.in_first[v], menu.in_first[v + 1]):
                if not _inside(words, upper, lower, menu.in_node[e]):
                    edge += menu.sync_in[at + e]
            at = menu.sync_out_first[c] - menu.out_first[v]
            for e in range(menu.out_first[v], menu.out_first[v + 1]):
                if not _inside(words, upper, lower, menu.out_node[e]):
                    edge += menu.sync_out[at + e]
            cost[m] = edge * rules.border[t, r] * share + menu.weight[c] * rules.sync[t, r] + menu.seconds[c] * share
            memory[m] = menu.per_microbatch[c] * y + menu.fixed[c] - shard * menu.weight[c]
            position[m] = c
            m += 1
        items += 1
        first[items] = m
    return first[: items + 1], cost[:m], memory[:m], position[:m]


@part(allocates=True)
def _sort_swaps(menu, memo, n_degrees, t, y):
    """Sort the swaps of all nodes at one degree by seconds per byte saved."""
    n = (len(menu.first) - 1) // n_degrees
    count = 0
    for v in range(n):
        count += menu.first[v * n_degrees + t + 1] - menu.first[v * n_degrees + t]
    first = np.zeros(n + 1, np.int64)
    cost = np.empty(count, np.float64)
    memory = np.empty(count, np.float64)
    of = np.empty(n, np.int64)
    m = 0
    items = 0
    for v in range(n):
        low, high = menu.first[v * n_degrees + t], menu.first[v * n_degrees + t + 1]
        if low == high:
            continue
        for c in range(low, high):
            cost[m] = menu.seconds[c]
            memory[m] = menu.per_microbatch[c] * y + menu.fixed[c]
            m += 1
        of[items] = v
        items += 1
        first[items] = m
    chosen = np.empty(items, np.int64)
    first = first[: items + 1]
    knapsack.cheapest(first, cost, memory, chosen)
    item, _, saving, price, _ = knapsack.hull(first, cost, memory, chosen)
    for j in range(len(item)):
        memo.node[t, y, j] = of[item[j]]
        memo.saving[t, y, j] = saving[j]
        memo.price[t, y, j] = price[j]
    memo.sorted[t, y] = len(item)


@part
def swap_bounds(space, menu, memo, rules, upper, lower, t, y, limit):
    """Return bounds on the extra seconds of swapping to fit, from swaps in sorted order (equal for the greedy)."""
    words = space.words
    n_degrees = len(rules.degrees)
    n = (len(menu.first) - 1) // n_degrees
    held = 0.0
    for v in range(n):
        if _inside(words, upper, lower, v):
            low, high = menu.first[v * n_degrees + t], menu.first[v * n_degrees + t + 1]
            best = low
            for c in range(low + 1, high):
                if menu.seconds[c] < menu.seconds[best]:
                    best = c
            held += menu.per_microbatch[best] * y + menu.fixed[best]
    if held <= limit:
        return 0.0, 0.0
    need = held - limit
    if memo.sorted[t, y] < 0:
        _sort_swaps(menu, memo, n_degrees, t, y)
    if not rules.exact:
        spent = 0.0
        for j in range(memo.sorted[t, y]):
            saving = memo.saving[t, y, j]
            if saving > knapsack.ENOUGH and _inside(words, upper, lower, memo.node[t, y, j]):
                spent += memo.price[t, y, j]
                need -= saving
                if need < knapsack.ENOUGH:
                    return spent, spent
        return np.inf, np.inf
    rounding = knapsack.ROUNDING_RATIO * held
    relaxed = 0.0 if need <= rounding else -1.0
    spent = 0.0
    for j in range(memo.sorted[t, y]):
        if not _inside(words, upper, lower, memo.node[t, y, j]):
            continue
        saving = memo.saving[t, y, j]
        price = memo.price[t, y, j]
        if relaxed < 0.0 and need - rounding <= saving:
            relaxed = spent + price * max(0.0, (need - rounding) / saving)
        spent += price
        need -= saving
        if need <= -rounding:
            return relaxed, spent
    # Met only within rounding, or not at all: the exact method adds up what it chooses.
    return (np.inf if relaxed < 0.0 else relaxed), np.inf


@part(allocates=True)
def _bounds(space, menu, memo, rules, upper, lower, t, r, y, limit, budget):
    """Return bounds on the cost of the inner choice: extra seconds at one replica (alike), or seconds of the stage."""
    simple = menu.alike and not rules.sharded and not rules.all_or_none and y < memo.sorted.shape[1]
    if simple and (rules.exact or menu.paired):
        low, high = swap_bounds(space, menu, memo, rules, upper, lower, t, y, limit)
        if low == high or budget < low or budget >= high:
            return low, high
    first, cost, memory, position = stage_items(space, menu, rules, upper, lower, t, r, y)
    chosen = np.empty(len(first) - 1, np.int64)
    if menu.alike:
        for i in range(len(first) - 1):
            least = np.inf
            for j in range(first[i], first[i + 1]):
                least = min(least, menu.seconds[position[j]])
            for j in range(first[i], first[i + 1]):
                cost[j] = menu.seconds[position[j]] - least
    if rules.exact:
        return knapsack.exact(first, cost, memory, limit, budget, chosen)
    value = knapsack.greedy(first, cost, memory, limit, rules.all_or_none != 0, chosen)
    return value, value


@part
def decide(space, menu, memo, rules, upper, lower, t, r, y, limit, budget):
    """Return 1 when the inner choice stays within the budget, 0 when not, 2 when undecided; remember bounds."""
    pair = np.int64(upper) * len(space.words) + lower
    rest = (np.int64(y) * len(rules.degrees) + t) * (len(rules.replicas) + 1)
    if not menu.alike or rules.sharded:
        rest += r + 1
    # 32-bit halves times 31-bit factors: no step overflows, so that it runs the same uncompiled.
    half = np.int64(0xFFFFFFFF)
    mixed = ((pair & half) * 0x5BD1E995) & half
    mixed = (((mixed ^ (pair >> 32) ^ (mixed >> 15)) * 0x2C1B3C6D) + rest) & half
    mixed = ((mixed ^ (mixed >> 13)) * 0x297A2D39) & half
    at = (mixed ^ (mixed >> 16)) & np.int64(len(memo.pair) - 1)
    known = memo.pair[at] == pair and memo.rest[at] == rest
    if known:
        if budget >= memo.upper[at]:
            return 1
        if budget < memo.lower[at]:
            return 0
    low, high = _bounds(space, menu, memo, rules, upper, lower, t, r, y, limit, budget)
    if known:
        low = max(low, memo.lower[at])
        high = min(high, memo.upper[at])
    memo.pair[at] = pair
    memo.rest[at] = rest
    memo.lower[at] = low
    memo.upper[at] = high
    if budget >= high:
        return 1
    return 0 if budget < low else 2
