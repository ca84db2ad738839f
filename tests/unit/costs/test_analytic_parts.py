"""Parts of the analytic cost model, each alone and by hand: tiles and waves, groups of a mesh, what is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.clusters import cluster
from meshwright.core.framework import Framework
from meshwright.core.graph import Operator
from meshwright.core.problem import MixedPrecision
from meshwright.costs.analytic import device_mesh, layer, recomputation, roofline, stage
from meshwright.costs.analytic.layer import LayerWork, Repeat
from meshwright.costs.analytic.products import PROLOGUE, TILES, Product, aligned_share, product_seconds
from meshwright.costs.analytic.roofline import Shape

from .conftest import device

RATE = 100e12


@pytest.mark.parametrize(("n", "share"), [(8, 1.0), (64, 1.0), (12, 0.75), (4, 0.75), (6, 0.5), (2, 0.5), (7, 0.3), (1, 0.3)])
def test_the_share_of_the_rate_by_alignment(n: int, share: float) -> None:
    assert aligned_share(n) == share


@pytest.mark.parametrize(("sizes", "n_units"), [
    ((128, 256, 64, 1), 0), ((129, 256, 64, 1), 0), ((128, 257, 64, 3), 0), ((4096, 4096, 512, 1), 100), ((100, 60, 32, 2), 7),
    ((1000, 3000, 999, 5), 108), ((128, 128, 512, 216), 108), ((128, 128, 512, 217), 108),
])  # fmt: skip
def test_a_product_takes_whole_tiles_and_between_a_whole_wave_and_a_share_of_the_last(
    sizes: tuple[int, ...], n_units: int
) -> None:
    rows, columns, inner, n = sizes
    ways = []
    for high, wide, share in TILES:
        tiles = math.ceil(rows / high) * math.ceil(columns / wide) * n
        if n_units:
            tiles = n_units * (max(1.0, tiles / n_units) + math.ceil(tiles / n_units)) / 2
        ways.append(2.0 * tiles * high * wide * (inner + PROLOGUE) / share)
    found = product_seconds(Product(rows, columns, inner, n, 0.0), device(n_multiprocessors=n_units), "bf16")
    assert found == pytest.approx(min(ways) / RATE)
    odd = product_seconds(Product(rows, columns, inner, n, 0.0, 4), device(n_multiprocessors=n_units), "bf16")
    assert odd == pytest.approx(found / (0.75 if n_units else 1.0))
    assert product_seconds(Product(rows, columns, inner, n, 1e15), device(), "bf16") == pytest.approx(1e3)
    assert Product(rows, columns, inner, n, 0.0).flops == 2.0 * rows * columns * inner * n


def test_groups_of_a_mesh_by_hand() -> None:
    """Twelve devices, three of the tensor axis each: blocks of two ranks."""
    ids = range(10, 22)
    assert device_mesh._groups("tensor", (3,), ids).tolist() == [[10, 11, 12], [13, 14, 15], [16, 17, 18], [19, 20, 21]]
    blocks = device_mesh._groups("consecutive", (2, 3), ids).tolist()
    assert blocks == [[10, 13], [11, 14], [12, 15], [16, 19], [17, 20], [18, 21]]
    apart = device_mesh._groups("strided", (2, 3), ids).tolist()
    assert apart == [[10, 16], [11, 17], [12, 18], [13, 19], [14, 20], [15, 21]]
    assert device_mesh._as_range([3, 4, 5]) == range(3, 6) and device_mesh._as_range([3]) == range(3, 4)
    assert device_mesh._as_range([3, 5, 4]) == (3, 5, 4) and device_mesh._as_range([3, 4, 4, 6]) == (3, 4, 4, 6)
    nodes = cluster("two-level:8,per_node=4")
    assert device_mesh._targets(nodes, np.array([[0, 1], [2, 3]])) == 2
    assert device_mesh._targets(nodes, np.array([[0, 1, 2, 3]])) == 4
    assert device_mesh._targets(nodes, np.array([[0, 1, 2, 4], [0, 1, 2, 3]])) == 2
    assert device_mesh._targets(nodes, np.array([[4, 0], [1, 5]])) == 2


def test_copies_reach_so_many_targets_on_average() -> None:
    assert stage.distinct(2, 1) == 1.0 and stage.distinct(2, 2) == 1.5 and stage.distinct(1, 5) == 1.0
    assert stage.distinct(4, 2) == pytest.approx(4 * (1 - 9 / 16))
    assert stage._add((("b", 1.0),), "a", 2.0) == (("a", 2.0), ("b", 1.0)) and stage._add((("a", 1.0),), "a", 2.0) == (
        ("a", 3.0),
    )


def work(**changes: object) -> LayerWork:
    given = dict.fromkeys(
        ("forward_seconds", "backward_input_seconds", "backward_weight_seconds", "selective_seconds", "rerun_seconds",
         "saved_bytes", "selective_bytes", "input_bytes", "output_bytes", "working_bytes", "model_flops"), 0.0
    ) | {"forward": (), "backward": (), "selective": (), "rerun": (), "n_dense_parameters": 0, "n_expert_parameters": 0,
         "n_lookup_parameters": 0}  # fmt: skip
    return LayerWork(**(given | changes))  # type: ignore[arg-type]


def test_settings_of_a_framework_that_repeat_the_same_are_one() -> None:
    nothing, some = Repeat(0.0, (), 9.0), Repeat(3.0, (), 5.0)
    own = work(repeats=(("a", nothing), ("b", some), ("c", some)), saved_bytes=9.0, working_bytes=2.0, rerun_seconds=4.0,
               input_bytes=1.0, selective_bytes=3.0, selective_seconds=2.0)  # fmt: skip
    assert [own.same_as(word) for word in ("a", "b", "c", "full")] == ["none", "b", "b", "full"]
    assert work(has_backward=False).same_as("full") == "none"
    assert [stage.repeated(own, word)[0] for word in ("none", "selective", "full", "c")] == [0.0, 2.0, 4.0, 3.0]
    held = [stage._activation_bytes(own, word) for word in ("none", "selective", "full", "c")]
    assert held == [(9.0, 2.0), (6.0, 5.0), (1.0, 11.0), (5.0, 6.0)]
    with pytest.raises(InputError):
        stage.repeated(own, "d")


def test_what_is_handed_to_a_product_may_be_kept_as_cast() -> None:
    body = tuple(
        Operator(kind, kind, (("sequence", 4), ("hidden", 8))) for kind in ("norm", "matmul", "norm", "softmax", "dispatch")
    )
    fp8, casts = MixedPrecision("fp8"), Framework(name="casts", keeps_casts=True)
    widths = [layer._kept_width(body, i, fp8, casts) for i in range(5)]
    assert widths == [1.0, 2.0, 2.0, 2.0, 2.0]
    assert [layer._kept_width(body, i, fp8, Framework(name="plain")) for i in range(5)] == [2.0] * 5


def test_bytes_of_operands_by_precision() -> None:
    found = {word: roofline.operand_bytes(MixedPrecision(word)) for word in ("bf16", "fp8", "mxfp8", "fp4")}
    assert found == {"bf16": (0.0, 2.0), "fp8": (1.5, 1.0), "mxfp8": (3.0, 1.03125), "fp4": (1.25, 0.5625)}
    assert [roofline.wide_precision(MixedPrecision(word)) for word in ("fp8", "mxfp8", "fp4", "fp16")] == ["bf16"] * 3 + [
        "fp16"
    ]


@pytest.mark.parametrize(("kind", "dims", "forward", "backward"), [
    ("norm", {"sequence": 8, "hidden": 10}, 2 * 160, 3 * 160),
    ("elementwise", {"sequence": 8, "hidden": 10, "inputs": 2}, 480, 800),
    ("cross_entropy", {"sequence": 8, "vocabulary": 10}, 80 * 14, 80 * 10),
    ("softmax", {"sequence": 8, "hidden": 10}, 320, 480),
    ("dispatch", {"sequence": 8, "top_k": 3, "hidden": 10}, 960, 960), ("pooling", {"sequence": 8, "hidden": 10}, 320, 480),
    ("embedding", {"sequence": 8, "vocabulary": 99, "hidden": 10}, 320, 80 * 10),
])  # fmt: skip
def test_bytes_of_operators_that_only_move_them(kind: str, dims: dict[str, int], forward: float, backward: float) -> None:
    """Of one sample; two bytes an element, gradients of weights in four."""
    operator = Operator("one", kind, tuple(dims.items()))
    assert roofline._moved_bytes(operator, Shape(), MixedPrecision()) == pytest.approx((forward, backward))
    shared = roofline._moved_bytes(operator, Shape(micro_batch=6, context=2), MixedPrecision())
    assert shared == pytest.approx((3 * forward, 3 * backward))
    split = Operator("one", kind, tuple(dims.items()), "hidden")
    whole = kind in ("dispatch", "embedding")  # experts' copies are split along the sequence only, looked up rows not at all
    assert roofline._moved_bytes(split, Shape(tensor=4), MixedPrecision())[0] == pytest.approx(forward / (1 if whole else 4))


def test_every_second_product_is_repeated_in_the_order_of_calls() -> None:
    names = ("attention.norm", "attention.query", "attention.core", "attention.out", "mlp.in", "mlp.activation", "mlp.out")
    kinds = ("norm", "matmul", "attention", "matmul", "matmul", "elementwise", "matmul")
    axes = ("", "out", "heads", "in", "out", "out", "in")
    dims = (("sequence", 4), ("in", 3), ("out", 5), ("inputs", 2))
    body = tuple(Operator(*row) for row in zip(names, kinds, [dims] * 7, axes, strict=True))
    found = recomputation._alternate(body)
    # query is kept, out repeated, of the gated pair the first is kept, the last one is kept as well
    assert [part.work_ratio for part in found] == [1.0, 0.0, 0.0, 1.0, 0.5, 1.0, 0.0]
    assert [part.kept_ratio for part in found] == [0.0, 1.0, 1.0, 1.0, 0.5, 0.0, 1.0]
    assert [part.extra_elements for part in found] == [0, 0, 0, 0, 0, 0, 20]  # and what it puts out
    turned = recomputation._alternate(body[3:])
    assert [part.extra_elements for part in turned] == [20, 0, 0, 0]
    assert [part.work_ratio for part in turned] == [0.0, 0.5, 1.0, 1.0]
