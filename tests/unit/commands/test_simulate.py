"""``meshwright simulate``: a plan file played again, and what is wrong with it said in one message."""

from __future__ import annotations

import copy
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from meshwright import api, clusters, models
from meshwright.api import plan_files
from meshwright.base.errors import InputError, InputWarning
from meshwright.commands import simulate
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.planners.topoopt.readers import taskgraph_fbuf
from meshwright.writers import plan_json


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """A plan of GPT-2 in two stages of four devices, as the plan command writes it."""
    problem = api.make_problem("gpt2", "dgx-h100:8", batch=Batch(64, 2))
    n_ops = len(problem.graph.ops)
    strategy = Strategy(data=2, tensor=2, sequence_parallel=True)
    stages = tuple(
        Stage(tuple(ops), tuple(range(4 * i, 4 * i + 4)), strategy, ("none",) * len(ops))
        for i, ops in enumerate((range(n_ops // 2), range(n_ops // 2, n_ops)))
    )
    plan = Plan(stages, 16, 2, "1f1b", 64)
    stage_costs, timeline = api.evaluate(problem, plan)
    result = Result(problem, "best", 0, Answer(plan), stage_costs, timeline)
    entry: dict[str, Any] = json.loads(json.dumps(plan_json.as_json(result)))
    return entry


def saved(entry: object, folder: pathlib.Path) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(entry))
    return str(path)


def test_a_plan_file_plays_as_it_did_when_it_was_planned(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    result = plan_files.resimulate(saved(written, tmp_path))
    answer = simulate.as_json(result)
    assert answer["step_seconds"] == written["step_seconds"]
    assert answer["samples_per_second"] == written["samples_per_second"]
    assert [stage["peak_bytes"] for stage in answer["stages"]] == [stage["peak_bytes"] for stage in written["stages"]]
    assert sum(answer["causes"].values()) == pytest.approx(answer["step_seconds"], rel=1e-12)
    assert [stage["devices"] for stage in answer["stages"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sum(answer["stages"][0]["memory"].values()) == pytest.approx(answer["stages"][0]["peak_bytes"])


def test_slower_devices_make_the_step_longer(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    result = plan_files.resimulate(saved(written, tmp_path), cluster="dgx-a100:8")
    # the host issues as fast
    assert result.timeline is not None and result.timeline.step_seconds > 1.1 * written["step_seconds"]


def test_the_command_prints_one_object_and_writes_the_trace(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    words = [
        sys.executable,
        "-m",
        "meshwright",
        "simulate",
        saved(written, tmp_path),
        "--json",
        "--trace",
        str(tmp_path / "t.json"),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step_seconds"] == written["step_seconds"]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def change(edit: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    def changed(entry: dict[str, Any]) -> object:
        other = copy.deepcopy(entry)
        edit(other)
        return other

    return changed


WRONG = [
    (lambda entry: [1, 2], "is not a plan of ours"),
    (change(lambda entry: entry.pop("format")), "is not a plan of ours"),
    (change(lambda entry: entry.update(feasible=False)), "nothing fits"),
    (change(lambda entry: entry.pop("schedule")), "a field is missing"),
    (change(lambda entry: entry.update(training={"precisions": "bf16"})), "training: the field .precisions. is not known"),
    (change(lambda entry: entry["stages"][0]["ops"].append("layers.99")), "the model has no layer 'layers.99'"),
    (change(lambda entry: entry["stages"][0]["ops"].pop()), "is in no stage"),
    (change(lambda entry: entry["stages"][0]["ops"].append(entry["stages"][1]["ops"][0])), "is in two stages"),
    (change(lambda entry: entry["stages"][0]["devices"].pop()), "3 devices, but its degrees ask for 4"),
    (change(lambda entry: entry["stages"][1].update(devices=[3, 4, 5, 6])), "device 3 also works for a stage"),
    (change(lambda entry: entry["stages"][1].update(devices=[4, 5, 6, 8])), "there is no device 8"),
    (change(lambda entry: entry["stages"][1].update(devices=[4, 5, 6, "x"])), "devices is 'x'"),
    (change(lambda entry: entry["schedule"].update(n_microbatches=-3)), "n_microbatches is -3"),
    (change(lambda entry: entry["schedule"].update(name="2b2f")), "no schedule called '2b2f'"),
    (change(lambda entry: entry["schedule"].update(name=7)), "schedule.name is 7"),
    (change(lambda entry: entry["schedule"].update(name="zb_v")), "schedule zb_v"),
    (change(lambda entry: entry["stages"][0].update(recompute=["some"] * 9)), "recompute"),
    (change(lambda entry: entry.update(costs="alchemy")), "no cost model called 'alchemy'"),
]


@pytest.mark.parametrize(("edit", "message"), WRONG)
def test_a_wrong_plan_file_is_refused_with_the_reason(
    written: dict[str, Any], tmp_path: pathlib.Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_files.resimulate(saved(edit(written), tmp_path))


def test_a_cluster_with_too_few_devices_is_refused(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="there is no device 7; the cluster pcie-a100:4 has 4"):
        plan_files.resimulate(saved(written, tmp_path), cluster="pcie-a100:4")


def test_micro_batches_that_do_not_make_the_batch_are_refused(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    for name, value in (("n_microbatches", 8), ("micro_batch", 1), ("global_batch", 32)):
        free = {**written["batch"], "asked_global_batch": 0}
        changed = {**written, "schedule": {**written["schedule"], name: value}, "batch": free}
        with pytest.raises(InputError, match=r"plan.json: \d+ micro-batches of \d x 2 replicas make \d+ samples, but glob"):
            plan_files.load(saved(changed, tmp_path))


def test_a_plan_has_the_batch_that_was_asked_for(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    assert written["batch"]["asked_global_batch"] == 64
    for value, right in ((0, True), (32, False)):
        changed = {**written, "batch": {**written["batch"], "asked_global_batch": value}}
        if right:
            assert plan_files.load(saved(changed, tmp_path)).plan.global_batch == 64
            continue
        with pytest.raises(InputError, match=r"batch.asked_global_batch is 32, but schedule.global_batch is 64"):
            plan_files.load(saved(changed, tmp_path))


def test_a_file_of_a_newer_release_is_played_with_a_warning(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    changed = {**written, "training": {**written["training"], "master_bits": 3}}
    with pytest.warns(InputWarning, match=r"plan.json: training: the field 'master_bits' is not known and is passed over"):
        result = plan_files.resimulate(saved(changed, tmp_path))
    assert result.timeline is not None and result.timeline.step_seconds == written["step_seconds"]


def test_the_plan_of_another_model_is_refused(written: dict[str, Any], tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"another model"):
        plan_files.resimulate(saved(written, tmp_path), model="bert-large")


@pytest.mark.parametrize("content", [b"", b'{"format": "meshwright/pl', b"\x00\x01\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_cut_off_or_binary_is_refused(content: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"plan.json: is not valid JSON \(cut off, or a binary file\?\)"):
        plan_files.read_plan(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        plan_files.read_plan(str(tmp_path / "nothing.json"))
    with pytest.raises(InputError, match="cannot be read"):
        plan_files.read_plan(str(tmp_path))


def test_the_command_answers_a_wrong_file_in_one_line_and_writes_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\x93NUMPY\x01")
    words = [
        sys.executable,
        "-m",
        "meshwright",
        "simulate",
        str(tmp_path / "plan.json"),
        "--trace",
        str(tmp_path / "trace.json"),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("meshwright: ") and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "trace.json").exists()


def test_a_plan_that_does_not_fit_another_cluster_is_played_and_told(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    meshwright("plan", tiny, "--cluster", "flat:2", "--global-batch", "4", "--search", "data_parallel", "--out", "plan.json")
    assert meshwright("simulate", "plan.json", "--json").json["fits"]
    entry = json.loads((tmp_path / "plan.json").read_text())
    entry["training"]["optimizer_bytes"] = 10**9
    (tmp_path / "plan.json").write_text(json.dumps(entry))
    done = meshwright("simulate", "plan.json", "--json")
    assert done.code == 0 and not done.json["fits"] and done.json["missing_bytes"] > 0
    assert "the plan does not fit" in meshwright("simulate", "plan.json").out


TASK_GRAPH = str(pathlib.Path(__file__).resolve().parents[2] / "reference/topoopt/taskgraphs/100vgg_16.fbuf")


def test_a_task_graph_is_played_on_its_own_network_or_on_a_cluster(meshwright: Callable[..., Any]) -> None:
    own = meshwright("simulate", TASK_GRAPH, "--json").json
    assert own["format"] == "meshwright/task_graph_step/1" and own["cluster"] is None and own["n_tasks"] == 768
    tree = meshwright("simulate", TASK_GRAPH, "--cluster", "fat-tree:16,bandwidth=12.5e9", "--json").json
    assert own["compute_seconds"] == tree["compute_seconds"] < own["step_seconds"] < tree["step_seconds"]
    assert tree["step_seconds"] < 1.1 * own["step_seconds"]
    assert "768 tasks on flat:16" in meshwright("simulate", TASK_GRAPH, "--cluster", "flat:16").out


def test_the_seed_of_a_task_graph_draws_its_paths(meshwright: Callable[..., Any]) -> None:
    """On a torus, which has several shortest ones; the same seed draws the same."""
    place = ("--cluster", "torus:4x4,bandwidth=12.5e9", "--json")
    steps = {seed: meshwright("simulate", TASK_GRAPH, *place, "--seed", str(seed)).json for seed in (0, 1, 2)}
    assert meshwright("simulate", TASK_GRAPH, *place, "--seed", "2").json == steps[2]
    for seed, told in steps.items():
        played = taskgraph_fbuf.play(models.read(TASK_GRAPH), clusters.cluster(place[1]), seed)
        assert told["step_seconds"] == played.step_seconds
    assert len({told["step_seconds"] for told in steps.values()}) > 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "flat:8"], "has 8 devices, the task graph 16 servers"),
        (["--for", "megatron"], "--for is of plan files"),
        (["--trace", "trace.json"], "--trace is of plan files"),
        (["--model", "gpt2"], "--model is of plan files"),
    ],
)
def test_what_a_task_graph_cannot_use_is_refused(
    arguments: list[str], said: str, meshwright: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    done = meshwright("simulate", TASK_GRAPH, *arguments)
    assert done.code == 2 and said in done.err
    assert not list(tmp_path.iterdir())


def test_a_seed_for_a_plan_is_refused(written: dict[str, Any], tmp_path: pathlib.Path, meshwright: Callable[..., Any]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(written))
    done = meshwright("simulate", str(path), "--seed", "3")
    assert done.code == 2 and "--seed is of task graphs" in done.err


def test_a_typed_plan_is_one_object_or_a_text_and_a_wrong_one_a_line() -> None:
    def told(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "meshwright", "simulate", *words], capture_output=True, text=True, check=False
        )

    found = told("pase:alexnet", "--fix", "one_weird_trick", "--json")
    assert (found.returncode, json.loads(found.stdout)["objective"]["name"]) == (0, "flops_equivalent")
    assert json.loads(found.stdout)["bound"] is None
    for words, says in (
        (("pase:alexnet", "--fix", "*=b/3"), "3 processors do not divide"),
        (("pase:alexnet", "--fix", "*=b/8", "--trace", "none.json"), "no timeline to draw"),
        (("pase:alexnet", "--fix", "*=b/8", "--seed", "1"), "--seed: with --fix"),
        (("plan.json", "--set", "batch=8"), "--set: goes with --fix only"),
    ):
        wrong = told(*words)
        assert wrong.returncode == 2 and says in wrong.stderr and "Traceback" not in wrong.stderr
        assert len(wrong.stderr.strip().splitlines()) == 1 and not wrong.stdout


@pytest.mark.parametrize(
    ("field", "value"), [(("stages", 0, "shard"), 0), (("bound", "value"), 1e3), (("objective", "value"), 1e-3)]
)
def test_what_a_search_said_is_not_repeated_of_an_edited_plan(
    field: tuple[Any, ...], value: object, tmp_path: pathlib.Path, meshwright: Any
) -> None:
    path = tmp_path / "plan.json"
    meshwright("plan", "gpt2", "--cluster", "dgx-a100:4", "--global-batch", "8", "--no-what-if", "--out", str(path), "--json")
    as_found = meshwright("simulate", str(path))
    assert "proven: no quicker plan exists" in as_found.out and "it was edited" not in as_found.out
    entry = json.loads(path.read_text())
    inside = entry
    for key in field[:-1]:
        inside = inside[key]
    assert inside[field[-1]] != value
    inside[field[-1]] = value
    path.write_text(json.dumps(entry))
    said = meshwright("simulate", str(path)).out
    assert "nothing is proven of quicker plans" in " ".join(said.split()) and "it was edited" in said and "gap" not in said
