"""Weights as tensors: as many as the operators say, in the shapes of the modules."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.core.graph import Operator
from meshwright.models.weight_tensors import WeightTensor, product_parts, weight_tensors


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b"])
def test_tensors_have_all_weights_of_a_model(name: str) -> None:
    for op in {op.like: op for op in api.read(name).graph.ops}.values():
        for operator in op.body:
            found = weight_tensors(op.body, operator)
            assert found is not None, operator
            assert sum(one.count * one.n_weights for one in found) == operator.n_parameters, operator


def test_joined_products_are_taken_apart_and_only_hidden_matrices_are_hidden() -> None:
    graph = api.read("llama-3.1-8b").graph
    layer = graph.ops[1].body
    by_name = {part.name: weight_tensors(layer, part) for part in layer}
    assert by_name["attention.query_key_value"] == (
        WeightTensor(4096, 4096, 1, True), WeightTensor(4096, 1024, 1, True), WeightTensor(4096, 1024, 1, True)
    )  # fmt: skip
    assert by_name["mlp.in"] == (WeightTensor(4096, 14336, 1, True),) * 2
    assert by_name["attention.norm"] == (WeightTensor(4096),)
    assert weight_tensors(graph.ops[0].body, graph.ops[0].body[0]) == (WeightTensor(128256, 4096),)
    head = {part.name: weight_tensors(graph.ops[-1].body, part) for part in graph.ops[-1].body}
    assert head["unembedding"] == (WeightTensor(4096, 128256),)
    experts = {part.name: weight_tensors(op.body, part) for op in [api.read("mixtral-8x7b").graph.ops[1]] for part in op.body}
    assert experts["mlp.experts.in"] == (WeightTensor(4096, 14336, 8, True),) * 2


def test_shapes_that_are_not_known_are_said_to_be_so() -> None:
    assert weight_tensors((), Operator("conv", "convolution", (("sequence", 1),), n_parameters=9)) is None
    short = Operator("p", "matmul", (("sequence", 1), ("in", 4), ("out", 4)), n_parameters=9)
    assert weight_tensors((short,), short) is None
    assert product_parts((short,), Operator("a.query_key_value", "matmul", (("sequence", 1), ("in", 4), ("out", 12)))) == (
        ("query_key_value", 12),
    )
