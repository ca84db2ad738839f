"""Invariants of models read from configurations: whatever is in a field, and whatever the sizes."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.core.flops import forward_flops, model_flops
from meshwright.core.graph import Graph
from meshwright.models.readers import huggingface

NAMES = ("bert-base", "deepseek-v2-lite", "deepseek-v3-mtp", "gemma-2-9b", "gemma-3-27b", "gpt-neo-125m", "gpt-neox-20b", "gpt-oss-20b",
         "gpt2", "llama-3.2-1b", "mixtral-8x7b", "opt-350m", "qwen2-57b-a14b", "qwen3-30b-a3b", "t5-small", "vit-base")  # fmt: skip
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.integers(-3, 300), st.floats(), st.text(max_size=5),
    st.lists(st.one_of(st.integers(-1, 3), st.text(max_size=3)), max_size=3), st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)  # fmt: skip


def fields_of(name: str) -> dict[str, Any]:
    file = importlib.resources.files("meshwright.models") / "data" / f"{name}.json"
    fields: dict[str, Any] = json.loads(file.read_text())
    return fields


def saved_bytes(graph: Graph) -> int:
    return sum(2 * part.saved_elements + part.saved_extra_bytes for op in graph.ops for part in op.body)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.data(), ANYTHING)
def test_any_value_of_any_field_is_read_or_refused_in_words(name: str, data: st.DataObject, value: Any) -> None:
    fields = fields_of(name)
    fields[data.draw(st.sampled_from(sorted(fields)))] = value
    try:
        graph = huggingface.graph_of(fields, name)
    except InputError as error:
        assert str(error).startswith(f"{name}: ")
        return
    assert graph.n_parameters > 0
    assert graph.n_active_parameters <= graph.n_parameters


# a sample of ViT is an image, and BERT's pooler looks at one token whatever the length
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([name for name in NAMES if name not in ("bert-base", "vit-base")]), st.integers(1, 700))
def test_twice_the_tokens_keep_twice_the_bytes_with_flash_attention_and_more_without(name: str, length: int) -> None:
    fields = fields_of(name)
    graph, unfused = (
        huggingface.graph_of(fields, name, sequence_length=2 * length, attention=kind) for kind in ("flash", "unfused")
    )
    short = huggingface.graph_of(fields, name, sequence_length=length)
    tables = any(part.name == "positions" for part in graph.ops[0].body)  # learned positions may have to be more
    assert tables or graph.n_parameters == short.n_parameters
    assert graph.n_parameters == unfused.n_parameters
    assert saved_bytes(graph) == 2 * saved_bytes(short)
    # beside the statistic of flash attention (4 bytes per query), scores of at least two keys of two bytes each
    assert saved_bytes(unfused) >= saved_bytes(graph)
    executed = [sum(forward_flops(part) for op in one.ops for part in op.body) for one in (short, graph)]
    assert executed[1] >= 1.999 * executed[0]  # a window's mean number of keys is rounded
    assert model_flops(graph) > model_flops(short) > 0
