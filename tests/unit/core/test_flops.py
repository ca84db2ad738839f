"""Floating point operations against closed forms and published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import models
from meshwright.core.flops import forward_flops, model_flops, passes
from meshwright.core.graph import Operator


def test_matrix_products_count_multiply_and_add() -> None:
    assert forward_flops(Operator("a", "matmul", (("sequence", 3), ("in", 5), ("out", 7)))) == 2 * 3 * 5 * 7


def test_routed_products_count_only_the_experts_visited() -> None:
    dims = (("sequence", 3), ("top_k", 2), ("experts", 64), ("in", 5), ("out", 7))
    assert forward_flops(Operator("a", "grouped_matmul", dims)) == 2 * 3 * 2 * 5 * 7


def test_causal_attention_counts_half_the_square() -> None:
    dims = (("sequence", 8), ("key_sequence", 8), ("heads", 4), ("kv_heads", 2), ("head", 16), ("value", 12))
    assert forward_flops(Operator("a", "attention", dims)) == 2 * 8 * 8 * 4 * (16 + 12)
    assert forward_flops(Operator("a", "causal_attention", dims)) == 8 * 8 * 4 * (16 + 12)


@pytest.mark.parametrize(
    ("kind", "per_element"),
    [("norm", 5), ("softmax", 5), ("cross_entropy", 5), ("elementwise", 1), ("pooling", 1), ("convolution", 2), ("combine", 2),
     ("embedding", 0), ("dispatch", 0), ("other", 0)],
)  # fmt: skip
def test_work_that_is_no_product_counts_so_much_per_element(kind: str, per_element: int) -> None:
    """A norm: square, sum, reciprocal root, two products. A soft maximum: maximum, difference, exponential, sum, quotient."""
    assert forward_flops(Operator("a", kind, (("sequence", 3), ("hidden", 7)))) == per_element * 21


def test_known_flops_win_over_dims() -> None:
    assert forward_flops(Operator("a", "other", (), flops=12.0)) == 12.0


def test_passes_are_one_for_each_gradient_that_is_wanted() -> None:
    """Backward: one product for the gradient of the input, one for that of the weights; two for attention's two activations."""
    dims = (("sequence", 3), ("in", 5), ("out", 7))
    for trained, wanted, n_passes in ((35, True, 3.0), (35, False, 2.0), (0, True, 2.0), (0, False, 1.0)):
        part = Operator("a", "matmul", dims, n_parameters=35, n_frozen_parameters=35 - trained, input_gradient=wanted)
        assert passes(part) == n_passes
    scores = Operator("a", "attention", (("sequence", 8), ("key_sequence", 8), ("heads", 1), ("head", 4), ("value", 4)))
    assert (passes(scores), passes(replace(scores, input_gradient=False))) == (3.0, 1.0)


def test_an_unknown_kind_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        forward_flops(Operator("a", "nonsense", ()))


@pytest.mark.parametrize(
    ("name", "layers", "h"), [("megatron-22b", 48, 6144), ("megatron-145b", 80, 12288), ("megatron-1t", 128, 25600)]
)
def test_model_flops_are_megatrons(name: str, layers: int, h: int) -> None:
    s, v = 2048, 51200
    graph = models.read(name).graph
    assert model_flops(graph) == pytest.approx(72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h)), rel=1e-12)
    # with full recomputation the layers' forward runs once more (SC 2021, section 5.1)
    logits = 6 * s * h * v
    recomputed = model_flops(graph) + (model_flops(graph) - logits) / 3
    assert recomputed == pytest.approx(96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)), rel=1e-12)


def test_model_flops_are_palms_for_a_model_without_biases() -> None:
    graph = models.read("llama-3.1-8b", sequence_length=2048).graph
    n_products = graph.n_parameters - 128256 * 4096 - 65 * 4096  # without the look-up and the norms
    per_token = 6 * n_products + 12 * 32 * 32 * 128 * 2048  # PaLM, appendix B
    assert model_flops(graph) == pytest.approx(2048 * per_token, rel=1e-12)


def test_halved_causal_attention_is_what_runs() -> None:
    graph = models.read("llama-3.1-8b", sequence_length=2048).graph
    square = 3 * 32 * 4.0 * 2048**2 * 32 * 128
    assert model_flops(graph) - model_flops(graph, halve_causal=True) == pytest.approx(square / 2, rel=1e-12)
    bert = models.read("bert-base").graph  # every token sees every other: nothing to halve
    assert model_flops(bert, halve_causal=True) == model_flops(bert)
