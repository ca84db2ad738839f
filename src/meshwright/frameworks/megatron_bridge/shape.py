"""The model that a configuration of Megatron-Bridge or NeMo describes: by its fields, or by the class or folder it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec
from meshwright.frameworks import _exact, _python_file
from meshwright.frameworks.megatron import shape
from meshwright.frameworks.megatron_bridge import dump, nemo
from meshwright.models.readers import huggingface

__all__ = ["model_of"]

_VALUES: Mapping[str, str] = MappingProxyType({
    "num_layers": "--num-layers", "hidden_size": "--hidden-size", "ffn_hidden_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads", "kv_channels": "--kv-channels", "vocab_size": "--vocab-size",
    "num_moe_experts": "--num-experts", "moe_ffn_hidden_size": "--moe-ffn-hidden-size", "moe_router_topk": "--moe-router-topk",
    "moe_shared_expert_intermediate_size": "--moe-shared-expert-intermediate-size", "moe_layer_freq": "--moe-layer-freq",
    "moe_router_score_function": "--moe-router-score-function", "q_lora_rank": "--q-lora-rank",
    "kv_lora_rank": "--kv-lora-rank", "qk_head_dim": "--qk-head-dim", "qk_pos_emb_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim", "mtp_num_layers": "--mtp-num-layers", "softmax_type": "--softmax-type",
    "position_embedding_type": "--position-embedding-type", "window_attn_skip_freq": "--window-attn-skip-freq",
})  # fmt: skip
_FLAGS: Mapping[str, str] = MappingProxyType({
    "qk_layernorm": "--qk-layernorm", "add_qkv_bias": "--add-qkv-bias", "multi_latent_attention": "--multi-latent-attention",
    "moe_router_enable_expert_bias": "--moe-router-enable-expert-bias",
})  # fmt: skip
_UNLIKE = ("qk_l2_norm", "layernorm_zero_centered_gamma", "heterogeneous_block_specs", "is_hybrid_model",
           "experimental_attention_variant", "linear_attention_freq", "attention_output_gate", "moe_latent_size")  # fmt: skip
"""Fields that only models have that are not built from fields."""


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model of a configuration, with samples of so many tokens; 0 for its own.

    Raises
    ------
    InputError
        When it does not say the model, or one that is not built from fields.
    """
    text = _exact.read_text(path)
    if not dump.is_dump(text):
        return _of_recipe(path, sequence_length)
    sections, _ = dump.parts(path, text)
    said, data = sections.get("model", {}), sections.get("dataset", {})
    length = sequence_length or next(
        (n for n in (data.get("seq_length"), data.get("sequence_length"), said.get("seq_length")) if isinstance(n, int)), 0
    )
    kind = str(said.get("_target_", "")).rpartition(".")[2]
    if "trainer" in sections:
        return _of_class(path, kind, said, length)
    fields = shape.fields_of(_options(said, path, kind), path)
    name = f"the model of {path}"
    return ModelSpec(
        name, "huggingface", "", huggingface.graph_of(fields, name, sequence_length=length), costs="analytic", search="best"
    )


def _of_class(path: str, kind: str, said: Mapping[str, Any], sequence_length: int) -> ModelSpec:
    """Return the built-in model that a class of NeMo's is, where nothing of its sizes is set otherwise."""
    from meshwright import models

    own = [name for name in (*_VALUES, *_FLAGS) if name in said and name not in ("vocab_size", "position_embedding_type")]
    if kind not in nemo.CONFIGS or own:
        why = f"model.config.{own[0]} is set" if own and kind in nemo.CONFIGS else f"{kind or 'no class'} is none that is known"
        raise InputError(f"{path}: model.config: {why}; give --model")
    return models.read(nemo.CONFIGS[kind], sequence_length=sequence_length)


def _of_recipe(path: str, sequence_length: int) -> ModelSpec:
    """Return the model whose bridge a recipe in Python builds."""
    from meshwright import models

    tree, _ = _python_file.parsed(path)
    named = _python_file.constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("from_hf_pretrained") and node.args:
            try:
                name = str(_python_file.value(node.args[0], named))
            except ValueError:
                continue
            if name.rstrip("/").rpartition("/")[2] == "MODEL":
                continue  # as exported: a folder to be filled in
            beside = Path(path).parent / name
            return models.read(str(beside) if beside.exists() else name, sequence_length=sequence_length)
    raise InputError(f"{path}: does not say the model (AutoBridge.from_hf_pretrained); give --model")


def _options(said: Mapping[str, Any], path: str, kind: str) -> dict[str, tuple[str, ...]]:
    """Return Megatron-LM's options of an architecture that fields describe."""
    unlike = [name for name in _UNLIKE if said.get(name)]
    if unlike:
        raise InputError(f"{path}: model.{unlike[0]} is set: {kind or 'it'} is not built from fields; give --model")
    found: dict[str, tuple[str, ...]] = {}
    for field, option in _VALUES.items():
        value = said.get(field)
        if value is not None and value != []:
            words = f"([{','.join(map(str, map(int, value)))}])" if isinstance(value, list) else str(value)
            found[option] = (words,)
    found |= {option: () for field, option in _FLAGS.items() if said.get(field)}
    if said.get("num_query_groups") not in (None, said.get("num_attention_heads")):
        found |= {"--group-query-attention": (), "--num-query-groups": (str(said["num_query_groups"]),)}
    if not said.get("add_bias_linear", True):
        found["--disable-bias-linear"] = ()
    if not said.get("share_embeddings_and_output_weights", True):
        found["--untie-embeddings-and-output-weights"] = ()
    found |= _activation(said, path) | _window(said, path)
    if not said.get("num_moe_experts"):
        for name in ("--moe-router-topk", "--moe-layer-freq", "--moe-router-score-function"):
            found.pop(name, None)  # defaults that a dense model has, too
    if not said.get("multi_latent_attention"):
        for name in ("--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim"):
            found.pop(name, None)
    return found


def _activation(said: Mapping[str, Any], path: str) -> dict[str, tuple[str, ...]]:
    """Return the options of the activation function."""
    function = said.get("activation_func")
    name = str(function.get("_target_") if isinstance(function, dict) else function or "gelu").rpartition(".")[2]
    if not said.get("gated_linear_unit"):
        if name != "gelu":
            raise InputError(f"{path}: model.activation_func {name} is not built from fields; give --model")
        return {}
    option = {"silu": "--swiglu", "quick_gelu": "--quick-geglu"}.get(name)
    if option is None:
        raise InputError(f"{path}: model.activation_func {name} in gates is not built from fields; give --model")
    return {option: ()}


def _window(said: Mapping[str, Any], path: str) -> dict[str, tuple[str, ...]]:
    """Return the options of sliding windows."""
    window = said.get("window_size")
    if window is None:
        return {}
    numbers = window if isinstance(window, list) else re.findall(r"-?\d+", str(window))
    if len(numbers) != 2:
        raise InputError(f"{path}: model.window_size is {window!r}; it must be two numbers of tokens")
    return {"--window-size": (f"{numbers[0]},{numbers[1]}",)}
