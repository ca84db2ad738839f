"""Layers of language models as workloads of the co-design, and those of its studies as they are where nothing is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edited import answer
from meshwright import models
from meshwright.base.errors import InputError
from meshwright.core.flops import forward_flops
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import ModelSpec
from meshwright.planners.topoopt.models import workload
from meshwright.planners.topoopt.workloads import families
from meshwright.planners.topoopt.workloads.workload import DATA, flops
from recorded import Recorded


def product(name: str, n_in: int, n_out: int, weights: int) -> Operator:
    return Operator(name, "matmul", (("sequence", 4), ("in", n_in), ("out", n_out)), "out", weights)


def test_layers_of_a_model_are_operators_in_an_order_of_their_edges() -> None:
    ops = (
        Op("last", "head", (product("a", 3, 5, 15), product("b", 5, 2, 0))), Op("first", "embedding", (product("c", 2, 3, 6),)),
        Op("norm", "norm", (Operator("n", "norm", (("sequence", 4), ("hidden", 0))),)),
    )  # fmt: skip
    graph = Graph("m", ops, (Edge(1, 2, 12), Edge(2, 0, 7), Edge(1, 0, 5)), 4)
    found = workload(ModelSpec("m", "huggingface", "spec", graph), 8)
    assert (found.name, found.global_batch, found.element_bytes, found.state_bytes) == ("m", 8, 2, 18)
    assert [(one.name, one.kind, one.key, one.inputs, one.shape, one.weights) for one in found.operations] == [
        ("first", "layer", "first", (DATA,), (12,), (6,)), ("norm", "layer", "norm", (0,), (7,), ()),
        ("last", "layer", "last", (0, 1), (1,), (15,)),
    ]  # fmt: skip
    assert [one.sample_flops for one in found.operations] == [
        max(1.0, sum(forward_flops(part) for part in op.body)) for op in (ops[1], ops[2], ops[0])
    ]
    assert [flops(one) for one in found.operations] == [one.sample_flops for one in found.operations]
    bare = Graph("m", (*ops, Op("none", "other")), (), 4)
    for graph_of, instance in ((bare, None), (graph, SimpleNamespace())):
        spec: Any = ModelSpec("m", "piper_json", "a.json", graph_of, instance=instance)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"model a.json: format piper_json does not say what its operators compute"):
            workload(spec, 8)


@pytest.mark.parametrize("name", ["dlrm", "candle", "bert", "ncf", "moe", "vgg16", "resnet50", "alexnet", "inception3"])
def test_workloads_of_the_studies_are_as_published_where_nothing_is_told(name: str, recorded: Recorded) -> None:
    found = families.build(name, name)
    recorded([
        found.name, found.global_batch, len(found.operations), found.n_parameters, sum(flops(one) for one in found.operations),
        sum(one.bag for one in found.operations), sorted({one.key for one in found.operations})[:30],
    ])  # fmt: skip


def test_words_of_workloads_are_read_as_before(recorded: Recorded) -> None:
    widths = ("1024", "1024x3", "1024x3-1", "0", "x3", "8x0", "8x10000", "8x10001", "a", "", "8-", "8x", "-1")
    found = {
        text: answer(lambda _, t=text: (len(families.widths(t, "top")), sum(families.widths(t, "top"))), "") for text in widths
    }  # type: ignore[misc]
    texts = (
        "dlrm,tables=2,tables=3", "dlrm,tables", "none", "bert,heads=3", "moe,chosen=6", "moe,chosen=5", "ncf,tower=4-2",
        "dlrm,bottom=8x10000,top=8x10000,tables=9", "dlrm,tables=20001", " moe , batch = 7 ", "moe,batch=0", "vgg16,batch=3",
    )  # fmt: skip
    recorded(found | {text: answer(lambda _, t=text: families.build(t, "it").global_batch, "")[:120] for text in texts})  # type: ignore[misc]
    assert models.read("topoopt:moe").name == "moe"
