"""A lower bound for pipelines over graphs too large to search: prices of the places a stage may take, by linear programming.

A pipeline's replicas are numbered from its end: a stage of d replicas behind which s - d stand takes the block of slots
s - d + 1 .. s, and keeps ceil(s / d) micro-batches in flight. A node costs its block time and memory, so with a price on both, summed up
to no more than the slots' prices, the cheapest places of all nodes together cost more than all slots only where no plan exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels import stage_blocks as kernel
from meshwright.solvers import downsets, stage_orders
from meshwright.solvers.stage_menu import StageMenu

__all__ = ["lower_bound"]

MOST_SLOTS, MOST_NODES, MOST_COLUMNS = 128, 20_000, 30_000
"""Larger pipelines and graphs keep the simple bound; larger programs are made of fewer cells of nodes."""

N_THRESHOLDS, N_ROUNDS = 6, 4
"""Thresholds tried, and rounds of prices for each."""

GOOD_RATIO = 1.01
"""Distance of plan and bound at which it is not worth going on."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """The instance: choices by node, blocks with their slots (rows of `cover`), descendants and ancestors of nodes as bits."""

    menu: StageMenu
    first: Ints
    degree: Ints
    least_seconds: Floats
    blocks: kernel.Blocks
    cover: NDArray[np.float64]
    devices: Floats
    below: NDArray[np.uint64]
    above: NDArray[np.uint64]

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return self.cover.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Prices of a block's time and memory (whole), of each slot, and of a device; slots and devices together cost 1."""

    time: Floats
    memory: Floats
    slots: Floats
    device_ratio: float


def lower_bound(menu: StageMenu, lower_seconds: float, upper_seconds: float) -> float:
    """Return a proven lower bound on the slowest stage's time.

    Parameters
    ----------
    menu : StageMenu
        The instance.
    lower_seconds : float
        A bound already known.
    upper_seconds : float
        The value of a known plan.

    Returns
    -------
    float
        At least `lower_seconds`.

    Notes
    -----
    A threshold is refuted where the cheapest places of all nodes cost more than all slots. Where they do not, the same prices say
    how many slots the descendants and the ancestors of each node need at least, which narrows where the node may stand, and new
    prices are made. Any prices prove; those used solve the linear program over cells of similar nodes.
    """
    n_slots = min(menu.n_replicas, menu.n_devices)
    if n_slots > MOST_SLOTS or menu.n_nodes > MOST_NODES or upper_seconds <= lower_seconds * GOOD_RATIO:
        return lower_seconds
    case = _case(menu, n_slots)
    low, high = lower_seconds, upper_seconds
    for _ in range(N_THRESHOLDS):
        if high <= low * GOOD_RATIO:
            break
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _refuted(case, middle) else (low, middle)
    return low


def _case(menu: StageMenu, n_slots: int) -> _Case:
    """Return the instance in the kernel's form."""
    n = menu.n_nodes
    sizes = np.diff(menu.first).reshape(n, menu.n_degrees)
    first = np.concatenate(([0], np.cumsum(sizes.sum(axis=1)))).astype(np.int64)
    degree = np.repeat(np.tile(np.arange(menu.n_degrees), n), sizes.ravel()).astype(np.int64)
    rows = [
        (end - d + 1, end, t, menu.share[r], menu.reduce_seconds[t, r], menu.sharded * (1.0 - 1.0 / d), -(-end // d))
        for end in range(1, n_slots + 1)
        for r, d in enumerate(menu.replicas.tolist())
        for t in range(menu.n_degrees)
        if d <= end and d * menu.degrees[t] <= menu.n_devices
    ]
    columns = list(zip(*rows, strict=True))
    kinds = [np.int64] * 3 + [np.float64] * 4
    blocks = kernel.Blocks(*(_frozen(np.array(column, kind)) for column, kind in zip(columns, kinds, strict=True)))
    slots = np.arange(1, n_slots + 1)
    cover = ((slots >= blocks.begin[:, None]) & (slots <= blocks.end[:, None])).astype(np.float64)
    devices = ((blocks.end - blocks.begin + 1) * menu.degrees[blocks.degree]).astype(np.float64)
    least = np.asarray(np.minimum.reduceat(menu.seconds, first[:-1]), np.float64)
    below = _reached(n, menu.edge_source, menu.edge_target)
    above = _reached(n, menu.edge_target, menu.edge_source)
    return _Case(menu, _frozen(first), _frozen(degree), least, blocks, cover, devices, below, above)


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def _reached(n: int, source: Ints, target: Ints) -> NDArray[np.uint64]:
    """Return for each node the nodes reached along edges, itself among them, as bits."""
    first, order = downsets.groups(source, n)
    heads = target[order]
    words = np.zeros((n, (n + 63) // 64), np.uint64)
    every = np.arange(n)
    words[every, every >> 6] = np.uint64(1) << (every & 63).astype(np.uint64)
    for v in reversed(stage_orders.orders(n, source, target)[0]):
        for x in heads[first[v] : first[v + 1]]:
            words[v] |= words[x]
    return words


def _sums(words: NDArray[np.uint64], value: Floats) -> Floats:
    """Return the sum of values over the nodes of each row."""
    n = len(value)
    blocks = [downsets.members(words[at : at + 1024], n) @ value for at in range(0, n, 1024)]
    return np.concatenate(blocks)


def _refuted(case: _Case, threshold: float) -> bool:
    """Return whether no plan keeps every stage within a threshold, as far as can be proved."""
    n = case.n_slots
    least, most = _windows(
        case, case.least_seconds / threshold / n, _Prices(np.empty(0), np.empty(0), np.full(n, 1.0 / n), 0.0)
    )
    for _ in range(N_ROUNDS):
        prices = _prices(case, threshold, least, most)
        if prices is None:
            return False
        nodes = kernel.Nodes(
            case.first, case.degree, case.menu.seconds, case.menu.weight_bytes, case.menu.per_microbatch_bytes,
            case.menu.fixed_bytes, _frozen(least), _frozen(most),
        )  # fmt: skip
        time_price, byte_price = prices.time / threshold, prices.memory / case.menu.memory_bytes
        cost = kernel.place(nodes, case.blocks, _frozen(time_price), _frozen(byte_price))[0]
        if not float(cost.sum()) <= 1.0 + 1e-9:
            return True
        closer = _windows(case, cost, prices)
        closer = np.maximum(least, closer[0]), np.minimum(most, closer[1])
        if np.array_equal(closer[0], least) and np.array_equal(closer[1], most):
            return False
        least, most = closer
    return False


def _windows(case: _Case, cost: Floats, prices: _Prices) -> tuple[Ints, Ints]:
    """Return for each node the slot at or behind which its stage ends, and the one at or before which it begins."""
    n, widest, n_devices = case.n_slots, int(case.menu.degrees.max()), case.menu.n_devices
    spent = np.concatenate(([0.0], np.cumsum(prices.slots)))
    used = np.minimum(n_devices, widest * np.arange(n + 1))
    behind = spent + prices.device_ratio * used
    before = spent[-1] - spent[::-1] + prices.device_ratio * used  # of the first 0, 1, ... slots of the model's input
    least = np.searchsorted(behind, _sums(case.below, cost) * (1.0 - 1e-9))
    most = n + 1 - np.searchsorted(before, _sums(case.above, cost) * (1.0 - 1e-9))
    return np.maximum(least, 1).astype(np.int64), most.astype(np.int64)


def _prices(case: _Case, threshold: float, least: Ints, most: Ints) -> _Prices | None:
    """Return prices from the linear program over cells of nodes: the fewest slots that hold all, each to the same share."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    cells, columns = _columns(case, least, most)
    if not columns:
        return None
    n_blocks, n_slots = case.cover.shape
    cell, block, seconds, held = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    n_cells, n_columns = int(cells.max()) + 1, len(cell)
    every, own = np.arange(n_blocks), n_columns + np.arange(n_blocks)
    covering, slot = np.nonzero(case.cover)
    last, share = 2 * n_blocks + n_slots, n_columns + n_blocks
    parts = [
        (block, np.arange(n_columns), seconds / threshold), (n_blocks + block, np.arange(n_columns), held / case.menu.memory_bytes),
        (every, own, -np.ones(n_blocks)), (n_blocks + every, own, -np.ones(n_blocks)),
        (2 * n_blocks + slot, own[covering], np.ones(len(slot))), (np.full(n_blocks, last), own, case.devices),
        (2 * n_blocks + np.arange(n_slots), np.full(n_slots, share), -np.ones(n_slots)),
        (np.array([last]), np.array([share]), np.array([-float(case.menu.n_devices)])),
    ]  # fmt: skip
    row, column, value = (np.concatenate(some) for some in zip(*parts, strict=True))
    upper = coo_array((value, (row, column)), shape=(last + 1, share + 1)).tocsr()
    whole = coo_array((np.ones(n_columns), (cell, np.arange(n_columns))), shape=(n_cells, share + 1)).tocsr()
    objective = np.zeros(share + 1)
    objective[-1] = 1.0
    solved = linprog(objective, A_ub=upper, b_ub=np.zeros(last + 1), A_eq=whole, b_eq=np.ones(n_cells), method="highs")
    if solved.status != 0:
        return None
    return _balanced(case, np.maximum(-solved.ineqlin.marginals, 0.0))


def _balanced(case: _Case, dual: Floats) -> _Prices:
    """Return prices that keep the rules whatever the solver's tolerance: a block costs what its slots and devices do."""
    n_blocks, n_slots = case.cover.shape
    slots, device = dual[2 * n_blocks : 2 * n_blocks + n_slots], float(dual[-1])
    total = float(slots.sum()) + device * case.menu.n_devices
    slots, device = slots / total, device / total
    price = case.cover @ slots + device * case.devices
    both = dual[:n_blocks] + dual[n_blocks : 2 * n_blocks]
    memory_ratio = np.divide(dual[n_blocks : 2 * n_blocks], both, out=np.full(n_blocks, 0.5), where=both > 0.0)
    return _Prices(price * (1.0 - memory_ratio), price * memory_ratio, slots, device)


def _columns(case: _Case, least: Ints, most: Ints) -> tuple[Ints, list[tuple[Ints, Ints, Floats, Floats]]]:
    """Return the cell of each node, and where each cell may stand: cell, block, seconds and bytes there, by rank of the choice."""
    menu, n = case.menu, case.menu.n_nodes
    for n_positions, n_classes in ((40, 3), (30, 2), (20, 2), (20, 1), (10, 1)):
        cells = _cells(case, least + most, min(n_positions, n), n_classes)
        n_cells = int(cells.max()) + 1
        low, high = np.full(n_cells, np.iinfo(np.int64).max), np.full(n_cells, -1)
        np.minimum.at(low, cells, least)
        np.maximum.at(high, cells, most)
        cell, block = np.nonzero((case.blocks.end >= low[:, None]) & (case.blocks.begin <= high[:, None]))
        if len(cell) <= MOST_COLUMNS:
            break
    columns = []
    for rank in range(int(np.diff(menu.first).max())):
        sums, whole = _cell_sums(menu, cells, n_cells, rank)
        t = case.blocks.degree[block]
        good = whole[cell, t]
        c, j, t = cell[good], block[good], t[good]
        seconds, weight, activation, fixed = (table[c, t] for table in sums)
        columns.append((
            c, j, seconds * case.blocks.share[j] + weight * case.blocks.reduce[j],
            activation * case.blocks.in_flight[j] + fixed - weight * case.blocks.spared[j],
        ))  # fmt: skip
    reached = np.unique(np.concatenate([column[0] for column in columns]))
    return cells, columns if len(reached) == n_cells else []


def _cells(case: _Case, middle: Ints, n_positions: int, n_classes: int) -> Ints:
    """Return a cell for every node: those that may stand in the same places, divided by how much they hold per second."""
    n = case.menu.n_nodes
    rank = np.empty(n, np.int64)
    rank[np.argsort(middle, kind="stable")] = np.arange(n)
    position = rank * n_positions // n
    held = np.minimum.reduceat(case.menu.per_microbatch_bytes, case.first[:-1]) / np.maximum(case.least_seconds, 1e-300)
    order = np.lexsort((held, position))
    within = np.empty(n, np.int64)
    sizes = np.bincount(position, minlength=n_positions)
    within[order] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    _, cells = np.unique(position * n_classes + within * n_classes // sizes[position], return_inverse=True)
    return np.asarray(cells, np.int64)


def _cell_sums(menu: StageMenu, cells: Ints, n_cells: int, rank: int) -> tuple[list[Floats], NDArray[np.bool_]]:
    """Return by cell and degree the sums of seconds and bytes of the nodes' choices of this rank (their last, where fewer)."""
    tables = (menu.seconds, menu.weight_bytes, menu.per_microbatch_bytes, menu.fixed_bytes)
    sums = [np.zeros((n_cells, menu.n_degrees)) for _ in tables]
    whole = np.zeros((n_cells, menu.n_degrees), np.bool_)
    nodes = np.arange(menu.n_nodes) * menu.n_degrees
    for t in range(menu.n_degrees):
        begin, end = menu.first[nodes + t], menu.first[nodes + t + 1]
        there = begin < end
        at = np.where(there, np.minimum(begin + rank, end - 1), 0)
        for table, total in zip(tables, sums, strict=True):
            total[:, t] = np.bincount(cells, table[at] * there, minlength=n_cells)
        whole[:, t] = np.bincount(cells, ~there, minlength=n_cells) == 0
    return sums, whole
