"""Prices of the blocks that stages may take, for the bound of graphs too large to search: linear programs and their repair.

Prices only have to be made well: whatever they are, the bound that is drawn from them (`by_prices`) holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.pipeline import blocks as kernel
from meshwright.base.identity import locked
from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["BlockPrices", "PricedCase", "nodes_of", "paid", "program", "sharpened"]

N_PLACES, MOST_COLUMNS = 10, 12_000
"""Places along the graph that are told apart in the linear program, fewer where it would have more columns."""

MEMORY_RATIOS = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)
"""Weights of memory against time by which the choices of a column are picked: corners of what the nodes of a place may take."""

MOST_TURNS, FEWEST_TURNS, TURNS_BLOCKS, N_KEPT = 50, 8, 30_000, 25
"""Steps in which prices are repaired, fewer where blocks are many; and steps whose cuts are kept."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PricedCase:
    """The instance: choices by node, blocks with their slots (rows of `cover`), devices and room for bytes, paths, and where
    along the graph nodes lie (`place`, from the output on).
    """

    menu: StageMenu
    first: Ints
    degree: Ints
    blocks: kernel.Blocks
    cover: Floats
    devices: Floats
    room_bytes: Floats
    paths: kernel.NodePaths
    place: Floats

    @property
    def n_slots(self) -> int:
        """Number of slots."""
        return int(self.cover.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class BlockPrices:
    """Prices of a block's time and memory (whole), of each slot, and of a device; slots and devices together cost 1."""

    time: Floats
    memory: Floats
    slots: Floats
    device_ratio: float


def nodes_of(case: PricedCase, least: Ints, most: Ints) -> kernel.Nodes:
    """Return the choices with the slots at or behind which each node's stage ends, and at or before which it begins."""
    menu = case.menu
    return kernel.Nodes(
        case.first, case.degree, menu.seconds, menu.weight_bytes, menu.per_microbatch_bytes, menu.fixed_bytes,
        locked(least), locked(most),
    )  # fmt: skip


def paid(case: PricedCase, threshold: float, prices: BlockPrices, nodes: kernel.Nodes) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what paths pay at their cheapest (`kernel.run`), with what they take as shares of the blocks' time and room."""
    time, byte = locked(prices.time / threshold), locked(prices.memory / case.room_bytes)
    cost, ahead, seconds, held = kernel.run(nodes, case.blocks, case.paths, time, byte)
    return cost, ahead, seconds / threshold, held / case.room_bytes


def balanced(case: PricedCase, time: Floats, memory: Floats, slots: Floats, device: float) -> BlockPrices:
    """Return prices that keep the rules whatever a solver's tolerance: a block costs what its slots and devices do."""
    slots, device = np.maximum(slots, 0.0), max(device, 0.0)
    total = float(slots.sum()) + device * case.menu.n_devices
    slots, device = slots / total, device / total
    price = case.cover @ slots + device * case.devices
    both = time + memory
    memory_ratio = np.divide(memory, both, out=np.full(len(both), 0.5), where=both > 0.0)
    return BlockPrices(price * (1.0 - memory_ratio), price * memory_ratio, slots, device)


def program(case: PricedCase, threshold: float, least: Ints, most: Ints) -> BlockPrices | None:
    """Return prices of the linear program over places along the graph; None where it has no solution.

    Notes
    -----
    Fractions of the nodes of a place lie in blocks, fractions of which are used; what is to be least is the share of all slots
    and devices. A place has no more behind a slot than the one that follows it, as on paths.
    """
    n_places = min(N_PLACES, case.menu.n_nodes)
    columns = _columns(case, _places(case, n_places), threshold, least, most)
    while len(columns[0]) > MOST_COLUMNS and n_places > 2:
        n_places = max(2, n_places * 2 // 3)
        columns = _columns(case, _places(case, n_places), threshold, least, most)
    return _solved(case, n_places, *columns)


def _places(case: PricedCase, n_places: int) -> Ints:
    """Return for each node its place: as many nodes in each, from the output on."""
    n = case.menu.n_nodes
    rank = np.empty(n, np.int64)
    rank[np.argsort(case.place, kind="stable")] = np.arange(n)
    return rank * n_places // n


def _columns(case: PricedCase, places: Ints, threshold: float, least: Ints, most: Ints) -> tuple[Ints, Ints, Floats, Floats]:
    """Return where each place's nodes may lie: place, block, and shares of its time and room at picked choices."""
    menu, n_places = case.menu, int(places.max()) + 1
    low, high = np.full(n_places, np.iinfo(np.int64).max), np.full(n_places, -1)
    np.minimum.at(low, places, least)
    np.maximum.at(high, places, most)
    place, block = np.nonzero((case.blocks.end >= low[:, None]) & (case.blocks.begin <= high[:, None]))
    b = case.blocks
    kinds, kind = np.unique(
        np.stack([b.degree, b.share, b.reduce, b.spared, b.in_flight, case.room_bytes], 1), axis=0, return_inverse=True
    )
    starts, of = case.first[:-1], np.repeat(np.arange(menu.n_nodes), np.diff(case.first))
    time = np.full((len(MEMORY_RATIOS), n_places, len(kinds)), np.inf)
    held = time.copy()
    for q, (degree, share, reduce, spared, in_flight, room) in enumerate(kinds):
        there = case.degree == degree
        seconds = (menu.seconds * share + menu.weight_bytes * reduce) / threshold
        size = (menu.per_microbatch_bytes * in_flight + menu.fixed_bytes - menu.weight_bytes * spared) / room
        for i, ratio in enumerate(MEMORY_RATIOS):
            value = np.where(there, (1.0 - ratio) * seconds + ratio * size, np.inf)
            hit = np.flatnonzero(value == np.minimum.reduceat(value, starts)[of])
            picked = hit[np.searchsorted(of[hit], np.arange(menu.n_nodes))]
            whole = np.bincount(places, ~there[picked], minlength=n_places) == 0
            time[i, whole, q] = np.bincount(places, seconds[picked], minlength=n_places)[whole]
            held[i, whole, q] = np.bincount(places, size[picked], minlength=n_places)[whole]
    parts = []
    for i in range(len(MEMORY_RATIOS)):
        t, h = time[i, place, kind[block]], held[i, place, kind[block]]
        good = np.isfinite(t)
        if i:
            good &= (time[i - 1, place, kind[block]] != t) | (held[i - 1, place, kind[block]] != h)
        parts.append((place[good], block[good], t[good], h[good]))
    places_, blocks_, times_, held_ = (np.concatenate(some) for some in zip(*parts, strict=True))
    return places_, blocks_, times_, held_


def _solved(case: PricedCase, n_places: int, place: Ints, block: Ints, time: Floats, held: Floats) -> BlockPrices | None:
    """Return the prices of the program's rows: time and memory of every block, every slot, and all devices."""
    from scipy.optimize import linprog

    n_blocks, n = case.cover.shape
    n_columns, every = len(place), np.arange(n_blocks)
    own, share, reach = n_columns + every, n_columns + n_blocks, n_columns + n_blocks + 1  # blocks used, all, place up to slot
    covering, slot = np.nonzero(case.cover)
    last, slots = 2 * n_blocks + n, np.arange(n)
    after, up_to = np.divmod(np.arange((n_places - 1) * n), n)
    upper = _matrix(
        [
            (block, np.arange(n_columns), time), (n_blocks + block, np.arange(n_columns), held),
            (every, own, -np.ones(n_blocks)), (n_blocks + every, own, -np.ones(n_blocks)),
            (2 * n_blocks + slot, own[covering], np.ones(len(slot))), (np.full(n_blocks, last), own, case.devices),
            (2 * n_blocks + slots, np.full(n, share), -np.ones(n)),
            (np.array([last]), np.array([share]), np.array([-float(case.menu.n_devices)])),
            (last + 1 + after * n + up_to, reach + after * n + up_to, -np.ones(len(after))),
            (last + 1 + after * n + up_to, reach + (after + 1) * n + up_to, np.ones(len(after))),
        ],
        (last + 1 + len(after), reach + n_places * n),
    )  # fmt: skip
    more = np.arange(n_places * n) % n > 0
    row = n_places + np.arange(n_places * n)
    whole = _matrix(
        [
            (place, np.arange(n_columns), np.ones(n_columns)),
            (n_places + place * n + case.blocks.end[block] - 1, np.arange(n_columns), np.ones(n_columns)),
            (row, reach + np.arange(n_places * n), -np.ones(n_places * n)),
            (row[more], reach + np.arange(n_places * n)[more] - 1, np.ones(int(more.sum()))),
        ],
        (n_places + n_places * n, reach + n_places * n),
    )
    objective = np.zeros(reach + n_places * n)
    objective[share] = 1.0
    needed = np.concatenate([np.ones(n_places), np.zeros(n_places * n)])
    # The simplex method ends in a corner; the interior-point method's prices are as good for places and worse for nodes.
    found = linprog(
        objective, A_ub=upper, b_ub=np.zeros(upper.shape[0]), A_eq=whole, b_eq=needed, method="highs-ds",
    )  # fmt: skip
    if found.status != 0:
        return None
    dual = np.maximum(-found.ineqlin.marginals, 0.0)
    if not dual[2 * n_blocks : last + 1].sum() > 0.0:
        return None
    return balanced(case, dual[:n_blocks], dual[n_blocks : 2 * n_blocks], dual[2 * n_blocks : last], float(dual[last]))


def sharpened(case: PricedCase, threshold: float, prices: BlockPrices, nodes: kernel.Nodes) -> BlockPrices:
    """Return prices at which the paths pay more, or those given.

    Notes
    -----
    What paths pay is a concave function of the prices of blocks, and what they take of each block is its slope: cutting planes,
    within a box around the best prices that grows where a step is one forward.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, identity, vstack

    n_blocks, n = case.cover.shape
    n_prices = 2 * n_blocks + n + 1
    n_groups = int(case.paths.group.max()) + 1
    rules = hstack([identity(n_blocks), identity(n_blocks), -csr_array(case.cover), -csr_array(case.devices[:, None])]).tocsr()
    rules.resize((n_blocks, n_prices + n_groups))
    one = np.zeros((1, n_prices + n_groups))
    one[0, 2 * n_blocks : 2 * n_blocks + n] = 1.0
    one[0, n_prices - 1] = case.menu.n_devices
    objective = np.concatenate([np.zeros(n_prices), -np.ones(n_groups)])
    cuts: list[Floats] = []
    best, most, reach = prices, -np.inf, 0.3
    for _ in range(max(FEWEST_TURNS, min(MOST_TURNS, TURNS_BLOCKS // n_blocks))):
        cost, _, time, held = paid(case, threshold, prices, nodes)
        total = float(cost.sum())
        if total > most:
            best, most, reach = prices, total, min(1.3 * reach, 1.0)
        else:
            reach *= 0.7
        if not most <= 1.0 + 1e-6:
            break
        cuts.append(np.hstack([-time, -held, np.zeros((n_groups, n + 1)), np.identity(n_groups)]))
        cuts = cuts[-N_KEPT:]
        at = np.concatenate([best.time, best.memory, best.slots, [best.device_ratio]])
        low = np.concatenate([np.maximum(at * (1.0 - reach) - 1e-4 * reach, 0.0), np.full(n_groups, -np.inf)])
        high = np.concatenate([at * (1.0 + reach) + 1e-4 * reach, np.full(n_groups, np.inf)])
        upper = vstack([rules, csr_array(np.vstack(cuts))]).tocsr()
        found = linprog(
            objective, A_ub=upper, b_ub=np.zeros(upper.shape[0]), A_eq=one, b_eq=[1.0], bounds=np.stack([low, high], 1),
            method="highs-ds",
        )  # fmt: skip
        if found.status != 0 or -found.fun <= most * (1.0 + 1e-6):
            break
        x = found.x
        prices = balanced(
            case, x[:n_blocks], x[n_blocks : 2 * n_blocks], x[2 * n_blocks : n_prices - 1], float(x[n_prices - 1])
        )
    return best


def _matrix(parts: list[tuple[Ints, Ints, Floats]], shape: tuple[int, int]):  # type: ignore[no-untyped-def]
    """Return a sparse matrix of parts: rows, columns, values."""
    from scipy.sparse import coo_array

    row, column, value = (np.concatenate(some) for some in zip(*parts, strict=True))
    return coo_array((value, (row, column)), shape=shape).tocsr()
