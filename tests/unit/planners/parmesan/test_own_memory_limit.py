"""The memory limit of a placement graph (``maxSizePerFPGA``) holds on a cluster too, whatever is free on its devices."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.api import plan_files
from meshwright.planners.parmesan.search import partition, stage_mapping
from meshwright.writers import plan_json

CLUSTER = "pcie-a100:2"


def graph(folder: pathlib.Path, limit: float, sizes: tuple[float, ...] = (3e9, 3e9, 3e9)) -> str:
    """A chain of operators of 1 ms each whose tensors take 10 GB: on one device it is quickest."""
    nodes = [
        {"name": f"op{v}", "id": v, "supportedOnFpga": True, "cpuLatency": 1.0, "fpgaLatency": 1.0, "isBackwardNode": False,
         "size": size}
        for v, size in enumerate(sizes)
    ]  # fmt: skip
    edges = [{"sourceId": v, "destId": v + 1, "cost": 100.0, "size": 1e10} for v in range(len(sizes) - 1)]
    path = folder / "graph.json"
    path.write_text(json.dumps({"maxSizePerFPGA": limit, "maxFPGAs": 2, "maxCPUs": 0, "nodes": nodes, "edges": edges}))
    return str(path)


def held(result: Any, size: float = 3e9) -> list[float]:
    return [size * len(stage.ops) for stage in result.plan.stages]


@pytest.mark.parametrize("search", ["partition", "parmesan", "stage_mapping"])
def test_no_stage_holds_more_than_the_file_allows(tmp_path: pathlib.Path, search: str) -> None:
    assert max(held(api.plan(graph(tmp_path, 100e9), CLUSTER, search=search))) == 9e9
    result = api.plan(graph(tmp_path, 6e9), CLUSTER, search=search)
    assert max(held(result)) == 6e9
    assert all(sum(3e9 for _ in stage.ops) <= 6e9 for other in result.answer.alternatives for stage in other.plan.stages)


@pytest.mark.parametrize("search", ["parmesan", "stage_mapping"])
def test_where_the_files_limit_keeps_all_out_it_is_named(tmp_path: pathlib.Path, search: str) -> None:
    result = api.plan(graph(tmp_path, 4e9), CLUSTER, search=search)
    assert not result.feasible and result.answer.infeasible_proven
    assert result.answer.missing_bytes == pytest.approx(2e9)
    assert "maxSizePerFPGA" in result.answer.nearest


def test_check_refuses_a_plan_that_exceeds_the_files_limit(tmp_path: pathlib.Path) -> None:
    model, path = graph(tmp_path, 100e9), tmp_path / "plan.json"
    plan_json.write(api.plan(model, CLUSTER, search="stage_mapping"), str(path))
    entry = json.loads(path.read_text())
    assert stage_mapping.check_plan(plan_files.load(str(path)), entry, str(path)).valid
    graph(tmp_path, 6e9)
    verdict = stage_mapping.check_plan(plan_files.load(str(path)), entry, str(path))
    assert not verdict.valid and "maxSizePerFPGA" in verdict.reason


@pytest.mark.parametrize("cluster", ["", CLUSTER])
def test_a_partition_whose_bound_holds_by_the_files_limit_is_confirmed(tmp_path: pathlib.Path, cluster: str) -> None:
    """All on one device would take 3; the limit forces a cut, whose tensor takes 100."""
    path = tmp_path / "plan.json"
    result = api.plan(graph(tmp_path, 6e9), cluster or None, search="partition")
    assert result.answer.objective is not None and result.answer.objective.value == pytest.approx(102.0)
    plan_json.write(result, str(path))
    entry = json.loads(path.read_text())
    assert partition.check_plan(plan_files.load(str(path)), entry, str(path)).valid
    for name, factor, holds in (("objective", 1.01, False), ("objective", 0.99, False), ("bound", 0.99, True)):
        changed = entry | {name: entry[name] | {"value": entry[name]["value"] * factor}}
        assert partition.check_plan(plan_files.load(str(path)), changed, str(path)).valid == holds
    quick = graph(tmp_path, 9e9)
    loose = partition.check_plan(plan_files.load(str(path), model=quick), entry, str(path))
    assert not loose.valid and "some partition has less" in loose.reason
