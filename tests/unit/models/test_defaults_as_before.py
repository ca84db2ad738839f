"""What is assumed of a family where its configuration leaves a field out, and captured files changed in one thing each."""

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import pytest

from edited import answer, answers
from meshwright import models
from meshwright.core.graph import Graph
from meshwright.models import fine_tuning, hub
from meshwright.models.readers import huggingface
from recorded import Recorded

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "default_configs.json"
DEFAULTS: dict[str, dict[str, Any]] = json.loads(DATA.read_text())
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "n_layers")


def small(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of three layers: what differs by layer repeats, but for the first."""
    inner = {name: small(value) if isinstance(value, dict) else value for name, value in fields.items()}
    cut = {name: value[:3] if isinstance(value, list) and len(value) > 3 else value for name, value in inner.items()}
    return {name: 3 if name in DEPTHS and isinstance(value, int) and value > 3 else value for name, value in cut.items()}


def sum_of(graph: Graph) -> str:
    """Return a check sum of all that a graph says."""
    said = [(op.name, op.kind, op.like, [repr(part) for part in op.body] if op.like < 0 else "") for op in graph.ops]
    edges = [(edge.source, edge.target, edge.n_elements) for edge in graph.edges]
    more = (graph.sequence_length, graph.n_shared_parameters, graph.n_active_parameters, graph.tokens_name, graph.shared)
    return f"{zlib.crc32(repr((said, edges, more)).encode()):08x}"


def read(fields: Mapping[str, Any], length: int = 16) -> str:
    text = answer(lambda _: sum_of(huggingface.graph_of(fields, "m", sequence_length=length)), "")
    return text if len(text) == 8 else f"{text[9:41]} {zlib.crc32(text.encode()) & 0xFFFF:04x}"


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_fields_that_are_left_out_are_taken_as_before(family: str, recorded: Recorded) -> None:
    fields = small(DEFAULTS[family])
    plain = read(fields)
    found = {"": plain}
    for name in fields:
        said = read({key: value for key, value in fields.items() if key != name})
        if said != plain:
            found[name] = said
    needed = {key for key in fields if found.get(key, "").startswith(("mine", "m:"))} | {"model_type", "architectures"}
    sized = {
        name: value
        for name, value in fields.items()
        if name in needed or (isinstance(value, int) and not isinstance(value, bool))
    }
    found["sizes alone"] = read(sized)
    found["bare"] = read(
        {name: value for name, value in fields.items() if name not in ("architectures", "id2label", "label2id")}
    )
    found |= {f"{length} tokens": read(fields, length) for length in (0, 10**7, 10**10)}
    found |= {f"vocabulary of {n}": read({**fields, "vocab_size": n})[:32] for n in (10**9, 10**9 + 1)}
    recorded(found)


CAPTURED = """{"format": "meshwright/graph/1", "name": "tiny", "source": "here:tiny", "level": "layers", "batch": 1,
"element_bytes": 2, "sequence_length": 4, "tokens_name": "tokens", "n_parameters": 39, "n_shared_parameters": 0,
"n_active_parameters": 0, "n_shared_frozen_parameters": 0,
"totals": {}, "notes": ["a note"],
"bodies": [[{"name": "words", "kind": "embedding", "dims": {"sequence": 4, "vocabulary": 5, "hidden": 3}, "n_parameters": 15}],
[{"name": "product", "kind": "matmul", "dims": {"sequence": 4, "in": 3, "out": 3}, "n_parameters": 9, "tensor_axis": "out",
"saved_elements": 12, "saved_axis": "tensor", "selective": true, "n_frozen_parameters": 2}],
[{"name": "head", "kind": "matmul", "dims": {"sequence": 4, "in": 3, "out": 5}, "n_parameters": 15}]],
"ops": [{"name": "embed", "kind": "embedding", "body": 0},
{"name": "layers.0", "kind": "matmul", "body": 1},
{"name": "head", "kind": "head", "body": 2}],
"edges": [[0, 1, 12], [1, 2, 12]]}
"""


def test_captured_files_are_read_as_before(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    path = tmp_path / "graph.json"

    def told(text: str) -> str:
        path.write_text(text)
        spec = models.read(str(path))
        graph = spec.graph
        return (
            f"{spec.name} {spec.notes} {graph.n_parameters} {graph.n_frozen_parameters} {graph.sequence_length} {sum_of(graph)}"
        )

    recorded(answers(told, CAPTURED, str(tmp_path)))


LORAS = (
    "r=4,targets=query",
    "r=4,targets=q_proj,v_proj",
    "targets=query,r=4,base=nf4",
    "r=4,targets=query,base=4bit",
    "r=0,targets=up",
    "r=100000,targets=up",
    "r=100001,targets=up",
    "r=1000000,targets=up",
    "r=,targets=up",
    "r=4",
    "r=4,targets=",
    "r=4,r=5,targets=up",
    "r=4,5,targets=up",
    "4,targets=up",
    "r=4,targets=up,down,up",
    "r=4,targets=gate_up,gate",
    "r=4,targets=gate_up,key",
    "r=4,targets=query_key_value,value",
    "r=4,targets=c_attn",
    "r=4,targets=up,base=8bit",
    "r=4,targets=up,base=",
    "x=1,r=4,targets=up",
    "",
    "r=4,targets=head",
    "r = 4 , targets = up",
)


def test_adapters_are_asked_for_as_before(recorded: Recorded) -> None:
    recorded({text: answer(lambda _, t=text: fine_tuning.parse_lora(t), "") for text in LORAS})  # type: ignore[misc]
    matches = [
        (name, pattern)
        for name in ("layers.3.attention.query", "embed.words", "head")
        for pattern in ("layers.*", "layers.3", "*attention", "*.query", "layers.[0-2]*", "embed", "he?d", "head.x", "words")
        if fine_tuning._matches(name, pattern)
    ]
    recorded(matches, "names")


def test_names_of_the_hub_are_answered_with_close_ones(recorded: Recorded) -> None:
    words = (
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-8",
        "Qwen/Qwen3-8",
        "nobody/nothing",
        "mistralai/Mixtral-8x7B-v0",
        "a/b/c",
    )
    recorded({word: [hub.built_in(word), str(hub.unknown(word))[:400]] for word in words})
