"""Workloads: read from files and built from parameters; wrong ones are refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.models import read

OP = {"id": 0, "type": "linear", "key": "Dense_4_2", "inputs": [None], "out_shape_per_sample": [2], "weight_elems": [8, 2]}


def write(folder: Path, **change: Any) -> str:
    entry = {"global_batch": 8, "ops": [OP], "params": 10} | change
    path = folder / "w.json"
    path.write_text(json.dumps({"one": entry}))
    return str(path)


def test_a_file_with_one_workload_needs_no_name(tmp_path: Path) -> None:
    model_spec = read(write(tmp_path))
    assert model_spec.format == "topoopt_workload"
    assert model_spec.instance.n_parameters == 10
    assert model_spec.graph.ops[0].name == "linear.0"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"global_batch": 0}, "global_batch is 0"),
        ({"global_batch": 1.5}, "global_batch is 1.5"),
        ({"params": 11}, "params is 11"),
        ({"ops": []}, "at least one entry"),
        ({"typo": 1}, "no field in .* called 'typo'"),
        ({"ops": [OP | {"id": 3}]}, "ids must count up"),
        ({"ops": [OP | {"type": "lstm"}]}, "no value of .*type called 'lstm'"),
        ({"ops": [OP | {"inputs": [0]}]}, "not before operator 0"),
        ({"ops": [OP | {"inputs": []}]}, "null for training data"),
        ({"ops": [OP | {"weight_elems": []}]}, "needs at least one entry"),
        ({"ops": [OP | {"weight_elems": [-1]}]}, "whole number"),
        ({"ops": [OP | {"out_shape_per_sample": []}]}, "must be a list"),
        ({"ops": [OP | {"kernal": 3}]}, "no field in"),
        ({"ops": [{k: v for k, v in OP.items() if k != "key"}]}, "the field 'key' is missing"),
        ({"ops": ["x"]}, "must be an object"),
    ],
)
def test_a_wrong_workload_is_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(write(tmp_path, **change))
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_in_the_file_is_answered_by_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no workload .* called 'two'.*one"):
        read(write(tmp_path) + "#two")


@pytest.mark.parametrize(
    ("spec", "n_operators", "n_parameters"),
    [
        ("topoopt:dlrm,tables=2,rows=10,width=4,bottom=8-6,top=5-3-1", 6, 8 * 6 + 6 + 80 + (14 * 3 + 3) + 4),
        ("topoopt:candle,tower=4,top=3", 8, (942 + 2 * 5270 + 2 * 2048) * 4 + 20 + (22 * 3 + 3) + 4),
        ("topoopt:bert,layers=1,length=4,hidden=8,heads=2", 11, 3 * 4 * 64 + 4 * 72 + 9),
        ("topoopt:moe", 10, 784 * 64 + 64 + 64 * 5 + 5 + 5 * 7850),
    ],
)
def test_a_workload_from_parameters_has_the_weights_counted_by_hand(spec: str, n_operators: int, n_parameters: int) -> None:
    workload = read(spec).instance
    assert len(workload.operations) == n_operators
    assert workload.n_parameters == n_parameters


def test_inception_ends_in_the_published_shapes() -> None:
    operations = read("topoopt:inception3").instance.operations
    assert operations[-3].shape == (2048,)
    assert [op.shape for op in operations if op.kind == "concat"][-1] == (2048, 8, 8)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("topoopt:gpt", "no workload called 'gpt'"),
        ("topoopt:dlrm,table=3", "did you mean 'tables'"),
        ("topoopt:dlrm,tables", "is not KEY=VALUE"),
        ("topoopt:dlrm,tables=0", "at least 1"),
        ("topoopt:dlrm,tables=2,tables=3", "tables is given twice"),
        ("topoopt:dlrm,tables =2,tables=3", "tables is given twice"),
        ("topoopt:dlrm,tables=2, tables=3", "tables is given twice"),
        ("topoopt:dlrm,top=8x²", "no list of widths"),
        ("topoopt:dlrm,top=²", "no list of widths"),
        ("topoopt:dlrm,top=8-x", "no list of widths"),
        ("topoopt:bert,heads=7", "must divide"),
        ("topoopt:moe,chosen=9", "more than the 5 experts"),
        ("topoopt:ncf,tower=7-1", "its first width is 7"),
        ("topoopt:dlrm,tables=30000", "at most 20000"),
    ],
)
def test_wrong_parameters_are_refused_in_one_sentence(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(spec)
    assert "\n" not in str(caught.value)
