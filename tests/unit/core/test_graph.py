"""Layers that are said to be alike are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Op, Operator


def body(n_out: int) -> tuple[Operator, ...]:
    return (Operator("project", "matmul", (("sequence", 8), ("in", 4), ("out", n_out)), "out", 4 * n_out),)


def test_a_layer_changed_is_not_priced_as_the_one_that_it_was_like() -> None:
    graph = models.read("gpt2").graph
    i = next(i for i, op in enumerate(graph.ops) if 0 <= op.like < i)
    changed = replace(graph.ops[i], body=graph.ops[i].body[1:])
    with pytest.raises(InputError, match=f"layer '{changed.name}' has like={changed.like}, but another body .* or like=-1"):
        replace(graph, ops=(*graph.ops[:i], changed, *graph.ops[i + 1 :]))
    apart = replace(graph, ops=(*graph.ops[:i], replace(changed, like=-1), *graph.ops[i + 1 :]))
    assert apart.ops[i].body == changed.body


@pytest.mark.parametrize("likes", [(-1, 0), (0, 0), (1, 1), (1, -1), (7, 7)])
def test_unlike_bodies_are_refused_however_layers_are_said_to_be_alike(likes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"model g: layer '[ab]' has like=\d, but another body"):
        Graph("g", (Op("a", "mlp", body(4), likes[0]), Op("b", "mlp", body(8), likes[1])))
    equal = Graph("g", (Op("a", "mlp", body(4), likes[0]), Op("b", "mlp", body(4), likes[1])))  # equal, but not the same object
    assert len(equal.ops) == 2


def test_layers_left_out_at_the_end_leave_the_others_as_they_are() -> None:
    assert len(Graph("g", (Op("a", "mlp", body(4), 0), Op("head", "head", body(8), 5))).ops) == 2
