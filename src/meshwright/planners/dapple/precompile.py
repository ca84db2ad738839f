"""Kernels of the searches on measured profiles: DAPPLE in both modes, PipeDream."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.core.graph import Edge, Graph, Op
from meshwright.core.problem import ModelSpec
from meshwright.planners.dapple.readers import pipedream_txt

__all__ = ["run"]

LAYER = "forward_compute_time=1, backward_compute_time=2, activation_size=1e6, parameter_size=1e8"
"""Times in milliseconds and bytes of every layer of a small profile."""


def run(plan: Callable[..., object]) -> object:
    """Plan a profile of four layers on two machines of two devices."""
    lines = [f"n{i} -- L -- {LAYER}" for i in range(4)] + [f"\tn{i} -- n{i + 1}" for i in range(3)]
    profile = pipedream_txt.parse("\n".join(lines), "profile", profile_batch=1)
    graph = Graph("profile", tuple(Op(f"n{i}", "L") for i in range(4)), tuple(Edge(i, i + 1) for i in range(3)))
    model_spec = ModelSpec("profile", "pipedream_txt", "profile", graph, profile, costs="dapple", search="dapple")
    settings = {"global_batch": "8", "machines": "2,4"}
    for search, more in (("dapple", {}), ("dapple", {"mode": "published"}), ("pipedream", {})):
        plan(model_spec, search=search, settings=settings | more)
    return None
