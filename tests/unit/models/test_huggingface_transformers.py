"""Numbers of parameters of small configurations of every family against the `transformers` package, where it is installed."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import pytest

from meshwright import models
from meshwright.core.flops import forward_flops, passes
from meshwright.models import llama_variants
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

LLAMA4 = {**DECODER, "intermediate_size_mlp": 320, "num_local_experts": 8, "num_experts_per_tok": 2}

EVEN = {key: value for key, value in DECODER.items() if key != "head_dim"}
GLM: dict[str, Any] = {
    **DECODER, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 56,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip

DBRX = {
    "d_model": 96, "n_layers": 4, "n_heads": 6, "max_seq_len": 256, "vocab_size": 1003,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
    "ffn_config": {"hidden_size": 96, "ffn_hidden_size": 64, "moe_num_experts": 8, "moe_top_k": 3},
}  # fmt: skip

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
    ("dbrx", "CausalLM", DBRX),
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
    ("llama4_text", "CausalLM", LLAMA4),
    ("llama4_text", "CausalLM", {**LLAMA4, "interleave_moe_layer_step": 2, "attention_bias": True, "head_dim": 16}),
    ("bert", "PreTraining", {**ENCODER, "vocab_size": 1003}),
    ("bert", "MaskedLM", {**ENCODER, "vocab_size": 1003}),
    ("vit", "ImageClassification", {**ENCODER, "image_size": 64, "patch_size": 16, "num_labels": 13}),
    ("t5", "Seq2SeqLM", T5),
    ("t5", "Seq2SeqLM", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("arcee", "CausalLM", {**DECODER, "mlp_bias": True, "attention_bias": True}),
    ("bloom", "CausalLM", {"hidden_size": 96, "n_layer": 4, "n_head": 6, "vocab_size": 1003}),
    ("cohere", "CausalLM", EVEN),
    ("cohere", "CausalLM", {**EVEN, "use_qk_norm": True, "attention_bias": True}),
    ("cohere2", "CausalLM", {**EVEN, "attention_bias": True}),
    ("ernie4_5", "CausalLM", DECODER),
    ("ernie4_5", "CausalLM", {**DECODER, "use_bias": True, "head_dim": None, "tie_word_embeddings": False}),
    ("falcon", "CausalLM", {**EVEN, "max_position_embeddings": 256}),
    ("falcon", "CausalLM", {**EVEN, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", "CausalLM", {**EVEN, "bias": True, "alibi": True, "parallel_attn": False, "multi_query": False}),
    ("glm", "CausalLM", {**DECODER, "attention_bias": True}),
    ("glm4", "CausalLM", {**DECODER, "attention_bias": True}),
    ("glm4_moe", "CausalLM", GLM),
    ("glm4_moe", "CausalLM", {**GLM, "use_qk_norm": True, "attention_bias": True}),
    ("gptj", "CausalLM", {**GPT, "rotary_dim": 8}),
    ("granite", "CausalLM", EVEN),
    ("helium", "CausalLM", {**EVEN, "head_dim": 16, "attention_bias": True}),
    ("nemotron", "CausalLM", {**DECODER, "mlp_bias": True}),
    ("olmo", "CausalLM", EVEN),
    ("olmo2", "CausalLM", {**EVEN, "attention_bias": True}),
    ("phi", "CausalLM", EVEN),
    ("phi", "CausalLM", {**EVEN, "qk_layernorm": True}),
    ("seed_oss", "CausalLM", {**DECODER, "attention_out_bias": True}),
    ("smollm3", "CausalLM", {**EVEN, "no_rope_layers": [1, 1, 1, 0]}),
    ("stablelm", "CausalLM", {**EVEN, "use_qkv_bias": True}),
    ("starcoder2", "CausalLM", EVEN),
]

DENSE_VARIANTS = [case for case in CASES if case[0] in dict(llama_variants.FAMILIES)]


@pytest.mark.parametrize(
    ("family", "head", "fields"), DENSE_VARIANTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_products_of_a_family_are_those_that_pytorch_counts(
    family: str, head: str, fields: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch, an optional extra")
    transformers = pytest.importorskip("transformers", reason="needs transformers, an optional extra")
    from torch.utils.flop_counter import FlopCounterMode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(family, **fields)
        model = getattr(transformers, f"AutoModelFor{head}").from_config(config)
        words = torch.ones((1, 64), dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(input_ids=words, labels=words).loss.backward()
    counted = counter.get_flop_counts()["Global"]
    expected = sum(flops for name, flops in counted.items() if str(name) in ("aten.mm", "aten.addmm"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config.to_dict(), "architectures": [type(model).__name__]}, default=str))
    graph = models.read(str(path), sequence_length=64).graph
    products = sum(passes(part) * forward_flops(part) for op in graph.ops for part in op.body if part.kind == "matmul")
    assert products == pytest.approx(expected, rel=0.01)


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
    assert set(huggingface.MODEL_TYPES) - {family for family, _, _ in CASES} == {
        "gemma3",
        "kimi_k2",
        "llama4",
        "mistral3",
        "yi",
    }  # built like others
