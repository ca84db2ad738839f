"""A lower bound for pipelines over graphs too large to search: prices of the blocks a stage may take, and fewer nodes.

A pipeline's replicas are numbered from its end: a stage of d replicas behind which s - d stand takes the block of slots s - d
+ 1 .. s, and keeps ceil(s / d) micro-batches in flight.

**Prices.** Give every block a price for its whole time and one for its whole memory that together are no more than the prices
of its slots and devices, and let all slots and devices cost 1. In a plan that keeps a threshold the nodes of a stage, with the
tensors over its borders, take no more than its block's time and memory; so all nodes together pay at most the price of the
blocks used, which is at most 1, for blocks of one plan share no slot. Where they pay more than 1 at their cheapest, no plan
keeps the threshold.

**Paths.** Let every node be on one path of the graph. Along a path a plan's stages come one behind the other, so the path's
nodes lie in a row of blocks, each beginning behind the end of the next; and where two neighbours joined by an edge lie in
different blocks, its tensor is paid in both. What a path pays at its cheapest is found by a table over nodes and blocks, and
no plan's path pays less. An edge is on one path at most, and so is a tensor, so none is paid twice.

**Windows.** If v's stage ends at slot s, all that v reaches lies in blocks within the slots 1 .. s, and pays at most their
price. Of each path, what v reaches is an end; so its cheapest ends say which slots s are too few, and its cheapest beginnings
the same of all that reaches v. Narrower windows make paths pay more, and so on.

**Fewer nodes.** Leave out nodes of a plan, and stages that become empty: no stage takes longer or holds more, none has more
replicas behind it. So what is best for some of the nodes, in the order in which the graph has them, bounds what is best for
all; and where few enough are left, that is found by trying all downsets.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.pipeline import blocks as kernel
from meshwright.base.identity import locked
from meshwright.solvers.pipeline import menu as stage_menu
from meshwright.solvers.pipeline.bounds import path_cover
from meshwright.solvers.pipeline.bounds.block_prices import BlockPrices, PricedCase, nodes_of, paid, program, sharpened
from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["lower_bound", "nothing_fits"]

MOST_SLOTS, MOST_NODES = 128, 20_000
"""Larger pipelines and graphs keep the simple bound."""

MOST_CELLS = 12_000_000
"""Nodes of a path times blocks; longer paths are cut."""

N_GROUPS = 8
"""Groups of paths that are told apart where prices are repaired."""

N_STEPS, N_ROUNDS, N_REPLAYS = 4, 3, 6
"""Thresholds for which prices are made, rounds of windows for each, and further thresholds on which they are tried."""

STEP_RATIO = 1.03
"""How far beyond what is proven prices are made next."""

GOOD_RATIO = 1.01
"""Distance of plan and bound at which it is not worth going on."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def lower_bound(menu: StageMenu, lower_seconds: float, upper_seconds: float) -> float:
    """Return a proven lower bound on the slowest stage's time.

    `lower_seconds`: a bound already known.
    `upper_seconds`: the value of a known plan.
    Returns: at least `lower_seconds`.
    """
    n_slots = min(menu.n_replicas, menu.n_devices)
    if n_slots > MOST_SLOTS or menu.n_nodes > MOST_NODES or upper_seconds <= lower_seconds * GOOD_RATIO:
        return lower_seconds
    case = _Windowed(menu, n_slots)
    low, high = lower_seconds, upper_seconds
    middle = math.sqrt(low * high)
    prices: BlockPrices | None = None
    for _ in range(N_STEPS):
        windows = case.windows(middle) if prices is None else case.narrowed(middle, prices)
        fresh = program(case.case, middle, *windows) if windows is not None else None
        if windows is not None:
            prices = _better(case, middle, windows, prices, fresh)
            if prices is None:
                break
            prices = sharpened(case.case, middle, prices, nodes_of(case.case, *windows))
        assert prices is not None
        low, high = (middle, high) if case.narrowed(middle, prices) is None else (low, middle)
        far = high
        for _ in range(N_REPLAYS):
            between = math.sqrt(low * far)
            low, far = (between, far) if case.narrowed(between, prices) is None else (low, between)
        if high <= low * GOOD_RATIO:
            break
        middle = min(low * STEP_RATIO, math.sqrt(low * high))
    return low


def _better(case: _Windowed, threshold: float, windows: tuple[Ints, Ints], *some: BlockPrices | None) -> BlockPrices | None:
    """Return the prices at which paths pay most."""
    nodes = nodes_of(case.case, *windows)
    given = [prices for prices in some if prices is not None]
    return max(given, key=lambda prices: float(paid(case.case, threshold, prices, nodes)[0].sum()), default=None)


def nothing_fits(menu: StageMenu) -> bool:
    """Return whether prices prove that no plan fits the memory, however slow; false where they do not, or are not made."""
    n_slots = min(menu.n_replicas, menu.n_devices)
    if n_slots > MOST_SLOTS or menu.n_nodes > MOST_NODES:
        return False
    case = _Windowed(menu, n_slots)
    windows: tuple[Ints, Ints] | None = case.windows(math.inf)
    for _ in range(N_ROUNDS):
        assert windows is not None
        prices = program(case.case, math.inf, *windows)
        if prices is None:
            return False
        prices = sharpened(case.case, math.inf, prices, nodes_of(case.case, *windows))
        windows = case.narrowed(math.inf, prices)
        if windows is None:
            return True
    return False


class _Windowed:
    """The instance, and where its nodes may stand at a threshold and prices."""

    def __init__(self, menu: StageMenu, n_slots: int) -> None:
        n, source, target = menu.n_nodes, menu.edge_source, menu.edge_target
        self._below, self._above = locked(path_cover.reached(n, source, target)), locked(path_cover.reached(n, target, source))
        behind, before = path_cover.depths(n, source, target), path_cover.depths(n, target, source)
        sizes = np.diff(menu.first).reshape(n, menu.n_degrees)
        first = np.concatenate(([0], np.cumsum(sizes.sum(axis=1)))).astype(np.int64)
        degree = np.repeat(np.tile(np.arange(menu.n_degrees), n), sizes.ravel()).astype(np.int64)
        blocks, room = _blocks(menu, n_slots)
        slots = np.arange(1, n_slots + 1)
        cover = ((slots >= blocks.begin[:, None]) & (slots <= blocks.end[:, None])).astype(np.float64)
        devices = ((blocks.end - blocks.begin + 1) * menu.degrees[blocks.degree]).astype(np.float64)
        every = path_cover.paths(n, source, target, self._below, max(1, MOST_CELLS // max(len(blocks.begin), 1)))
        self._least_seconds = np.asarray(np.minimum.reduceat(menu.seconds, first[:-1]), np.float64)
        held = np.minimum.reduceat(menu.per_microbatch_bytes, first[:-1]) / np.maximum(self._least_seconds, 1e-300)
        # Of nodes that are equally far from the output those that hold most lie nearest to it, where less is in flight.
        place = np.empty(n)
        place[np.lexsort((-held, (behind + 0.5) / (behind + before + 1.0)))] = np.arange(n)
        self.case = PricedCase(
            menu, locked(first), locked(degree), blocks, cover, devices, room, _priced_paths(menu, every), place
        )

    def windows(self, threshold: float) -> tuple[Ints, Ints]:
        """Return where nodes may stand if a slot holds what takes a threshold."""
        n = self.case.n_slots
        alone = locked(self._least_seconds / threshold / n)
        return self._windows(alone, alone, BlockPrices(np.empty(0), np.empty(0), np.full(n, 1.0 / n), 0.0))

    def narrowed(self, threshold: float, prices: BlockPrices) -> tuple[Ints, Ints] | None:
        """Return where nodes may stand at prices; None where no plan keeps the threshold."""
        case, paths = self.case, self.case.paths
        least, most = self.windows(threshold)
        for _ in range(N_ROUNDS):
            nodes = nodes_of(case, least, most)
            cost, ahead, _, _ = paid(case, threshold, prices, nodes)
            if not float(cost.sum()) <= 1.0 + 1e-9:
                return None
            mirrored, turned = _mirrored(case, nodes, prices)
            behind = paid(mirrored, threshold, prices, turned)[1]
            # Of a path's ends the sum of these differences is what the longest of them costs.
            after, before = behind.copy(), ahead.copy()
            inner = np.ones(len(paths.order), np.bool_)
            inner[paths.start[:-1]] = False
            at = np.flatnonzero(inner)
            after[paths.order[at - 1]] -= behind[paths.order[at]]
            before[paths.order[at]] -= ahead[paths.order[at - 1]]
            closer = self._windows(locked(after), locked(before), prices)
            narrower = np.maximum(least, closer[0]), np.minimum(most, closer[1])
            if np.array_equal(narrower[0], least) and np.array_equal(narrower[1], most):
                break
            least, most = narrower
        return least, most

    def _windows(self, after: Floats, before: Floats, prices: BlockPrices) -> tuple[Ints, Ints]:
        """Return for each node the slot at or behind which its stage ends, and the one at or before which it begins."""
        menu, n = self.case.menu, self.case.n_slots
        spent = np.concatenate(([0.0], np.cumsum(prices.slots)))
        used = prices.device_ratio * np.minimum(menu.n_devices, int(menu.degrees.max()) * np.arange(n + 1))
        last = spent + used
        first = spent[-1] - spent[::-1] + used  # of the first 0, 1, ... slots of the model's input
        least = np.searchsorted(last, kernel.sums_of_sets(self._below, after) * (1.0 - 1e-9) - 1e-12)
        most = n + 1 - np.searchsorted(first, kernel.sums_of_sets(self._above, before) * (1.0 - 1e-9) - 1e-12)
        return np.maximum(least, 1).astype(np.int64), most.astype(np.int64)


def _blocks(menu: StageMenu, n_slots: int) -> tuple[kernel.Blocks, Floats]:
    """Return the places that a stage may take, and the bytes that its nodes may hold there."""
    border = np.ones((menu.n_degrees, len(menu.replicas))) if menu.border_ratio is None else menu.border_ratio
    reserve = np.zeros(menu.n_degrees) if menu.reserve_bytes is None else menu.reserve_bytes
    rows = [
        (
            end - d + 1, end, t, menu.share[r], menu.reduce_seconds[t, r], menu.sharded * (1.0 - 1.0 / d), -(-end // d),
            menu.share[r] * border[t, r], menu.memory_bytes - reserve[t],
        )
        for end in range(1, n_slots + 1)
        for r, d in enumerate(menu.replicas.tolist())
        for t in range(menu.n_degrees)
        if d <= end and d * menu.degrees[t] <= menu.n_devices and reserve[t] < menu.memory_bytes
    ]  # fmt: skip
    columns = np.array(rows, np.float64).reshape(len(rows), 9).T
    kinds = [np.int64] * 3 + [np.float64] * 6
    *parts, room = (locked(np.ascontiguousarray(column, kind)) for column, kind in zip(columns, kinds, strict=True))
    return kernel.Blocks(*parts), room


def _priced_paths(menu: StageMenu, every: tuple[tuple[int, ...], ...]) -> kernel.NodePaths:
    """Return paths with the tensors on them, in groups of about as many nodes."""
    crossing = stage_menu.crossing(menu)
    at = {pair: e for e, pair in enumerate(zip(crossing.source.tolist(), crossing.target.tolist(), strict=True))}
    order = np.array([v for path in every for v in path], np.int64)
    start = np.concatenate(([0], np.cumsum([len(path) for path in every]))).astype(np.int64)
    into, out_of = np.zeros((len(order), menu.n_degrees)), np.zeros((len(order), menu.n_degrees))
    for i in range(1, len(order)):
        e = at.get((int(order[i - 1]), int(order[i])))
        if e is not None:
            into[i], out_of[i] = crossing.into[e], crossing.out_of[e]
    into[start[:-1]] = out_of[start[:-1]] = 0.0
    group = np.minimum(start[:-1] * N_GROUPS // max(len(order), 1), N_GROUPS - 1)
    _, group = np.unique(group, return_inverse=True)
    arrays = (order, start, group.astype(np.int64), into, out_of)
    return kernel.NodePaths(*(locked(array) for array in arrays))


def _mirrored(case: PricedCase, nodes: kernel.Nodes, prices: BlockPrices) -> tuple[PricedCase, kernel.Nodes]:
    """Return the instance from its output on: the same blocks in the same order of rows, slots counted from the other end."""
    n, b, paths = case.n_slots, case.blocks, case.paths
    into, out_of = np.zeros_like(paths.into), np.zeros_like(paths.out_of)
    into[1:], out_of[1:] = paths.out_of[:0:-1], paths.into[:0:-1]
    turned = kernel.NodePaths(
        locked(paths.order[::-1].copy()), locked(paths.start[-1] - paths.start[::-1]), locked(paths.group[::-1].copy()),
        locked(into), locked(out_of),
    )  # fmt: skip
    blocks = b._replace(begin=locked(n + 1 - b.end), end=locked(n + 1 - b.begin))
    window = nodes._replace(least=locked(n + 1 - nodes.most), most=locked(n + 1 - nodes.least))
    return replace(case, blocks=blocks, paths=turned), window
