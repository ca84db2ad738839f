"""A lower bound for pipelines over graphs too large to search: prices of the places a stage may take, by linear programming.

A pipeline's replicas are numbered from its end: a stage of d replicas behind which s - d stand takes the block of slots
s - d + 1 .. s, and keeps ceil(s / d) micro-batches in flight. A node costs its block time and memory, so with a price on both,
summed up to no more than the slots' prices, the cheapest places of all nodes together cost more than all slots only where no
plan exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.pipeline import blocks as kernel
from meshwright.base.identity import locked
from meshwright.solvers.pipeline import downsets, orders
from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["lower_bound", "nothing_fits"]

MOST_SLOTS, MOST_NODES, MOST_COLUMNS = 128, 20_000, 20_000
"""Larger pipelines and graphs keep the simple bound; programs with more columns are left out, except the first."""

N_PLACES, N_CLASSES = (8, 10, 14), 2
"""Places of nodes told apart in each of the linear programs whose prices are averaged (prices of one program suit its own cells
too well), and classes of bytes held per second."""

N_THRESHOLDS, N_ROUNDS, N_REPLAYS = 2, 3, 6
"""Thresholds for which prices are made, rounds of prices for each, and further thresholds that the same prices are tried on."""

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
        return int(self.cover.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Prices of a block's time and memory (whole), of each slot, and of a device; slots and devices together cost 1."""

    time: Floats
    memory: Floats
    slots: Floats
    device_ratio: float


def lower_bound(menu: StageMenu, lower_seconds: float, upper_seconds: float) -> float:
    """Return a proven lower bound on the slowest stage's time.

    `lower_seconds`: a bound already known.
    `upper_seconds`: the value of a known plan.
    Returns: at least `lower_seconds`.

    Notes
    -----
    A threshold is refuted where the cheapest places of all nodes cost more than all slots. Where they do not, the same prices
    say how many slots the descendants and the ancestors of each node need at least, which narrows where the node may stand, and
    new prices are made. Any prices prove; those used solve the linear program over cells of similar nodes.
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
        prices: list[_Prices] = []
        low, high = (middle, high) if _refuted(case, middle, prices, N_ROUNDS) else (low, middle)
        far = high
        for _ in range(N_REPLAYS):
            middle = math.sqrt(low * far)
            low, far = (middle, far) if _refuted(case, middle, prices, len(prices)) else (low, middle)
    return low


def nothing_fits(menu: StageMenu) -> bool:
    """Return whether prices prove that no plan fits the memory, however slow; false where they do not, or are not made."""
    n_slots = min(menu.n_replicas, menu.n_devices)
    return n_slots <= MOST_SLOTS and menu.n_nodes <= MOST_NODES and _refuted(_case(menu, n_slots), math.inf, [], N_ROUNDS)


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
    blocks = kernel.Blocks(*(locked(np.array(column, kind)) for column, kind in zip(columns, kinds, strict=True)))
    slots = np.arange(1, n_slots + 1)
    cover = ((slots >= blocks.begin[:, None]) & (slots <= blocks.end[:, None])).astype(np.float64)
    devices = ((blocks.end - blocks.begin + 1) * menu.degrees[blocks.degree]).astype(np.float64)
    least = np.asarray(np.minimum.reduceat(menu.seconds, first[:-1]), np.float64)
    below = _reached(n, menu.edge_source, menu.edge_target)
    above = _reached(n, menu.edge_target, menu.edge_source)
    return _Case(menu, locked(first), locked(degree), least, blocks, cover, devices, locked(below), locked(above))


def _reached(n: int, source: Ints, target: Ints) -> NDArray[np.uint64]:
    """Return for each node the nodes reached along edges, itself among them, as bits."""
    first, order = downsets.groups(source, n)
    heads = target[order]
    words = np.zeros((n, (n + 63) // 64), np.uint64)
    every = np.arange(n)
    words[every, every >> 6] = np.uint64(1) << (every & 63).astype(np.uint64)
    for v in reversed(orders.orders(n, source, target)[0]):
        for x in heads[first[v] : first[v + 1]]:
            words[v] |= words[x]
    return words


def _refuted(case: _Case, threshold: float, prices: list[_Prices], n_rounds: int) -> bool:
    """Return whether no plan keeps every stage within a threshold, as far as prices prove it: those given,
    then new ones, added.
    """
    n = case.n_slots
    least, most = _windows(
        case, case.least_seconds / threshold / n, _Prices(np.empty(0), np.empty(0), np.full(n, 1.0 / n), 0.0)
    )
    for turn in range(n_rounds):
        if turn == len(prices):
            fresh = _prices(case, threshold, least, most)
            if fresh is None:
                return False
            prices.append(fresh)
        nodes = kernel.Nodes(
            case.first, case.degree, case.menu.seconds, case.menu.weight_bytes, case.menu.per_microbatch_bytes,
            case.menu.fixed_bytes, locked(least), locked(most),
        )  # fmt: skip
        time_price, byte_price = prices[turn].time / threshold, prices[turn].memory / case.menu.memory_bytes
        cost = kernel.place(nodes, case.blocks, locked(time_price), locked(byte_price))[0]
        total = float(cost.sum())
        if not total <= 1.0 + 1e-9:
            return True
        closer = _windows(case, cost, prices[turn])
        least, most = np.maximum(least, closer[0]), np.minimum(most, closer[1])
    return False


def _windows(case: _Case, cost: Floats, prices: _Prices) -> tuple[Ints, Ints]:
    """Return for each node the slot at or behind which its stage ends, and the one at or before which it begins."""
    n, widest, n_devices = case.n_slots, int(case.menu.degrees.max()), case.menu.n_devices
    spent = np.concatenate(([0.0], np.cumsum(prices.slots)))
    used = np.minimum(n_devices, widest * np.arange(n + 1))
    behind = spent + prices.device_ratio * used
    before = spent[-1] - spent[::-1] + prices.device_ratio * used  # of the first 0, 1, ... slots of the model's input
    least = np.searchsorted(behind, kernel.sums_of_sets(case.below, locked(cost)) * (1.0 - 1e-9))
    most = n + 1 - np.searchsorted(before, kernel.sums_of_sets(case.above, locked(cost)) * (1.0 - 1e-9))
    return np.maximum(least, 1).astype(np.int64), most.astype(np.int64)


def _prices(case: _Case, threshold: float, least: Ints, most: Ints) -> _Prices | None:
    """Return prices from linear programs over cells of nodes: the fewest slots that hold all, each to the same share."""
    found: list[_Prices] = []
    for n_places in N_PLACES:
        cells = _cells(case, least + most, min(n_places, case.menu.n_nodes))
        columns = _columns(case, cells, least, most)
        if columns is None or (found and len(columns[0]) > MOST_COLUMNS):
            break
        dual = _dual(case, threshold, *columns)
        if dual is not None:
            found.append(_balanced(case, dual))
    if not found:
        return None
    time, memory, slots = (np.mean([getattr(prices, name) for prices in found], axis=0) for name in ("time", "memory", "slots"))
    return _Prices(time, memory, slots, float(np.mean([prices.device_ratio for prices in found])))


def _dual(case: _Case, threshold: float, cell: Ints, block: Ints, seconds: Floats, held: Floats) -> Floats | None:
    """Return the prices of the linear program's rows: time and memory of every block, every slot, and all devices."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n_blocks, n_slots = case.cover.shape
    n_cells, n_columns = int(cell.max()) + 1, len(cell)
    every, own = np.arange(n_blocks), n_columns + np.arange(n_blocks)
    covering, slot = np.nonzero(case.cover)
    last, share = 2 * n_blocks + n_slots, n_columns + n_blocks
    parts = [
        (block, np.arange(n_columns), seconds / threshold),
        (n_blocks + block, np.arange(n_columns), held / case.menu.memory_bytes),
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
    # The simplex method ends in a corner; the interior-point method's prices are as good for cells and worse for nodes.
    solved = linprog(objective, A_ub=upper, b_ub=np.zeros(last + 1), A_eq=whole, b_eq=np.ones(n_cells), method="highs-ds")
    return np.maximum(-solved.ineqlin.marginals, 0.0) if solved.status == 0 else None


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


def _columns(case: _Case, cells: Ints, least: Ints, most: Ints) -> tuple[Ints, Ints, Floats, Floats] | None:
    """Return where each cell may stand: cell, block, seconds and bytes there, by rank of the choice;
    None if one stands nowhere.
    """
    menu, n_cells = case.menu, int(cells.max()) + 1
    low, high = np.full(n_cells, np.iinfo(np.int64).max), np.full(n_cells, -1)
    np.minimum.at(low, cells, least)
    np.maximum.at(high, cells, most)
    cell, block = np.nonzero((case.blocks.end >= low[:, None]) & (case.blocks.begin <= high[:, None]))
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
    c, j, seconds, held = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return (c, j, seconds, held) if len(np.unique(c)) == n_cells else None


def _cells(case: _Case, middle: Ints, n_places: int) -> Ints:
    """Return a cell for every node: those that may stand in about the same places, divided by how much they hold per second."""
    n = case.menu.n_nodes
    rank = np.empty(n, np.int64)
    rank[np.argsort(middle, kind="stable")] = np.arange(n)
    place = rank * n_places // n
    held = np.minimum.reduceat(case.menu.per_microbatch_bytes, case.first[:-1]) / np.maximum(case.least_seconds, 1e-300)
    order = np.lexsort((held, place))
    sizes = np.bincount(place, minlength=n_places)
    within = np.empty(n, np.int64)
    within[order] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    _, cells = np.unique(place * N_CLASSES + within * N_CLASSES // sizes[place], return_inverse=True)
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
