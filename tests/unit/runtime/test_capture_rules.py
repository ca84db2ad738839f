"""Rules of what follows a trace, each by hand: kinds of layers, rows of experts, what stands beside split tensors, views."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from recorded import Recorded

pytest.importorskip("torch", reason="capture needs PyTorch, an optional extra: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from test_capture_parts import trace_of, traced  # noqa: E402

from meshwright.core.graph import Op, Operator  # noqa: E402
from meshwright.runtime.capture import attention, axes, bodies, layers, operators, routed, segments, splits  # noqa: E402
from meshwright.runtime.capture.splits import Part  # noqa: E402
from meshwright.runtime.capture.trace import TracedTensor  # noqa: E402

Shape = tuple[int, ...]


def places(shape: Shape, part: Part) -> list[int]:
    """Return for every element of a tensor which of the split columns it belongs to."""
    inner, size = math.prod(shape[part.axis :][1:]), shape[part.axis]
    each = size // (part.n_outer * part.n)
    return [(k // inner) % size // each % part.n for k in range(math.prod(shape))]


def factors(chance: random.Random, n: int) -> Shape:
    """Return sizes whose product is `n`."""
    found = []
    while n > 1:
        size = chance.choice([k for k in range(2, n + 1) if n % k == 0])
        found.append(size)
        n //= size
    return tuple(found)


def test_columns_seen_in_another_shape_are_the_same_elements() -> None:
    """The factors that a split becomes number the elements as the split did, whatever the shapes; else it is lost."""
    chance, kept = random.Random(5), 0
    for _ in range(400):
        n = chance.choice((12, 16, 24, 36))
        before, after = factors(chance, n), factors(chance, n)
        axis = -chance.randrange(1, len(before) + 1)
        outer = chance.choice([k for k in range(1, before[axis] + 1) if before[axis] % k == 0])
        part = Part(axis, outer, before[axis] // outer)
        found = splits._reshaped(before, after, (part,))
        if found is None:
            continue
        kept += 1
        numbers = [0] * n
        for one in found:
            numbers = [number * one.n + place for number, place in zip(numbers, places(after, one), strict=True)]
        assert numbers == places(before, part), (before, after, part, found)
    assert kept > 150


def test_what_is_lost_in_another_shape_and_what_is_not(recorded: Recorded) -> None:
    chance = random.Random(6)
    found = []
    for _ in range(250):
        n = chance.choice((12, 24))
        before, after = factors(chance, n), factors(chance, n)
        axis = -chance.randrange(1, len(before) + 1)
        outer = chance.choice([k for k in range(1, before[axis] + 1) if before[axis] % k == 0])
        size = chance.choice([k for k in range(1, before[axis] // outer + 1) if before[axis] // outer % k == 0])
        made = splits._reshaped(before, after, (Part(axis, outer, size),))
        found.append("-" if made is None else " ".join(f"{one.axis}:{one.n_outer}:{one.n}" for one in made))
    recorded("; ".join(found))


def test_a_layer_is_called_by_what_is_in_it() -> None:
    part = segments.OperatorSegment("layers.0", "layers.0", True, (0,))

    def kind(*kinds: str, name: str = "layers.0") -> str:
        return bodies._kind(dataclasses.replace(part, name=name), tuple(Operator(k, k, ()) for k in kinds))

    assert kind("matmul", name="head") == "head" and kind("norm", "grouped_matmul", "attention") == "moe"
    assert kind("matmul", "attention") == kind("causal_attention", "embedding") == "attention_mlp"
    assert kind("embedding", "norm") == "embedding" and kind("embedding", "matmul") == "matmul"
    assert kind("embedding", "convolution") == kind("matmul", "convolution") == "convolution"
    assert kind("norm", "elementwise") == "norm" and kind("elementwise", "matmul") == "matmul" and kind() == "other"


def test_rows_of_experts_are_known_by_their_shapes() -> None:
    mixture = routed._Mixture("mlp", 4, 2)

    def rows(*shape: int) -> bool:
        return routed._rows(TracedTensor(shape, "float32", True), mixture, 6)

    assert rows(4, 6, 8) and rows(24, 8) and rows(4, 6, 1)
    assert not any(rows(*shape) for shape in ((4, 5, 8), (3, 6, 8), (23, 8), (4, 6), (24, 8, 1), (24,), (4, 6, 8, 1)))
    assert routed._fewer(TracedTensor((4, 6, 8), "float32", True), mixture, 6).shape == (12, 8)
    assert routed._fewer(TracedTensor((5, 8), "float32", True), mixture, 6).shape == (5, 8)
    assert routed._inside("a.b", "a") and routed._inside("a", "a") and routed._inside("x", "") and not routed._inside("ab", "a")


def test_a_product_with_every_expert_is_known_by_its_weights() -> None:
    def told(name: str, shape: Shape, sources: tuple[int, ...] = (-1, -2), **changes: Any) -> bool:
        operator = traced(name, ((4, 6, 8), shape), (4, 6, 8), sources, **changes)
        trace = dataclasses.replace(trace_of(operator), parameters={"w": shape})
        return routed.is_every_expert(operator, trace)

    assert told("bmm", (4, 8, 8)) and told("baddbmm", (4, 8, 8)) and not told("mm", (4, 8, 8))
    assert not told("bmm", (4, 8)) and not told("bmm", (1, 8, 8)) and not told("bmm", (4, 1, 1)) and told("bmm", (4, 1, 2))
    assert (
        not told("bmm", (4, 8, 8), fed=False) and not told("bmm", (4, 8, 8), (-1, -1)) and not told("bmm", (4, 8, 8), (-2, -2))
    )


def walk(*ops: Any, first: int = 0, split: dict[int, Any] | None = None, whole: set[int] = frozenset()) -> Any:  # type: ignore[assignment]
    made = axes._Walk(ops, first, set(whole), frozenset(range(len(ops))))
    made.split = dict(split or {})
    made.origin = {i: frozenset((i,)) for i in made.split}
    return made


def test_what_is_whole_may_stand_beside_what_is_split() -> None:
    heads, columns = Part(-3, 1, 4), Part(-1, 1, 8)
    table = traced("embedding", ((9, 4), (5, 5)), (5, 5, 4), (-2, -1))
    position = traced("mul", ((5, 8),), (5, 8), (-2,), fed=False)
    made = traced("mm", ((6, 8), (8, 8)), (6, 8), (-1, -2))
    one_head = traced("expand", ((2, 1, 5, 4),), (2, 4, 5, 4), (2,))
    shown = traced("view", ((2, 4, 5, 4),), (2, 4, 5, 4), (3,), view=True)
    copied = traced("clone", ((2, 4, 5, 4),), (2, 4, 5, 4), (4,))
    changed = traced("relu", ((2, 4, 5, 4),), (2, 4, 5, 4), (4,))
    ops = (table, position, made, one_head, shown, copied, changed)
    for source, part, shape, fits in (
        (0, columns, (5, 5, 8), True), (0, heads, (5, 5, 4), False), (1, columns, (5, 8), True), (2, columns, (6, 8), False),
        (3, heads, (2, 4, 5, 4), True), (4, heads, (2, 4, 5, 4), True), (5, heads, (2, 4, 5, 4), True),
        (6, heads, (2, 4, 5, 4), False), (3, Part(-3, 1, 3), (2, 4, 5, 4), False), (2, heads, (6, 8), True),
        (2, columns, (6, 1), True), (-1, columns, (6, 8), True),
    ):  # fmt: skip
        reads = traced("add", (shape,), shape, (source,))
        assert walk(*ops, reads)._fits(reads, 0, part) == fits, (source, part)
    reads = traced("add", ((6, 8),), (6, 8), (2,))
    assert walk(*ops, reads, first=3)._fits(reads, 0, columns), "of an earlier layer"
    assert walk(*ops)._fits(traced("add", ((8,),), (6, 8), (-2,)), 0, columns), "a weight is divided like its result"
    whole_numbers = dataclasses.replace(reads, inputs=(TracedTensor((6, 8), "int64", False),))
    assert walk(*ops, whole_numbers)._fits(whole_numbers, 0, columns)


def test_attention_by_small_products_is_split_by_heads_or_by_rows_that_share_them() -> None:
    heads, rows, columns = (Part(-3, 1, 4),), (Part(-2, 1, 6),), (Part(-1, 1, 8),)
    both = (Part(-3, 1, 4), Part(-2, 1, 3))
    left, right = traced("mm", ((8, 6), (6, 8)), (4, 6, 8), (-1, -2)), traced("mm", ((8, 6), (6, 8)), (4, 8, 6), (-1, -2))
    core = traced("bmm", ((4, 6, 8), (4, 8, 6)), (4, 6, 6), (0, 1))
    for of_left, of_right, found in (
        (heads, heads, heads), (both, heads, both), (heads, both, heads), (rows, None, rows), (None, rows, None),
        (columns, None, None),
        (rows, rows, None), (heads, columns, None), (heads, None, None), (None, heads, None), (None, columns, None),
    ):  # fmt: skip
        made = walk(left, right, core, split={i: s for i, s in enumerate((of_left, of_right)) if s})
        assert made._batched(core) == found, (of_left, of_right)
    made = walk(left, right, core, split={0: heads, 1: columns})
    assert made._without_heads(core, ()) == [1] and made._without_heads(core, (0,)) == [1]
    assert walk(left, right, core, split={0: rows, 1: heads})._without_heads(core, (0,)) == [0, 1]
    assert walk(left, right, core, split={0: rows, 1: heads})._without_heads(core, ()) == [0]
    assert walk(left, right, core, split={0: heads, 1: rows})._without_heads(core, (0,)) == [1]


def test_element_by_element_a_split_is_kept_where_all_inputs_fit() -> None:
    wide, split = traced("mm", ((6, 8), (8, 8)), (6, 8), (-1, -2)), (Part(-1, 1, 8),)
    for shapes, out, sources, found in (
        (((6, 8), (6, 8)), (6, 8), (0, 0), split), (((6, 8), (8,)), (6, 8), (0, -2), split),
        (((6, 8), (6, 1)), (6, 8), (0, -1), split),
        (((6, 8),), (6, 4), (0,), None), (((6, 8),), (8,), (0,), None), (((6, 8),), (2, 6, 8), (0,), split),
        (((6, 8),), (), (0,), None),
        (((6, 8), (6, 8)), (6, 8), (0, 1), None),
    ):  # fmt: skip
        reads = traced("add", shapes, out, sources)
        other = traced("mm", ((6, 8), (8, 8)), (6, 8), (-1, -2))
        assert walk(wide, other, reads, split={0: split})._element_wise(reads) == found, (shapes, out)
    product = traced("odd", ((6, 8),), (6, 8), (0,), forward_flops=3.0)
    assert walk(wide, product, split={0: split})._element_wise(product) is None
    cumulated = traced("cumsum", ((6, 8),), (6, 8), (0,))
    assert walk(wide, cumulated, split={0: split})._element_wise(cumulated) is None
    two = (Part(-1, 1, 4), Part(-2, 1, 6))
    shrunk = traced("mean", ((6, 4),), (1, 4), (0,))
    assert walk(wide, shrunk, split={0: two})._element_wise(shrunk) == two[:1], "what was summed over is split no more"
    ends = traced("x", ((6, 8),), (6, 8), (0,), outputs=())
    assert walk(wide, ends, split={0: split})._element_wise(ends) is None


def test_products_take_their_split_from_the_side_of_their_weights() -> None:
    up = traced("mm", ((6, 8), (8, 16)), (6, 16), (-1, -2))
    turned = traced("mm", ((16, 8), (8, 6)), (16, 6), (-2, -1))
    for first, axis in ((up, -1), (turned, -2)):
        made = walk(first)
        made._product(0, first)
        assert made.split == {0: (Part(axis, 1, 16),)} and made.axes == {0: "out"} and made.origin == {0: frozenset((0,))}
        refused = walk(first, whole={0})
        refused._product(0, first)
        assert refused.split == {} and refused.axes == {0: "sequence"}
    down = traced("mm", ((6, 16), (16, 8)), (6, 8), (0, -2))
    for split, word, whole in (((Part(-1, 1, 16),), "in", set()), ((Part(-2, 1, 6),), "sequence", {0})):
        made = walk(up, down, split={0: split})
        made._product(1, down)
        assert made.axes == {1: word} and made.refused == whole and 1 not in made.split
    back = traced("mm", ((8, 16), (16, 6)), (8, 6), (-2, 0))
    made = walk(turned, back, split={0: (Part(-2, 1, 16),)})
    made._product(1, back)
    assert made.axes == {1: "in"} and not made.refused


def test_windows_and_norms_by_channel_have_sizes_of_their_own() -> None:
    query = traced("_scaled_dot_product_flash", ((8, 2, 5, 4), (8, 2, 7, 4), (8, 2, 7, 6)), (8, 2, 5, 6), (-1, -1, -1))
    sizes = dict(operators._attention_space(trace_of(query), query))
    assert sizes == {"sequence": 20, "key_sequence": 7, "heads": 2, "kv_heads": 2, "head": 4, "value": 6}, "of two samples"
    flat = traced("_scaled_dot_product_x", ((6, 5, 4), (6, 7, 4), (6, 7, 4)), (6, 5, 4), (-1, -1, -1))
    assert dict(operators._attention_space(trace_of(flat), flat)) | {"heads": 1, "sequence": 15} == dict(
        operators._attention_space(trace_of(flat), flat)
    )
    odd = traced("_scaled_dot_product_x", ((2, 4, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)), (2, 4, 5, 4), (-1, -1, -1))
    assert dict(operators._attention_space(trace_of(odd), odd))["kv_heads"] == 4, "three heads divide no four"
    more = traced("_scaled_dot_product_x", ((2, 2, 5, 4), (2, 4, 7, 4), (2, 4, 7, 4)), (2, 2, 5, 4), (-1, -1, -1))
    assert dict(operators._attention_space(trace_of(more), more))["kv_heads"] == 2
    bag = traced("_embedding_bag", ((9, 4), (12,)), (6, 4), (-2, -1))
    assert operators.operator_of(0, trace_of(bag), "a", "", (0, 0), 1).moved_elements == (12 * 4 + 24) // 2
    for axis, saved in (("out", "sequence"), ("sequence", "sequence"), ("", ""), ("in", "tensor"), ("heads", "tensor")):
        made = operators.operator_of(0, trace_of(traced("mm", ((6, 8), (8, 5)), (6, 5), (-1, -2))), "a", axis, (0, 0), 3)
        assert (made.tensor_axis, made.saved_axis) == (axis, saved)
    strange = [traced("add", ((2, 6, 8),), shape) for shape in ((), (8,), (2, 1))]
    assert [operators._space(one, 2, 6)[0] for one in strange] == ["other"] * 3


def test_a_soft_maximum_of_something_else_is_no_attention() -> None:
    core = traced("bmm", ((6, 5, 4), (6, 4, 7)), (6, 5, 7), forward_flops=1.0)
    soft = traced("_softmax", ((6, 5, 7),), (6, 5, 7), (0,), numbers=(-1, 0))
    values = traced("bmm", ((6, 5, 7), (6, 7, 6)), (6, 5, 6), (1, -1), forward_flops=1.0)
    (found,) = attention.find(trace_of(core, soft, values), range(3), {})
    assert dict(found.dims)["sequence"] == 5
    weighted = dataclasses.replace(core, weights=("", "w"))
    assert attention.find(trace_of(weighted, soft, values), range(3), {}) == []
    assert attention.find(trace_of(core, soft, dataclasses.replace(values, weights=("", "w"))), range(3), {}) == []
    assert attention.find(trace_of(dataclasses.replace(core, trained=False), soft, values), range(3), {}) == []
    turned = traced("bmm", ((6, 6, 7), (6, 7, 5)), (6, 6, 5), (-1, 1), forward_flops=1.0)
    (found,) = attention.find(trace_of(core, soft, turned), range(3), {})
    assert (dict(found.dims)["key_sequence"], dict(found.dims)["value"]) == (7, 6), "weights may stand on the right"
    assert attention.find(trace_of(core, soft, values), range(3), {1: (Part(-3, 1, 2),)}) == [], "scores of no two heads"
    (found,) = attention.find(trace_of(core, soft, values), range(3), {1: (Part(-3, 1, 3), Part(-1, 1, 7))})
    assert dict(found.dims)["heads"] == 3 and dict(found.dims)["sequence"] == 5
    half = traced("slice", ((6, 5, 7),), (6, 5, 3), (0,))
    small = traced("_softmax", ((6, 5, 3),), (6, 5, 3), (1,), numbers=(-1, 0))
    mixed = traced("bmm", ((6, 5, 3), (6, 3, 6)), (6, 5, 6), (2, -1), forward_flops=1.0)
    assert attention.find(trace_of(core, half, small, mixed), range(4), {}) == [], "less than all scores are mixed"
    between = traced("mm", ((30, 7), (7, 7)), (6, 5, 7), (0, -2), forward_flops=1.0)
    after = dataclasses.replace(soft, sources=(1,))
    assert attention.find(trace_of(core, between, after, dataclasses.replace(values, sources=(2, -1))), range(4), {}) == []


def test_experts_that_a_token_does_not_visit_are_idle() -> None:
    def op(n: int, top_k: int, n_experts: int = 4, *, expert: bool = True) -> Op:
        space = (("sequence", 5), ("top_k", top_k), ("experts", n_experts), ("in", 2), ("out", 3))
        return Op("l", "moe", (Operator("e", "grouped_matmul", space, n_parameters=n, expert=expert),), 0)

    assert layers._active([op(40, 1), op(40, 3)], 100) == 100 - 30 - 10 and layers._active([op(40, 4)], 100) == 0
    assert layers._active([op(40, 9)], 100) == 0 and layers._active([op(40, 1, expert=False)], 100) == 0
    assert layers._active([op(42, 1)], 100) == 100 - 10 * 3
