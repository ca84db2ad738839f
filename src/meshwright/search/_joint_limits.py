"""How far each degree of the joint space can go for a model: read off the operators of its layers."""

from __future__ import annotations

import math

from meshwright.flops import forward_flops
from meshwright.graph import Graph
from meshwright.problem import Problem

__all__ = ["largest_degrees", "sample_flops", "shard_degrees"]


def largest_degrees(graph: Graph) -> dict[str, int]:
    """Return the largest tensor, context and expert degree that could be legal; every legal one divides it.

    Parameters
    ----------
    graph : Graph
        The model.

    Returns
    -------
    dict of str to int
        ``tensor``: what divides all attention heads; ``context``: up to a token in a thousand of the sequence; ``expert``:
        the number of routed experts (1 without).
    """
    heads = experts = 0
    for op in graph.ops:
        for operator in op.body:
            heads = math.gcd(heads, operator.size("heads", 0))
            if operator.expert:
                experts = math.gcd(experts, operator.size("experts", 0))
    return {"tensor": heads or 1, "context": max(1, graph.sequence_length // 1024), "expert": experts or 1}


def sample_flops(graph: Graph) -> float:
    """Return the floating point operations of forward and backward of one sample: a backward pass is two forward passes."""
    return 3.0 * sum(forward_flops(operator) for op in graph.ops for operator in op.body)


def shard_degrees(problem: Problem, replica_size: int, data: int) -> tuple[int, ...]:
    """Return over how many data ranks weights may be sharded: all of them, or those of one node (hybrid sharding).

    Parameters
    ----------
    problem : Problem
        The question; its cluster says how large a node is.
    replica_size : int
        Devices of one data rank: tensor times context degree.
    data : int
        Data degree.

    Returns
    -------
    tuple of int
        0 stands for all of them.
    """
    cluster = problem.cluster
    assert cluster is not None
    node = int((cluster.node_of_device == cluster.node_of_device[0]).sum())
    inside = node // replica_size
    return (0, inside) if 1 < inside < data and data % inside == 0 else (0,)
