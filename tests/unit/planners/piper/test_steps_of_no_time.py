"""Layers that take no time: a plan of 0 s is refused in one line, one above 0 is found although its simple bound is 0."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError

QUICK, SLOW = (0.0, 8.0), (5.0, 2.0)
"""Seconds and bytes of a choice: the first takes no time."""


def content(layers: list[tuple[tuple[float, float], ...]], edges: list[tuple[int, int]], **limits: Any) -> dict[str, Any]:
    """A file whose layers have the choices ``vanilla`` and ``activation recomp``, in this order."""

    def choice(v: int, name: str, seconds: float, held: float) -> dict[str, Any]:
        return {
            "id": name, "timePerSample": seconds, "parameterSize": 0.0, "memoryUsageA": 0.0, "memoryUsageB": held,
            "syncTimeFw": {str(a): 0 for a, b in edges if b == v}, "syncTimeBw": {str(b): 0 for a, b in edges if a == v},
        }  # fmt: skip

    names = ("vanilla", "activation recomp")
    nodes = [
        {"id": v, "name": "ParallelTransformerLayer",
         "TMPCs": {"1": [choice(v, name, *of) for name, of in zip(names, some, strict=False)]}}
        for v, some in enumerate(layers)
    ]  # fmt: skip
    told = [{"sourceId": a, "destId": b, "communicationCost": 0.0} for a, b in edges]
    whole = {"maxMemoryPerDevice": 10.0, "maxDevices": 3, "mbsInBatch": 4, "bandwidth": 1.0, "nodes": nodes, "edges": told}
    return whole | limits


def plan(folder: pathlib.Path, entry: dict[str, Any], search: str = "piper", **settings: str) -> Any:
    (folder / "free.json").write_text(json.dumps(entry))
    return api.plan(str(folder / "free.json"), search=search, settings=settings)


CHAIN = [(0, 1), (1, 2)]
WIDE = [(v, 40) for v in range(40)]


@pytest.mark.parametrize("settings", [
    {}, {"fill_drain": "true"}, {"knapsack": "greedy"}, {"curve": "devices"}, {"search": "piper_equal_split"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("layers", "edges"), [
    ([((0.0, 1.0),)] * 3, CHAIN), ([(QUICK, SLOW)] * 3, CHAIN), ([((0.0, 0.0),)] * 41, WIDE),
], ids=["all of no time", "one layer of no time on each device", "many downsets"])  # fmt: skip
def test_a_plan_of_no_time_is_refused(
    tmp_path: pathlib.Path, layers: list[Any], edges: list[tuple[int, int]], settings: dict[str, str]
) -> None:
    if len(layers) == 41 and set(settings) & {"curve", "fill_drain"}:
        settings = {}
    with pytest.raises(InputError, match="takes 0 s"):
        plan(tmp_path, content(layers, edges), **settings)


def test_a_plan_above_0_is_found_where_every_layer_could_take_no_time(tmp_path: pathlib.Path) -> None:
    """Two devices of 10 bytes: three layers of 8 or 2 bytes each; one stays free of time beside one of 5 s on the other."""
    result = plan(tmp_path, content([(QUICK, SLOW)] * 3, CHAIN, maxDevices=2))
    assert result.answer.objective.value == pytest.approx(5.0, rel=1e-12)
    assert result.answer.bound.method == "exact"
    assert result.answer.bound.value == pytest.approx(5.0, rel=1e-11)


def test_a_graph_of_many_downsets_with_a_simple_bound_of_0_ends(tmp_path: pathlib.Path) -> None:
    """One device of 84 bytes: of 41 layers of 8 or 2 bytes one at most, the quick ones are free: 40 x 5 s."""
    result = plan(tmp_path, content([(QUICK, SLOW)] * 41, WIDE, maxDevices=1, maxMemoryPerDevice=88.0))
    assert result.answer.objective.value == pytest.approx(40 * 5.0, rel=1e-12)
    assert 0.0 < result.answer.bound.value <= 200.0


@pytest.mark.parametrize("field", ["timePerSample", "memoryUsageB", "communicationCost"])
def test_a_number_whose_sums_are_no_numbers_is_refused(tmp_path: pathlib.Path, field: str) -> None:
    entry = content([(SLOW,)] * 3, CHAIN)
    (entry["edges"][0] if field == "communicationCost" else entry["nodes"][0]["TMPCs"]["1"][0])[field] = 1e200
    with pytest.raises(InputError, match=f"{field} is 1e"):
        plan(tmp_path, entry)
