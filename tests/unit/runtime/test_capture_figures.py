"""Figures of captured modules, and the rules by which inputs are guessed, calls are replaced, and failures are told."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest

from recorded import Recorded

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

from torch import nn  # noqa: E402

from meshwright.base.errors import InputError, UnknownNameError  # noqa: E402
from meshwright.core.graph import Operator  # noqa: E402
from meshwright.runtime.capture import (  # noqa: E402  # noqa: E402
    as_written,
    capture,
    configurations,
    document,
    formulas,
    guesses,
    recorder,
    repeats,
    session,
    source,
    stand_ins,
)
from meshwright.runtime.capture.fused import attention, scans  # noqa: E402
from meshwright.runtime.capture.trace import Trace, TracedOperator, TracedTensor  # noqa: E402

CAPTURED = (
    "chain_of_five", "chain_with_skips", "parallel", "convolutional", "attention", "eager_grouped", "eager_together",
    "eager_groups", "shared_heads", "latent", "recurrent", "widened", "recommending", "grouped_convolutions", "own_function",
    "unused", "checkpointed",
)  # fmt: skip


@pytest.mark.parametrize("name", CAPTURED)
def test_what_is_captured_of_a_module(name: str, recorded: Recorded) -> None:
    """How many operators PyTorch dispatches is its own affair and not kept."""
    found = capture(f"test_capture:{name}", precision="fp32", batch=3 if name in ("chain_of_five", "tied") else 0)
    told = document.as_json(found, "here")
    for entry in (told["totals"], *told["ops"]):
        del entry["n_forward"], entry["n_backward"]
    del told["source"], told["format"]
    bodies = [[list(operator.values()) for operator in body] for body in told.pop("bodies")]
    ops = [list(entry.values()) for entry in told.pop("ops")]
    recorded([told, bodies, ops])


def test_a_document_leaves_out_what_an_operator_has_by_default() -> None:
    plain = Operator("a", "matmul", (("in", 3),))
    assert document._operator(plain) == {"name": "a", "kind": "matmul", "dims": {"in": 3}}
    rich = dataclasses.replace(plain, tensor_axis="out", n_parameters=4, expert=True, saved_elements=5, input_gradient=False)
    assert document._operator(rich) == {
        "name": "a", "kind": "matmul", "dims": {"in": 3}, "tensor_axis": "out", "n_parameters": 4, "expert": True,
        "saved_elements": 5, "input_gradient": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": "layer"}, "layers, operator"), ({"precision": "fp8"}, "bf16, fp16, fp32"),
        ({"batch": -1}, "--batch -1: must be between 0 and 1000000000"), ({"batch": 10**9 + 1}, "--batch 1000000001: must be"),
        ({"sequence_length": -1}, "--sequence-length -1: must be between 0 and 1000000000"),
    ],
)  # fmt: skip
def test_options_of_capture_are_refused_before_anything_is_made(options: dict[str, Any], told: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=told):
        capture("nowhere:at_all", **options)
    with pytest.raises(InputError, match="there is no module 'nowhere'"):
        capture("nowhere:at_all", batch=10**9, sequence_length=10**9)


class Guessed(nn.Module):
    """A model whose configuration says what it takes."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        if config:
            self.config = SimpleNamespace(**config)


def taking(*names: str, kind: str = "Guessed", **config: Any) -> nn.Module:
    """Return a model of a class so called that takes such arguments."""
    words = ", ".join(f"{name}=None" for name in names)
    made = type(kind, (Guessed,), {"forward": eval(f"lambda self, {words}: None")})
    return made(**config)


PICTURE = SimpleNamespace(image_size=32, num_channels=1)
GUESSED: list[tuple[nn.Module, dict[str, Any], Any]] = [
    (taking("input_ids"), {}, None), (taking("input_ids", hidden_size=3), {}, None), (taking("x", model_type="m"), {}, None),
    (taking("input_ids", model_type="m", max_position_embeddings=77), {}, {"input_ids": (2, 77)}),
    (taking("input_ids", model_type="m"), {"sequence_length": 9}, {"input_ids": (2, 9)}),
    (taking("input_ids", "labels", kind="XForCausalLM", model_type="m"), {"sequence_length": 9},
     {"input_ids": (2, 9), "labels": (2, 9)}),
    (taking("input_ids", "labels", kind="XForSequence", model_type="m"), {"sequence_length": 9},
     {"input_ids": (2, 9), "labels": (2,)}),
    (taking("input_ids", "labels", kind="XForCTC", model_type="m"), {"sequence_length": 9}, {"input_ids": (2, 9)}),
    (taking("input_ids", "labels", "next_sentence_label", kind="XForPreTraining", model_type="m"), {"sequence_length": 3},
     {"input_ids": (2, 3), "labels": (2, 3), "next_sentence_label": (2,)}),
    (taking("pixel_values", model_type="m"), {}, {"pixel_values": (2, 3, 224, 224)}),
    (taking("pixel_values", "labels", kind="XForImage", model_type="m", image_size=8, num_channels=1), {},
     {"pixel_values": (2, 1, 8, 8), "labels": (2,)}),
    (taking("pixel_values", model_type="m", image_size=[8, 16]), {}, {"pixel_values": (2, 3, 8, 16)}),
    (taking("input_ids", "pixel_values", model_type="m"), {"sequence_length": 4}, {"input_ids": (2, 4)}),
    (taking("input_ids", "pixel_values", model_type="m", vision_config=PICTURE), {"sequence_length": 4},
     {"pixel_values": (2, 1, 32, 32), "input_ids": (2, 4)}),
    (taking("input_ids", "pixel_values", model_type="m", vision_config=PICTURE, image_token_id=5), {"sequence_length": 4},
     {"input_ids": (2, 4)}),
    (taking("input_ids", model_type="m", text_config=SimpleNamespace(n_positions=11)), {}, {"input_ids": (2, 11)}),
    (taking("input_features", "labels", kind="XForConditionalGeneration", model_type="m", num_mel_bins=4,
            max_source_positions=5, max_target_positions=7), {}, {"input_features": (2, 4, 10), "labels": (2, 7)}),
    (taking("input_features", "labels", kind="XForConditionalGeneration", model_type="m", num_mel_bins=4,
            max_source_positions=5, max_target_positions=7), {"sequence_length": 3},
     {"input_features": (2, 4, 10), "labels": (2, 3)}),
    (taking("input_features", model_type="m"), {}, None),
    (taking("input_values", "labels", kind="XForCTC", model_type="m"), {}, {"input_values": (2, 16000)}),
    (taking("input_values", model_type="m", num_mel_bins=4, max_length=9), {}, {"input_values": (2, 9, 4)}),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(GUESSED)))
def test_inputs_are_read_off_a_configuration(k: int) -> None:
    module, options, expected = GUESSED[k]
    found = guesses.inputs(module, 2, options.get("sequence_length", 0), torch.float16)
    assert found is None if expected is None else {name: tuple(value.shape) for name, value in found.items()} == expected
    for name, value in (found or {}).items():
        assert value.dtype == (torch.int64 if name in ("input_ids", "labels", "next_sentence_label") else torch.float16)
        assert value.is_meta


@pytest.mark.parametrize("text", ["8,", "8,0", "a", "8,3:", "=8,-1", "0", "8 3"])
def test_shapes_that_are_none_are_refused(text: str) -> None:
    if text == "8,3:":
        assert guesses.typed((text.rstrip(":"),), torch.float32)[0].shape == (8, 3)
        with pytest.raises(UnknownNameError, match="bfloat16, bool, float16, float32, int32, int64"):
            guesses.typed((text,), torch.float32)
        return
    told = f"--input {text}: write sizes of at least 1, samples first, for example 8,3,224,224 or ids=8,128:int64"
    with pytest.raises(InputError, match=re.escape(told)):
        guesses.typed((text,), torch.float32)


def test_a_call_has_the_samples_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    assert source._samples([3, {"a": torch.zeros(())}, (torch.zeros(4, 2), torch.zeros(5))]) == 4 and source._samples([3]) == 1

    def resized(value: Any, own: int, n: int) -> Any:
        found = source._resized(value, own, n, mode, torch.bfloat16)
        return (tuple(found.shape), found.dtype) if isinstance(found, torch.Tensor) else found

    assert resized(torch.zeros(4, 2), 4, 6) == ((6, 2), torch.bfloat16) and resized("word", 4, 6) == "word"
    assert resized(torch.zeros(3, 2, dtype=torch.int32), 4, 6) == ((3, 2), torch.int32)
    assert resized(torch.zeros(()), 4, 6) == ((), torch.bfloat16)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(2, 2)

        def forward(self, left: Any, right: Any, scale: float = 1.0, *more: Any, **named: Any) -> Any:
            return left

    assert source._needs(Two()) == "Two.forward needs left, right" and source._needs(nn.Identity()).endswith("needs input")
    options: dict[str, Any] = {"sequence_length": 0, "shapes": ()}
    given = (torch.zeros(4, 2), torch.zeros(4, 2))
    positional, named, n = source.call("m", source.Subject(Two(), given), mode, batch=0, **options)
    assert [tuple(value.shape) for value in positional] == [(4, 2)] * 2 and named == {} and n == 4
    by_name = {"left": torch.zeros(4, 2), "right": torch.zeros(2)}
    positional, named, n = source.call("m", source.Subject(Two(), by_name), mode, batch=9, **options)
    assert positional == () and {k: tuple(v.shape) for k, v in named.items()} == {"left": (9, 2), "right": (2,)} and n == 9
    told = "capture m: Two.forward needs left, right, but missing a required argument: 'right'; give every one with --input"
    with pytest.raises(InputError, match=re.escape(told)):
        source.call("m", source.Subject(Two(), torch.zeros(4, 2)), mode, batch=0, **options)
    told = "capture m: Two.forward needs left, right; give the shape of each with --input, for example --input 8,3,224,224, or"
    with pytest.raises(InputError, match=re.escape(told)):
        source.call("m", source.Subject(Two(), None), mode, batch=0, **options)


class Late(nn.Linear):
    """Has inputs of its own, as a function."""

    def example_inputs(self) -> torch.Tensor:
        return torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        (lambda: nn.ReLU(), "capture m: ReLU has no parameters that can be trained"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "capture m: Linear has no parameters that can be trained"),
        (lambda: (nn.Linear(2, 2),), "capture m: returned a tuple; it must return an nn.Module, or (module, inputs)"),
        (lambda a: a, "missing 1 required positional argument: 'a'; the callable is called without arguments"),
        (lambda: 1 / 0, "capture m: calling it failed: ZeroDivisionError: division by zero"),
        (
            lambda: nn.LazyLinear(2),
            "capture m: LazyLinear: the shape of 'weight' is not known yet; call the lazy module once on",
        ),
    ],
)
def test_a_callable_that_gives_nothing_to_capture_is_refused(maker: Any, told: str) -> None:
    before = torch.get_default_dtype()
    with pytest.raises(InputError, match=re.escape(told)):
        source.build("m", maker, torch.bfloat16)
    assert torch.get_default_dtype() == before


def test_what_is_built_is_in_training_without_memory_with_its_inputs() -> None:
    found = source.build("m", lambda: (nn.Linear(2, 2).eval(), torch.zeros(3, 2)), torch.bfloat16)
    assert found.module.training and found.module.weight.is_meta and found.module.weight.dtype == torch.bfloat16
    assert tuple(found.examples.shape) == (3, 2) and found.notes == ()
    several = source.build("m", lambda: (nn.Linear(2, 2), 1, 2), torch.float32)
    assert several.examples == (1, 2)
    late = source.build("m", Late(2, 2), torch.bfloat16)
    assert tuple(late.examples.shape) == (3, 2) and late.module.weight.dtype == torch.float32

    def with_memory() -> nn.Module:
        made = nn.Linear(2, 2)
        made.weight.sum().item()
        return made

    built = source.build("m", with_memory, torch.float32)
    assert not built.module.weight.is_meta and built.notes[0].startswith("m could not be built without memory (RuntimeError: ")
    assert built.notes[0].endswith("; it was built on the CPU")


def test_tokens_are_those_of_the_first_whole_number_input_of_two_axes() -> None:
    ids, flat, real = torch.zeros(2, 7, dtype=torch.long), torch.zeros(3, dtype=torch.long), torch.zeros(2, 5)
    assert session._tokens(["a", real, flat, ids, torch.zeros(2, 9, dtype=torch.long)]) == 7
    assert session._tokens([real, flat]) == 0 == session._tokens([])


def test_a_hugging_face_model_is_asked_for_what_can_be_traced() -> None:
    def prepared(**config: Any) -> dict[str, Any]:
        module = nn.Linear(1, 1)
        module.config = SimpleNamespace(**config)
        session._prepare(module)
        return vars(module.config)

    session._prepare(nn.Linear(1, 1))
    assert prepared(use_cache=True) == {"use_cache": False} and prepared(hidden=3) == {"hidden": 3}
    assert prepared(is_encoder_decoder=True) == {"is_encoder_decoder": True, "decoder_start_token_id": 0}
    assert prepared(is_encoder_decoder=True, pad_token_id=4)["decoder_start_token_id"] == 4
    assert prepared(is_encoder_decoder=True, decoder_start_token_id=2, pad_token_id=4)["decoder_start_token_id"] == 2
    assert "decoder_start_token_id" not in prepared(is_encoder_decoder=False, pad_token_id=4)
    assert prepared(_experts_implementation="eager") == {"_experts_implementation": "grouped_mm"}
    assert prepared(_experts_implementation=None) == {"_experts_implementation": None}


@pytest.mark.parametrize(
    ("kind", "text", "failed_at", "told"),
    [
        ("DataDependentOutputException", "x\ny", ("inner", "aten.item"),
         "capture m: module 'inner' (Linear): aten.item depends on the values of a tensor; data-dependent "),
        ("GuardOnDataDependentSymNode", " x\ny", None, "capture m: module Sequence: x depends on the values of a tensor;"),
        ("NotImplementedError", "no kernel", ("inner", "mine.op"),
         "capture m: module 'inner' (Linear): the operator mine.op cannot run without values: custom operators need a "
         "registered fake implementation (torch.library.register_fake); PyTorch says: no kernel"),
        ("EndlessStepError", "runs on", ("inner", "x"), "capture m: module 'inner' (Linear): runs on"),
        ("ValueError", "odd\nmore", ("", "aten.mm"), "capture m: module Sequence: ValueError: odd (in aten.mm)"),
        ("ValueError", "", None, "capture m: module Sequence: ValueError: "),
    ],
)  # fmt: skip
def test_what_goes_wrong_while_tracing_is_told_in_words(kind: str, text: str, failed_at: Any, told: str) -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)

    made = recorder.EndlessStepError if kind == "EndlessStepError" else type(kind, (Exception,), {})
    found = session._failure("m", Sequence(), SimpleNamespace(failed_at=failed_at), made(text))
    assert found.startswith(told) and (found == told or told.endswith((" ", ";")))


def test_the_operator_that_fails_is_named_with_the_module_that_ran_it() -> None:
    with pytest.raises(InputError, match=r"module 'one' \(Linear\) .* \(in aten\.\w+\)$"):
        capture("test_capture:two", precision="fp32", shapes=("2,3", "2,4"))


def test_scans_count_the_products_of_their_kernels() -> None:
    """By hand; chunks are no longer than the sequence."""
    x, table = torch.zeros(2, 6, 5), torch.zeros(6, 4)
    assert scans._selective({"hidden_states": x, "A": table}) == 6 * 2 * 5 * 6 * 4
    hidden, b = torch.zeros(2, 10, 3, 4), torch.zeros(2, 10, 2, 8)
    for chunk, used in ((64, 10), (4, 4)):
        found = scans._by_chunks({"hidden_states": hidden, "B": b, "chunk_size": chunk})
        assert found == 2 * 2 * 10 * (used * (8 * 2 + 4 * 3) + 2 * 8 * 4 * 3)
    value, key = torch.zeros(2, 100, 3, 5), torch.zeros(2, 100, 3, 7)
    for told, used in (({}, 64), ({"chunk_size": 16}, 16), ({"chunk_size": 128}, 100)):
        assert scans._delta_rule({"value": value, "key": key, **told}) == 2 * 2 * 100 * 3 * (used * (3 * 7 + 2 * 5) + 3 * 7 * 5)


class Notebook:
    """Keeps what is recorded as one operator."""

    def __init__(self, owner: Any = None) -> None:
        self.notes: dict[str, None] = {}
        self.stack = [("", owner or nn.Identity())]
        self.kept: list[Any] = []

    def one_operator(self, name: str, call: Any, inputs: Any, *, causal: bool, flops: Any = (0.0, 0.0)) -> Any:
        self.kept.append((name, [tuple(one.shape) for one in inputs], causal, flops))
        return call()


def test_a_scan_is_one_operator_like_its_input() -> None:
    notes = Notebook()
    value, key = torch.zeros(1, 8, 2, 5, requires_grad=True), torch.zeros(1, 8, 2, 3)
    scan: Any = scans.stand_in("torch_chunk_gated_delta_rule", notes)
    out, state = scan(key, key, value, torch.zeros(1, 8, 2), chunk_size=4, ids=torch.zeros(2, dtype=torch.long))
    assert out.shape == value.shape and state is None and len(notes.notes) == 1
    ((name, shapes, causal, flops),) = notes.kept
    assert (name, shapes, causal) == ("fused_scan", [(1, 8, 2, 3)] * 2 + [(1, 8, 2, 5), (1, 8, 2)], False)
    assert flops == (2.0 * 8 * 2 * (4 * 19 + 45), 3 * 2.0 * 8 * 2 * (4 * 19 + 45))
    out.sum().backward()
    assert value.grad is not None and value.grad.shape == value.shape
    x = torch.zeros(1, 6, 5)
    plain: Any = scans.stand_in("mamba_selective_scan", notes)
    assert plain(x, x, torch.zeros(6, 4)).shape == x.shape
    assert plain(x, x, torch.zeros(6, 4), return_last_state=True)[1] is None


def attended(owner: Any, shapes: tuple[Any, ...], mask: Any = None, **told: Any) -> tuple[Notebook, Any]:
    """Call attention as a module would, and return what was noted and found."""
    notes = Notebook(owner)
    tensors = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    with attention.FusedAttention(notes):
        return notes, nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask, **told)


def test_calls_of_attention_are_those_of_a_gpu() -> None:
    same, wide = ((2, 3, 5, 4),) * 3, ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6))
    fewer = ((2, 3, 5, 4), (2, 1, 5, 4), (2, 1, 5, 4))
    causal = SimpleNamespace(is_causal=True)
    assert attended(causal, same)[0].notes == {}
    notes, _ = attended(None, same)
    assert notes.kept == [] and notes.notes == {}
    notes, out = attended(None, wide, is_causal=True)
    assert notes.kept == [("_scaled_dot_product_attention", [*wide], True, (0.0, 0.0))] and out.shape == (2, 3, 5, 6)
    assert out.stride()[1] < out.stride()[2], "heads lie side by side"
    out.sum().backward()
    notes, out = attended(None, fewer, enable_gqa=True)
    assert len(notes.kept) == 1 and out.shape == (2, 3, 5, 4)
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    notes, _ = attended(causal, same, triangle, dropout_p=0.5)
    assert len(notes.notes) == 2 and notes.kept == []
    for owner in (SimpleNamespace(is_causal=True, sliding_window=3), SimpleNamespace(is_causal=1), SimpleNamespace()):
        assert attended(owner, same, triangle)[0].notes == {}
    notes, _ = attended(causal, same, torch.ones(5, dtype=torch.bool).expand(1, 1, 1, 5))
    assert notes.notes == {}, "a mask that is no square is none of a triangle"
    notes, _ = attended(causal, wide, triangle)
    assert notes.kept[0][2] is True and len(notes.kept[0][1]) == 3
    trained = torch.zeros(5, 5, requires_grad=True)
    notes, out = attended(causal, same, trained)
    assert notes.kept[0][1:3] == ([*same, (5, 5)], False)
    out.sum().backward()
    assert trained.grad is not None and trained.grad.shape == (5, 5)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    notes = Notebook()
    with attention.FusedAttention(notes):
        layer(*[torch.zeros(2, 3, 8)] * 3, need_weights=False)
    assert len(notes.notes) == 1
    flat = [torch.zeros(6, 5, 4) for _ in range(3)]
    three_axes = Notebook()
    with attention.FusedAttention(three_axes):
        assert nn.functional.scaled_dot_product_attention(*flat).shape == (6, 5, 4)
    assert len(three_axes.kept) == 1


def test_what_stands_in_goes_again() -> None:
    import torch.utils.checkpoint as checkpoint

    before = checkpoint.CheckpointFunction
    notes: Any = Notebook()
    with stand_ins.standing_in(nn.Linear(1, 1), notes):
        assert checkpoint.CheckpointFunction is not before
        x = torch.ones(1, requires_grad=True)
        assert float(checkpoint.checkpoint(lambda y: y * 2, x, use_reentrant=True).detach()) == 2.0
        assert float(checkpoint.checkpoint(lambda y: y * 3, x, use_reentrant=False).detach()) == 3.0
    assert checkpoint.CheckpointFunction is before and len(notes.notes) == 1
    with pytest.raises(KeyError), stand_ins._replaced("torch.utils.checkpoint", "CheckpointFunction", 3):
        raise KeyError
    assert checkpoint.CheckpointFunction is before
    with stand_ins._replaced("torch.utils.checkpoint", "nothing_of_that_name", 3):
        assert not hasattr(checkpoint, "nothing_of_that_name")


def test_the_loss_of_an_output_is_its_own_or_the_sum_of_what_is_trained() -> None:
    def loss_of(out: Any) -> tuple[Any, str]:
        made = SimpleNamespace(phase="forward")
        found = recorder._loss(out, made)
        return None if found is None else float(found.detach()), made.phase

    x, y, ids = torch.ones(3, requires_grad=True), torch.full((2,), 5.0, requires_grad=True), torch.zeros(2, dtype=torch.long)
    own = x.sum() * 7
    assert loss_of({"loss": own, "logits": x}) == (21.0, "forward") and loss_of(SimpleNamespace(loss=own)) == (21.0, "forward")
    assert loss_of({"loss": x, "y": y}) == (13.0, "loss") and loss_of({"loss": own.detach(), "y": y}) == (10.0, "loss")
    assert loss_of((x, [ids, y], x.detach())) == (13.0, "loss") and loss_of((ids, x.detach())) == (None, "loss")

    @dataclasses.dataclass
    class Answer:
        one: torch.Tensor
        two: Any

    assert loss_of(Answer(x, {"a": y})) == (13.0, "loss") and [len(recorder._tensors(out)) for out in (x, {"a": x}, 3)] == [
        1,
        1,
        0,
    ]


def test_layers_are_alike_where_their_numbers_grow_by_one() -> None:
    def numbered(number: Any, size: int = 2) -> nn.Module:
        made = nn.Linear(size, size)
        made.number = number
        return made

    def run(*numbers: Any) -> int:
        return repeats._end_of_run([numbered(number) for number in numbers], 0)

    assert run(1, 2, 3, 5) == 3 and run(1, 1, 1) == 3 and run(2, 1) == 1 and run(True, 2) == 1 and run("a", "a", "b") == 2
    assert run(1.0, 2.0) == 1 and run(1, 2.0) == 1 and run(None, None) == 2
    same = numbered(0)
    assert repeats._end_of_run([same, same], 0) == 1 and repeats._end_of_run([same], 0) == 1
    half = numbered(0).half()
    assert repeats._end_of_run([same, half], 0) == 1
    named = nn.Sequential(*(numbered(0) for _ in range(4)))
    named._modules["last"] = named._modules.pop("3")
    assert repeats.shorten(named)[0] == ()
    holder = nn.ModuleDict(
        {
            "a": nn.Sequential(*(numbered(0) for _ in range(3))),
            "b": nn.ModuleList([numbered(0), nn.Sequential(*(numbered(0) for _ in range(5)))]),
        }
    )
    runs, taken = repeats.shorten(holder)
    assert runs == (repeats.RepeatedModules("a", 0, 0, 3), repeats.RepeatedModules("b.1", 0, 0, 5)) and len(taken) == 2
    repeats.restore(taken)
    assert len(holder["a"]) == 3 and len(holder["b"][1]) == 5


def test_state_space_layers_that_run_in_steps_are_said_with_what_they_keep() -> None:
    def kept(module: str, name: str = "mul", own: int = 12, other: int = 8) -> TracedOperator:
        tensor = TracedTensor((2,), "float32", True)
        return TracedOperator(
            name, module, (tensor,), (tensor,), (-1,), ("",), (), True, True, False, False, 0.0, 0.0, 0, own, other
        )

    classes = {"": "MambaModel", "a.mixer": "MambaMixer", "a.mixer.inner": "MambaInner", "b": "StateSpace", "c": "Linear"}
    operators = (kept("a.mixer"), kept("a.mixer.inner"), kept("b.deep"), kept("c"), kept("a.mixers"))
    trace = Trace(operators, classes, {}, 4, 2)
    (note,) = as_written.notes(trace)
    assert note.startswith(
        "state-space layers (MambaMixer, StateSpace) are captured operator by operator: they keep 30 B a sample"
    )
    assert as_written.notes(dataclasses.replace(trace, operators=(*operators, kept("c", "fused_scan")))) == ()
    assert as_written.notes(dataclasses.replace(trace, operators=operators[3:])) == ()
    without = tuple(dataclasses.replace(one, saved_bytes=0) for one in operators)
    assert "they keep 12 B a sample" in as_written.notes(dataclasses.replace(trace, operators=without))[0]


def test_towers_without_inputs_are_said() -> None:
    unused = ("7 weights are not used by this call, they train without work: a",)
    both = SimpleNamespace(vision_config=1, audio_config=2)
    (note,) = configurations._towers(both, unused)
    assert note.startswith("the step was captured on text: no pictures or sounds went through vision_config and audio_config,")
    assert configurations._towers(both, ("other",)) == configurations._towers(SimpleNamespace(vision_config=None), unused) == ()
    assert (
        len(configurations._line(ValueError("x" * 400))) == 300
        and configurations._line(ValueError(" a \n b")) == "ValueError: a b"
    )


def test_layers_that_a_class_leaves_out_are_said() -> None:
    def said(fields: dict[str, object], name: str) -> tuple[str, ...]:
        found = SimpleNamespace(graph=SimpleNamespace(ops=[SimpleNamespace(name=name)]))
        return configurations._ahead(fields, "K", found)

    assert said({"num_mtp_layers": 2}, "layers.0") == (
        "num_mtp_layers is 2: K has no layers that predict further tokens, so none are counted",
    )
    assert said({"num_mtp_layers": 2}, "mtp.0") == said({"num_nextn_predict_layers": 0}, "layers.0") == said({}, "a") == ()


def test_flops_of_backward_kernels_take_their_own_arguments() -> None:
    aten = torch.ops.aten
    query, key, value = (torch.empty(1, 2, 3, 4, device="meta") for _ in range(3))
    forward = formulas.flops(aten._scaled_dot_product_flash_attention_for_cpu.default, (query, key, value), {}, None)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert forward == 2.0 * 6 * 3 * 8 and formulas.flops(backward, (query, query, key, value), {}, None) == 2.5 * forward
    mm = formulas.flops(aten.mm.default, (torch.empty(2, 3), torch.empty(3, 5)), {}, torch.empty(2, 5))
    assert mm == 2.0 * 2 * 3 * 5
    assert formulas._steps([torch.empty(4, 7, 3)]) == 28 and formulas._steps([]) == 0
