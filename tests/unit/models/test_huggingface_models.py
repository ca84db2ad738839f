"""Every built-in model against its published number of parameters."""

from __future__ import annotations

import importlib.resources
import json
import pathlib

import pytest

from meshwright import models
from meshwright.models.readers import huggingface


@pytest.mark.parametrize("name", huggingface.names())
def test_a_built_in_model_has_its_published_parameters(name: str) -> None:
    model = huggingface.describe(name)
    file = importlib.resources.files("meshwright.models") / "data" / f"{name}.json"
    last_digit = json.loads(file.read_text())["_published_last_digit"]
    assert model.source
    # half a per cent, or what rounding to the published digits hides
    allowed = max(0.005 * model.published_parameters, 0.5 * last_digit)
    assert abs(model.n_parameters - model.published_parameters) <= allowed


@pytest.mark.parametrize("name", huggingface.names())
def test_layers_that_repeat_share_one_body(name: str) -> None:
    graph = models.read(name).graph
    for i, op in enumerate(graph.ops):
        assert 0 <= op.like <= i
        assert graph.ops[op.like].body is op.body
    assert len({op.like for op in graph.ops}) <= 6


def test_the_edges_carry_the_residual_stream() -> None:
    graph = models.read("llama-3.1-8b").graph
    assert graph.ops[0].name == "embed" and graph.ops[-1].name == "head"
    assert [(edge.source, edge.target, edge.n_elements) for edge in graph.edges] == [(i, i + 1, 8192 * 4096) for i in range(33)]


def test_a_wanted_sequence_length_wins() -> None:
    assert models.read("llama-3.1-8b").graph.sequence_length == 8192
    assert models.read("llama-3.1-8b", sequence_length=1024).graph.sequence_length == 1024


@pytest.mark.parametrize("name", huggingface.names())
def test_the_weights_a_token_meets_are_the_published_ones(name: str) -> None:
    file = importlib.resources.files("meshwright.models") / "data" / f"{name}.json"
    fields = json.loads(file.read_text())
    model = huggingface.describe(name)
    if "_published_active_parameters" not in fields:
        assert model.n_active_parameters <= model.n_parameters
        return
    published = fields["_published_active_parameters"]
    tables = 2 * fields["vocab_size"] * fields["hidden_size"]  # some count word table and head, some one of them, some none
    assert 0.98 * (model.n_active_parameters - tables) <= published <= 1.02 * model.n_active_parameters


def test_the_reference_page_lists_every_built_in_model_with_its_parameters() -> None:
    page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "reference" / "models.md").read_text()
    for name in huggingface.names():
        model = huggingface.describe(name)
        assert f"| `{name}` | {model.n_parameters:,} |" in page
    for family in huggingface.MODEL_TYPES:
        assert f"`{family}`" in page


def test_a_model_can_be_built_from_fields_alone() -> None:
    fields = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 12, "n_head": 16, "n_positions": 1024, "vocab_size": 51200}
    graph = huggingface.graph_of(fields, "row 7", attention="unfused")
    assert (graph.name, graph.sequence_length, len(graph.ops)) == ("row 7", 1024, 14)
