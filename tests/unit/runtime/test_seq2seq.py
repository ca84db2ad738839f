"""Encoder-decoders cut into layers: the same logits, each weight in one layer but for shared tables, and what is refused."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
pytestmark = pytest.mark.torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent / "open")]

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.model import seq2seq  # noqa: E402
from meshwright.runtime.model.cut import cut  # noqa: E402
from meshwright.runtime.step.stage import StageModule  # noqa: E402

NAMES = ["embed", "encoder.0", "encoder.1", "encoder.norm", "decoder.0", "decoder.1", "decoder.2", "head"]


def model() -> Any:
    import own_loops

    torch.manual_seed(0)
    return own_loops.t5(2, 3).eval()


def inputs(*names: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    known = {
        "input_ids": torch.randint(50, (3, 9), generator=generator),
        "attention_mask": mask,
        "decoder_input_ids": torch.randint(50, (3, 7), generator=generator),
        "decoder_attention_mask": mask[:, :7].contiguous(),
    }
    return {name: known[name] for name in names}


@pytest.mark.parametrize("names", [seq2seq.INPUTS, seq2seq.INPUTS[:3], ("input_ids", "decoder_input_ids")])
def test_layers_one_after_the_other_are_the_model(names: tuple[str, ...]) -> None:
    whole, given = model(), inputs(*names)
    whole.plan_inputs = names
    layers = cut(whole, NAMES, tuple(given.values()))
    carried: Any = tuple(given.values())
    for layer in layers:
        carried = layer(*carried)
    assert torch.allclose(carried[0], whole(**given).logits, atol=1e-6)
    shared = {id(whole.shared.weight), *(id(s.block[0].layer[0].SelfAttention.relative_attention_bias.weight)
                                         for s in (whole.encoder, whole.decoder))}  # fmt: skip
    held = [id(p) for layer in layers for p in layer.parameters() if id(p) not in shared]
    assert len(held) == len(set(held)) and {*held, *shared} == {id(p) for p in whole.parameters()}
    assert list(whole.state_dict()) == list(model().state_dict()), "the model is not changed"


def test_masks_are_made_anew_where_several_micro_batches_wait_to_be_recomputed_selectively() -> None:
    whole, given = model(), inputs(*seq2seq.INPUTS[:3])
    batches = [tuple(value[:2] for value in given.values()), tuple(value[1:] for value in given.values())]
    for batch in batches:
        whole(**dict(zip(given, batch, strict=True))).logits.square().mean().backward()
    expected = {name: p.grad.clone() for name, p in whole.named_parameters()}
    whole.zero_grad()
    stage = StageModule(cut(whole, NAMES, batches[0]), ["selective"] * len(NAMES), {})
    for result in [stage(*batch)[0].square().mean() for batch in batches]:
        result.backward()
    for name, parameter in whole.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name


def test_plans_of_other_layers_and_inputs_without_tokens_of_the_decoder_are_refused() -> None:
    whole = model()
    three = tuple(inputs(*seq2seq.INPUTS[:3]).values())
    for names, message in (
        ([*NAMES[:-1], "decoder.3", "head"], "has no layer 'decoder.3'; is this the plan of another model"),
        (["embed", "encoder.1", "encoder.0", *NAMES[3:]], "runs 'encoder.block.0.layer.0' after 'embed'"),
        (["embed", "layers.0", "head"], "has no layer 'layers.0'"),
    ):
        with pytest.raises(InputError, match=message):
            cut(whole, names, three)
    with pytest.raises(InputError, match=r"takes input_ids, attention_mask here, but .* input_ids and decoder_input_ids"):
        cut(whole, NAMES, three[:2])
    bart = transformers.BartForConditionalGeneration(
        transformers.BartConfig(d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                                decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=50)
    )  # fmt: skip
    with pytest.raises(InputError, match=r"BartForConditionalGeneration: .* those built like T5 are run"):
        cut(bart, NAMES, three)
