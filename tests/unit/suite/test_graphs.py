"""Graphs made from a seed: as many operators as asked for, no circle, the same text again, connected."""

from __future__ import annotations

import graphlib
import json

import pytest

from meshwright.base.errors import UnknownNameError
from meshwright.suite import graphs

SHAPES = ("chain", "layers", "series_parallel", "random")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 5, 10, 11, 200])
def test_a_graph_has_its_operators_in_one_piece_and_no_circle(shape: str, n: int) -> None:
    held = json.loads(graphs.placement_graph(shape, n, 3))
    assert [node["id"] for node in held["nodes"]] == list(range(n))
    edges = [(edge["sourceId"], edge["destId"]) for edge in held["edges"]]
    assert len(set(edges)) == len(edges)
    parents: dict[int, set[int]] = {i: set() for i in range(n)}
    near: dict[int, set[int]] = {i: set() for i in range(n)}
    for u, v in edges:
        parents[v].add(u)
        near[u].add(v)
        near[v].add(u)
    assert len(list(graphlib.TopologicalSorter(parents).static_order())) == n
    reached, left = {0}, [0]
    while left:
        new = near[left.pop()] - reached
        reached |= new
        left += new
    assert len(reached) == n
    assert all(node["fpgaLatency"] > 0 and node["size"] > 0 for node in held["nodes"])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_seed_decides(shape: str) -> None:
    assert graphs.placement_graph(shape, 50, 1) == graphs.placement_graph(shape, 50, 1) != graphs.placement_graph(shape, 50, 2)


def test_layers_have_branches_and_skips() -> None:
    edges = {(edge["sourceId"], edge["destId"]) for edge in json.loads(graphs.placement_graph("layers", 10, 0))["edges"]}
    assert {(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (0, 4), (4, 8), (8, 9)} <= edges


def test_tensors_of_one_operator_cost_the_same_everywhere() -> None:
    costs: dict[int, set[float]] = {}
    for edge in json.loads(graphs.placement_graph("random", 60, 5))["edges"]:
        costs.setdefault(edge["sourceId"], set()).add(edge["cost"])
    assert all(len(found) == 1 for found in costs.values())


def test_a_shape_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="star"):
        graphs.placement_graph("star", 5, 0)
