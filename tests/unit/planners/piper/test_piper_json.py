"""Reading Piper's JSON: what is accepted, and one message for everything that is wrong."""

from __future__ import annotations

import copy
import json
import math
import pathlib
from typing import Any

import pytest

from meshwright import api, models
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.source import Source
from meshwright.planners.piper.problem import PiperInstance, names
from meshwright.planners.piper.readers import piper_json


def choice(
    name: str = "vanilla", forward: dict[str, float] | None = None, backward: dict[str, float] | None = None
) -> dict[str, Any]:
    return {
        "id": name, "timePerSample": 2.0, "parameterSize": 4.0, "memoryUsageA": 1.0, "memoryUsageB": 8.0,
        "syncTimeFw": forward or {}, "syncTimeBw": backward or {},
    }  # fmt: skip


def tiny() -> dict[str, Any]:
    """Two layers, 7 -> 3, one choice each at degree 1; the second also at degree 2."""
    return {
        "maxMemoryPerDevice": 100.0, "maxDevices": 2, "mbsInBatch": 4, "bandwidth": 1.0,
        "nodes": [
            {"id": 7, "name": "a", "TMPCs": {"1": [choice(backward={"3": 0.0})]}},
            {"id": 3, "TMPCs": {"1": [choice(forward={"7": 0.0})], "2": [choice(forward={"7": 1.0})], "4": []}},
        ],
        "edges": [{"sourceId": 7, "destId": 3, "communicationCost": 0.5}],
    }  # fmt: skip


def read(content: Any, folder: pathlib.Path) -> PiperInstance:
    path = folder / "model.json"
    path.write_text(json.dumps(content))
    instance = api.read(str(path), file_format="piper_json").instance
    assert isinstance(instance, PiperInstance)
    return instance


def test_a_file_is_read_field_by_field(tmp_path: pathlib.Path) -> None:
    instance = read(tiny(), tmp_path)
    assert (instance.n_devices, instance.n_microbatches, instance.bandwidth, instance.memory_bytes) == (2, 4, 1.0, 100.0)
    assert instance.degrees == (1, 2)
    assert [(e.source, e.target, e.bytes) for e in instance.edges] == [(0, 1, 0.5)]
    second = instance.nodes[1].at(2)[0]
    assert (second.seconds, second.weight_bytes, second.activation_bytes, second.static_bytes) == (2.0, 4.0, 1.0, 8.0)
    assert second.sync_forward == ((0, 1.0),) and second.sync_backward == ()
    assert names(instance) == ("a", "node.3")


def test_the_file_is_recognised_and_brings_its_cluster_and_recipe(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(tiny()))
    model_spec = api.read(str(path))
    assert (model_spec.format, model_spec.costs, model_spec.search) == ("piper_json", "piper", "piper")
    assert model_spec.cluster is not None and model_spec.cluster.n_devices == 2
    assert not piper_json.recognises(Source("no such file"))


def test_both_names_of_the_batch_are_accepted(tmp_path: pathlib.Path) -> None:
    content = tiny()
    content["maxBatchSize"] = content.pop("mbsInBatch")
    assert read(content, tmp_path).n_microbatches == 4
    content["mbsInBatch"] = 4
    assert read(content, tmp_path).n_microbatches == 4
    content["mbsInBatch"] = 5
    with pytest.raises(InputError, match="mbsInBatch is 5 but maxBatchSize is 4"):
        read(content, tmp_path)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the tiny file with one entry replaced, or removed (`...`)."""
    content: Any = copy.deepcopy(tiny())
    *steps, last = path.split("/")
    at = content
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    key: Any = int(last) if isinstance(at, list) else last
    if value is ...:
        del at[key]
    else:
        at[key] = value
    return content


WRONG = [
    ("maxDevices", 10_001, "maxDevices is 10001; it must be a whole number between 1 and 10000"),
    ("maxDevices", 0, "maxDevices is 0"),
    ("maxDevices", 2.5, "maxDevices is 2.5; it must be a whole number between 1 and 10000"),
    ("maxDevices", True, "must be a whole number"),
    ("mbsInBatch", 0, "mbsInBatch is 0"),
    ("mbsInBatch", ..., "mbsInBatch .or maxBatchSize. is missing"),
    ("bandwidth", 0.0, "bandwidth is 0.0; it must be a finite number of at least 1e-09"),
    ("bandwidth", ..., "field 'bandwidth' is missing"),
    ("maxMemoryPerDevice", -1.0, "maxMemoryPerDevice is -1.0"),
    ("maxMemoryPerDevice", math.inf, "maxMemoryPerDevice is inf"),
    ("nodes", [], r"nodes is \[\]; it must be a list with at least one entry"),
    ("edges", [], r"edges is \[\]; it must be a list with at least one entry"),
    ("nodes/0/id", 3, r"nodes\[1\]: the id 3 is that of nodes\[0\] too"),
    ("nodes/0/id", "x", r"nodes\[0\]: id is 'x'; it must be a whole number"),
    ("nodes/1/TMPCs", [], r"node 3: TMPCs is \[\]; it must be an object"),
    ("nodes/1/TMPCs/0", [], "node 3: TMPCs has the key '0'"),
    ("nodes/1/TMPCs/x", [], "node 3: TMPCs has the key 'x'"),
    ("nodes/1/TMPCs/10001", [], "node 3: TMPCs has the key '10001'"),
    ("nodes/1/TMPCs/1/0/timePerSample", -1.0, r"node 3: TMPCs: 1\[0\] .'vanilla'.: timePerSample is -1.0"),
    ("nodes/1/TMPCs/1/0/timePerSample", math.nan, "timePerSample is nan"),
    ("nodes/1/TMPCs/1/0/parameterSize", "4", "parameterSize is '4'; it must be a number between 0 and 1e"),
    ("nodes/1/TMPCs/1/0/memoryUsageA", ..., "the field 'memoryUsageA' is missing"),
    ("nodes/1/TMPCs/1/0/id", "", "id is ''; it must be a text that is not empty"),
    ("nodes/1/TMPCs/1/0/syncTimeFw", {}, "syncTimeFw lacks the key '7'"),
    ("nodes/1/TMPCs/1/0/syncTimeFw", {"7": 0, "9": 1}, "syncTimeFw has the key '9'; the keys are exactly the tails"),
    ("nodes/1/TMPCs/1/0/syncTimeBw", {"7": 0}, "syncTimeBw has the key '7'; the keys are exactly the heads"),
    ("nodes/1/TMPCs/1/0/syncTimeFw", {"7": -1}, r"syncTimeFw: 7 is -1"),
    ("edges/0/destId", 4, r"edges\[0\]: destId is 4, but no node has that id"),
    ("edges/0/destId", 7, "leads from a node to itself"),
    ("edges/0/communicationCost", -0.5, "communicationCost is -0.5"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_a_wrong_value_is_told_with_its_node_and_field(path: str, value: Any, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=message):
        read(changed(path, value), tmp_path)


MISSPELT = [
    ("maxDevice", "maxDevices"),
    ("nodes/0/nmae", "name"),
    ("nodes/0/TMPCs/1/0/timePerSampel", "timePerSample"),
    ("edges/0/communicationCosts", "communicationCost"),
]


@pytest.mark.parametrize(("path", "meant"), MISSPELT)
def test_a_misspelt_field_is_refused_with_the_closest_known_one(path: str, meant: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{meant}'"):
        read(changed(path, 1), tmp_path)


def test_repeated_edges_choices_and_cycles_are_refused(tmp_path: pathlib.Path) -> None:
    content = tiny()
    content["edges"].append(dict(content["edges"][0]))
    with pytest.raises(InputError, match="is given twice"):
        read(content, tmp_path)
    content = tiny()
    content["nodes"][1]["TMPCs"]["1"].append(choice(forward={"7": 0.0}))
    with pytest.raises(InputError, match="two choices have the id 'vanilla'"):
        read(content, tmp_path)
    content = tiny()
    content["edges"].append({"sourceId": 3, "destId": 7, "communicationCost": 0})
    for node, other in ((content["nodes"][0], "3"), (content["nodes"][1], "7")):
        for entries in node["TMPCs"].values():
            for entry in entries:
                entry["syncTimeFw"] = entry["syncTimeBw"] = {other: 0}
    with pytest.raises(InputError, match="cycle: "):
        read(content, tmp_path)


def test_isolated_nodes_and_degrees_above_the_devices_are_legal(tmp_path: pathlib.Path) -> None:
    content = tiny()
    content["nodes"].append({"id": 5, "name": "alone", "TMPCs": {"1": [choice()], "64": [choice()]}})
    result = api.plan(str(_written(content, tmp_path)))
    assert result.feasible
    assert sorted(op for stage in result.plan.stages for op in stage.ops) == [0, 1, 2]


def test_a_node_without_usable_degree_makes_the_instance_infeasible(tmp_path: pathlib.Path) -> None:
    content = tiny()
    content["nodes"].append({"id": 5, "TMPCs": {"64": [choice()]}})
    result = api.plan(str(_written(content, tmp_path)))
    assert not result.feasible
    assert any("5" in note for note in result.answer.notes)


def _written(content: Any, folder: pathlib.Path) -> pathlib.Path:
    path = folder / "model.json"
    path.write_text(json.dumps(content))
    return path


def test_a_node_that_needs_two_devices_is_only_remarked(tmp_path: pathlib.Path) -> None:
    content = tiny()
    del content["nodes"][1]["TMPCs"]["1"]
    result = api.plan(str(_written(content, tmp_path)))
    assert result.answer.notes[0] == "nodes without a choice at tensor degree 1: 3"
    assert not result.feasible, "the first node runs on one device only, and three devices are needed"
    content["maxDevices"] = 3
    assert api.plan(str(_written(content, tmp_path))).feasible


@pytest.mark.parametrize("again", ['"id": 1,', '"name": "other",', '"TMPCs": {},'])
def test_a_key_that_stands_twice_in_a_file_is_refused_and_not_taken_as_the_last(tmp_path: pathlib.Path, again: str) -> None:
    path = tmp_path / "twice.json"
    text = json.dumps(tiny())
    at = text.index('{"id": ') + 1
    path.write_text(text[:at] + again + text[at:])
    with pytest.raises(InputError, match=r"twice.json: the key '\w+' stands twice in the object with .*keep one of the two"):
        api.read(str(path))


@pytest.mark.parametrize(("n", "more"), [(7, ""), (8, ""), (9, ", ...")])
def test_eight_nodes_that_need_two_devices_are_named_and_of_more_it_is_said(n: int, more: str, tmp_path: pathlib.Path) -> None:
    nodes = []
    for v in range(1, n + 1):
        ways = {"syncTimeFw": {str(v - 1): 0} if v > 1 else {}, "syncTimeBw": {str(v + 1): 0} if v < n else {}}
        nodes.append({"id": v, "TMPCs": {"2": [choice() | ways]}})
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 0} for v in range(1, n)]
    spec = models.read(str(_written(tiny() | {"nodes": nodes, "edges": edges}, tmp_path)))
    assert spec.notes == (f"nodes without a choice at tensor degree 1: {', '.join(map(str, range(1, min(n, 8) + 1)))}{more}",)
