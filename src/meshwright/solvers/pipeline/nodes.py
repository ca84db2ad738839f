"""A lower bound, and plans, where tensors between stages in one node move faster than others."""

from __future__ import annotations

import math

import numpy as np

from meshwright._kernels.pipeline import nodes as kernel
from meshwright._kernels.pipeline.pairs import Crossing
from meshwright.solvers.pipeline import downsets, orders
from meshwright.solvers.pipeline import menu as stage_menu
from meshwright.solvers.pipeline.prepared import CLOSE_RATIO, Prepared, picked_columns
from meshwright.solvers.pipeline.threshold import FoundPipeline, Reached, best_label, empty_labels, found

__all__ = ["lower_bound"]

LARGEST_NODE, MOST_STEPS = 64, 3 * 10**7
"""Devices of a node, and stages times edges and those devices, up to which the bound is made."""

FINE_RATIO, N_THRESHOLDS = 1.0002, 24
"""Distance of plan and bound that is not divided further, and thresholds tried."""


def lower_bound(
    prepared: Prepared, node_size: int, slow_ratio: float, lower_seconds: float, upper_seconds: float
) -> tuple[float, tuple[FoundPipeline, ...]]:
    """Return a bound on the slowest stage's time, and pipelines that keep thresholds above it where nodes are never cut into.

    Parameters
    ----------
    prepared : Prepared
        The instance over all downsets, priced at the links within nodes, with all stages of pipelines up to `upper_seconds`.
    node_size : int
        Devices of a node.
    slow_ratio : float
        How many times longer a tensor takes between nodes.
    lower_seconds, upper_seconds : float
        A bound already known, and the time of a known plan.

    Returns
    -------
    lower_seconds : float
        At least the bound given, at most `upper_seconds`.
    pipelines : tuple of FoundPipeline
        Their times are those within nodes.

    Notes
    -----
    Stages stand on the devices in turn. Borders of stages side by side in one node are within it, every other border is between
    nodes, and a stage across two reduces gradients between them. A threshold that no such pipeline keeps is proven: a
    bisection, after a first try just below the known plan. Where choices of one layer differ in
    more than time and memory, tensors count once, or there is too much to try, the bound given is returned.
    """
    menu = prepared.menu
    size = len(prepared.pairs.lower) * len(menu.edge_source) * node_size
    if menu.tensor_once or not menu.alike or node_size > LARGEST_NODE or size > MOST_STEPS or slow_ratio <= 1.0:
        return lower_seconds, ()
    widest = stage_menu.widest(menu)
    crossing = stage_menu.crossing(menu)
    crossing = crossing._replace(into=picked_columns(crossing.into, widest), out_of=picked_columns(crossing.out_of, widest))
    behind = _behind(prepared)
    low, high = lower_seconds, upper_seconds * (1.0 - CLOSE_RATIO)
    threshold, pipelines = high, []
    for _ in range(N_THRESHOLDS):
        reached = _check(prepared, crossing, behind, threshold, node_size, slow_ratio)
        label = best_label(reached)
        if label < 0:
            low = threshold
        else:
            high = threshold
            pipelines.append(found(prepared, reached, label))
        if high <= low * FINE_RATIO:
            break
        threshold = math.sqrt(low * high)
    return (upper_seconds if not pipelines else low), tuple(pipelines)


def _behind(prepared: Prepared) -> np.ndarray:
    """Return by set and node the device-seconds of the node's descendants outside the set, and of its ancestors within."""
    menu = prepared.menu
    n = menu.n_nodes
    per_degree = np.diff(menu.first).reshape(n, menu.n_degrees)
    work = menu.seconds * np.repeat(np.tile(menu.degrees, n), per_degree.ravel())
    least = np.minimum.reduceat(work, np.concatenate(([0], np.cumsum(per_degree.sum(axis=1))[:-1])))
    reached = np.eye(n, dtype=np.bool_)
    first, order = downsets.groups(menu.edge_source, n)
    for v in reversed(orders.orders(n, menu.edge_source, menu.edge_target)[0]):
        for x in menu.edge_target[order[first[v] : first[v + 1]]]:
            reached[v] |= reached[x]
    words = np.ascontiguousarray(prepared.space.words).view(np.uint8)
    within = np.unpackbits(words.reshape(len(prepared.space.words), -1), axis=1, bitorder="little")[:, :n].astype(np.bool_)
    behind = np.stack(((~within * least) @ reached.T, (within * least) @ reached))
    behind.setflags(write=False)
    return behind


def _check(
    prepared: Prepared, crossing: Crossing, behind: np.ndarray, seconds: float, node_size: int, slow_ratio: float
) -> Reached:
    """Return the ways to run the whole model with no stage slower than a threshold."""
    menu = prepared.menu
    borders = kernel.border_seconds(prepared.space, prepared.pairs, crossing, behind, seconds, node_size, slow_ratio)
    limits = np.array([seconds, menu.memory_bytes, menu.n_devices, menu.n_replicas])
    size = max(1 << 14, 8 * len(prepared.space.words))
    while True:
        labels = empty_labels(prepared, size, node_size, menu.n_replicas)
        count = kernel.reach_nodes(
            prepared.space, prepared.pairs, borders, prepared.kernel_menu, prepared.rules, prepared.memo, labels, limits,
            node_size, slow_ratio,
        )  # fmt: skip
        if count >= 0:
            return Reached(labels, count, 0)
        size *= 4
