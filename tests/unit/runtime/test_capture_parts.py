"""Parts of capture, each alone: splits through views, formulas, runs of layers, names, shapes; all by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

from torch import nn  # noqa: E402

from meshwright.base.errors import InputError, UnknownNameError  # noqa: E402
from meshwright.runtime.capture import attention, axes, bodies, formulas, guesses, operators, repeats, segments, splits  # noqa: E402
from meshwright.runtime.capture.axes import tensor_axes  # noqa: E402
from meshwright.runtime.capture.splits import Part  # noqa: E402
from meshwright.runtime.capture.trace import Trace, TracedOperator, TracedTensor  # noqa: E402

Shape = tuple[int, ...]


def traced(name: str, inputs: tuple[Shape, ...], out: Shape, sources: tuple[int, ...] = (), **changes: Any) -> TracedOperator:
    """Return an operator on floating tensors; a source of -2 is a weight called ``w``."""
    sources = sources or (-1,) * len(inputs)
    weights = tuple("w" if source == -2 else "" for source in sources)
    made = TracedOperator(
        name, "", tuple(TracedTensor(shape, "float32", True) for shape in inputs), (TracedTensor(out, "float32", True),),
        tuple(max(source, -1) for source in sources), weights, (), True, True, False, False, 0.0, 0.0, 0, 0, 0,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def trace_of(*ops: TracedOperator, batch: int = 2, **changes: Any) -> Trace:
    return Trace(ops, {}, {"w": (4, 8)}, 4, batch, **changes)


@pytest.mark.parametrize(("before", "after", "split", "expected"), [
    ((2, 5, 12), (2, 5, 3, 4), (Part(-1, 1, 12),), (Part(-2, 1, 3), Part(-1, 1, 4))),
    ((2, 5, 3, 4), (2, 5, 12), (Part(-2, 1, 3), Part(-1, 1, 4)), (Part(-1, 1, 12),)),
    ((2, 5, 3, 4), (2, 5, 12), (Part(-2, 1, 3),), (Part(-1, 1, 3),)),
    ((2, 5, 3, 4), (2, 5, 12), (Part(-1, 1, 4),), (Part(-1, 3, 4),)),
    ((2, 5, 12), (10, 12), (Part(-1, 1, 12),), (Part(-1, 1, 12),)),
    ((2, 5, 12), (2, 5, 2, 6), (Part(-1, 3, 4),), None),  # parts of four lie across pieces of six
    ((2, 5, 12), (2, 5, 2, 6), (Part(-1, 2, 6),), (Part(-1, 1, 6),)),
    ((2, 6, 4), (12, 4), (Part(-2, 1, 6),), (Part(-2, 2, 6),)),
    ((2, 6, 4), (2, 24), (Part(-2, 1, 6),), (Part(-1, 1, 6),)),
    ((6, 4), (1, 6, 4), (Part(-1, 1, 4),), (Part(-1, 1, 4),)),
])  # fmt: skip
def test_columns_are_followed_into_another_shape(before: Shape, after: Shape, split: Any, expected: Any) -> None:
    assert splits._reshaped(before, after, split) == expected
    assert splits.through_view(traced("view", (before,), after), split) == expected


@pytest.mark.parametrize(("operator", "split", "expected"), [
    (traced("t", ((4, 8),), (8, 4)), (Part(-1, 1, 8),), (Part(-2, 1, 8),)),
    (traced("transpose", ((2, 3, 4),), (2, 4, 3), numbers=(1, 2)), (Part(-1, 1, 4), Part(-2, 1, 3)),
     (Part(-2, 1, 4), Part(-1, 1, 3))),
    (traced("transpose", ((2, 3, 4),), (4, 3, 2), numbers=(0, -1)), (Part(-1, 1, 4),), (Part(-3, 1, 4),)),
    (traced("permute", ((2, 3, 4, 5),), (4, 2, 5, 3), numbers=(2, 0, -1, 1)), (Part(-2, 1, 4), Part(-1, 1, 5), Part(-3, 1, 3)),
     (Part(-4, 1, 4), Part(-2, 1, 5), Part(-1, 1, 3))),
    (traced("numpy_T", ((2, 3, 4),), (4, 3, 2)), (Part(-1, 1, 4),), (Part(-3, 1, 4),)),
    (traced("select", ((2, 3, 4),), (2, 4), numbers=(1, 0)), (Part(-2, 1, 3), Part(-1, 1, 4)), (Part(-1, 1, 4),)),
    (traced("select", ((2, 3, 4),), (2, 3), numbers=(-1, 0)), (Part(-2, 1, 3), Part(-1, 1, 4)), (Part(-1, 1, 3),)),
    (traced("select", ((2, 3, 4),), (2, 4), numbers=(1, 0)), (Part(-2, 1, 3),), None),
    (traced("unbind", ((3, 2, 4),), (2, 4)), (Part(-1, 1, 4),), (Part(-1, 1, 4),)),
    (traced("view_as_complex", ((2, 3, 2),), (2, 3)), (Part(-2, 1, 3),), (Part(-1, 1, 3),)),
    (traced("view_as_complex", ((2, 3, 2),), (2, 3)), (Part(-1, 1, 2),), None),
    (traced("view_as_real", ((2, 3),), (2, 3, 2)), (Part(-1, 1, 3),), (Part(-2, 1, 3),)),
    (traced("slice", ((2, 3, 4),), (2, 3, 2)), (Part(-2, 1, 3), Part(-1, 1, 4)), (Part(-2, 1, 3),)),
    (traced("slice", ((2, 3, 4),), (2, 3, 2)), (Part(-1, 1, 4), Part(-2, 1, 3)), (Part(-1, 1, 4), Part(-2, 1, 3))),
    (traced("expand", ((3, 4),), (5, 3, 4)), (Part(-1, 1, 4),), (Part(-1, 1, 4),)),
    (traced("expand", ((3, 1),), (5, 3, 4)), (Part(-2, 1, 3),), None),
])  # fmt: skip
def test_a_split_is_followed_through_every_kind_of_view(operator: TracedOperator, split: Any, expected: Any) -> None:
    assert splits.through_view(operator, split) == expected


def test_inputs_agree_on_a_split_where_their_first_factors_lie_alike() -> None:
    one, few, other = (Part(-3, 1, 8), Part(-1, 1, 4)), (Part(-3, 1, 2), Part(-1, 1, 4)), (Part(-1, 1, 8),)
    assert splits.agreed([few, one]) == one and splits.agreed([one]) == one
    assert splits.agreed([one, other]) is None and splits.agreed([one, (Part(-3, 2, 8),)]) is None
    assert splits.columns(-1, 6) == (Part(-1, 1, 6),)


def test_formulas_of_products_and_attention_by_hand() -> None:
    def empty(*shape: int) -> Any:
        return torch.empty(shape, device="meta")

    query, key, value = empty(2, 4, 5, 8), empty(2, 2, 7, 8), empty(2, 2, 7, 6)
    square = 2 * 4 * 5 * 7
    assert formulas.attention_flops(query, key, value, causal=False) == (2.0 * square * 14, 5.0 * square * 14)
    assert formulas.attention_flops(query, key, value, causal=True) == (1.0 * square * 14, 2.5 * square * 14)
    aten = torch.ops.aten
    assert formulas.flops(aten._grouped_mm.default, (empty(6, 4), empty(3, 4, 5)), {}, None) == 2.0 * 6 * 4 * 5
    assert formulas.flops(aten._grouped_mm.default, (empty(4, 6), empty(6, 5)), {}, None) == 2.0 * 4 * 6 * 5
    assert formulas.flops(aten._grouped_mm.default, (empty(3, 6, 4), empty(3, 4, 5)), {}, None) == 2.0 * 3 * 6 * 4 * 5
    rest = (None, None, None, None, False, None, None, [True, True, False])
    assert (
        formulas._convolution_backward(empty(2, 6, 5, 5), empty(2, 4, 7, 7), empty(6, 4, 3, 3), *rest) == 2 * 2 * 25 * 216 * 2
    )
    turned = (None, None, None, None, True, None, None, [False, True, True])
    assert formulas._convolution_backward(empty(2, 6, 9, 9), empty(2, 4, 7, 7), empty(4, 6, 3, 3), *turned) == 2 * 2 * 49 * 216
    assert formulas.flops(aten.relu.default, (empty(3),), {}, empty(3)) == 0.0
    assert formulas.is_causal("_scaled_dot_product_flash_attention", (1, 2, 3, 0.0, True), {})
    assert not formulas.is_causal("_scaled_dot_product_flash_attention", (1, 2, 3, True), {})
    assert formulas.is_causal("_scaled_dot_product_efficient_attention", (1, 2, 3, None, True, 0.0, True), {})
    assert not formulas.is_causal("_scaled_dot_product_efficient_attention", (1, 2, 3, None, True, 0.0), {})
    assert formulas.is_causal("_scaled_dot_product_x", (), {"is_causal": True})
    assert not formulas.is_causal("_scaled_dot_product_x_backward", (), {"is_causal": True})


def test_recurrent_modules_meet_every_weight_at_every_step_and_keep_gates_and_states() -> None:
    steps = [torch.empty(5, 3, 4, device="meta")]
    lstm = nn.LSTM(4, 6, num_layers=2, device="meta")
    weights = 24 * 4 + 24 * 6 + 24 * 6 + 24 * 6
    assert formulas.recurrent_flops(lstm, steps) == 2.0 * 15 * weights
    assert formulas.recurrent_kept(lstm, steps) == 15 * (2 * 24 + 2 * 2 * 6)
    assert formulas.recurrent_kept(nn.GRU(4, 6, bidirectional=True, device="meta"), steps) == 15 * (2 * 18 + 2 * 6)
    assert formulas.recurrent_flops(lstm, []) == 0.0


class Layer(nn.Module):
    def __init__(self, size: int, number: int) -> None:
        super().__init__()
        self.inner, self.number = nn.Linear(size, size, device="meta"), number


def test_runs_of_equal_layers_are_shortened_to_two_and_put_back() -> None:
    layers = nn.ModuleList([Layer(4, 0), Layer(4, 1), Layer(4, 2), Layer(8, 3), Layer(8, 4), Layer(4, 5)])
    model = nn.ModuleDict({"layers": layers, "head": nn.Linear(4, 4, device="meta")})
    before = list(layers)
    runs, taken = repeats.shorten(model)
    assert runs == (repeats.RepeatedModules("layers", 0, 0, 3),) and list(layers) == [*before[:2], *before[3:]]
    repeats.restore(taken)
    assert list(layers) == before
    runs, taken = repeats.shorten(model, 1)
    assert runs == () and taken == []
    many = nn.ModuleList([Layer(8, 0), *(Layer(4, k) for k in range(1, 6))])
    runs, _ = repeats.shorten(nn.ModuleDict({"m": many}), 1)
    assert runs == (repeats.RepeatedModules("m", 2, 2, 4),) and len(many) == 4
    same = Layer(4, 0)
    assert repeats.shorten(nn.Sequential(same, same, same))[0] == ()
    assert repeats.shorten(nn.Sequential(Layer(4, 0), Layer(4, 2), Layer(4, 4)))[0] == ()
    frozen = [Layer(4, k) for k in range(3)]
    frozen[1].inner.weight.requires_grad = False
    assert repeats.shorten(nn.Sequential(*frozen))[0] == ()
    inside = nn.Sequential(nn.Sequential(*(Layer(4, k) for k in range(4))), nn.ReLU())
    assert repeats.shorten(inside)[0] == (repeats.RepeatedModules("0", 0, 0, 4),)


def test_inputs_are_typed_as_told() -> None:
    found = guesses.typed(("8,3", "4,2:int64"), torch.bfloat16)
    assert [(tuple(one.shape), one.dtype) for one in found] == [((8, 3), torch.bfloat16), ((4, 2), torch.int64)]
    assert list(guesses.typed(("a=2,2", "b=1:bool"), torch.float32)) == ["a", "b"]
    for wrong in (("8,0",), ("8,",), ("a=2", "3")):
        with pytest.raises(InputError):
            guesses.typed(wrong, torch.float32)
    with pytest.raises(UnknownNameError):
        guesses.typed(("2:int7",), torch.float32)


@dataclasses.dataclass
class Config:
    """What guesses read."""

    max_position_embeddings: int | None = None
    n_positions: int | None = None
    num_mel_bins: int = 0
    max_source_positions: int = 0
    max_length: int = 0


def test_a_sample_has_as_many_tokens_as_asked_for_or_the_longest() -> None:
    plain, table = nn.Linear(2, 2), nn.ModuleDict({"position": nn.Embedding(8, 2)})
    assert guesses._length(plain, Config(100), 0) == 100 and guesses._length(plain, Config(9000), 0) == 4096
    assert guesses._length(plain, Config(None, 77), 0) == 77 and guesses._length(plain, Config(), 0) == 512
    assert guesses._length(plain, Config(100), 200) == 200 and guesses._length(table, Config(100), 100) == 100
    with pytest.raises(InputError):
        guesses._length(table, Config(100), 101)
    assert guesses._spectrum(Config(num_mel_bins=80, max_source_positions=1500)) == (80, 3000)
    assert guesses._spectrum(Config(num_mel_bins=80, max_length=1024)) == (1024, 80)
    assert guesses._spectrum(Config(num_mel_bins=80)) == guesses._spectrum(Config(max_length=9)) == ()


def test_names_of_layers_lose_what_all_share_and_get_numbers() -> None:
    assert segments._short(["a.b.c.0", "a.b.c.1", "a.b.c.0", "head"]) == ["c.0", "c.1", "c.0@2", "head"]
    assert segments._short(["a.b", "a.c", ""]) == ["a.b", "a.c", "model"]
    lists = frozenset({"m.layers"})
    split = frozenset({"", "m", "m.layers"})
    assert segments._part("m.layers.3.mlp.up", split, lists) == ("m.layers.3", True)
    assert segments._part("m.norm", split, lists) == ("m.norm", False) and segments._part("m", split, lists) == ("m", False)


def test_what_runs_between_children_belongs_to_the_part_before() -> None:
    runs = [("m", False, [0]), ("m.0", True, [1]), ("m", False, [2]), ("m.1", True, [3]), ("m", False, [4])]
    found = segments._joined(runs, frozenset({"m"}))
    assert found == [("m.0", True, [0, 1, 2]), ("m.1", True, [3]), ("m", False, [4])]
    again = segments._joined([("a", False, [0]), ("a", False, [1]), ("b", False, [2])], frozenset())
    assert again == [("a", False, [0, 1]), ("b", False, [2])]
    assert segments._merged("x", [("a", True, [0, 1]), ("b", True, [2])]) == ("x", False, [0, 1, 2])


@pytest.mark.parametrize(("operator", "kind", "dims"), [
    (traced("mm", ((6, 8), (8, 5)), (6, 5), (-1, -2)), "matmul", {"sequence": 3, "in": 8, "out": 5}),
    (traced("mm", ((5, 8), (8, 6)), (5, 6), (-2, -1)), "matmul", {"sequence": 6, "in": 8, "out": 5}),
    (traced("bmm", ((4, 3, 8), (4, 8, 5)), (4, 3, 5)), "matmul", {"sequence": 6, "in": 8, "out": 5}),
    (traced("_grouped_mm", ((24, 8), (3, 8, 5)), (24, 5), (-1, -2)), "grouped_matmul",
     {"sequence": 6, "top_k": 2, "experts": 3, "in": 8, "out": 5}),
    (traced("embedding", ((100, 8), (2, 6)), (2, 6, 8), (-2, -1)), "embedding",
     {"sequence": 6, "vocabulary": 100, "hidden": 8}),
    (traced("native_layer_norm", ((2, 6, 8),), (2, 6, 8)), "norm", {"sequence": 6, "hidden": 8}),
    (traced("native_batch_norm", ((2, 5, 3, 3),), (2, 5, 3, 3)), "norm", {"sequence": 9, "hidden": 5}),
    (traced("convolution", ((2, 4, 6, 6), (8, 4, 3, 2)), (2, 8, 5, 4), (-1, -2)), "convolution",
     {"sequence": 20, "in": 4, "out": 8, "kernel": 6}),
    (traced("_softmax", ((2, 3, 6, 7),), (2, 3, 6, 7)), "softmax", {"sequence": 18, "hidden": 7}),
    (traced("_log_softmax", ((12, 50),), (12, 50)), "cross_entropy", {"sequence": 6, "vocabulary": 50}),
    (traced("max_pool2d", ((2, 5, 6, 6),), (2, 5, 3, 2)), "pooling", {"sequence": 6, "hidden": 5}),
    (traced("add", ((2, 6, 8), (2, 6, 8)), (2, 6, 8)), "elementwise", {"sequence": 6, "hidden": 8, "inputs": 2}),
    (traced("add", ((2, 6, 8), (8,)), (2, 6, 8)), "elementwise", {"sequence": 6, "hidden": 8, "inputs": 1}),
    (traced("sum", ((2, 6, 8),), (2, 8)), "other", {}), (traced("neg", ((1,),), (1,)), "other", {}),
    (traced("fft", ((2, 8),), (2, 8), forward_flops=3.0), "other", {}),
])  # fmt: skip
def test_the_space_of_an_operator_by_hand(operator: TracedOperator, kind: str, dims: dict[str, int]) -> None:
    """Of two samples, with six tokens each."""
    assert operators._space(operator, 2, 6) == (kind, tuple(dims.items()))


def test_what_is_moved_and_how_many_samples_there_are() -> None:
    one = traced("index", ((4, 3), (5,)), (5, 3))
    assert operators.moved_elements(one) == 12 + 5 + 15
    shapes = ((8, 2), (4,), (6, 2), (1, 9), (12, 1))
    assert [operators._samples(traced("x", (), shape), 4) for shape in shapes] == [4, 4, 1, 1, 4]
    made = operators.operator_of(
        0, trace_of(dataclasses.replace(one, saved_bytes=80, saved_other_bytes=12)), "a", "out", (7, 3), 6
    )
    assert (made.kind, made.moved_elements, made.n_parameters, made.n_frozen_parameters) == ("other", 32, 7, 3)
    assert (made.saved_elements, made.saved_extra_bytes, made.saved_axis) == (10, 6, "sequence")
    product = traced("mm", ((6, 8), (8, 5)), (6, 5), (-1, -2), forward_flops=480.0)
    assert operators.operator_of(0, trace_of(product), "a", "in", (0, 0), 6).flops == 0.0
    odd = dataclasses.replace(product, forward_flops=500.0)
    assert operators.operator_of(0, trace_of(odd), "a", "in", (0, 0), 6).flops == 250.0


def heads(n_heads: int, key_heads: int, *, causal: bool = True) -> Trace:
    """Return fused attention of two samples, five rows and seven columns, the keys' heads repeated where they are fewer."""
    keys = traced("mm", ((14, 8), (8, 4 * key_heads)), (14, 4 * key_heads), (-1, -2), forward_flops=1.0)
    wide = traced("expand", ((2, key_heads, 1, 7, 4),), (2, key_heads, n_heads // key_heads, 7, 4), (0,))
    shapes = ((2, n_heads, 5, 4), (2, n_heads, 7, 4), (2, n_heads, 7, 6))
    fused = traced("_scaled_dot_product_flash", shapes, (2, n_heads, 5, 6),
                   (-1, 1, -1), causal=causal)  # fmt: skip
    return trace_of(keys, wide, fused)


def test_attention_counts_heads_of_keys_before_they_are_repeated() -> None:
    trace = heads(8, 2)
    assert attention.repeats(trace, 1) == 4 and attention.repeats(trace, 0) == 1 and attention.repeats(trace, -1) == 1
    sizes = dict(operators._attention_space(trace, trace.operators[2]))
    assert sizes == {"sequence": 5, "key_sequence": 7, "heads": 8, "kv_heads": 2, "head": 4, "value": 6}
    assert operators.operator_of(2, trace, "a", "", (0, 0), 5).kind == "causal_attention"
    assert operators.operator_of(2, heads(8, 2, causal=False), "a", "", (0, 0), 5).kind == "attention"
    assert [attention._heads(shape, 2) for shape in ((2, 3, 5, 7), (6, 5, 7), (5, 7), (2, 3, 4, 5, 7))] == [3, 3, 1, 12]


def unfused() -> Trace:
    """Return attention of two samples and three heads by two products of many: five rows, seven keys, 4 and 6 wide."""
    return trace_of(
        traced("bmm", ((6, 5, 4), (6, 4, 7)), (6, 5, 7), forward_flops=1.0),
        traced("mul", ((6, 5, 7), (1,)), (6, 5, 7), (0, -1)),
        traced("_softmax", ((6, 5, 7),), (6, 5, 7), (1,), numbers=(-1, 0)),
        traced("bmm", ((6, 5, 7), (6, 7, 6)), (6, 5, 6), (2, -1), forward_flops=1.0),
    )


def test_attention_that_is_not_fused_is_found_around_its_soft_maximum() -> None:
    trace = unfused()
    (found,) = attention.find(trace, range(4), {})
    assert (found.scores, found.softmax, found.values) == (0, 2, 3)
    assert dict(found.dims) == {"sequence": 5, "key_sequence": 7, "heads": 3, "kv_heads": 3, "head": 4, "value": 6}
    assert attention.find(trace, range(1, 4), {}) == [] and attention.find(trace, range(3), {}) == []


def test_what_needs_whole_rows_is_known_by_its_axes() -> None:
    norm = traced("native_layer_norm", ((2, 6, 8),), (2, 6, 8), numbers=(8,))
    assert axes._needs_rows(norm, -1) and not axes._needs_rows(norm, -2)
    softmax = traced("_softmax", ((2, 6, 8),), (2, 6, 8), numbers=(1, 0))
    assert axes._needs_rows(softmax, -2) and not axes._needs_rows(softmax, -1) and not axes._needs_rows(softmax, -3)
    sort = traced("sort", ((2, 6, 8),), (2, 6, 8))
    assert axes._needs_rows(sort, -1) and not axes._needs_rows(sort, -2) and not axes._needs_rows(traced("add", (), (2,)), -1)
    many, one = (
        traced("bmm", ((4, 3, 8), (4, 8, 5)), (4, 3, 5), (-1, -2)),
        traced("bmm", ((1, 3, 8), (1, 8, 5)), (1, 3, 5), (-1, -2)),
    )
    assert not axes._is_flat(many) and axes._is_flat(one) and axes._is_flat(traced("mm", (), ()))


def layer(*more: TracedOperator) -> list[TracedOperator]:
    """Return two products with something between and behind them."""
    return [
        traced("mm", ((12, 8), (8, 16)), (12, 16), (-1, -2)), traced("gelu", ((12, 16),), (12, 16), (0,)),
        traced("mm", ((12, 16), (16, 8)), (12, 8), (1, -2)), *more,
    ]  # fmt: skip


def test_the_first_product_is_split_by_columns_and_the_next_by_rows() -> None:
    found = tensor_axes(layer(), 0, 2, frozenset({2}))
    assert dict(found.words) == {0: "out", 1: "hidden", 2: "in"} and found.splits[1] == (Part(-1, 1, 16),)
    # what leaves the layer, or a norm over it, must be whole
    assert dict(tensor_axes(layer(), 0, 2, frozenset({1})).words) == {0: "sequence", 1: "sequence", 2: "out"}
    normed = [layer()[0], traced("native_layer_norm", ((12, 16),), (12, 16), (0,), numbers=(16,)), layer()[2]]
    assert dict(tensor_axes(normed, 0, 2, frozenset({2})).words)[0] == "sequence"
    assert dict(tensor_axes(normed, 0, 2, frozenset({2})).words)[1] == "sequence"
    table = [traced("embedding", ((rows, 8), (2, 6)), (2, 6, 8), (-2, -1)) for rows in (8191, 8192)]
    assert [dict(tensor_axes([one], 0, 0, frozenset()).words) for one in table] == [{0: ""}, {0: "vocabulary"}]


def test_names_that_occur_again_are_numbered_and_parameters_counted_once() -> None:
    layers = [bodies.CapturedLayer(name, "matmul", (), ()) for name in ("a", "b", "a", "a")]
    assert [one.name for one in bodies._unique(layers)] == ["a", "b", "a_2", "a_3"]
    trace = dataclasses.replace(trace_of(*layer()), parameters={"w": (4, 8), "left": (3, 5)}, frozen=frozenset({"left"}))
    assert bodies.unread(trace) == {"left": 15} and bodies._count(trace, ["w", "left"]) == 47
    part = segments.OperatorSegment("one", "", False, (0, 1, 2))
    assert bodies._weights(trace, part) == {0: (32, 0), 1: (0, 0), 2: (0, 0)}
    assert bodies._idle(trace, ["left"], [part], 0) == (15, 15) and bodies._idle(trace, ["left"], [part, part], 0) == (0, 0)
    first, rest = (dataclasses.replace(part, operators=ids) for ids in ((0,), (1, 2)))
    assert bodies._read_later(trace, [first, rest]) == {0} and bodies._read_later(trace, [part]) == frozenset()
