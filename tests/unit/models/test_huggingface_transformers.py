"""Numbers of parameters of small configurations of every family against the `transformers` package, where it is installed."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import pytest

from meshwright import models
from meshwright.models.readers import huggingface

pytestmark = [pytest.mark.torch, pytest.mark.slow]

DECODER: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24,
    "intermediate_size": 200, "vocab_size": 1003, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 56, "num_experts": 8, "num_experts_per_tok": 3}
LATENT = {
    "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 200,
    "vocab_size": 1003, "max_position_embeddings": 256, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 56, "first_k_dense_replace": 2, "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
ENCODER = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 200}
GPT = {"n_embd": 96, "n_layer": 4, "n_head": 6, "n_inner": 200, "vocab_size": 1003, "n_positions": 256}
T5 = {"d_model": 96, "d_kv": 24, "d_ff": 200, "num_layers": 4, "num_decoder_layers": 3, "num_heads": 6, "vocab_size": 1003}

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "CausalLM", DECODER),
    ("llama", "CausalLM", {**DECODER, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", "CausalLM", DECODER),
    ("phi3", "CausalLM", {key: value for key, value in DECODER.items() if key != "head_dim"}),
    ("qwen2", "CausalLM", {key: value for key, value in DECODER.items() if key != "head_dim"}),
    ("qwen3", "CausalLM", DECODER),
    ("gemma", "CausalLM", DECODER),
    ("gemma2", "CausalLM", DECODER),
    ("gemma3_text", "CausalLM", DECODER),
    ("mixtral", "CausalLM", {**DECODER, "num_local_experts": 8, "num_experts_per_tok": 3}),
    ("qwen2_moe", "CausalLM", {**DECODER, **EXPERTS, "head_dim": 16, "shared_expert_intermediate_size": 72}),
    ("qwen3_moe", "CausalLM", {**DECODER, **EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("deepseek_v2", "CausalLM", LATENT),
    ("deepseek_v3", "CausalLM", LATENT),
    ("deepseek_v3", "CausalLM", {**LATENT, "q_lora_rank": None, "attention_bias": True}),
    ("gpt2", "CausalLM", GPT),
    (
        "gpt_neo",
        "CausalLM",
        {"hidden_size": 96, "num_layers": 4, "num_heads": 6, "vocab_size": 1003, "attention_types": [[["global", "local"], 2]]},
    ),
    ("gpt_oss", "CausalLM", {**DECODER, "num_local_experts": 8, "num_experts_per_tok": 3}),
    ("gpt_neox", "CausalLM", {**ENCODER, "vocab_size": 1003, "max_position_embeddings": 256}),
    ("opt", "CausalLM", {**ENCODER, "ffn_dim": 200, "vocab_size": 1003, "word_embed_proj_dim": 96}),
    ("bert", "PreTraining", {**ENCODER, "vocab_size": 1003}),
    ("bert", "MaskedLM", {**ENCODER, "vocab_size": 1003}),
    ("vit", "ImageClassification", {**ENCODER, "image_size": 64, "patch_size": 16, "num_labels": 13}),
    ("t5", "Seq2SeqLM", T5),
    ("t5", "Seq2SeqLM", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("family", "head", "fields"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_small_model_has_the_parameters_of_its_class(
    tmp_path: pathlib.Path, family: str, head: str, fields: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch, an optional extra")
    transformers = pytest.importorskip("transformers", reason="needs transformers, an optional extra")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(family, **fields)
        with torch.device("meta"):
            model = getattr(transformers, f"AutoModelFor{head}").from_config(config)
        expected = sum(weight.numel() for weight in {id(weight): weight for weight in model.parameters()}.values())
        # the one weight that transformers holds as a buffer
        expected += sum(value.numel() for key, value in model.named_buffers() if key.endswith("e_score_correction_bias"))
        written = {**config.to_dict(), "architectures": [type(model).__name__]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(written, default=str))
    assert models.read(str(path)).graph.n_parameters == expected


def test_every_family_is_compared() -> None:
    assert set(huggingface.MODEL_TYPES) - {family for family, _, _ in CASES} == {"gemma3", "kimi_k2"}  # built like others
