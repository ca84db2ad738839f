"""A lower bound for pipelines over graphs of too many downsets: the best pipeline of some of the nodes.

Leave nodes out of a plan, and stages that become empty: no stage takes longer, holds more, or has more replicas behind it, and
what moves over borders is no more. The rest is a plan of the nodes kept, in the order that the graph gives them. So the best of
all their plans, which trying all downsets finds, bounds all plans of the graph.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import locked
from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline.bounds import path_cover
from meshwright.solvers.pipeline.menu import StageMenu
from meshwright.solvers.pipeline.prepared import prepare
from meshwright.solvers.pipeline.threshold import FoundPipeline, minimise

__all__ = ["kept", "lower_bound", "restricted"]

MOST_NODES = 400
"""Nodes of graphs for which this is tried: of larger ones too little is left."""

MOST_DOWNSETS, MOST_PAIRS, MOST_STEPS = 4_000, 4_000_000, 16_000_000
"""Downsets of the nodes kept, possible stages between them, and those looked at."""

FEWEST_RATIO = 0.5
"""Share of the work that has to be left for the bound to be worth making."""


def lower_bound(menu: StageMenu, lower_seconds: float, known: FoundPipeline) -> float:
    """Return a proven lower bound on the slowest stage's time, at least the one given.

    `lower_seconds`: a bound already known.
    `known`: the best plan known.
    """
    if menu.n_nodes > MOST_NODES:
        return lower_seconds
    keep = kept(menu, MOST_DOWNSETS)
    work = np.minimum.reduceat(menu.seconds, menu.first[: -1 : menu.n_degrees]) if len(menu.seconds) else np.zeros(0)
    if not work[keep].sum() >= FEWEST_RATIO * work.sum():
        return lower_seconds
    fewer = restricted(menu, keep)
    family = downsets.all_downsets(fewer.n_nodes, fewer.edge_source, fewer.edge_target, MOST_DOWNSETS)
    assert family is not None
    prepared = prepare(fewer, family, seconds=known.seconds, n_pairs=MOST_PAIRS, n_steps=MOST_STEPS)
    return lower_seconds if prepared is None else max(lower_seconds, minimise(prepared, lower_seconds, known)[1])


def kept(menu: StageMenu, most: int) -> NDArray[np.bool_]:
    """Return which nodes to keep so that they have few downsets: those go first that do little and are beside many others."""
    keep = np.ones(menu.n_nodes, np.bool_)
    near = _near(menu)
    beside = ~(near | near.T)
    work = np.minimum.reduceat(menu.seconds, menu.first[: -1 : menu.n_degrees])
    while downsets.all_downsets(*_order(menu, near, keep), most) is None:
        many = beside[:, keep].sum(axis=1)
        cost = np.where(keep & (many > 0), work / np.maximum(many, 1), np.inf)
        keep[np.argsort(cost, kind="stable")[: max(1, int(keep.sum()) // 32)]] = False
    return keep


def _near(menu: StageMenu) -> NDArray[np.bool_]:
    """Return as a matrix which nodes each node reaches, itself among them."""
    words = path_cover.reached(menu.n_nodes, menu.edge_source, menu.edge_target)
    return downsets.members(words, menu.n_nodes).astype(np.bool_)


def _order(
    menu: StageMenu, near: NDArray[np.bool_], keep: NDArray[np.bool_]
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of nodes kept and the edges between them: who reaches whom, but by way of others."""
    inside = near[np.ix_(keep, keep)] & ~np.identity(int(keep.sum()), np.bool_)
    source, target = np.nonzero(inside & ~(inside.astype(np.float32) @ inside.astype(np.float32) > 0.0))
    return int(keep.sum()), locked(source.astype(np.int64)), locked(target.astype(np.int64))


def restricted(menu: StageMenu, keep: NDArray[np.bool_]) -> StageMenu:
    """Return the instance of the nodes kept: edges between them, and free ones where one reaches another."""
    n, name = menu.n_nodes, np.cumsum(keep) - 1
    edges = np.flatnonzero(keep[menu.edge_source] & keep[menu.edge_target])
    own_source, own_target = name[menu.edge_source[edges]], name[menu.edge_target[edges]]
    _, free_source, free_target = _order(menu, _near(menu), keep)
    free = ~np.isin(free_source * n + free_target, own_source * n + own_target)
    free_source, free_target = free_source[free], free_target[free]
    source, target = np.concatenate([own_source, free_source]), np.concatenate([own_target, free_target])
    nodes = np.flatnonzero(keep)
    choices = np.concatenate([np.arange(menu.first[v * menu.n_degrees], menu.first[(v + 1) * menu.n_degrees]) for v in nodes])
    sizes = np.diff(menu.first).reshape(n, menu.n_degrees)[nodes].ravel()
    per_node = np.diff(menu.first).reshape(n, menu.n_degrees).sum(axis=1)
    of = np.repeat(np.arange(n), per_node)[choices]
    in_first, sync_in = _synced(
        menu.sync_in_first, menu.sync_in_seconds, menu.edge_target, edges, choices, of, free_target, name
    )
    out_first, sync_out = _synced(
        menu.sync_out_first, menu.sync_out_seconds, menu.edge_source, edges, choices, of, free_source, name
    )
    return replace(
        menu, n_nodes=len(nodes), edge_source=locked(source), edge_target=locked(target),
        edge_seconds=locked(np.concatenate([menu.edge_seconds[edges], np.zeros(len(free_source))])),
        first=locked(np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)),
        seconds=locked(menu.seconds[choices]), weight_bytes=locked(menu.weight_bytes[choices]),
        per_microbatch_bytes=locked(menu.per_microbatch_bytes[choices]), fixed_bytes=locked(menu.fixed_bytes[choices]),
        sync_in_first=in_first, sync_in_seconds=sync_in, sync_out_first=out_first, sync_out_seconds=sync_out,
        exact=True, all_or_none=False, names=tuple(menu.names[c] for c in choices) if menu.names else (),
    )  # fmt: skip


def _synced(
    first: NDArray[np.int64],
    seconds: NDArray[np.float64],
    end: NDArray[np.int64],
    edges: NDArray[np.int64],
    choices: NDArray[np.int64],
    of: NDArray[np.int64],
    free_end: NDArray[np.int64],
    name: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the further seconds of each choice for the edges kept at its node, and none for the free ones."""
    at_node: dict[int, list[int]] = {}
    for e, v in enumerate(end.tolist()):
        at_node.setdefault(v, []).append(e)
    left = set(edges.tolist())
    ranks = {v: [rank for rank, e in enumerate(some) if e in left] for v, some in at_node.items()}
    free = np.bincount(free_end, minlength=int(name.max()) + 1)
    values: list[list[float]] = []
    for c, v in zip(choices.tolist(), of.tolist(), strict=True):
        values.append([float(seconds[first[c] + rank]) for rank in ranks.get(v, [])] + [0.0] * int(free[name[v]]))
    sizes = np.array([len(some) for some in values], np.int64)
    return locked(np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)), locked(
        np.array([x for some in values for x in some])
    )
