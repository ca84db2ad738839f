"""Every family of models as it was read when this was written: its default configuration, and that with one field changed."""

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Operator
from meshwright.models import fine_tuning
from meshwright.models.readers import huggingface
from meshwright.models.weight_tensors import weight_tensors
from recorded import Recorded

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "default_configs.json"
DEFAULTS: dict[str, dict[str, Any]] = json.loads(DATA.read_text())
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers")
TUNED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("embed*",), ""), (("layers.0*", "embed*"), ""), (("*attention*",), ""), (("*norm*", "head"), ""), (("nothing",), ""),
    (("*",), ""), (("layers.[!4]*",), ""), (("embed",), "r=2,targets=query"), ((), "r=4,targets=query,value"),
    ((), "r=3,targets=query_key_value,output"), ((), "r=5,targets=gate,down"), ((), "r=5,targets=gate_up,down,key"),
    ((), "r=8,targets=up,q_proj,base=nf4"), ((), "r=8,base=4bit,targets=output"), ((), "r=2,targets=query,query_key_value"),
    ((), "r=0,targets=query"), ((), "targets=query"), ((), "r=4"), ((), "r=4,r=4,targets=query"), ((), "r=4,targets=all"),
    ((), "r=4,targets=query,base=8bit"), ((), "r=4,targets=query,base="), ((), "rank=4"), ((), "query"),
)  # fmt: skip


def few_layers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with five layers, whatever its field for that is called."""
    inner = {name: few_layers(value) if isinstance(value, dict) else value for name, value in fields.items()}
    lists = ("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types", "attention_layers")
    cut = {name: value[:5] if name in lists and isinstance(value, list) else value for name, value in inner.items()}
    return {name: 5 if name in DEPTHS and isinstance(value, int) and value > 5 else value for name, value in cut.items()}


def line(body: tuple[Operator, ...], operator: Operator) -> str:
    """Return all that an operator says in a line."""
    tensors = weight_tensors(body, operator)
    return f"{operator!r} {tensors!r}"


def summary(graph: Graph) -> list[Any]:
    """Return sums of a graph, and a sum of all that its operators say."""
    bodies = {op.like if op.like >= 0 else i: op.body for i, op in enumerate(graph.ops)}
    lines = [line(body, operator) for body in bodies.values() for operator in body]
    kinds = [(op.name, op.kind, op.like) for op in graph.ops]
    edges = [(edge.source, edge.target, edge.n_elements) for edge in graph.edges]
    saved = sum(operator.saved_elements for op in graph.ops for operator in op.body)
    return [graph.n_parameters, graph.n_active_parameters, saved, zlib.crc32(repr((lines, kinds, edges)).encode())]


def read(fields: Mapping[str, Any], **options: Any) -> list[Any] | str:
    try:
        return summary(huggingface.graph_of(fields, "m", **{"sequence_length": 64, **options}))
    except InputError as error:
        return str(error)[:160]


def flipped(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return configurations with one field each turned over, halved, or left out."""
    found = {}
    for name, value in fields.items():
        if isinstance(value, bool):
            found[name] = {**fields, name: not value}
        elif isinstance(value, int) and value > 1 and not name.endswith("token_id"):
            found[name] = {**fields, name: value // 2}
        elif isinstance(value, float) and "drop" in name:
            found[name] = {**fields, name: 0.25 - value}
    return found


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_a_family_is_read_as_before(family: str, recorded: Recorded) -> None:
    fields = few_layers(DEFAULTS[family])
    found: dict[str, Any] = {
        "": read(fields),
        "eager": read(fields, attention="eager"),
        "long": read(fields, sequence_length=4096),
    }
    plain = found[""]
    found |= {name: one for name, changed in flipped(fields).items() if (one := read(changed)) != plain}
    recorded(found)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "mixtral", "deepseek_v3", "t5", "falcon"])
def test_what_is_fine_tuned_is_as_before(family: str, recorded: Recorded) -> None:
    fields = few_layers(DEFAULTS[family])
    graph = huggingface.graph_of(fields, "m", sequence_length=64)
    spec = huggingface.ModelSpec("m", "huggingface", "m", graph)
    found: dict[str, Any] = {}
    for freeze, lora in TUNED:
        try:
            found[f"{' '.join(freeze)} {lora}"] = summary(fine_tuning.fine_tuned(spec, freeze, lora).graph)
        except InputError as error:
            found[f"{' '.join(freeze)} {lora}"] = str(error)
    recorded(found)
