"""Placement graphs are read whole, and anything wrong in them is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.source import Source
from meshwright.models import read
from meshwright.planners.parmesan.readers import dnn_partitioning_json
from meshwright.planners.parmesan.readers.dnn_partitioning_json import PlacementGraph


def chain() -> dict[str, Any]:
    """Return a chain of three nodes, the last a backward node of the colour of the first."""
    node = {"supportedOnFpga": 1, "cpuLatency": 10.0, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 4.0}
    return {
        "maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1,
        "nodes": [node | {"id": 7, "name": "a", "colorClass": 1}, node | {"id": 3},
        node | {"id": 9, "isBackwardNode": True, "colorClass": 1}],
        "edges": [{"sourceId": 7, "destId": 3, "cost": 0.5}, {"sourceId": 3, "destId": 9, "cost": 0.25, "size": 8}],
    }  # fmt: skip


def write(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_file_is_recognised_by_its_content_and_read_in_its_own_units(tmp_path: Path) -> None:
    model_spec = read(write(tmp_path, chain()))
    assert model_spec.format == "dnn_partitioning_json" and model_spec.search == "partition"
    assert [op.name for op in model_spec.graph.ops] == ["a", "3", "9"]
    instance = model_spec.instance
    assert isinstance(instance, PlacementGraph)
    assert (instance.memory_bytes, instance.n_accelerators, instance.n_hosts) == (100.0, 2, 1)
    assert [node.colour for node in instance.nodes] == [1, None, 1]
    assert [(edge.source, edge.target, edge.cost, edge.bytes) for edge in instance.edges] == [
        (0, 1, 0.5, 0.0),
        (1, 2, 0.25, 8.0),
    ]


def test_names_that_repeat_are_told_apart_by_the_id(tmp_path: Path) -> None:
    content = chain()
    content["nodes"][1]["name"] = "a"
    assert [op.name for op in read(write(tmp_path, content)).graph.ops] == ["a#7", "a#3", "9"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("maxCPUs"), ["'maxCPUs' is missing"]),
        (lambda c: c.update(nodes=[]), ["nodes is []"]),
        (lambda c: c["nodes"][1].pop("size"), ["nodes[1]", "'size' is missing"]),
        (lambda c: c["nodes"][1].update(fpgaLatency=-1), ["nodes[1]", "fpgaLatency", "-1", "at least 0"]),
        (lambda c: c["nodes"][1].update(fpgaLatency="fast"), ["nodes[1]", "'fast'", "must be a finite number"]),
        (lambda c: c["nodes"][1].update(fpgaLatency=float("inf")), ["nodes[1]", "inf", "finite"]),
        (lambda c: c["edges"][0].update(cost=10**400), ["edges[0]", "cost is inf", "finite"]),
        (lambda c: c.update(maxCPUs=10**400), ["maxCPUs is inf", "whole number"]),
        (lambda c: c["nodes"][1].update(isBackwardNode=2), ["nodes[1]", "isBackwardNode", "true, false, 0 or 1"]),
        (lambda c: c["nodes"][1].update(id=7), ["nodes[1]", "7", "nodes[0]", "unique"]),
        (lambda c: c["edges"][0].update(destId=8), ["edges[0]", "destId", "8", "no node"]),
        (lambda c: c["edges"][0].update(destId=7), ["edges[0]", "to itself"]),
        (lambda c: c["edges"].append({"sourceId": 7, "destId": 9, "cost": 1.0}), ["edges[2]", "node 7", "same on all"]),
        (lambda c: c["edges"].append({"sourceId": 9, "destId": 7, "cost": 0.5}), ["cycle", "graph.json"]),
        (lambda c: c["edges"].append([1, 2]), ["edges[2]", "must be an object"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, change: Any, words: list[str]) -> None:
    content = chain()
    change(content)
    with pytest.raises(InputError) as caught:
        read(write(tmp_path, content))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("change",
[lambda c: c.update(maxGPUs=3), lambda c: c["nodes"][0].update(colourClass=1),
lambda c: c["edges"][0].update(bytes=1)])  # fmt: skip
def test_an_unknown_field_is_an_error(tmp_path: Path, change: Any) -> None:
    content = chain()
    change(content)
    with pytest.raises(UnknownNameError):
        read(write(tmp_path, content))


def test_other_content_is_not_recognised(tmp_path: Path) -> None:
    for content in ([], {"nodes": []}, {"layers": 3}):
        assert not dnn_partitioning_json.recognises(Source(write(tmp_path, content)))
    assert not dnn_partitioning_json.recognises(Source("nowhere.json"))
