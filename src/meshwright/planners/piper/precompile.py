"""Kernels of the search piper: files with costs of their own, small and large graphs, everything that can be counted,
and models.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.core.problem import Batch, ModelSpec
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode
from meshwright.planners.piper.readers import piper_json

__all__ = ["run"]


def run(plan: Callable[..., object]) -> object:
    """Plan four layers in a row, many side by side (more downsets than are searched), and a small model on one node."""
    row, many = _layers(4, side_by_side=False), _layers(20, side_by_side=True)
    every = {"any_replicas": "true", "tensor_once": "true", "shard_optimizer": "true", "layer_buffers": "true"}
    for model_spec, settings in (
        (row, {"curve": "devices"}),
        (row, {"knapsack": "greedy"}),
        (row, {"fill_drain": "true", "layer_buffers": "true"}),
        (row, {"node_size": "3", "node_bytes_per_second": "100", "bandwidth": "0.5"}),
        (row, every),
        (row, {"memory": "0.1"}),
        (many, {}),
        (many, {"memory": "0.1"}),
    ):
        plan(model_spec, search="piper", settings=settings)
    return plan("gpt2", "dgx-h100:4", search="piper", batch=Batch(global_batch=16))


def _layers(n_layers: int, *, side_by_side: bool) -> ModelSpec:
    """Return layers behind a first one, each with two choices at two tensor degrees, in memory that makes them choose."""
    tail = [0 if side_by_side else v - 1 for v in range(n_layers)]
    edges = tuple(PiperEdge(tail[v], v, 1.0) for v in range(1, n_layers))
    nodes = []
    for v in range(n_layers):
        into = tuple((edge.source, 0.0) for edge in edges if edge.target == v)
        out_of = tuple((edge.target, 0.0) for edge in edges if edge.source == v)
        choices = tuple(
            (
                degree,
                (
                    PiperChoice("vanilla", (3.0 + v % 3) / degree, 1.0, 4.0 + v, 2.0, into, out_of),
                    PiperChoice("activation recomp", (4.0 + v % 2) / degree, 1.0, 1.0, 3.0 + v, into, out_of),
                ),
            )
            for degree in (1, 2)
        )
        nodes.append(PiperNode(v, "", choices))
    instance = PiperInstance(tuple(nodes), edges, 8, 8, 10.0, 12.0 * n_layers)
    graph, cluster = piper_json.graph_of(instance, "layers"), piper_json.flat_cluster(instance)
    return ModelSpec("layers", "piper_json", "layers", graph, instance, cluster, costs="piper", search="piper")
