"""Kernels of the joint search and of the simulator."""

from __future__ import annotations

from collections.abc import Callable

from meshwright import clusters
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.planners.best import fitted_orders

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Plan a small model on one node, and bound a pipeline whose order is fitted to durations."""
    graph = Graph("warm", tuple(Op(f"layers.{i}", "mlp") for i in range(4)))
    problem = Problem(ModelSpec("warm", "warm", "warm", graph), clusters.cluster("flat:2"))
    stages = tuple(Stage((i,), (device,)) for i, device in enumerate((0, 1, 1, 0)))
    fitted_orders.least_seconds(problem, Plan(stages, 4, 1, "zb_v", 4), (StageCost(0.1, 0.1, 0.1),) * 4)
    return plan("gpt2", "dgx-h100:8", batch=Batch(global_batch=16), settings={"evaluations": "4"})
