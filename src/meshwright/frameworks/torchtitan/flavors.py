"""Models of torchtitan's registry, by what a Hugging Face configuration says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["START", "flavor", "model_name", "n_layers", "recipes"]

START: Mapping[str, str] = MappingProxyType(
    {"llama3": "llama3_8b", "qwen3": "qwen3_14b", "deepseek_v3": "deepseek_v3_16b", "gpt_oss": "gpt_oss_20b"}
)
"""Of each family, the function of its ``config_registry`` whose optimizer, data and checkpoints a configuration starts from."""

_FIELDS = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")

_FLAVORS: Mapping[tuple[Any, ...], tuple[str, str]] = MappingProxyType({
    ("llama", 16, 2048, 32, 128256): ("llama3", "1B"), ("llama", 28, 3072, 24, 128256): ("llama3", "3B"),
    ("llama", 32, 4096, 32, 128256): ("llama3", "8B"), ("llama", 80, 8192, 64, 128256): ("llama3", "70B"),
    ("llama", 126, 16384, 128, 128256): ("llama3", "405B"),
    ("qwen3", 28, 1024, 16, 151936): ("qwen3", "0.6B"), ("qwen3", 28, 2048, 16, 151936): ("qwen3", "1.7B"),
    ("qwen3", 36, 2560, 32, 151936): ("qwen3", "4B"), ("qwen3", 36, 4096, 32, 151936): ("qwen3", "8B"),
    ("qwen3", 40, 5120, 40, 151936): ("qwen3", "14B"), ("qwen3", 64, 5120, 64, 151936): ("qwen3", "32B"),
    ("qwen3_moe", 48, 2048, 32, 151936): ("qwen3", "30B-A3B"), ("qwen3_moe", 94, 4096, 64, 151936): ("qwen3", "235B-A22B"),
    ("deepseek_v2", 27, 2048, 16, 102400): ("deepseek_v3", "16B"),
    ("deepseek_v2", 60, 5120, 128, 102400): ("deepseek_v3", "236B"),
    ("deepseek_v3", 61, 7168, 128, 129280): ("deepseek_v3", "671B"),
    ("gpt_oss", 24, 2880, 64, 201088): ("gpt_oss", "20b"), ("gpt_oss", 36, 2880, 64, 201088): ("gpt_oss", "120b"),
})  # fmt: skip
"""torchtitan 0.3.0, ``models/*/__init__.py``."""


def flavor(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the family and the flavor of a model; two empty words where the registry does not hold it.

    Llama 3 without the scaled positions of 3.1 is none of them.
    """
    found = _FLAVORS.get(tuple(fields.get(name) for name in _FIELDS), ("", ""))
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    plain = found[0] == "llama3" and (scaling.get("rope_type") or scaling.get("type")) != "llama3"
    return ("", "") if plain else found


@lru_cache(maxsize=1)
def recipes() -> Mapping[str, Mapping[str, Any]]:
    """Return what each function of torchtitan's ``config_registry`` sets of what decides a plan."""
    content = json.loads((Path(__file__).parents[1] / "data" / "torchtitan_recipes.json").read_text(encoding="utf-8"))
    return MappingProxyType(content["recipes"])


def model_name(family: str, name: str) -> str:
    """Return the built-in model that a flavor of a family is; empty where there is none."""
    from meshwright.models.readers import huggingface

    return next((one for one in huggingface.names() if flavor(huggingface.configuration(one)) == (family, name)), "")


def n_layers(family: str, name: str) -> int:
    """Return how many layers a flavor of a family has; 0 where it is not known."""
    return next((int(sizes[1]) for sizes, known in _FLAVORS.items() if known == (family, name)), 0)
