"""Kernels of the searches parmesan, stage_mapping and partition, compiled by small problems."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshwright.core.problem import Batch
from meshwright.solvers.mapping.backtracking import backtrack
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import consecutive, map_stages
from meshwright.solvers.partition.annealing import annealed
from meshwright.solvers.partition.convex import partition
from meshwright.solvers.partition.hypergraph import Operators, contract

__all__ = ["run"]


def run(plan: Callable[..., object]) -> None:
    """Map a few stages and cut a few operators, then plan a small model by both searches."""
    _mappings()
    _partitions()
    batch, settings = Batch(global_batch=16), {"n_stages": "2"}
    plan("gpt2", "parmesan-uniform:4", search="stage_mapping", batch=batch, settings=settings)
    plan("gpt2", "dgx-h100:4", search="partition", batch=batch, settings={"n_stages": "4"})


def _mappings() -> None:
    """Map stages onto devices whose links all differ, by annealing with a proof and by backtracking."""
    seconds_per_byte = np.random.default_rng(0).random((6, 6))
    seconds_per_byte = seconds_per_byte + seconds_per_byte.T
    graph = StageGraph(np.ones(2), ((0, 1, 1.0),), np.ones(2), 3)
    map_stages(graph, seconds_per_byte, n_moves=100)
    backtrack(graph, seconds_per_byte, [consecutive(graph, np.arange(6))], 2, 1, 100)


def _partitions() -> None:
    """Cut operators side by side, by lists of down-sets and by annealing."""
    n = 12
    times = np.random.default_rng(0).random((3, n))
    edges = tuple((a, b) for a in range(n) for b in range(a + 1, n) if (a + b) % 3 == 0)
    nets = tuple((0.01, edge) for edge in edges)
    operators = Operators(times[0], times[1] + 2.0, times[2], np.ones(n, dtype=bool), edges, tuple(range(n)), nets)
    units = contract(operators)
    partition(units, 3, n_hosts=1)
    scales = np.ones((2, 3))
    scales.setflags(write=False)  # kernels are kept by the types of their arguments, and searches pass it so
    annealed(units, partition(units, 3).groups, scales=scales, memory_limit_bytes=np.inf, seed=0)
