"""Layers in a picture carry the stage of the plan, or the split that the search gives each of them."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.core.result import Result
from meshwright.writers import dot, plan_json

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


@pytest.fixture(scope="module")
def planned() -> Result:
    return api.plan(TINY, "flat:4", global_batch=16, fix={"pipeline": 2, "tensor": 1, "schedule": "1f1b"})


def test_a_layer_is_captioned_with_its_stage_unless_every_layer_has_a_split(planned: Result, tmp_path: pathlib.Path) -> None:
    n, path = len(planned.problem.graph.ops), tmp_path / "graph.dot"
    for rows, split in (
        (None, False), ("splits", False), ([{"split": "2x3"}] * (n - 1), False), ([{"split": "2x3"}] * n, True), ([], False),
    ):  # fmt: skip
        extra = {"operators": rows} if rows is not None else {}
        dot.write(replace(planned, answer=replace(planned.answer, extra=extra)), str(path))
        text = path.read_text()
        assert ("2x3" in text) == split and ("stage 0" in text) == ("stage 1" in text) == (not split)
    counts = [len(stage.ops) for stage in planned.plan.stages]
    assert [text.count(f"stage {i}") for i in range(2)] == counts


def test_rates_are_of_samples_and_where_a_sample_has_several_of_tokens_too(planned: Result) -> None:
    entry = plan_json.as_json(planned)
    assert planned.step_seconds is not None
    assert entry["samples_per_second"] == pytest.approx(16 / planned.step_seconds)
    assert entry["tokens_per_second"] == pytest.approx(16 * 2048 / planned.step_seconds)
    graph = replace(planned.problem.graph, sequence_length=1)
    spec = replace(planned.problem.model_spec, graph=graph)
    single = plan_json.as_json(replace(planned, problem=replace(planned.problem, model_spec=spec)))
    assert single["tokens_per_second"] is None and single["samples_per_second"] == entry["samples_per_second"]
