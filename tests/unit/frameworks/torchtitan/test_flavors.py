"""Models of torchtitan's registry are known by their published configurations, and nothing else is taken for one of them."""

from __future__ import annotations

import json
import pathlib

import pytest

import meshwright
from meshwright.frameworks.torchtitan import flavors

DATA = pathlib.Path(meshwright.__file__).parent / "models" / "data"
BUILT_IN = {
    "llama-3.2-1b": ("llama3", "1B"), "llama-3.2-3b": ("llama3", "3B"), "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"), "llama-3.1-405b": ("llama3", "405B"), "qwen3-8b": ("qwen3", "8B"),
    "qwen3-32b": ("qwen3", "32B"), "qwen3-30b-a3b": ("qwen3", "30B-A3B"), "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"), "deepseek-v2": ("deepseek_v3", "236B"), "deepseek-v3": ("deepseek_v3", "671B"),
    "gpt-oss-20b": ("gpt_oss", "20b"), "gpt-oss-120b": ("gpt_oss", "120b"),
}  # fmt: skip
QWEN = {  # config.json of Qwen/Qwen3-0.6B, -1.7B, -4B and -14B: layers, width, heads
    "0.6B": (28, 1024, 16), "1.7B": (28, 2048, 16), "4B": (36, 2560, 32), "14B": (40, 5120, 40),
}  # fmt: skip


def configuration(name: str) -> dict:
    """Return what a model's file says."""
    return json.loads((DATA / f"{name}.json").read_text())


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_model_is_its_flavor_and_has_as_many_layers(name: str) -> None:
    fields = configuration(name)
    assert flavors.flavor(fields) == BUILT_IN[name]
    assert flavors.n_layers(*BUILT_IN[name]) == fields["num_hidden_layers"]


@pytest.mark.parametrize("name", QWEN)
def test_the_other_sizes_of_qwen_are_known(name: str) -> None:
    layers, width, heads = QWEN[name]
    fields = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "vocab_size": 151936}
    assert flavors.flavor({"model_type": "qwen3", **fields}) == ("qwen3", name)
    assert flavors.n_layers("qwen3", name) == layers


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_another_size_is_no_flavor(name: str) -> None:
    fields = configuration("llama-3.1-8b")
    assert flavors.flavor({**fields, name: fields[name] + 1}) == ("", "")


def test_the_first_llama_3_has_other_positions() -> None:
    assert flavors.flavor(configuration("llama-3-8b")) == ("", "")
    assert flavors.n_layers("llama3", "9B") == 0
