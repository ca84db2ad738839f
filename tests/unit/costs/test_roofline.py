"""Seconds of single operators on a device of round figures: 100 TFLOP/s, a terabyte a second."""

from __future__ import annotations

import pytest

from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic.roofline import Shape, operator_seconds, unfused_attention_seconds

from .conftest import device

FLOPS, RATE = 100e12, 1e12
BF16 = MixedPrecision()
SHAPE = Shape(micro_batch=2)


def attention(kind: str = "attention", head: int = 128, **sizes: int) -> Operator:
    dims = {"sequence": 4096, "key_sequence": 4096, "heads": 16, "kv_heads": 16, "head": head, "value": head, **sizes}
    return Operator("core", kind, tuple(dims.items()), "heads")


def test_fused_attention_does_two_products_forward_and_five_at_four_fifths_of_the_rate_backward() -> None:
    """2 samples x 4096 x 4096 scores x 16 heads x 2 (128 + 128) operations at half of the peak; heads of 128 use it all."""
    forward, backward, weight = operator_seconds(attention(), SHAPE, device(attention_ratio=0.5), BF16)
    expected = 2 * 4096 * 4096 * 16 * 2 * (128 + 128) / (0.5 * FLOPS)
    assert forward == pytest.approx(expected)
    assert backward == pytest.approx(expected * (5 / 2) / 0.8)
    assert weight == 0.0


def test_a_causal_mask_halves_and_small_heads_slow_down() -> None:
    whole, half, narrow = (
        operator_seconds(operator, SHAPE, device(attention_ratio=0.5), BF16).forward
        for operator in (attention(), attention("causal_attention"), attention(head=32))
    )
    assert half == pytest.approx(whole / 2)
    assert narrow == pytest.approx(whole / 4 / (32 / 64 * 1.25))  # a quarter of the operations at 0.625 of the rate


def test_attention_on_few_rows_waits_for_keys_and_values_and_two_and_a_half_times_as_long_backward() -> None:
    """One row: queries and outputs of 16 heads, keys and values of 4 heads at 4096 positions, 2 samples, 2 bytes."""
    operator = attention(sequence=1, kv_heads=4)
    forward, backward, _ = operator_seconds(operator, SHAPE, device(memory_ratio=0.8), BF16)
    moved = 2 * 2 * (1 * 16 + 4096 * 4) * (128 + 128)
    assert forward == pytest.approx(moved / (0.8 * RATE))
    assert backward == pytest.approx(2.5 * forward)


def test_attention_is_divided_over_the_tensor_axis_but_a_key_head_stays_whole() -> None:
    split = Shape(micro_batch=2, tensor=8)
    operator = attention(sequence=1, kv_heads=4)
    forward = operator_seconds(operator, split, device(), BF16).forward
    assert forward == pytest.approx(
        2 * 2 * (2 + 4096) * 256 / RATE
    )  # 2 of 16 heads, 1 key head where 4 / 8 would be half of one


def test_attention_that_is_not_fused_writes_its_scores_and_does_four_products_backward() -> None:
    """Bound by memory: two heads' (rows x inner + inner x columns + rows x columns) for every product, 2 bytes, 2 samples."""
    operator = attention(sequence=64, key_sequence=96, heads=2, kv_heads=2, head=8, value=16)
    forward, backward, weight = unfused_attention_seconds(operator, SHAPE, device(memory_ratio=1e-3), BF16)

    def moved(rows: int, columns: int, inner: int) -> float:
        return 2 * 2 * 2 * (rows * inner + inner * columns + rows * columns) / (1e-3 * RATE)

    assert forward == pytest.approx(moved(64, 96, 8) + moved(64, 16, 96))
    assert backward == pytest.approx(moved(64, 8, 96) + moved(96, 8, 64) + moved(64, 96, 16) + moved(96, 16, 64))
    assert weight == 0.0


def matmul(axis: str = "", kind: str = "matmul", **sizes: int) -> Operator:
    dims = {"sequence": 32, "in": 8, "out": 24, **sizes}
    return Operator("product", kind, tuple(dims.items()), axis, dims["in"] * dims["out"])


@pytest.mark.parametrize(
    ("axis", "rows", "inner", "columns"), [("", 64, 8, 24), ("out", 64, 8, 12), ("in", 64, 4, 24), ("sequence", 32, 8, 24)]
)
def test_a_product_moves_its_operands_and_its_result_three_times(axis: str, rows: int, inner: int, columns: int) -> None:
    """2 bytes each; the gradient of the weight is read and written in 4. Split in two along each side, or along the sequence."""  # noqa: E501
    shape = Shape(micro_batch=2, tensor=2, sequence_parallel=True)
    found = operator_seconds(matmul(axis), shape, device(memory_ratio=1e-4), BF16)
    left, right, out = rows * inner, inner * columns, rows * columns
    rate = 1e-4 * RATE
    assert found.forward == pytest.approx(2 * (left + right + out) / rate)
    assert found.backward_input == pytest.approx(2 * (out + right + left) / rate)
    assert found.backward_weight == pytest.approx((2 * (left + out) + 2 * 4 * right) / rate)


def test_casts_move_bytes_of_both_operands_forward_and_of_the_gradient_backward() -> None:
    """fp8: an operand is read at 1 byte after a cast that moves 1.5; results stay in 2."""
    found = operator_seconds(matmul(), Shape(micro_batch=2), device(memory_ratio=1e-4), MixedPrecision("fp8"))
    left, right, out, rate = 64 * 8, 8 * 24, 64 * 24, 1e-4 * RATE
    assert found.forward == pytest.approx((2.5 * (left + right) + 2 * out) / rate)
    assert found.backward_input == pytest.approx((2.5 * out + right + 2 * left) / rate)
    assert found.backward_weight == pytest.approx((left + out + 2 * 4 * right) / rate)


def test_grouped_products_take_a_share_of_the_tokens_each() -> None:
    """2 x 32 tokens, 2 experts each of 8, of which a device of 4 holds 2: 64 x 2 / 2 rows for each of its two products."""
    operator = Operator(
        "experts", "grouped_matmul", (("sequence", 32), ("top_k", 2), ("experts", 8), ("in", 8), ("out", 24)), "out", 8 * 8 * 24,  # noqa: E501
        expert=True,
    )  # fmt: skip
    found = operator_seconds(operator, Shape(micro_batch=2, expert=4), device(memory_ratio=1e-4), BF16)
    rows = 2 * 32 * 2 / 2
    assert found.forward == pytest.approx(2 * 2 * (rows * 8 + 8 * 24 + rows * 24) / (1e-4 * RATE))
    folded = operator_seconds(operator, Shape(micro_batch=2, expert=4, tensor=2, folded=True), device(memory_ratio=1e-4), BF16)
    assert folded.forward == pytest.approx(2 * 2 * (rows / 2 * 8 + 8 * 24 + rows / 2 * 24) / (1e-4 * RATE))


@pytest.mark.parametrize(
    ("kind", "dims", "forward", "backward", "weight"),
    [
        ("norm", {"hidden": 8}, 2 * 2 * 8, 3 * 2 * 8, 0),
        ("elementwise", {"hidden": 8, "inputs": 2}, 3 * 2 * 8, 5 * 2 * 8, 0),
        ("embedding", {"vocabulary": 100, "hidden": 8}, 2 * 2 * 8, 0, (2 + 2 * 4) * 8),
        ("cross_entropy", {"vocabulary": 100}, (2 + 12) * 100, (8 + 2) * 100, 0),
        ("softmax", {"hidden": 8}, 2 * 2 * 8, 3 * 2 * 8, 0),
        ("dispatch", {"top_k": 3, "hidden": 8}, 2 * 2 * 3 * 8, 2 * 2 * 3 * 8, 0),
        ("pooling", {"hidden": 8}, 2 * 2 * 8, 3 * 2 * 8, 0),
    ],
)
def test_what_moves_bytes_takes_their_time(kind: str, dims: dict[str, int], forward: int, backward: int, weight: int) -> None:
    """Bytes of one of 2 x 32 positions: read and write of 2 bytes forward, the same and the gradient backward."""
    operator = Operator(kind, kind, (("sequence", 32), *dims.items()))
    found = operator_seconds(operator, SHAPE, device(memory_ratio=0.5), BF16)
    assert found == pytest.approx(tuple(64 * n_bytes / (0.5 * RATE) for n_bytes in (forward, backward, weight)))


def test_drop_out_after_a_softmax_is_one_more_pass_and_its_mask() -> None:
    elements = 32 * 8
    operator = Operator("softmax", "softmax", (("sequence", 32), ("hidden", 8)), saved_extra_bytes=elements)
    found = operator_seconds(operator, SHAPE, device(), BF16)
    assert found == pytest.approx((2 * elements * (4 + 4 + 1) / RATE, 2 * elements * (6 + 4 + 1) / RATE, 0.0))
