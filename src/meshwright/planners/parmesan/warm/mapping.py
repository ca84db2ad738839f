"""Kernels of the searches parmesan and stage_mapping."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Map stages onto devices whose links all differ, by annealing with a proof and by backtracking, and plan a small model."""
    import numpy as np

    from meshwright.core.problem import Batch
    from meshwright.solvers.mapping.backtracking import backtrack
    from meshwright.solvers.mapping.problem import StageGraph
    from meshwright.solvers.mapping.search import consecutive, map_stages

    slow = np.random.default_rng(0).random((6, 6))
    slow = slow + slow.T
    graph = StageGraph(np.ones(2), ((0, 1, 1.0),), np.ones(2), 3)
    map_stages(graph, slow, n_moves=100)
    backtrack(graph, slow, [consecutive(graph, np.arange(6))], 2, 1, 100)
    batch = Batch(global_batch=16)
    return plan("gpt2", "parmesan-uniform:4", search="stage_mapping", batch=batch, settings={"n_stages": "2"})
