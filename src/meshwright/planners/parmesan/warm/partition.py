"""Kernels of the search partition."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Cut a model's layers, and operators side by side, by lists of down-sets and by annealing."""
    import numpy as np

    from meshwright.core.problem import Batch
    from meshwright.solvers.partition.annealing import annealed
    from meshwright.solvers.partition.convex import partition
    from meshwright.solvers.partition.hypergraph import Operators, contract

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
    return plan("gpt2", "dgx-h100:4", search="partition", batch=Batch(global_batch=16), settings={"n_stages": "4"})
