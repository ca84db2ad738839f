"""Better pipelines for small graphs of too many downsets: cut along many orders drawn at random, all of them together."""

from __future__ import annotations

import numpy as np

from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline.menu import StageMenu
from meshwright.solvers.pipeline.prepared import Prepared, prepare
from meshwright.solvers.pipeline.threshold import FoundPipeline, minimise

__all__ = ["better", "drawn"]

MOST_SETS, MOST_PAIRS, MOST_STEPS = 6_000, 6_000_000, 24_000_000
"""Positions along all orders together, possible stages between them, and those looked at."""

FEWEST_ORDERS = 8
"""Of graphs for which so many orders would be too many positions none is drawn."""


def better(menu: StageMenu, lower_seconds: float, known: FoundPipeline | None) -> tuple[FoundPipeline, Prepared] | None:
    """Return a pipeline that is faster than the one known, cut anywhere along drawn orders, with what it was found in.

    `lower_seconds`: a bound already known. Returns: None where there is none, or the graph is large.
    """
    n, n_orders = menu.n_nodes, MOST_SETS // max(menu.n_nodes, 1)
    if n_orders < FEWEST_ORDERS:
        return None
    every = drawn(menu, n_orders)
    family = downsets.suffixes(n, every, [set(range(1, n))] * len(every))
    seconds = known.seconds if known is not None else np.inf
    prepared = prepare(menu, family, seconds=seconds, n_pairs=MOST_PAIRS, n_steps=MOST_STEPS)
    if prepared is None:
        return None
    best, _ = minimise(prepared, lower_seconds, known)
    faster = best is not None and (known is None or best.seconds < known.seconds)
    return (best, prepared) if best is not None and faster else None


def drawn(menu: StageMenu, n_orders: int) -> list[tuple[int, ...]]:
    """Return topological orders, depth first with ready nodes in drawn order, every other one from the output on."""
    dice = np.random.default_rng(0)
    found: dict[tuple[int, ...], None] = {}
    for turned in range(n_orders):
        ends = (menu.edge_source, menu.edge_target)
        source, target = (end.tolist() for end in (ends[::-1] if turned % 2 else ends))
        heads: list[list[int]] = [[] for _ in range(menu.n_nodes)]
        waiting = [0] * menu.n_nodes
        for u, v in zip(source, target, strict=True):
            heads[u].append(v)
            waiting[v] += 1
        fresh = [v for v in range(menu.n_nodes) if waiting[v] == 0]
        ready, order = list[int](), list[int]()
        while fresh or ready:
            ready += [fresh[i] for i in dice.permutation(len(fresh))]
            order.append(ready.pop())
            for v in heads[order[-1]]:
                waiting[v] -= 1
            fresh = [v for v in dict.fromkeys(heads[order[-1]]) if waiting[v] == 0]
        found[tuple(reversed(order) if turned % 2 else order)] = None
    return list(found)
