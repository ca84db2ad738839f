"""The file of knapsacks: every one matters, and its best is that of all combinations."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from meshwright import api
from meshwright.base.errors import InputError

TINY = str(Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")


def _file(tmp_path: Path, settings: dict[str, str], seed: int = 0) -> dict[str, object]:
    path = tmp_path / "knapsacks.json"
    problem = api.make_problem(_chain(tmp_path), None)
    api.plan(problem, search="piper", settings={"knapsacks": str(path), **settings}, seed=seed)
    found: dict[str, object] = json.loads(path.read_text())
    return found


def _chain(tmp_path: Path) -> str:
    """Write six layers in a row with two choices each."""

    def choice(slow: bool, i: int) -> dict[str, object]:
        return {
            "id": "activation recomp" if slow else "vanilla", "timePerSample": 1.0 + slow * 0.1 * (i + 1), "parameterSize": 1.0,
            "memoryUsageA": 1.0 if slow else 3.0 + i, "memoryUsageB": 1.0,
            "syncTimeFw": {str(i - 1): 0.0} if i else {}, "syncTimeBw": {str(i + 1): 0.0} if i < 5 else {},
        }  # fmt: skip

    nodes = [{"id": i, "name": f"n{i}", "TMPCs": {"1": [choice(False, i), choice(True, i)]}} for i in range(6)]
    edges = [{"sourceId": i, "destId": i + 1, "communicationCost": 1.0} for i in range(5)]
    limits = {"maxMemoryPerDevice": 24.0, "maxDevices": 4, "mbsInBatch": 4, "bandwidth": 100.0}
    path = tmp_path / "chain.json"
    path.write_text(json.dumps({**limits, "nodes": nodes, "edges": edges}))
    return str(path)


def test_knapsacks_are_solved_and_drawn_by_the_seed(tmp_path: Path) -> None:
    found = _file(tmp_path, {})
    assert found["in_flight"] == 2
    assert found["knapsacks"]
    for one in found["knapsacks"]:  # type: ignore[attr-defined]
        fits = [
            sum(choice["seconds"] for choice in picked)
            for picked in itertools.product(*one["choices"])
            if sum(choice["bytes"] for choice in picked) <= 24.0
        ]
        fastest = sum(min(row, key=lambda choice: choice["seconds"])["bytes"] for row in one["choices"])
        assert fastest > 24.0
        assert math.isclose(one["exact_seconds"], min(fits))
        assert one["greedy_seconds"] >= one["exact_seconds"] - 1e-12
        assert one["bound_seconds"] <= one["exact_seconds"]
    assert found == _file(tmp_path, {})
    assert found["knapsacks"] != _file(tmp_path, {}, seed=1)["knapsacks"]


def test_models_of_ours_have_no_such_choices(tmp_path: Path) -> None:
    problem = api.make_problem(TINY, "flat:2", costs="analytic")
    with pytest.raises(InputError, match="is for Piper's files"):
        api.plan(problem, search="piper", settings={"knapsacks": str(tmp_path / "k.json")})
