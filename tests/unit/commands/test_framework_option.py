"""``--for``: the framework of a question is searched for, named, kept in plan files, and refused where it cannot run a plan."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from meshwright import api
from meshwright.api import plan_files
from meshwright.base.errors import InputError
from meshwright.frameworks import megatron
from meshwright.runtime.ranks import plan_file


def test_a_plan_for_a_framework_is_kept_exported_and_read_back_to_the_last_digit(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path
) -> None:
    asked = ("--cluster", "dgx-h100:8", "--global-batch", "32", "--sequence-length", "8192", "--for", "megatron")
    entry = meshwright("plan", tiny, *asked, "--out", "plan.json", "--json").json
    assert (entry["for"], entry["framework"]) == ("megatron", "megatron")
    assert {"megatron", "meshwright"} <= set(entry["runs_on"])
    assert not any("--for" in note for note in entry["notes"])
    again = meshwright("simulate", "plan.json", "--json").json
    assert again["step_seconds"] == entry["step_seconds"] and again["framework"] == "megatron"
    assert meshwright("export", "plan.json", "--to", "megatron", "--out", "run.sh").code == 0
    kept = plan_files.load(str(tmp_path / "plan.json"))
    plan = megatron.read(str(tmp_path / "run.sh"), kept.problem.graph).plan
    assert plan == kept.plan
    _, timeline = api.evaluate(kept.problem, plan)
    assert timeline is not None and timeline.step_seconds == entry["step_seconds"]


def test_without_it_a_framework_is_assumed_and_named_and_every_other_one_is_told_of(meshwright: Any, tiny: str) -> None:
    asked = ("plan", tiny, "--cluster", "dgx-h100:2", "--global-batch", "8", "--no-what-if")
    entry = meshwright(*asked, "--json").json
    assert entry["for"] is None and entry["framework"] == "meshwright"
    assert {one["name"] for one in entry["frameworks"]} >= {"megatron", "torchtitan", "deepspeed", "fsdp2", "maxtext"}
    for one in entry["frameworks"]:
        assert (one["step_seconds"] is None) == bool(one["refusals"]) == (one["name"] not in entry["runs_on"])
        assert one["nearest"] is None or (one["refusals"] and one["nearest"]["changed"] and one["nearest"]["step_seconds"] > 0)
    assert "for meshwright (assumed; say --for NAME)" in " ".join(meshwright(*asked).out.split())
    assert "framework meshwright (assumed; say --for NAME)" in meshwright(*asked, "-v").out


def test_what_a_framework_cannot_run_is_refused_in_one_line(meshwright: Any, tiny: str) -> None:
    asked = ("--cluster", "dgx-h100:4", "--global-batch", "16")
    meshwright("plan", tiny, *asked, "--set", "pipeline=2", "--set", "data=2", "--set", "schedules=zb_h1", "--out", "plan.json")
    done = meshwright("simulate", "plan.json", "--for", "megatron")
    assert done.code == 2 and "schedule zb_h1; it has 1f1b, interleaved_1f1b" in done.err and not done.out
    done = meshwright("export", "plan.json", "--to", "megatron", "--out", "run.sh")
    assert done.code == 2 and "schedule zb_h1" in done.err
    assert re.search(r"Nearest with the same stages: schedule 1f1b, [0-9.e-]+ s a step", done.err)
    for words, told in (
        (("plan", tiny, *asked, "--for", "megaton"), "megatron"),
        (("plan", tiny, *asked, "--for", "megatron:x64"), "experts_x86"),
        (("export", "plan.json", "--to", "megatron_deepspeed", "--out", "x"), "no writer"),
        (("export", "plan.json", "--to", "deepspeed", "--out", "x"), "pipeline degree 2; it has no pipeline parallelism"),
        (("validate", "torchtitan", "--for", "megatron"), "say which framework trained them"),
    ):  # fmt: skip
        done = meshwright(*words)
        assert done.code == 2 and told in done.err and "Traceback" not in done.err, done.err


def test_own_runs_are_predicted_by_the_framework_that_is_named(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    columns = "model,cluster,global_batch,micro_batch,data,tensor,pipeline,recompute,step_seconds,framework"
    row = f"{tiny},dgx-h100:2,8,1,1,2,1,{{}},0.1,{{}}"
    (tmp_path / "runs.csv").write_text(f"{columns}\n{row.format('mlp', 'megatron')}\n{row.format('mlp', '')}\n")
    done = meshwright("validate", "runs.csv", "--json").json["sets"][0]
    assert done["n_predicted"] == 1 and "'mlp' is none of" in done["skipped"][0]["reason"]
    assert meshwright("validate", "runs.csv", "--for", "megatron", "--json").json["sets"][0]["n_predicted"] == 2
    (tmp_path / "runs.csv").write_text(f"{columns}\n{row.format('none', 'nobody')}\n")
    done = meshwright("validate", "runs.csv")
    assert done.code == 2 and "row 1, column framework" in done.err


def test_our_runtime_refuses_settings_that_are_another_frameworks(meshwright: Any, tiny: str, tmp_path: pathlib.Path) -> None:
    asked = ("--cluster", "dgx-h100:2", "--global-batch", "8", "--for", "megatron", "--set", "recompute=mlp")
    assert meshwright("plan", tiny, *asked, "--out", "plan.json", "--json").json["stages"][0]["recompute"][1] == "mlp"
    with pytest.raises(InputError, match="'mlp', a setting of megatron; our runtime has none, selective, full"):
        plan_file.read_plan(str(tmp_path / "plan.json"))


def test_assuming_a_framework_is_said_with_the_others_the_slowest_first(meshwright: Any, tiny: str) -> None:
    entry = meshwright("plan", tiny, "--cluster", "dgx-h100:2", "--global-batch", "8", "--json").json
    said = next(note for note in entry["notes"] if note.startswith("no --for given: meshwright"))
    exact = [one for one in entry["frameworks"] if not one["refusals"] and one["name"] != "meshwright"]
    places = [said.index(f" {one['name']} (") for one in sorted(exact, key=lambda one: -one["step_seconds"])]
    assert exact and places == sorted(places)


def test_of_a_framework_without_sequence_parallelism_the_search_leaves_tensor_degrees_out_and_says_so(
    meshwright: Any, tiny: str
) -> None:
    asked = ("--cluster", "dgx-h100:4", "--global-batch", "16", "--for", "deepspeed", "--json")
    entry = meshwright("plan", tiny, *asked).json
    assert entry["feasible"] and all(stage["tensor"] == 1 for stage in entry["stages"])
    assert any("no sequence parallelism" in note for note in entry["notes"])


def test_the_nearest_plan_is_one_that_the_framework_runs_with_the_same_stages() -> None:
    from meshwright.api import targets
    from meshwright.core.plan import Plan, Stage
    from meshwright.core.problem import Batch
    from meshwright.core.result import Answer, Result
    from meshwright.core.strategy import Strategy

    problem = api.make_problem("llama-3.2-1b", "dgx-h100:4", batch=Batch(16, 1))
    words = ("none", *("selective",) * 6, *("none",) * 11)
    stage = Stage(tuple(range(18)), (0, 1, 2, 3), Strategy(4, shard=1), words)
    result = Result(problem, "best", 0, Answer(Plan((stage,), 4, 1, "1f1b", 16)))
    near = targets.nearest(result, "torchtitan")
    assert near is not None and near.changed.startswith("all layers recompute 'none', sharding level")
    assert near.plan.stages[0].strategy.shard in (0, 2, 3) and near.plan.stages[0].ops == stage.ops
    kept = targets.nearest(result, "meshwright")
    assert kept is not None and kept.plan == result.plan and not kept.changed
    far = Stage(stage.ops, stage.devices, Strategy(2, 2, sequence_parallel=True, shard=1), words)
    assert targets.nearest(Result(problem, "best", 0, Answer(Plan((far,), 8, 1, "1f1b", 16))), "deepspeed") is None
