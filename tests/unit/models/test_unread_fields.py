"""Fields of a configuration that no reader asks for: told where they may change the model, and only there.

`tests/data/default_configs.json` holds the default configuration of every family in transformers 5.23.0 (Apache-2.0), without
labels and null fields.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import models
from meshwright.models.config import ModelConfig
from meshwright.models.harmless import HARMLESS, ORDINARY, is_harmless
from meshwright.models.readers import huggingface

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "default_configs.json"
DEFAULTS: dict[str, dict[str, Any]] = json.loads(DATA.read_text())
PUBLISHED: dict[str, dict[str, Any]] = {
    "dbrx-instruct": {
        "architectures": ["DbrxForCausalLM"], "auto_map": {"AutoConfig": "configuration_dbrx.DbrxConfig"}, "d_model": 6144,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000}, "emb_pdrop": 0.0,
        "ffn_config": {
            "ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0, "moe_loss_weight": 0.05, "moe_num_experts": 16,
            "moe_top_k": 4,
        },
        "initializer_range": 0.02, "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48, "n_layers": 40,
        "output_router_logits": False, "resid_pdrop": 0.0, "router_aux_loss_coef": 0.05, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.38.2", "use_cache": True, "vocab_size": 100352,
    },
    "falcon-7b": {
        "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": False,
        "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "parallel_attn": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": True, "vocab_size": 65024,
    },
    "falcon-40b": {
        "alibi": False, "bias": False, "hidden_size": 8192, "model_type": "falcon", "new_decoder_architecture": True,
        "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True, "vocab_size": 65024,
    },
    "bloom": {
        "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0, "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom", "n_embed": 14336, "n_layer": 70,
        "num_attention_heads": 112, "pad_token_id": 3, "pretraining_tp": 4, "seq_length": 2048, "skip_bias_add": True,
        "skip_bias_add_qkv": False, "slow_but_exact": False, "unk_token_id": 0, "use_cache": True, "vocab_size": 250880,
    },
    "qwen2-7b": {
        "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
        "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 131072, "tie_word_embeddings": False, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1,
        "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"factor": 40, "type": "yarn"},
        "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False,
        "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400,
    },
    "command-r7b": {
        "hidden_size": 4096, "intermediate_size": 14336, "layer_switch": 4, "logit_scale": 0.25, "model_type": "cohere2",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rotary_pct": 1.0,
        "sliding_window": 4096, "sliding_window_pattern": 4, "use_embedding_sharing": True, "use_gated_activation": True,
        "use_parallel_block": True, "use_parallel_embedding": True, "vocab_size": 256000,
    },
    "bert-base-multilingual": {
        "attention_probs_dropout_prob": 0.1, "directionality": "bidi", "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform", "position_embedding_type": "absolute", "type_vocab_size": 2,
        "vocab_size": 119547,
    },
}  # fmt: skip
OWN = ("more than the", "only the language model", "num_nextn_predict_layers")
"""Notes of other kinds."""


def notes(folder: pathlib.Path, fields: dict[str, Any]) -> list[str]:
    (folder / "config.json").write_text(json.dumps(fields))
    return [note for note in models.read(str(folder / "config.json")).notes if not any(word in note for word in OWN)]


@pytest.mark.parametrize("name", [*DEFAULTS, *PUBLISHED])
def test_ordinary_configurations_get_no_note(name: str, tmp_path: pathlib.Path) -> None:
    assert notes(tmp_path, DEFAULTS.get(name) or PUBLISHED[name]) == []


def test_there_is_an_ordinary_configuration_of_every_family() -> None:
    assert {*huggingface.MODEL_TYPES} - {*DEFAULTS} == {"dbrx", "kimi_k2", "yi"}  # one published, two like others
    assert not any(note for name in huggingface.names() for note in models.read(name).notes if "nothing is known" in note)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {"num_local_experts": 8}), ("llama", {"attention_chunk_size": 8192}), ("llama", {"pretraining_tp": 2}),
        ("llama", {"quantization_config": {"bits": 4}}), ("llama", {"use_sliding_window": True}),
        ("qwen2", {"num_experts": 60, "moe_intermediate_size": 1408}), ("gpt2", {"layer_types": ["full_attention"]}),
        ("gpt2", {"add_cross_attention": True}), ("bert", {"is_decoder": True}), ("phi3", {"mamba_d_state": 16}),
        ("deepseek_v3", {"index_topk": 2048}), ("mixtral", {"shared_expert_intermediate_size": 512}),
        ("starcoder2", {"mlp_type": "gated"}), ("opt", {"enable_bias": False}), ("qwen2_moe", {"qkv_bias": False}),
        ("t5", {"num_experts": 8}), ("glm4_moe", {"index_head_dim": 128}), ("falcon", {"hidden_dropout": 0.1}),
        ("olmo", {"use_qk_norm": True}), ("gemma3_text", {"vision_layers": 4}), ("gpt_neox", {"layer_scale": 0.5}),
    ],
)  # fmt: skip
def test_fields_that_may_change_layers_are_named_in_one_note(
    family: str, fields: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    (note,) = notes(tmp_path, {**DEFAULTS[family], **fields})
    place, named, rest = note.split(": ", 2)
    assert place.endswith("config.json") and named == ", ".join(fields) and f"layers of {family} were taken as they are" in rest


def test_the_language_model_inside_another_is_looked_at_too(tmp_path: pathlib.Path) -> None:
    inner = {**DEFAULTS["gemma3_text"], "num_local_experts": 4}
    (note,) = notes(tmp_path, {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 8}})
    assert note.split(": ")[1:3] == ["text_config", "num_local_experts"]


def test_dbrx_has_the_weights_that_are_published(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["dbrx-instruct"]))
    graph = models.read(str(tmp_path / "config.json")).graph
    assert round(graph.n_parameters / 1e9) == 132 and round(graph.n_active_parameters / 1e9) == 36


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_layers_that_predict_further_tokens_are_said_where_they_are_counted(family: str, tmp_path: pathlib.Path) -> None:
    said = []
    for ahead in (0, 1):
        (tmp_path / "config.json").write_text(json.dumps({**DEFAULTS[family], "num_nextn_predict_layers": ahead}))
        found = models.read(str(tmp_path / "config.json"))
        said.append((any(op.name == "mtp.0" for op in found.graph.ops), any("nextn" in note for note in found.notes)))
    assert said == [(False, False), (True, True)]


def test_windows_of_every_fourth_layer_are_left_out_in_cohere2(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED["command-r7b"], "num_hidden_layers": 8}))
    graph = models.read(str(tmp_path / "config.json"), sequence_length=8192).graph
    assert [op.like for op in graph.ops[1:-1]] == [1, 1, 1, 4, 1, 1, 1, 4]


def test_an_opt_whose_head_has_weights_of_its_own_has_more_weights() -> None:
    tied, own = (
        huggingface.graph_of({**DEFAULTS["opt"], "tie_word_embeddings": told}, "opt").n_parameters for told in (True, False)
    )
    assert own - tied == DEFAULTS["opt"]["vocab_size"] * DEFAULTS["opt"]["word_embed_proj_dim"]


def test_a_change_of_a_configuration_shares_what_was_asked() -> None:
    config = ModelConfig("a.json", {"a": 5, "b": 5, "c": 5, "d": 5, "e": 5, "_f": 5, "use_cache": True, "part": {"g": 5}})
    config.changed(a=6, x=7).integer("a|y", "a number")
    config.accounts_for("b")
    assert config.given("c") and config.part("part").unread() == ("g",)
    assert config.unread() == ("d", "e")
    assert config.changed(d=6).integer("d", "a number") == 6 and config.unread() == ("e",)


def test_what_is_off_or_has_no_effect_is_harmless() -> None:
    for value in (None, False, 0, 1, 0.0, 1.0, "", [], {}):
        assert is_harmless("anything", value)
    for value in (True, 2, 0.5, "x", [0], {"a": 1}):
        assert not is_harmless("anything", value)
        assert is_harmless("hidden_act", value)
    for name, value in ORDINARY.items():
        assert is_harmless(name, value) and is_harmless(name, None) and not is_harmless(name, False)
    listed = [name for names in HARMLESS.values() for name in names]
    assert len(listed) == len({*listed}) and not {*listed} & {*ORDINARY}
