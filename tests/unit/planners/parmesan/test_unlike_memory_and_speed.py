"""Stages are priced on and limited by the devices they lie on, and check says so where a plan does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright import api
from meshwright.api import plan_files
from meshwright.clusters import cluster
from meshwright.core.cluster import Cluster
from meshwright.planners.parmesan.on_unlike import nothing_fits
from meshwright.planners.parmesan.operators import question
from meshwright.planners.parmesan.search import partition, stage_mapping
from meshwright.report import infeasible
from meshwright.writers import plan_json

DATA = Path(__file__).parents[3] / "data"
GRAPH = str(DATA / "two_operators.json")


def unlike(*, flipped: bool = False, memory_bytes: tuple[float, float] = (80e9, 16e9), flops_ratio: float = 1.0) -> Cluster:
    """Return the two devices of the data file, in either order, with other memory, and one of another speed."""
    asked = cluster(str(DATA / "unlike_memory.yaml"))
    kinds = tuple(replace(kind, memory_bytes=n_bytes) for kind, n_bytes in zip(asked.kinds, memory_bytes, strict=True))
    quick = replace(kinds[1], flops_per_second=tuple((name, flops_ratio * flops) for name, flops in kinds[1].flops_per_second))
    of_device = np.array([1, 0]) if flipped else asked.kind_of_device
    return replace(asked, kinds=(kinds[0], quick), kind_of_device=of_device)


@pytest.mark.parametrize("search", ["partition", "parmesan", "stage_mapping"])
@pytest.mark.parametrize("flipped", [False, True])
def test_the_large_operator_lies_on_the_large_device_whichever_is_numbered_first(search: str, flipped: bool) -> None:
    asked = unlike(flipped=flipped)
    result = api.plan(GRAPH, asked, search=search)
    assert [stage.ops for stage in result.plan.stages] == [(0,), (1,)]
    assert [asked.device(stage.devices[0]).name for stage in result.plan.stages] == ["big", "small"]


@pytest.mark.parametrize("search", ["partition", "parmesan", "stage_mapping"])
def test_that_nothing_fits_is_proven_and_what_is_missing_is_told(search: str) -> None:
    answer = api.plan(GRAPH, unlike(memory_bytes=(28e9, 2e9)), search=search)
    # 30 GB on 28 and 5 on 2: with 3 GB more each both fit
    assert not answer.feasible and answer.answer.infeasible_proven
    assert answer.answer.missing_bytes == pytest.approx(3e9)
    assert "Nothing fits." in infeasible.nothing_fits(answer)


@pytest.mark.parametrize(
    ("memory_bytes", "most_stages", "answer"),
    [
        ((80e9, 16e9), 0, (0.0, False)), ((80e9, 16e9), 2, (0.0, False)), ((40e9, 16e9), 1, (0.0, False)),
        ((32e9, 16e9), 0, (0.0, False)), ((32e9, 16e9), 1, (3e9, True)), ((28e9, 2e9), 0, (3e9, True)),
    ],
)  # fmt: skip
def test_nothing_fits_only_where_no_partition_onto_so_many_devices_does(
    memory_bytes: tuple[float, float], most_stages: int, answer: tuple[float, bool]
) -> None:
    """30 GB and 5 GB, on as many devices as there are where no number is asked for."""
    problem = api.make_problem(GRAPH, unlike(memory_bytes=memory_bytes))
    assert nothing_fits(problem, question(problem, 0.0), most_stages) == (pytest.approx(answer[0]), answer[1])


def test_none_found_is_not_called_none_there() -> None:
    result = api.plan("gpt2-xl", unlike(memory_bytes=(3e9, 2e9)), search="stage_mapping", settings={"published": "false"})
    assert not result.feasible and not result.answer.infeasible_proven
    assert "not proven" in infeasible.nothing_fits(result)
    assert plan_json.as_json(result)["infeasible_proven"] is False


def test_a_stage_is_priced_on_the_device_it_lies_on_and_no_numbering_changes_the_answer() -> None:
    found = [
        api.plan("gpt2", unlike(flipped=flipped, memory_bytes=(80e9, 80e9), flops_ratio=10.0), search="partition")
        for flipped in (False, True)
    ]
    values = [result.answer.objective.value for result in found if result.answer.objective is not None]
    assert values[0] == values[1]
    for result in found:
        # beside its transfers, each stage's load is what the simulator says its device works
        assert result.answer.bound is not None and result.answer.bound.method == "exact"
        work = [load.forward_total_seconds + load.backward_total_seconds for load in result.stage_costs]
        loads = result.answer.extra["loads"]
        assert isinstance(loads, list)
        assert max(work) <= values[0] and all(0.5 * load < own for own, load in zip(work, loads, strict=True))


def test_a_partition_on_unlike_devices_is_checked_and_a_plan_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    result = api.plan(GRAPH, unlike(), search="partition")
    entry, path = plan_json.as_json(result), tmp_path / "plan.json"

    def verdict(changed: dict[str, object]) -> str:
        path.write_text(json.dumps(changed))
        found = partition.check_plan(plan_files.load(str(path)), changed, str(path))
        return "" if found.valid else found.reason

    assert verdict(entry) == ""
    swapped = [{**stage, "devices": [1 - stage["devices"][0]]} for stage in entry["stages"]]
    assert "does not fit" in verdict({**entry, "stages": swapped})
    larger = {**entry["objective"], "value": entry["objective"]["value"] * 1.1}
    assert "largest load" in verdict({**entry, "objective": larger})
    assert "above the largest load" in verdict({**entry, "bound": {**entry["bound"], "value": 1.02}})


@pytest.mark.parametrize("reverse", [False, True])
def test_an_untouched_stage_mapping_is_confirmed_on_devices_of_unlike_speed(reverse: bool, tmp_path: Path) -> None:
    """Its operators are priced on the device numbered first, by the numbering that the search asks in."""
    asked = cluster(str(DATA / "two_kinds.yaml"))
    asked = replace(asked, kind_of_device=asked.kind_of_device[::-1].copy()) if reverse else asked
    result = api.plan("gpt2", asked, search="stage_mapping", global_batch=8)
    entry = plan_json.as_json(result)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(entry))
    verdict = stage_mapping.check_plan(plan_files.load(str(path)), entry, str(path))
    assert verdict.valid, verdict.reason
    worse = {**entry, "mappings": [{**one, "seconds": one["seconds"] * 1.01} for one in entry["mappings"]]}
    assert not stage_mapping.check_plan(plan_files.load(str(path)), worse, str(path)).valid
