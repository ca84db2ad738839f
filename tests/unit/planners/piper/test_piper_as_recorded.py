"""Piper's searches, checks, reader and writer on layers with a few choices: what every function said, as recorded."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api
from meshwright.core.problem import Batch, Problem, Stop
from meshwright.core.result import Result
from meshwright.core.source import Source
from meshwright.planners.piper import answer, menu, problem, solve
from meshwright.planners.piper.check.plans import ClaimedStage, check
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.readers import piper_json
from meshwright.planners.piper.search import piper
from meshwright.planners.piper.writers import piper_json as writer
from questions import fused
from recorded import Recorded
from returned import Returned, refusal
from small_clusters import boxes, device

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))

import piper_by_definition as oracle

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")
ROOM = "planners/piper/"
LAYER = "ParallelTransformerLayer"


def row(n_layers: int = 5, **limits: Any) -> dict[str, Any]:
    """A row of layers, an embedding before and a head behind, unlike in seconds and bytes; two degrees, two choices."""

    def choice(v: int, degree: int, name: str) -> dict[str, Any]:
        again = name != "vanilla"
        held = {"memoryUsageA": (2.0 + v) / degree - again, "memoryUsageB": 4.0 / degree + 0.5 * again * (v % 3)}
        sync = {
            "syncTimeFw": {str(v - 1): 0.25 * (degree > 1)} if v else {},
            "syncTimeBw": {str(v + 1): 0.125} if v < n_layers - 1 else {},
        }
        return {"id": name, "timePerSample": (3.0 + v % 2 + again) / degree, "parameterSize": 1.0 + v / 4, **held, **sync}

    names = ["embed", *[LAYER] * (n_layers - 2), "head"]
    nodes = [
        {
            "id": v,
            "name": names[v],
            "TMPCs": {str(t): [choice(v, t, name) for name in ("vanilla", "activation recomp")] for t in (1, 2)},
        }
        for v in range(n_layers)
    ]
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 0.5 + v} for v in range(n_layers - 1)]
    return {
        "maxMemoryPerDevice": 40.0,
        "maxDevices": 4,
        "mbsInBatch": 4,
        "bandwidth": 8.0,
        "nodes": nodes,
        "edges": edges,
    } | limits


def planned(
    folder: pathlib.Path, content: dict[str, Any], search: str = "piper", cluster: Any = None, **settings: str
) -> Result:
    (folder / "row.json").write_text(json.dumps(content))
    return api.plan(str(folder / "row.json"), cluster, search=search, settings=settings)


def told(reason: str) -> str:
    """Return a reason with its numbers to six digits."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.6g}", reason)


ASKED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "all": (row(), {}),
    "greedy": (row(maxMemoryPerDevice=14.0), {"knapsack": "greedy"}),
    "all_or_none": (row(maxMemoryPerDevice=14.0), {"knapsack": "greedy", "all_or_none": "true"}),
    "counted": (row(), {"any_replicas": "true", "tensor_once": "true", "shard_optimizer": "true", "mbsInBatch": "5"}),
    "buffers": (row(maxMemoryPerDevice=18.0), {"layer_buffers": "true", "tensor_parallel": "false"}),
    "filled": (row(maxMemoryPerDevice=16.0), {"fill_drain": "true"}),
    "nodes": (row(maxMemoryPerDevice=16.0), {"node_size": "2", "node_bytes_per_second": "64"}),
    "nodes_filled": (
        row(4, maxDevices=6),
        {"node_size": "3", "node_bytes_per_second": "64", "fill_drain": "true", "data_parallel": "false"},
    ),
    "curve": (row(4), {"curve": "replicas", "recompute": "never"}),
    "too_large": (row(maxMemoryPerDevice=5.0), {"recompute": "always"}),
    "never_fits": (row(4, maxDevices=1, maxMemoryPerDevice=5.0), {"recompute": "never"}),
    "large_layers": (row(4, maxMemoryPerDevice=3.0), {"layer_buffers": "true"}),
    "split": (row(7, maxDevices=6), {"search": "piper_equal_split"}),
    "split_layers": (
        row(7, maxDevices=6),
        {"search": "piper_equal_split", "layers": "true", "recompute": "always", "stages": "3"},
    ),
    "split_fixed": (
        row(7, maxDevices=6),
        {"search": "piper_equal_split", "stages": "2", "data": "2", "tensor": "1", "separate": "false"},
    ),
    "split_alone": (row(7), {"search": "piper_equal_split", "tensor_parallel": "false", "recompute": "never", "data": "1"}),
    "split_too_large": (row(6, maxMemoryPerDevice=9.0), {"search": "piper_equal_split"}),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_step_of_a_search_is_as_recorded(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    content, settings = ASKED[name]
    settings = dict(settings)
    content = content | {key: int(settings.pop(key)) for key in ("mbsInBatch",) if key in settings}
    with Returned(ROOM, without=("planners/piper/readers/piper_json:read", "planners/piper/answer:_spec")) as found:
        result = planned(tmp_path, content, settings.pop("search", "piper"), **settings)
    said = result.answer
    stages = said.plan and [[it.ops, it.devices, it.strategy.data, it.strategy.tensor, it.recompute] for it in said.plan.stages]
    recorded(
        [
            said.objective,
            said.bound,
            said.missing_bytes,
            said.nearest,
            said.notes,
            [it.why for it in said.alternatives],
            stages,
        ],
        "answer",
    )
    recorded(found.lines(), "functions")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"any_replicas": True, "shard_optimizer": True, "layer_buffers": True, "tensor_once": True},
        {"node_size": 2, "node_bytes_per_second": 20.0},
        {"node_size": 3, "node_bytes_per_second": 9.0, "fill_drain": True},
    ],
    ids=["published", "shared", "nodes", "filled_nodes"],
)
def test_every_step_of_a_check_is_as_recorded(change: dict[str, Any], recorded: Recorded) -> None:
    said = []
    with Returned(ROOM) as found:
        for seed in (0, 2):
            instance = oracle.random_instance(
                seed, n_nodes=3 + (seed == 2 and "node_size" not in change), n_choices=2, alike=True
            )
            instance = replace(instance, counting=replace(instance.counting, **change))
            options = menu.Options(exact=seed % 3 > 0, all_or_none=bool(change), recompute="choose")
            solution = solve.solve(instance, options, nearly_ratio=0.05)
            if not solution.stages:
                said.append(solve.least_memory(instance, options))
                continue
            stages = [ClaimedStage(stage.nodes, stage.data, stage.tensor, stage.choices) for stage in solution.stages]
            value = evaluate(instance, solution.stages).seconds
            for claim, bound in (
                (value, solution.lower_seconds),
                (value, value),
                (value * 1.01, 0.0),
                (value, value * 1.01),
                (value, 0.1),
            ):
                said.append(check(instance, options, stages, claim, bound))
            slow = [replace(stage, data=1) for stage in stages]
            seconds = evaluate(instance, [replace(stage, data=1) for stage in solution.stages]).seconds
            said.append(check(instance, options, slow, seconds, value * 1.001))
    recorded([(it.valid, told(it.reason)) if hasattr(it, "valid") else it for it in said], "said")
    recorded(found.lines(), "functions")


def test_what_is_no_plan_is_refused_with_the_recorded_reason(recorded: Recorded) -> None:
    instance = oracle.random_instance(3, n_nodes=3, n_choices=2, alike=True)
    instance = replace(instance, n_devices=3, n_microbatches=4, memory_bytes=60.0)
    order = sorted(range(3), key=lambda v: answer._topological(instance)[v])
    whole = ClaimedStage((0, 1, 2), 1, 1, ("vanilla",) * 3)
    alone = [ClaimedStage((v,), 1, 1, ("vanilla",)) for v in order]
    claims = {
        "whole": [whole],
        "missing": [alone[0]],
        "twice": [whole, alone[0]],
        "backwards": alone[::-1],
        "in order": alone,
        "too many": [replace(whole, data=4)],
        "three": [replace(whole, data=3)],
        "two": [replace(whole, data=2)],
        "split": [replace(whole, tensor=2)],
        "unknown": [replace(whole, choices=("vanilla", "other", "vanilla"))],
        "five devices": [replace(one, data=2) for one in alone],
        "empty": [],
    }
    found = {}
    for options in (menu.Options(), menu.Options(data_parallel=False, tensor_parallel=False, recompute="always")):
        for name, stages in claims.items():
            found[f"{name} {options.recompute}"] = told(check(instance, options, stages, 1.0, 0.0).reason)
    for n_microbatches, memory in ((1, 60.0), (4, 1.0)):
        other = replace(instance, n_microbatches=n_microbatches, memory_bytes=memory)
        found[f"{n_microbatches} {memory}"] = [
            told(check(other, menu.Options(), stages, 1.0, 0.0).reason) for stages in claims.values()
        ]
    recorded(found)


def test_files_are_read_changed_grown_and_written_as_recorded(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(row(5)))
    found = {}
    for fragment in (
        "",
        "layers=5,max_devices=7",
        "n_microbatches=9,bandwidth=2.5,memory=77",
        "any_replicas=true,node_size=4,node_bytes_per_second=3",
    ):
        model = api.read(f"{path}#{fragment}" if fragment else str(path))
        shown = writer.instance_json(model.instance)
        found[fragment] = [
            model.name,
            model.notes,
            model.instance.counting,
            shown if "layers" in fragment else {**shown, "nodes": 0},
        ]
    cluster = piper_json.flat_cluster(model.instance)
    found["cluster"] = [cluster.name, cluster.links, cluster.device(0).memory_bytes, cluster.node_of_device]
    found["graph"] = (
        [(op.name, op.kind) for op in model.graph.ops],
        [(it.source, it.target, it.n_elements) for it in model.graph.edges],
    )
    named = [
        replace(
            model.instance,
            nodes=tuple(replace(node, name=name) for node, name in zip(model.instance.nodes, names, strict=True)),
        )
        for names in (("a", "b", "a", "", "c"), ("a", "b", "a", "a.2", "a.0"))
    ]
    found["names"] = [problem.names(each) for each in named]
    found["recognised"] = [piper_json.recognises(Source(str(path))), piper_json.recognises(Source("x"))]
    for name, content in (
        ("list", []),
        ("memory", {"maxMemoryPerDevice": 1}),
        ("nodes", {"nodes": [1, {"TMPCs": 0}]}),
        ("none", {"nodes": [{}]}),
    ):
        path.write_text(json.dumps(content))
        found[name] = piper_json.recognises(Source(str(path)))
    result = planned(tmp_path, row(4), recompute="never", n_microbatches="8")
    found["written"] = (
        writer.write(result, str(tmp_path / "again.json")),
        json.loads((tmp_path / "again.json").read_text())["mbsInBatch"],
    )
    recorded(found)


def test_refusals_are_as_recorded(tmp_path: pathlib.Path, recorded: Recorded) -> None:
    def asked(content: dict[str, Any] | None = None, search: str = "piper", **settings: str) -> Callable[[], object]:
        return lambda: planned(tmp_path, content or row(4), search, **settings)

    def read(fragment: str) -> Callable[[], object]:
        return lambda: api.read(f"{tmp_path / 'row.json'}#{fragment}")

    unlike = row(4)
    unlike["nodes"][1]["TMPCs"]["1"][1]["parameterSize"] = 77.0
    lacking = row(4)
    lacking["nodes"][2]["TMPCs"] = {"2": lacking["nodes"][2]["TMPCs"]["2"]}
    twice, loop, same, key, ids, sync = (row(4) for _ in range(6))
    twice["edges"].append(twice["edges"][0])
    loop["edges"].append({"sourceId": 3, "destId": 0, "communicationCost": 1.0})
    loop["nodes"][3]["TMPCs"], loop["nodes"][0]["TMPCs"] = {}, {}
    same["edges"][0]["destId"] = 0
    key["nodes"][0]["TMPCs"]["01"] = []
    ids["nodes"][0]["TMPCs"]["1"][1]["id"] = "vanilla"
    sync["nodes"][1]["TMPCs"]["1"][1]["syncTimeFw"] = {}
    calls = {
        "answered": asked(),
        "tensor once": asked(unlike, tensor_once="true"),
        "nothing usable": asked(lacking, tensor_parallel="false"),
        "lacks": lambda: asked(lacking)(),
        "twice": asked(twice),
        "loop": asked(loop),
        "same": asked(same),
        "key": asked(key),
        "ids": asked(ids),
        "sync": asked(sync),
        "curve": asked(curve="devices", fill_drain="true"),
        "node size": asked(node_size="2"),
        "node bytes": asked(node_bytes_per_second="2"),
        "all or none": asked(all_or_none="true"),
        "small": asked(bandwidth="1e-10"),
        "memory": asked(memory="1e-10"),
        "split replicas": asked(search="piper_equal_split", data="3"),
        "split stages": asked(search="piper_equal_split", stages="9"),
        "split tensor": asked(search="piper_equal_split", tensor="3"),
        "split devices": asked(search="piper_equal_split", stages="2", data="4", tensor="2"),
        "too many": asked(max_devices="10001"),
        "most": read("max_devices=10000"),
        "more": read("max_devices=10001"),
        "word": read("memory=x"),
        "whole": read("layers=1.5"),
        "fewer": read("layers=1"),
        "zero": read("layers=0"),
        "flag": read("any_replicas=1"),
        "endless": read("bandwidth=inf"),
        "unknown": read("device=3"),
        "tiny": read("bandwidth=1e-9"),
        "tinier": read("bandwidth=9e-10"),
        "no middle": lambda: problem.grow(piper_json.read(Source(str(tmp_path / "row.json"))).instance, 3),
    }
    recorded({name: refusal(call, tmp_path) for name, call in calls.items()})


def question(n: int, batch: Batch, memory: float = 80e9) -> Problem:
    cluster = boxes([2] * (n // 2), kinds=[device(memory_bytes=memory)])
    return fused(api.make_problem(TINY, cluster, batch=batch, memory_risk=0.5))


@pytest.mark.parametrize("asked", ["plain", "replicas", "recomputed", "too_large"])
def test_a_model_of_ours_is_answered_as_recorded(asked: str, recorded: Recorded) -> None:
    asks = {
        "plain": (question(4, Batch(16)), piper.Params()),
        "replicas": (question(2, Batch(6, 2)), piper.Params(fill_drain=False, shard_optimizer=False)),
        "recomputed": (question(4, Batch(8, 1)), piper.Params(recompute="always", tensor_parallel=False, data_parallel=False)),
        "too_large": (question(2, Batch(8), 0.5e9), piper.Params(knapsack="greedy", data_parallel=False)),
    }
    posed, params = asks[asked]
    with Returned(ROOM) as found:
        said = piper.search(posed, params, seed=0, stop=Stop())
    recorded(
        [said.objective, said.bound, said.missing_bytes, said.nearest, said.notes, [it.why for it in said.alternatives]],
        "answer",
    )
    recorded(found.lines(), "functions")
    if asked == "plain":
        recorded(writer.instance_of_model(posed, 2).nodes[1:3], "written")


def test_a_plan_of_a_model_of_ours_is_not_checked_as_one_of_a_piper_file() -> None:
    from meshwright.planners.piper import answer

    result = api.plan(question(2, Batch(4)), search="piper")
    assert answer.check_plan(result, {}, "p.json") is None
