"""Profiles of GPUs that somebody measured, against what the analytic cost model says of the same layer: time 10 %, memory 3 %.

One command on a machine with a GPU writes one, with the device's name in it; its file is named like the kind of node in
`meshwright list clusters`, and is found here:

    cd examples && meshwright profile layer:model --device cuda --sequence-length 4096 --rows 1,2 --out
    ../tests/data/gpu/dgx-h100.json
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.costs import analytic

ROOT = pathlib.Path(__file__).resolve().parents[3]
MEASURED = sorted((ROOT / "tests" / "data" / "gpu").glob("*.json"))
TIMES = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds")


def predicted(kind: str, sequence_length: int, rows: int) -> tuple[float, float]:
    """Return seconds, forward and backward, and kept bytes of one of the layers, as the analytic cost model says."""
    model = str(ROOT / "examples" / "layer.json")
    batch = Batch(rows, rows, sequence_length)
    problem = api.make_problem(model, f"{kind}:1", costs="analytic", batch=batch, training=api.training("bf16"))
    layer = next(i for i, op in enumerate(problem.graph.ops) if op.name == "layers.0")
    (load,) = analytic.stage_costs(problem, Plan((Stage((layer,), (0,)),), 1, rows, "1f1b", rows))  # a stage, no whole plan
    return sum(getattr(load, name) for name in TIMES), load.activation_bytes / (1.0 + load.fragmentation_ratio)


def errors(profile: dict[str, Any], kind: str) -> list[tuple[float, float]]:
    """Return how far time and kept bytes are off, as ratios, for every number of rows measured."""
    assert profile["format"] == "meshwright/profile/1"
    found = []
    for entry in profile["measures"]:
        if entry["layer"] == "layers.0" and entry["tensor"] == 1:
            seconds, n_bytes = predicted(kind, profile["sequence_length"], entry["rows"])
            measured = sum(entry[name] for name in TIMES)
            found.append((seconds / measured - 1.0, n_bytes / entry["saved_bytes"] - 1.0))
    assert found, "the profile holds no measure of a whole layer"
    return found


def test_a_layer_on_a_gpu_takes_what_was_predicted() -> None:
    if not MEASURED:
        pytest.skip("no profile of a GPU lies in tests/data/gpu: the command above writes one where a GPU is at hand")
    for path in MEASURED:
        profile = json.loads(path.read_text())
        assert profile["device"] != "CPU", path.name
        for seconds, n_bytes in errors(profile, path.stem):
            assert abs(seconds) <= 0.10 and abs(n_bytes) <= 0.03, (path.name, seconds, n_bytes)


@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_a_profile_is_compared_row_by_row(scale: float) -> None:
    measures = []
    for rows in (1, 2):
        seconds, n_bytes = predicted("dgx-h100", 1024, rows)
        times = dict.fromkeys(TIMES, scale * seconds / 3.0)
        measures.append({"layer": "layers.0", "rows": rows, "tensor": 1, "saved_bytes": n_bytes / scale, **times})
    profile = {"format": "meshwright/profile/1", "sequence_length": 1024, "measures": measures}
    assert errors(profile, "dgx-h100") == [(pytest.approx(1 / scale - 1), pytest.approx(scale - 1))] * 2
