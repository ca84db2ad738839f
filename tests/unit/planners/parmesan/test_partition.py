"""The search ``partition`` from a file to a plan, on a graph small enough to solve by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright import api
from meshwright.base.errors import InputError


def diamond(tmp_path: Path, **limits: float) -> str:
    """Write a -> b, c -> d of 2, 3, 3, 2 time units; a's output costs 1, b's and c's 0.5; hosts are ten times slower.

    Cut into two: {a, b} pays a's tensor (read by c) and b's: 5 + 1 + 0.5; {c, d} the same: 5 + 1 + 0.5. Or {a} | rest: 2 + 1
    and 8 + 1. The best largest load is 6.5.
    """
    times = [2.0, 3.0, 3.0, 2.0]
    nodes = [
        {
            "id": i,
            "name": "abcd"[i],
            "supportedOnFpga": 1,
            "cpuLatency": 10 * t,
            "fpgaLatency": t,
            "isBackwardNode": 0,
            "size": 10.0,
        }
        for i, t in enumerate(times)
    ]
    edges = [(0, 1, 1.0), (0, 2, 1.0), (1, 3, 0.5), (2, 3, 0.5)]
    content = {"maxSizePerFPGA": 20.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes}
    content["edges"] = [{"sourceId": u, "destId": v, "cost": cost} for u, v, cost in edges]
    path = tmp_path / "diamond.json"
    path.write_text(json.dumps(content | limits))
    return str(path)


def test_the_diamond_is_cut_into_its_halves(tmp_path: Path) -> None:
    result = api.plan(diamond(tmp_path))
    assert result.search == "partition"
    assert result.answer.objective is not None and result.answer.objective.value == 6.5
    assert result.answer.bound is not None and result.answer.bound.method == "exact" and result.answer.bound.value == 6.5
    names = [{result.problem.graph.ops[op].name for op in stage.ops} for stage in result.plan.stages]
    assert names in ([{"a", "b"}, {"c", "d"}], [{"a", "c"}, {"b", "d"}])
    assert result.timeline is not None and result.timeline.step_seconds > 0


def test_a_memory_limit_that_nothing_keeps_is_an_answer_with_what_is_missing(tmp_path: Path) -> None:
    result = api.plan(diamond(tmp_path, maxSizePerFPGA=15.0))
    assert not result.feasible
    assert result.answer.missing_bytes == 5.0
    assert api.plan(diamond(tmp_path, maxSizePerFPGA=15.0), settings={"memory_limit": "none"}).feasible
    assert api.plan(diamond(tmp_path, maxSizePerFPGA=15.0), settings={"memory_limit": "20 B"}).feasible


def test_a_host_device_takes_what_the_accelerators_cannot_hold(tmp_path: Path) -> None:
    result = api.plan(diamond(tmp_path, maxSizePerFPGA=10.0), settings={"n_stages": "3", "n_cpus": "1"})
    assert result.feasible
    assert result.answer.objective is not None and result.answer.objective.value == 20.0
    (host,) = result.answer.extra["host_stages"]  # type: ignore[misc]
    assert result.plan.stages[host].ops in ((0,), (3,))


def test_no_stage_is_empty_while_another_holds_two_operators_that_could_be_parted_freely(tmp_path: Path) -> None:
    path = tmp_path / "free.json"
    node = {"supportedOnFpga": 1, "cpuLatency": 1.0, "isBackwardNode": 0, "size": 1.0}
    nodes = [node | {"id": i, "fpgaLatency": t} for i, t in enumerate([9.0, 1.0, 1.0, 1.0])]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.0} for i in range(3)]
    path.write_text(json.dumps({"maxSizePerFPGA": 1e9, "maxFPGAs": 4, "maxCPUs": 0, "nodes": nodes, "edges": edges}))
    result = api.plan(str(path))
    assert [stage.ops for stage in result.plan.stages] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_stages": "5"}, ["n_stages=5", "4 operators"]),
        ({"bandwidth": "10 GB/s"}, ["bandwidth", "leave the option out"]),
        ({"memory_limit": "much"}, ["memory_limit", "much"]),
        ({"n_stages": "-1"}, ["n_stages", "-1"]),
        ({"stages": "2"}, ["stages", "n_stages"]),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, settings: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        api.plan(diamond(tmp_path), settings=settings)
    for word in words:
        assert word in str(caught.value)
