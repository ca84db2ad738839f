"""Reading configurations: what is recognised, what is refused and how, and the layers of each family."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import models
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.graph import Graph, Operator
from meshwright.core.source import Source
from meshwright.models.readers import huggingface

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 1000, "max_position_embeddings": 128, "torch_dtype": "bfloat16", "eos_token_id": 2,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def write(folder: pathlib.Path, fields: Any, name: str = "tiny.json") -> str:
    path = folder / name
    path.write_text(json.dumps(fields))
    return str(path)


def graph_of(folder: pathlib.Path, fields: Any, **options: Any) -> Graph:
    return models.read(write(folder, fields), **options).graph


def operator(graph: Graph, layer: str, name: str) -> Operator:
    return next(part for part in graph.ops[graph.id_of(layer)].body if part.name == name)


def test_a_tiny_llama_is_what_one_counts_by_hand(tmp_path: pathlib.Path) -> None:
    graph = graph_of(tmp_path, LLAMA)
    attention = 64 * (64 + 2 * 32) + 64 * 64
    layer = attention + 3 * 64 * 160 + 2 * 64
    assert graph.n_parameters == 2 * 1000 * 64 + 3 * layer + 64
    assert graph.sequence_length == 128
    assert [op.name for op in graph.ops] == ["embed", "layers.0", "layers.1", "layers.2", "head"]
    core = operator(graph, "layers.0", "attention.core")
    assert core.kind == "causal_attention"
    assert dict(core.dims) == {"sequence": 128, "key_sequence": 128, "heads": 4, "kv_heads": 2, "head": 16, "value": 16}


def test_tied_embeddings_are_counted_once(tmp_path: pathlib.Path) -> None:
    tied = graph_of(tmp_path, {**LLAMA, "tie_word_embeddings": True})
    assert tied.n_shared_parameters == 64_000
    assert tied.n_parameters == graph_of(tmp_path, LLAMA).n_parameters - 64_000


def test_a_file_is_named_after_itself_or_its_folder(tmp_path: pathlib.Path) -> None:
    assert models.read(write(tmp_path, LLAMA)).name == "tiny"
    (tmp_path / "my-model").mkdir()
    model_spec = models.read(write(tmp_path / "my-model", LLAMA, "config.json"))
    assert (model_spec.name, model_spec.format, model_spec.costs, model_spec.search) == (
        "my-model",
        "huggingface",
        "analytic",
        "best",
    )


def test_architectures_stand_in_for_a_missing_model_type(tmp_path: pathlib.Path) -> None:
    fields = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert graph_of(tmp_path, {**fields, "architectures": ["LlamaForCausalLM"]}) == graph_of(tmp_path, LLAMA)
    with pytest.raises(InputError, match=r"model_type 'LlamaGuardianModel' is not supported; there are: arcee, .*vit"):
        graph_of(tmp_path, {**fields, "architectures": ["LlamaGuardianModel"]})


def test_an_unknown_name_is_answered_by_the_closest() -> None:
    with pytest.raises(
        InputError, match=r"no model called 'llama-3\.1-8c'; did you mean 'llama-3\.1-8b'\? \(there are: bert-base"
    ):
        models.read("llama-3.1-8c")
    assert isinstance(huggingface.unknown("x"), UnknownNameError)


def test_a_file_that_is_no_configuration_is_not_recognised(tmp_path: pathlib.Path) -> None:
    for content in ([1, 2], {"nodes": []}, "llama", None):
        assert not huggingface.recognises(Source(write(tmp_path, content)))
    (tmp_path / "broken.json").write_text('{"model_type": "llama", ')
    assert not huggingface.recognises(Source(str(tmp_path / "broken.json")))
    with pytest.raises(InputError, match="not a Hugging Face configuration"):
        models.read(write(tmp_path, [1]), file_format="huggingface")


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_a_missing_field_is_named_with_its_file(tmp_path: pathlib.Path, field: str) -> None:
    fields = {key: value for key, value in LLAMA.items() if key != field}
    with pytest.raises(InputError, match=rf"tiny\.json: the field '{field}' is missing \(.+\); add it"):
        graph_of(tmp_path, fields)


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, [64], float("nan"), float("inf"), 10**30, 1e300])
@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size"])
def test_a_wrong_number_is_refused_with_its_value(tmp_path: pathlib.Path, field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"tiny\.json: {field} is .+; it must be "):
        graph_of(tmp_path, {**LLAMA, field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide num_attention_heads 4"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "hidden size 64 cannot be divided into 7 heads"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'; it must be true or false"),
        ({"attention_dropout": 1.5}, "attention_dropout is 1.5; it must be a number between 0 and 1"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; there are: arcee"),
        ({"model_type": 7}, "model_type is 7; it must be a text"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; it must have one for each of 3 layers"),
        ({"layer_types": ["linear"] * 3}, "layer_types holds 'linear'"),
        ({"num_key_value_head": 2, "num_key_value_heads": None}, None),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: pathlib.Path, fields: dict[str, Any], message: str | None) -> None:
    if message is None:  # null stands for the default, whatever else is there
        assert operator(graph_of(tmp_path, {**LLAMA, **fields}), "layers.0", "attention.core").size("kv_heads") == 4
        return
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        graph_of(tmp_path, {**LLAMA, **fields})


def test_a_misspelt_optional_field_is_not_ignored(tmp_path: pathlib.Path) -> None:
    fields = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    with pytest.raises(InputError, match=r"'num_key_value_head' is not known; did you mean 'num_key_value_heads'\?"):
        graph_of(tmp_path, {**fields, "num_key_value_head": 2})


def test_a_token_cannot_visit_more_experts_than_there_are(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="num_experts_per_tok is 5, but num_local_experts is 4"):
        graph_of(tmp_path, {**MIXTRAL, "num_experts_per_tok": 5})


def test_only_the_experts_visited_are_active(tmp_path: pathlib.Path) -> None:
    graph = graph_of(tmp_path, MIXTRAL)
    assert graph.n_parameters - graph.n_active_parameters == 3 * 2 * 3 * 64 * 160
    assert graph.ops[1].kind == "moe"
    inner = operator(graph, "layers.0", "mlp.experts.in")
    assert inner.expert and inner.n_parameters == 4 * 64 * 320
    assert dict(inner.dims) == {"sequence": 128, "top_k": 2, "experts": 4, "in": 64, "out": 320}


def test_a_sliding_window_shortens_the_keys_of_the_layers_that_have_one(tmp_path: pathlib.Path) -> None:
    fields = {**LLAMA, "model_type": "gemma2", "sliding_window": 32}
    graph = graph_of(tmp_path, fields)
    local, whole = (operator(graph, f"layers.{i}", "attention.core") for i in (0, 1))
    seen = [min(i + 1, 32) for i in range(128)]  # keys that each query sees
    assert local.kind == "attention" and local.size("key_sequence") == round(sum(seen) / 128)
    assert whole.kind == "causal_attention" and whole.size("key_sequence") == 128
    assert graph.ops[3].like == 1  # the third layer is local again


def test_the_sequence_may_be_longer_than_the_model_was_made_for_but_is_noted(tmp_path: pathlib.Path) -> None:
    model_spec = models.read(write(tmp_path, LLAMA), sequence_length=256)
    assert model_spec.graph.sequence_length == 256
    assert model_spec.notes == ("tiny: 256 tokens per sample are more than the 128 the model was made for",)
    assert models.read(write(tmp_path, LLAMA), sequence_length=128).notes == ()
    assert "table of learned positions" in models.read("gpt2", sequence_length=2048).notes[0]


@pytest.mark.parametrize("length", [-1, 10**12])
def test_an_impossible_sequence_length_is_refused(length: int) -> None:
    with pytest.raises(InputError, match=f"sequence length {length}: must be between 1 and"):
        models.read("llama-3.1-8b", sequence_length=length)


def test_an_unknown_kind_of_attention_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no attention called 'fast'"):
        models.read("llama-3.1-8b", attention="fast")


def test_eager_attention_in_the_configuration_keeps_scores(tmp_path: pathlib.Path) -> None:
    own = graph_of(tmp_path, {**LLAMA, "_attn_implementation": "eager"})
    assert own == graph_of(tmp_path, LLAMA, attention="unfused")
    assert graph_of(tmp_path, {**LLAMA, "_attn_implementation": "eager"}, attention="flash") == graph_of(tmp_path, LLAMA)


def test_an_image_decides_the_length_itself() -> None:
    graph = models.read("vit-large").graph
    assert (graph.sequence_length, graph.tokens_name) == (197, "")
    with pytest.raises(InputError, match="an image gives 197 tokens; change image_size instead"):
        models.read("vit-large", sequence_length=1024)


def test_the_encoder_feeds_every_decoder_layer() -> None:
    graph = models.read("t5-small").graph
    middle = graph.id_of("encoder.norm")
    fed = {graph.ops[edge.target].name for edge in graph.edges if edge.source == middle}
    assert fed == {f"decoder.{i}" for i in range(6)}
    assert {(edge.source, edge.target) for edge in graph.edges} >= {(0, 1), (0, middle + 1)}
    keys = operator(graph, "decoder.0", "cross_attention.core")
    assert keys.kind == "attention" and keys.size("key_sequence") == 512


def test_the_layer_that_predicts_a_second_token_stands_beside_the_head() -> None:
    graph = models.read("deepseek-v3-mtp").graph
    last, ahead, head = (graph.id_of(name) for name in ("layers.60", "mtp.0", "head"))
    ends = {(edge.source, edge.target) for edge in graph.edges}
    assert (last, ahead) in ends and (last, head) in ends and (ahead, head) not in ends
    assert [op.kind for op in graph.ops[1:5]] == ["attention_mlp"] * 3 + ["moe"]


def test_the_language_model_of_a_configuration_of_several_parts_is_read_and_noted(tmp_path: pathlib.Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model_spec = models.read(write(tmp_path, {"model_type": "gemma3", "text_config": text, "vision_config": {}}))
    assert model_spec.graph.n_parameters == 3_880_263_168  # Gemma 3 report, arXiv 2503.19786, table 1: 675 M + 3,209 M
    assert "vision tower is left out" in model_spec.notes[0]
    with pytest.raises(InputError, match="text_config is 3; it must be an object"):
        models.read(write(tmp_path, {"model_type": "gemma3", "text_config": 3}))
