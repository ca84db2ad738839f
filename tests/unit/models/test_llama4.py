"""Llama 4's text part by hand: chunks, full attention between, experts beside a shared one, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.models.readers import huggingface

FIELDS: dict[str, Any] = {
    "model_type": "llama4_text", "hidden_size": 96, "intermediate_size": 64, "intermediate_size_mlp": 160,
    "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1003,
    "num_local_experts": 8,
    "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "attention_chunk_size": 16,
}  # fmt: skip


def graph_of(length: int = 64, **changes: Any) -> Graph:
    return huggingface.graph_of({**FIELDS, **changes}, "small", sequence_length=length)


def keys(graph: Graph) -> list[tuple[str, int]]:
    cores = [part for op in graph.ops for part in op.body if part.name == "attention.core"]
    return [(part.kind, part.size("key_sequence")) for part in cores]


def test_three_layers_see_chunks_and_the_fourth_the_whole_sample() -> None:
    chunked, whole = ("attention", 8), ("causal_attention", 64)  # a query sees 8.5 keys of its chunk of 16, rounded to even
    assert keys(graph_of()) == [chunked, chunked, chunked, whole] * 2
    assert keys(graph_of(no_rope_layer_interval=2)) == [chunked, whole] * 4
    assert keys(graph_of(layer_types=["full_attention"] * 8)) == [whole] * 8
    assert set(keys(graph_of(16))) == {("causal_attention", 16)}  # one chunk is the whole sample
    # two chunks of 16 and 8 tokens over: (2 x 16 x 17 + 8 x 9) / 2 pairs of a query and a key for 40 tokens
    assert keys(graph_of(40))[0] == ("attention", round((2 * 16 * 17 + 8 * 9) / 2 / 40))


def test_every_second_layer_has_experts_and_a_shared_one() -> None:
    graph = graph_of()
    assert [op.kind for op in graph.ops[1:-1]] == ["attention_mlp", "moe"] * 4
    attention = 96 * (6 + 2 + 2 + 6) * 16 + 2 * 96
    dense, sparse = 3 * 96 * 160, 3 * 96 * 64 * (8 + 1) + 96 * 8
    assert [op.n_parameters - attention for op in graph.ops[1:3]] == [dense, sparse]
    assert graph.n_parameters - graph.n_active_parameters == 4 * 6 * 3 * 96 * 64
    assert [op.kind for op in graph_of(moe_layers=[0, 7]).ops[1:-1]] == ["moe"] + ["attention_mlp"] * 6 + ["moe"]


def test_the_text_part_of_a_whole_model_is_planned_and_that_is_said() -> None:
    whole = {"model_type": "llama4", "text_config": FIELDS, "vision_config": {"hidden_size": 8}}
    assert huggingface.graph_of(whole, "small", sequence_length=64) == graph_of()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers has 2"),
        ({"layer_types": ["sliding_attention"] * 8}, "other words than"), ({"moe_layers": [8]}, "names layer 8"),
        ({"num_experts_per_tok": 9}, "cannot visit more experts"),
    ],
)  # fmt: skip
def test_lists_that_do_not_suit_the_layers_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph_of(**changes)
