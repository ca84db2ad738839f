"""The best pipeline over a graph with its bound: all downsets where there are few enough, chosen orders where not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.errors import InputError
from meshwright.base.identity import distinct
from meshwright.solvers.pipeline import downsets, drawn_orders, fill, orders
from meshwright.solvers.pipeline.bounds import by_prices, fewer_nodes
from meshwright.solvers.pipeline.floor import least_time
from meshwright.solvers.pipeline.menu import StageMenu
from meshwright.solvers.pipeline.prepared import CLOSE_RATIO, Prepared, prepare
from meshwright.solvers.pipeline.threshold import FoundPipeline, best_label, check, found, minimise

__all__ = ["Solved", "by_stages", "fewest", "fits", "least_memory", "relaxation", "savings", "solve"]

MOST_DOWNSETS = 150_000
"""Downsets up to which all are enumerated."""

DOWNSET_BYTES = 50_000_000
"""Memory for their members, where nodes are many."""

FEW_DOWNSETS = 3_000
"""Downsets up to which no plan along chosen orders is made first."""

PAIR_BYTES = 190_000_000
"""Memory for the list of possible stages."""

MOST_STEPS = 150_000_000
"""Possible stages looked at before the search goes on along chosen orders only."""

MOST_WORK = 4 * 10**9
"""Possible stages times nodes up to which equally good plans are compared over all of them."""

MOST_CUTS = 240
"""Positions along one order where a stage may begin, where not all downsets are searched."""

NO_TIME = "there is a pipeline that takes 0 s, so there is nothing to compare: give layers times above 0"
"""What is told of an instance in which a pipeline takes no time."""

MEMORY_RATIO = 1e-6
"""Relative distance at which the least memory of the fullest device counts as found."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The best pipeline found, or None; a proven lower bound; what proves it; and the instance prepared for more questions.

    `along_orders`: not all downsets were searched. `ties_near`: they were, but more questions go to pipelines cut nearly alike
    only. `complete`: `prepared` has every stage that fits, not only those of pipelines up to the slack slower than the one
    found.
    """

    found: FoundPipeline | None
    lower_seconds: float
    method: str
    prepared: Prepared
    n_downsets: int
    along_orders: bool = False
    ties_near: bool = False
    complete: bool = False


def solve(menu: StageMenu, *, slack_ratio: float = 0.0) -> Solved:
    """Return the pipeline whose slowest stage is fastest.

    Parameters
    ----------
    menu : StageMenu
        The instance.
    slack_ratio : float
        Keep stages of plans this much slower than the best, for later questions to `check`.

    Returns
    -------
    Solved
        With method ``exact`` where all downsets were searched (the bound then meets the value), ``relaxation`` where not.

    Raises
    ------
    InputError
        When a pipeline takes no time at all: there is then nothing to compare.
    """
    simple = relaxation(menu)
    lower = simple or least_time(menu)
    if simple == 0.0 and not math.isfinite(lower):
        raise InputError(NO_TIME)
    solved = _solve(menu, lower, slack_ratio)
    if simple == 0.0 and solved.found is not None and solved.found.seconds < lower:
        raise InputError(NO_TIME)
    return solved


def _solve(menu: StageMenu, lower: float, slack_ratio: float) -> Solved:
    """Return the pipeline whose slowest stage is fastest, from a lower bound above 0 on."""
    most = max(2 * menu.n_nodes, min(MOST_DOWNSETS, DOWNSET_BYTES // (8 * (menu.n_nodes // 64 + 1))))
    family = downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, most)
    known, restricted = None, None
    if family is None or len(family[0]) > FEW_DOWNSETS:
        known, restricted = _along_orders(menu, lower)
    if family is not None:
        seconds = known.seconds * (1.0 + slack_ratio) if known is not None else math.inf
        n_pairs = PAIR_BYTES // (4 + 8 * len(distinct(menu.degrees)))
        prepared = prepare(menu, family, seconds=seconds, n_pairs=n_pairs, n_steps=MOST_STEPS)
        if prepared is not None:
            best, proven = minimise(prepared, lower, known)
            method = "exact" if best is None or proven >= best.seconds * (1.0 - 2.0 * CLOSE_RATIO) else "relaxation"
            large = len(prepared.pairs.lower) * menu.n_nodes > MOST_WORK
            near = _around(menu, best) if large and best is not None else prepared
            return Solved(best, proven, method, near, len(family[0]), False, near is not prepared, known is None)
        if restricted is None:
            known, restricted = _along_orders(menu, lower)
    assert restricted is not None
    n_sets = len(family[0]) if family is not None else -most
    known, restricted = drawn_orders.better(menu, lower, known) or (known, restricted)
    if known is None and by_prices.nothing_fits(menu):
        return Solved(None, math.inf, "exact", restricted, n_sets, along_orders=True)
    if known is not None:
        lower = by_prices.lower_bound(menu, fewer_nodes.lower_bound(menu, lower, known), known.seconds)
    return Solved(known, lower, "relaxation", restricted, n_sets, along_orders=True)


def _along_orders(menu: StageMenu, lower: float) -> tuple[FoundPipeline | None, Prepared]:
    """Solve along topological orders: where any position may be a cut for one degree, then for all degrees near those cuts."""
    every = orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target)
    place = _filled(menu, every, lower)
    if menu.n_degrees > 1 or not any(place):
        _spread(menu, every, place)
    best: FoundPipeline | None = None
    while True:
        prepared = prepare(menu, downsets.suffixes(menu.n_nodes, every, place))
        assert prepared is not None
        better, _ = minimise(prepared, lower, best)
        if better is None and not all(place):  # cut for memory to the last byte, choices swapped in parts
            _spread(menu, every, place)
            continue
        if better is None or menu.n_nodes - 1 <= MOST_CUTS or (best is not None and better.seconds > best.seconds * (1 - 1e-4)):
            return better, prepared
        best = better
        sizes = np.cumsum([0] + [len(stage.nodes) for stage in best.stages])
        place = [_near(menu, sizes.tolist()) if cut else cut for cut in place]


def _around(menu: StageMenu, best: FoundPipeline) -> Prepared:
    """Return the instance along the order of a pipeline, with its cuts and those near them."""
    place = np.empty(menu.n_nodes, np.int64)
    place[list(orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target)[0])] = np.arange(menu.n_nodes)
    order = [v for stage in best.stages for v in sorted(stage.nodes, key=lambda v: int(place[v]))]
    sizes = np.cumsum([0] + [len(stage.nodes) for stage in best.stages])
    prepared = prepare(menu, downsets.suffixes(menu.n_nodes, [order], [_near(menu, sizes.tolist())]))
    assert prepared is not None
    return prepared


def _spread(menu: StageMenu, every: Sequence[Sequence[int]], place: Sequence[set[int]]) -> None:
    """Add cuts spread out over every order."""
    weights = np.zeros(menu.n_nodes)
    for v in range(menu.n_nodes):
        times = [menu.seconds[c] for t in range(menu.n_degrees) for c in menu.choices(v, t)]
        weights[v] = min(times, default=0.0)
    for order, near in zip(every, place, strict=True):
        near.update(orders.cuts(weights[list(order)], _border(menu, order), MOST_CUTS))


def _filled(menu: StageMenu, every: Sequence[Sequence[int]], lower: float) -> list[set[int]]:
    """Return for each order the cuts of its best plan of one degree, and positions near them;
    empty for all but the best orders.
    """
    place: list[set[int]] = [set() for _ in every]
    for degree in range(menu.n_degrees):
        reached = [fill.cuts(menu, order, degree, lower) for order in every]
        best = min(range(len(every)), key=lambda i: reached[i][0])
        if math.isfinite(reached[best][0]):
            place[best] |= _near(menu, reached[best][1])
    return place


def _near(menu: StageMenu, cuts: Sequence[int]) -> set[int]:
    """Return positions near cuts, as many as are worth trying together."""
    reach = max(1, MOST_CUTS // (2 * len(cuts)))
    return {at + offset for at in cuts for offset in range(-reach, reach + 1) if 0 < at + offset < menu.n_nodes}


def _border(menu: StageMenu, order: Sequence[int]) -> np.ndarray:
    """Return what crosses a cut before each position of an order."""
    position = np.empty(menu.n_nodes, np.int64)
    position[list(order)] = np.arange(menu.n_nodes)
    change = np.zeros(menu.n_nodes + 1)
    np.add.at(change, position[menu.edge_source] + 1, menu.edge_seconds)
    np.add.at(change, position[menu.edge_target] + 1, -menu.edge_seconds)
    return np.cumsum(change)


def relaxation(menu: StageMenu) -> float:
    """Return a lower bound on the slowest stage's time that holds for every pipeline.

    Parameters
    ----------
    menu : StageMenu
        The instance.

    Returns
    -------
    float
        Seconds per micro-batch; infinite where some node has no choice.

    Notes
    -----
    Every node stands in some stage, so its own time on its best number of devices bounds; all device-seconds must fit into all
    devices; and for any weighting of time against memory, what the nodes need at least of both must fit too.
    """
    n = menu.n_nodes
    node = np.repeat(np.arange(n), np.diff(menu.first).reshape(n, menu.n_degrees).sum(axis=1))
    degree = np.repeat(np.tile(menu.degrees, n), np.diff(menu.first)).astype(np.float64)
    if len(distinct(node)) < n:
        return math.inf
    starts = np.searchsorted(node, np.arange(n))
    alone = np.full(len(node), np.inf)
    for t, width in enumerate(menu.degrees):
        fits = menu.replicas[menu.replicas * width <= menu.n_devices]
        if len(fits):
            here = degree == width
            time = menu.seconds[here, None] * menu.share[: len(fits)]
            alone[here] = (time + menu.weight_bytes[here, None] * menu.reduce_seconds[t, : len(fits)]).min(axis=1)
    least = float(np.minimum.reduceat(alone, starts).max())
    least = max(least, float(np.minimum.reduceat(menu.seconds, starts).sum()) / menu.n_replicas)
    work = degree * menu.seconds
    held = degree * (menu.per_microbatch_bytes + menu.fixed_bytes - menu.sharded * menu.weight_bytes) / menu.memory_bytes
    for weight in (1.0, 0.9, 0.75, 0.5, 0.25):
        least = _balanced(work, held, starts, weight, menu.n_devices, least)
    return least * (1.0 - 1e-13)


def _balanced(work: np.ndarray, held: np.ndarray, starts: np.ndarray, weight: float, n_devices: int, least: float) -> float:
    """Return the time below which the weighted needs of all nodes exceed the devices; at least a bound already known."""

    def too_little(seconds: float) -> bool:
        need = weight * work / seconds + (1.0 - weight) * held
        return float(np.minimum.reduceat(need, starts).sum()) > n_devices * (1.0 + 1e-12)

    low, high = least, float(np.minimum.reduceat(work, starts).sum()) / n_devices * 64.0
    if high <= low or low <= 0.0 or not too_little(low):
        return max(low, high / 64.0 * (1.0 - 1e-12))
    if too_little(high):
        return high
    for _ in range(24):
        middle = (low + high) / 2.0
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return low


def fewest(prepared: Prepared, best: FoundPipeline, *, slack_ratio: float = CLOSE_RATIO) -> FoundPipeline:
    """Return, among pipelines as fast as the best, the one of fewest stages, then devices, then memory of the fullest device.

    Parameters
    ----------
    prepared : Prepared
        The instance.
    best : FoundPipeline
        A best pipeline.
    slack_ratio : float
        How much slower still counts as fast.

    Returns
    -------
    FoundPipeline
        The pipeline.
    """
    threshold = best.seconds * (1.0 + slack_ratio)
    reached = check(prepared, threshold, n_stages=len(best.stages))
    labels = reached.labels
    label = min(reached.answers, key=lambda i: (labels.stages[i], labels.devices[i], labels.replicas[i], i), default=-1)
    if label < 0:
        return best
    chosen = found(prepared, reached, label)
    if not prepared.menu.exact:
        return chosen
    low, probe = 0.0, True
    while chosen.memory_bytes > low * (1.0 + 2.0 * MEMORY_RATIO):
        memory = chosen.memory_bytes * (1.0 - MEMORY_RATIO) if probe else (low + chosen.memory_bytes) / 2.0
        probe = not probe
        reached = check(prepared, threshold, memory_bytes=memory, n_devices=chosen.n_devices, n_stages=len(chosen.stages))
        label = best_label(reached)
        if label < 0:
            low = memory
        else:
            chosen = found(prepared, reached, label, memory_bytes=memory)
    return chosen


def savings(prepared: Prepared, best: FoundPipeline, slack_ratio: float) -> tuple[FoundPipeline, ...]:
    """Return the pipelines of fewest stages and of fewest devices among those within a share of the best.

    Parameters
    ----------
    prepared : Prepared
        The instance, prepared with at least this slack.
    best : FoundPipeline
        The best pipeline.
    slack_ratio : float
        How much slower they may be.

    Returns
    -------
    tuple of FoundPipeline
        Those that save stages or devices against the best; distinct.
    """
    reached = check(prepared, best.seconds * (1.0 + slack_ratio), n_stages=len(best.stages))
    labels = reached.labels
    picked: dict[int, None] = {}
    for key in (
        lambda i: (labels.stages[i], labels.devices[i], i),
        lambda i: (labels.devices[i], labels.stages[i], i),
    ):
        label = min(reached.answers, key=key, default=-1)
        if label >= 0 and (labels.stages[label] < len(best.stages) or labels.devices[label] < best.n_devices):
            picked[label] = None
    return tuple(found(prepared, reached, label) for label in picked)


def by_stages(prepared: Prepared, best: FoundPipeline, slack_ratio: float) -> tuple[FoundPipeline, ...]:
    """Return, for every number of stages, a pipeline of fewest devices within a share of the best.

    Parameters
    ----------
    prepared : Prepared
        The instance, prepared with at least this slack.
    best : FoundPipeline
        The best pipeline.
    slack_ratio : float
        How much slower they may be.

    Returns
    -------
    tuple of FoundPipeline
        By number of stages, where more stages save replicas or devices.
    """
    reached = check(prepared, best.seconds * (1.0 + max(slack_ratio, CLOSE_RATIO)), n_stages=len(best.stages))
    labels = reached.labels
    picked: dict[int, int] = {}
    for label in reached.answers:
        n = int(labels.stages[label])
        if n not in picked or labels.devices[label] < labels.devices[picked[n]]:
            picked[n] = label
    return tuple(found(prepared, reached, label) for _, label in sorted(picked.items()))


def _quick(menu: StageMenu) -> Prepared:
    """Return the instance over all downsets where there are few, along topological orders where not."""
    family = downsets.all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, FEW_DOWNSETS)
    if family is None:
        every = orders.orders(menu.n_nodes, menu.edge_source, menu.edge_target)
        weights = np.ones(menu.n_nodes)
        place = [orders.cuts(weights, _border(menu, order), MOST_CUTS) for order in every]
        family = downsets.suffixes(menu.n_nodes, every, place)
    prepared = prepare(menu, family)
    assert prepared is not None
    return prepared


def fits(menu: StageMenu) -> bool:
    """Return whether some pipeline fits, however slow (tried along a few topological orders where downsets are many)."""
    prepared = _quick(menu)
    return len(check(prepared, math.inf).answers) > 0


def least_memory(menu: StageMenu) -> float:
    """Return the memory of a device at which some pipeline fits, to one part in a million.

    Parameters
    ----------
    menu : StageMenu
        The instance; its own memory does not matter.

    Returns
    -------
    float
        Bytes; infinite where the devices are too few whatever their memory.
    """
    prepared = _quick(replace(menu, memory_bytes=1e300))
    reached = check(prepared, math.inf, memory_bytes=1e299)
    label = best_label(reached)
    if label < 0:
        return math.inf
    low, high = 0.0, found(prepared, reached, label, memory_bytes=1e299).memory_bytes
    while high > low * (1.0 + MEMORY_RATIO) and high > 0.0:
        middle = (low + high) / 2.0
        reached = check(prepared, math.inf, memory_bytes=middle)
        label = best_label(reached)
        if label < 0:
            low = middle
        else:
            high = min(middle, found(prepared, reached, label, memory_bytes=middle).memory_bytes)
    return high
