"""Measured profiles written for Piper and PipeDream: read back, they hold the same times, bytes and stages."""

from __future__ import annotations

import json
import pathlib

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.core.result import Result
from meshwright.planners.dapple.writers import pipedream_txt
from meshwright.planners.piper.writers import piper_json


def planned(folder: pathlib.Path) -> Result:
    """Return a plan of three layers on two linked processes, from a profile written by hand."""
    names = ["embed", "layers.0", "head"]
    layers = [{"name": n, "like": n, "n_parameters": 25, "weight_bytes": 100.0, "output_bytes": 1000.0} for n in names]
    measures = [
        {"layer": n, "rows": rows, "tensor": tensor, "forward_seconds": 1e-3 * rows * (i + 1) / tensor,
         "saved_bytes": 500.0 * rows,
         "backward_input_seconds": 1e-3 * rows * (i + 1) / tensor, "backward_weight_seconds": 1e-3 * rows / tensor}
        for i, n in enumerate(names) for rows in (1, 4) for tensor in ((1, 2) if n == "layers.0" else (1,))
    ]  # fmt: skip
    pairs = [{"source": a, "target": 1 - a, "latency_seconds": 0.0, "seconds_per_byte": 1e-9} for a in (0, 1)]
    entry = {"format": "meshwright/profile/1", "model": "m", "sequence_length": 1, "device": "CPU", "n_cores": 2,
             "memory_bytes": 1e9,
             "optimizer_seconds_per_byte": 0.0, "layers": layers, "measures": measures,
             "links": {"n_ranks": 2, "pairs": pairs, "collectives": []}}  # fmt: skip
    path = folder / "profile.json"
    path.write_text(json.dumps(entry))
    settings = {"pipeline": "2", "micro_batch": "2", "tensor": "1", "schedules": "1f1b"}
    return api.plan(str(path), batch=Batch(8), search="best", settings=settings)


def test_a_profile_becomes_a_piper_file_that_piper_plans(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "piper.json"
    piper_json.write(planned(tmp_path), str(path))
    entry = json.loads(path.read_text())
    assert (entry["maxDevices"], entry["mbsInBatch"], entry["maxMemoryPerDevice"]) == (2, 4, 5e8)
    assert entry["bandwidth"] == pytest.approx(1e9)
    block = next(node for node in entry["nodes"] if node["name"] == "layers.0")
    plain, again = block["TMPCs"]["1"]
    assert plain["timePerSample"] == pytest.approx(2 * (2e-3 + 2e-3 + 1e-3))  # two rows forward, and both halves of backward
    assert again["timePerSample"] == pytest.approx(2 * (2e-3 + 2e-3 + 1e-3 + 2e-3))
    assert (plain["memoryUsageA"], again["memoryUsageA"]) == (1000.0, 2000.0)  # what it saves; what enters it
    assert {edge["communicationCost"] for edge in entry["edges"]} == {2000.0}
    answer = api.plan(str(path), search="piper").answer
    assert answer.objective is not None and answer.objective.value > 0


def test_a_profile_becomes_pipedream_text_with_the_stages_of_the_plan(tmp_path: pathlib.Path) -> None:
    result = planned(tmp_path)
    path = tmp_path / "profile.txt"
    pipedream_txt.write(result, str(path))
    model_spec = api.read(str(path))
    assert model_spec.format == "pipedream_txt"
    nodes = getattr(model_spec.instance, "profile", model_spec.instance).nodes  # type: ignore[union-attr]
    assert [node.description for node in nodes] == ["embed", "layers.0", "head"]
    assert [node.forward_milli_seconds for node in nodes] == pytest.approx([2.0, 4.0, 6.0])
    assert [node.backward_milli_seconds for node in nodes] == pytest.approx([4.0, 6.0, 8.0])
    stages = [i for i, stage in enumerate(result.plan.stages) for _ in stage.ops]
    assert [node.stage for node in nodes] == stages
