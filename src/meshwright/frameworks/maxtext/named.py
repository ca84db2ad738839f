"""The model that a configuration of MaxText names, or describes by its dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec
from meshwright.frameworks import _exact
from meshwright.frameworks.maxtext import config, told

__all__ = ["model_of"]

_DIMENSIONS: Mapping[str, str] = MappingProxyType({
    "hidden_size": "base_emb_dim", "num_attention_heads": "base_num_query_heads", "num_key_value_heads": "base_num_kv_heads",
    "intermediate_size": "base_mlp_dim", "num_hidden_layers": "base_num_decoder_layers", "head_dim": "head_dim",
    "vocab_size": "vocab_size",
})  # fmt: skip
"""Entries that describe a model, by what a Hugging Face configuration calls them."""


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model, with samples of so many tokens; 0 for the configuration's own.

    Raises
    ------
    InputError
        When it names none that is built in, or leaves a dimension open.
    """
    from meshwright import models

    content, _, _ = told.content_of(path)
    length = sequence_length or _exact.whole(content, "max_target_length", path, 2048)
    name = str(content.get("model_name", "default"))
    if name == "default":
        return _described(content, path, length)
    ahead = _exact.whole(content, "mtp_num_layers", path, 0, least=0) if "mtp_num_layers" in content else 0
    found = _built_in(name, ahead)
    if not found:
        raise InputError(f"{path}: model_name {name} is none of the built-in models; give --model")
    unfused = content.get("attention") == "dot_product"
    return models.read(found, sequence_length=length, attention="unfused" if unfused else "")


def _built_in(name: str, ahead: int) -> str:
    """Return the built-in model that MaxText calls so, with as many layers that predict further tokens; empty for none."""
    from meshwright.models.readers import huggingface

    own = name.replace("llama2-", "llama-2-").replace("llama3", "llama-3")
    keys = [key for key, word in config.known()["models"].items() if word == name]
    for one in huggingface.names():
        fields = huggingface.configuration(one)
        if one == own or (config.key(fields) in keys and int(fields.get("num_nextn_predict_layers") or 0) == ahead):
            return one
    return ""


def _described(content: dict[str, Any], path: str, sequence_length: int) -> ModelSpec:
    """Return the model of a configuration that gives its dimensions."""
    from meshwright.models.readers import huggingface

    families = {block: family for family, block in config.BY_DIMENSIONS.items()}
    block = str(content.get("decoder_block", "llama2"))
    missing = [name for name in _DIMENSIONS.values() if name not in content]
    if missing or block not in families:
        what = f"leaves {missing[0]} open" if missing else f"has decoder_block {block}"
        raise InputError(f"{path}: names no model_name and {what}; give --model")
    fields: dict[str, Any] = {name: _exact.whole(content, entry, path) for name, entry in _DIMENSIONS.items()}
    fields |= {"model_type": families[block], "tie_word_embeddings": content.get("logits_via_embedding") is True}
    fields |= {"_attn_implementation": "eager"} if content.get("attention") == "dot_product" else {}
    name = f"the model of {path}"
    graph = huggingface.graph_of(fields, name, sequence_length=sequence_length)
    return ModelSpec(name, "huggingface", "", graph, costs="analytic", search="best")
