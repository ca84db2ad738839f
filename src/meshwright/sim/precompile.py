"""Kernels of the simulator where transfers share links, and of zero-bubble schedules."""

from __future__ import annotations

from collections.abc import Callable

from meshwright import clusters, sim
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Play a small pipeline whose two directions leave each node through one link."""
    graph = Graph("warm", tuple(Op(f"layers.{i}", "mlp") for i in range(3)))
    problem = Problem(ModelSpec("warm", "warm", "warm", graph), clusters.cluster("two-level:4,per_node=2"))
    stages = tuple(Stage((i,), (device,)) for i, device in enumerate((0, 2, 1)))
    return sim.simulate(problem, Plan(stages, 3, 1, "zb_h1", 3), (StageCost(0.1, 0.1, 0.1, output_bytes=25e9),) * 3)
