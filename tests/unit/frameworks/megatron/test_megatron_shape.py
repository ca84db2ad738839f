"""The model that Megatron-LM's options describe: what is written of a built-in model is that model again, layer by layer."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.frameworks.megatron import model, shape
from meshwright.models.readers import huggingface

NAMES = [name for name in huggingface.names() if not model.refusal(name)]


def flat(options: tuple[tuple[str, ...], ...]) -> dict[str, tuple[str, ...]]:
    """Return options by name: of several in one entry, each."""
    found: dict[str, tuple[str, ...]] = {}
    for words in options:
        name = ""
        for word in words:
            name = word if word.startswith("--") else name
            found[name] = (*found[name], word) if word != name else ()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_was_told_is_the_same_model_when_read(name: str) -> None:
    graph = models.read(name).graph
    options, _ = model.arguments(name, graph)
    if "--window-size" in flat(options):
        with pytest.raises(InputError, match=r"in windows.*--model"):
            shape.fields_of(flat(options), "run.sh")
        return
    again = huggingface.graph_of(shape.fields_of(flat(options), "run.sh"), name, sequence_length=graph.sequence_length)
    assert again.n_parameters == graph.n_parameters and again.n_active_parameters == graph.n_active_parameters
    assert [op.body for op in again.ops] == [op.body for op in graph.ops]


BASE = {"--num-layers": "4", "--hidden-size": "64", "--num-attention-heads": "4", "--vocab-size": "100"}


def fields(**said: Any) -> dict[str, Any]:
    options = BASE | {f"--{name.replace('_', '-')}": value for name, value in said.items()}
    return shape.fields_of({name: tuple(value.split()) for name, value in options.items() if value is not None}, "run.sh")


def test_what_is_not_said_is_what_megatron_takes() -> None:
    assert fields()["n_inner"] == 256 and fields()["model_type"] == "gpt2"
    assert fields(swiglu="")["intermediate_size"] == 128  # two thirds of four times as wide, whole multiples of 64
    assert fields(swiglu="", group_query_attention="")["num_key_value_heads"] == 1
    assert fields(swiglu="", num_experts="8")["num_experts_per_tok"] == 2
    assert fields(swiglu="", num_experts="8", qk_layernorm="", moe_layer_freq="2")["mlp_only_layers"] == [1, 3]
    assert fields(swiglu="", num_experts="8", qk_layernorm="", moe_layer_freq="([0]*1+[1]*3)")["mlp_only_layers"] == [0]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"vocab_size": None}, "--vocab-size is missing.*--model"), ({"hidden_size": "wide"}, "--hidden-size is 'wide'"),
        ({"position_embedding_type": "rope"}, "not those of GPT-2"),
        ({"swiglu": "", "num_experts": "8", "moe_layer_freq": "[1,0]"}, "--moe-layer-freq is"),
        ({"swiglu": "", "num_experts": "8", "moe_layer_freq": "[0,1,1,1]"}, "experts in some layers only"),
        ({"swiglu": "", "multi_latent_attention": ""}, "without --num-experts"),
        ({"swiglu": "", "num_experts": "8", "moe_layer_freq": "__import__('os')"}, "--moe-layer-freq is"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_one_line(said: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        fields(**said)
    assert "\n" not in str(caught.value)


def test_a_script_is_read_at_its_own_length(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    words = " ".join(f"{name} {value}" for name, value in BASE.items())
    path.write_text(f"torchrun pretrain_gpt.py {words} --seq-length 128 --swiglu\n")
    assert shape.model_of(str(path), 0).graph.sequence_length == 128
    assert shape.model_of(str(path), 64).graph.sequence_length == 64
