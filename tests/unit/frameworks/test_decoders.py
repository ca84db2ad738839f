"""Where transformers keeps the layers of each family that scripts and configurations name."""

from __future__ import annotations

import pytest

from meshwright.frameworks import _exact

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
EARLIER = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4}, "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 16},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(_exact.DECODERS))
def test_layers_lie_where_they_are_said_to_and_are_of_the_class_that_is_wrapped(family: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **EARLIER.get(family, SMALL))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    place, kind = _exact.DECODERS[family]
    assert {type(layer).__name__ for layer in model.get_submodule(place)} == {kind}
    assert len(model.get_submodule(place)) == 2
    splits_layers = any(name.startswith("layers.") for name in config.base_model_tp_plan or ())
    assert splits_layers == (family not in _exact.NO_TENSOR_PLAN)  # gpt_oss has a plan for its embedding alone since 5.24
