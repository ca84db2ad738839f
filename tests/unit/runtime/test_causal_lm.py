"""Hugging Face causal language models: run layer by layer they are the model, and their layers split over a tensor axis."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
pytestmark = pytest.mark.torch

from meshwright.runtime.model import causal_lm  # noqa: E402
from meshwright.runtime.parallel import shard_equivalence, tensor_parallel  # noqa: E402

LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OPT = {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
       "max_position_embeddings": 64, "dropout": 0.0}  # fmt: skip
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
DRY = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {  # configuration, and whether layers split
    "Mistral": ("MistralConfig", LLAMA_LIKE, True),
    "Mixtral": ("MixtralConfig", LLAMA_LIKE | {"num_local_experts": 4}, True),
    "Qwen 2": ("Qwen2Config", LLAMA_LIKE, True),
    "Qwen 3, norms of heads": ("Qwen3Config", LLAMA_LIKE | {"head_dim": 8}, True),
    "Gemma 2, local layers": ("Gemma2Config", LLAMA_LIKE | {"head_dim": 8, "sliding_window": 8}, True),
    "Phi": ("PhiConfig", LLAMA_LIKE | {"resid_pdrop": 0.0}, True),
    "StableLM, heads by number": ("StableLmConfig", LLAMA_LIKE, True),
    "OPT": ("OPTConfig", OPT | {"word_embed_proj_dim": 32}, True),
    "OPT, word table of another width": ("OPTConfig", OPT | {"word_embed_proj_dim": 16, "do_layer_norm_before": False}, True),
    "GPT-2": ("GPT2Config", GPT | DRY, False),
    "GPT-J, layers return tuples": ("GPTJConfig", GPT | DRY | {"rotary_dim": 4, "n_positions": 64}, True),
    "BLOOM": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}, True),
    "Falcon": ("FalconConfig", {key: LLAMA_LIKE[key] for key in ("vocab_size", "hidden_size", "num_attention_heads")}
               | {"num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}, True),
    "GPT-NeoX": ("GPTNeoXConfig", {key: value for key, value in LLAMA_LIKE.items() if key != "num_key_value_heads"}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_run_layer_by_layer_is_the_model_and_what_splits_adds_up(name: str) -> None:
    maker, fields, splits = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, maker)(**fields)).train()
    tokens = torch.randint(64, (2, 12))
    expected = model(tokens).logits
    weights = set(model.parameters())
    units = causal_lm.cut(model, causal_lm.layer_names(model))
    carried = (tokens,)
    for unit in units:
        carried = unit(*carried)
    assert torch.allclose(carried[0], expected, atol=1e-6)
    assert {weight for unit in units for weight in unit.parameters()} == weights
    assert len({weight for unit in units[1:-1] for weight in unit.parameters()}) < len(weights)
    tp_plan = tensor_parallel.wishes_of(model)
    assert bool(tensor_parallel.styles(units[1], tp_plan)) == splits
    if splits:
        shard_equivalence.check_sum(units[1], [value.detach() for value in units[0](tokens)], 2, tp_plan, name)
