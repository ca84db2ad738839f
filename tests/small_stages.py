"""Chains of pipeline stages to be mapped onto devices, with round figures."""

from __future__ import annotations

import numpy as np

from meshwright.solvers.mapping.problem import StageGraph

__all__ = ["stage_graph"]


def stage_graph(seed: int, n_stages: int, n_replicas: int) -> StageGraph:
    """Return a chain of stages with a skip."""
    dice = np.random.default_rng(seed + 100)
    transfers = [(s, s + 1, float(dice.integers(0, 5))) for s in range(n_stages - 1)]
    if n_stages > 2:
        transfers.append((0, n_stages - 1, 1.5))
    compute, reduced = dice.integers(1, 9, n_stages) / 2, dice.integers(0, 5, n_stages) / 2
    return StageGraph(compute, tuple(transfers), reduced, n_replicas)
