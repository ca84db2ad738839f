"""``meshwright check`` on answers of best: confirmed, feasible or not, and refused with the field that was changed."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pathlib
from typing import Any
from unittest import mock

import pytest

from meshwright import cli
from meshwright.commands import check
from meshwright.report.progress import Progress

TINY = pathlib.Path(__file__).resolve().parents[4] / "data" / "tiny_llama.json"


def run(*words: str) -> tuple[int, str, str]:
    """Run one command; return its exit code and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch("sys.argv", ["meshwright", *words]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stopped,
    ):  # fmt: skip
        cli.main()
    return int(stopped.value.code or 0), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Plan a small model once, where it fits, and a large one where it does not."""
    folder = tmp_path_factory.mktemp("answers")
    plan = ["--global-batch", "8", "--no-what-if", "--memory-risk", "50%"]
    run("plan", str(TINY), "--cluster", "pcie-a100:4", *plan, "--out", str(folder / "fits.json"))
    run("plan", "llama-3.1-8b", "--cluster", "flat:2,device=l4-24gb", *plan, "--out", str(folder / "nothing.json"))
    return folder


def checked(entry: dict[str, Any], path: pathlib.Path) -> tuple[int, dict[str, Any], str]:
    """Return exit code and JSON of a check, and what was said on standard error."""
    path.write_text(json.dumps(entry))
    code, out, err = run("check", str(path), "--json")
    return code, json.loads(out) if out else {}, err


def test_the_plan_and_its_bound_are_confirmed(folder: pathlib.Path) -> None:
    entry = json.loads((folder / "fits.json").read_text())
    code, said, _ = checked(entry, folder / "again.json")
    assert code == 0 and said["valid"] and said["bound"] == entry["bound"]["value"] == entry["certificate"]["bound_seconds"]
    assert said["checked"] and "the runners-up" in said["not_checked"]
    assert sum(own["n_meshes"] for own in entry["certificate"]["sets"]) > 10


@pytest.mark.parametrize("name", ["fits.json", "nothing.json"])
def test_how_many_meshes_are_looked_at_is_told(name: str, folder: pathlib.Path) -> None:
    entry, told = json.loads((folder / name).read_text()), Progress()
    assert check._verdict(entry, str(folder / name), "", told).valid
    n_meshes = sum(own["n_meshes"] for own in entry["certificate"]["sets"])
    assert f"{n_meshes} of {n_meshes} meshes looked at" in told.line("checking")


def test_that_nothing_fits_is_confirmed_and_not_where_a_device_has_more_memory(folder: pathlib.Path) -> None:
    entry = json.loads((folder / "nothing.json").read_text())
    assert not entry["feasible"] and entry["infeasible_proven"]
    code, said, _ = checked(entry, folder / "again.json")
    assert code == 0 and said["valid"] and said["value"] is None and "no plan of the space fits" in said["checked"][0]
    code, said, _ = checked(entry | {"step_seconds": 1.5}, folder / "again.json")
    assert code == 2 and "holds an objective, a bound, a step or stages" in said["reason"]
    entry["cluster"]["name"] = "flat:2,device=h100-sxm-80gb"
    code, said, _ = checked(entry, folder / "again.json")
    assert code == 2 and not said["valid"] and "not confirmed" in said["reason"]


@pytest.mark.parametrize(
    "settings", ["pipeline=1", "pipeline=2,schedules=zb_v", "pipeline=2,schedules=dualpipe_v", "pipeline=2,schedules=1f1b"]
)
def test_answers_of_models_with_one_table_for_embedding_and_head_are_confirmed(settings: str, tmp_path: pathlib.Path) -> None:
    told = [word for one in settings.split(",") for word in ("--set", one)]
    plan = ["plan", "llama-3.2-1b", "--cluster", "pcie-a100:4", "--global-batch", "8", "--no-what-if", *told]
    run(*plan, "--out", str(tmp_path / "tied.json"))
    entry = json.loads((tmp_path / "tied.json").read_text())
    code, said, _ = checked(entry, tmp_path / "again.json")
    assert code == 0 and said["valid"]


def test_an_answer_where_no_layer_repeats_is_confirmed(tmp_path: pathlib.Path) -> None:
    """And embedding and head recompute nothing, whatever all layers are told."""
    model = json.loads(TINY.read_text()) | {"num_hidden_layers": 1}
    (tmp_path / "one.json").write_text(json.dumps(model))
    plan = ["plan", str(tmp_path / "one.json"), "--cluster", "flat:2", "--global-batch", "4", "--no-what-if"]
    run(*plan, "--set", "recompute=full", "--out", str(tmp_path / "plan.json"))
    entry = json.loads((tmp_path / "plan.json").read_text())
    assert entry["stages"][0]["recompute"][0] == "none"
    code, said, _ = checked(entry, tmp_path / "again.json")
    assert code == 0 and said["valid"]


def test_the_bound_of_unlike_layers_on_one_rank_is_confirmed(tmp_path: pathlib.Path) -> None:
    """Layers with a window and without, some of which recompute everything: an integer program says which at least."""
    plan = ["plan", "gemma-2-9b", "--cluster", "tpu-v4:8", "--global-batch", "64", "--micro-batch", "1", "--optimizer", "muon"]
    run(*plan, "--no-what-if", "--set", "pipeline=1", "--out", str(tmp_path / "gemma.json"))
    entry = json.loads((tmp_path / "gemma.json").read_text())
    assert 0.0 < 1.0 - entry["bound"]["value"] / entry["objective"]["value"] < 0.01
    code, said, _ = checked(entry, tmp_path / "again.json")
    assert code == 0 and said["valid"]


@pytest.mark.parametrize(("model", "cluster"), [("gemma-2-9b", "dgx-h100:8"), ("gpt-oss-20b", "dgx-h100:16")])
def test_a_framework_that_cannot_tie_or_pair_gets_a_plan_that_it_runs_and_that_is_confirmed(
    model: str, cluster: str, tmp_path: pathlib.Path
) -> None:
    # torchtitan ties no weights over a pipeline, and lays experts over ranks that weights are sharded over
    plan = ["plan", model, "--cluster", cluster, "--for", "torchtitan", "--global-batch", "16", "--sequence-length", "2048"]
    plan += ["--micro-batch", "1", "--set", "alternatives=1"]
    code, _, err = run(*plan, "--no-what-if", "--out", str(tmp_path / "plan.json"))
    assert code == 0, err
    entry = json.loads((tmp_path / "plan.json").read_text())
    (stage, *more) = entry["stages"]
    assert not more or model == "gpt-oss-20b"
    shard = (stage["shard_degree"] or stage["data"]) if stage["shard"] else 1
    assert shard * stage["context"] * stage["tensor"] % stage["expert"] == 0
    code, said, _ = checked(entry, tmp_path / "again.json")
    assert code == 0 and said["valid"]


def changed(entry: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return the answer with another value at a path."""
    entry = copy.deepcopy(entry)
    at = entry
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value(at[path[-1]]) if callable(value) else value
    return entry


@pytest.mark.parametrize(("reason", "path", "value"), [
    ("bound.value", ("bound", "value"), lambda seconds: seconds * 1.0001),
    ("bound.value", ("bound", "value"), lambda seconds: seconds * 0.9),
    ("bound.gap_ratio", ("bound", "gap_ratio"), lambda ratio: ratio + 1e-6),
    ("objective", ("objective", "value"), lambda seconds: seconds * 0.99),
    ("step_seconds", ("step_seconds",), lambda seconds: seconds * 0.99),
    ("bound_seconds", ("certificate", "bound_seconds"), lambda seconds: seconds * 1.01),
    ("limits.tensor", ("settings",), {"tensor": "8"}),
    ("limits.tensor", ("certificate", "question", "limits", "tensor"), [8]),
    ("schedule.global_batch", ("certificate", "question", "global_batch"), 16),
    ("n_microbatches", ("schedule", "n_microbatches"), lambda count: count + 1),
    ("sequence_length", ("certificate", "question", "sequence_length"), 4096),
    ("training.optimizer_bytes", ("certificate", "question", "training", "optimizer_bytes"), 2),
    ("certificate", ("certificate",), None),
    ("are missing", ("certificate", "sets"), lambda sets: sets[1:]),
    ("are missing", ("certificate", "sets"), []),
    ("there twice", ("certificate", "sets"), lambda sets: [*sets, sets[0]]),
    ("meshes", ("certificate", "sets", 0, "n_meshes"), lambda count: count + 1),
    ("the least is", ("certificate", "sets", 0, "seconds"), lambda seconds: seconds * 1.001),
    ("the least is", ("certificate", "sets", -1, "seconds"), lambda seconds: seconds * 1.001),
    ("is closed so", ("certificate", "sets", 0, "by"), "memory"),
    ("wrong kind", ("certificate", "sets", 0, "pool"), [1]),
])  # fmt: skip
def test_a_changed_answer_is_refused_with_the_field(
    reason: str, path: tuple[Any, ...], value: Any, folder: pathlib.Path
) -> None:
    entry = changed(json.loads((folder / "fits.json").read_text()), path, value)
    code, said, err = checked(entry, folder / "changed.json")
    told = said.get("reason") or err
    assert code == 2 and (reason in told or (path[0] == "schedule" and told)), told
    assert "Traceback" not in err


def test_a_raised_bound_is_refused_although_all_of_the_file_agrees(folder: pathlib.Path) -> None:
    """Plan and claims raised together above the truth: a slower plan of the space called optimal."""
    entry = json.loads((folder / "fits.json").read_text())
    slower = entry["alternatives"][0]
    entry["stages"], entry["schedule"] = slower["stages"], slower["schedule"]
    entry["objective"] = slower["objective"]
    entry["step_seconds"] = entry["bound"]["value"] = entry["certificate"]["bound_seconds"] = slower["objective"]["value"]
    entry["bound"]["gap_ratio"] = 0.0
    code, said, _ = checked(entry, folder / "changed.json")
    assert code == 2 and not said["valid"] and "certificate.sets" in said["reason"]


def test_an_answer_that_proves_nothing_is_not_called_valid(folder: pathlib.Path) -> None:
    entry = json.loads((folder / "nothing.json").read_text())
    code, said, _ = checked(changed(entry, ("infeasible_proven",), False), folder / "changed.json")
    assert code == 2 and not said["valid"] and "not proven" in said["reason"]


FRAMEWORKS = ["megatron", "torchtitan", "deepspeed", "fsdp2", "maxtext", "megatron_deepspeed"]


@pytest.fixture(scope="module")
def inside() -> dict[str, dict[str, Any]]:
    """Plan a small model inside every framework."""
    found = {}
    for name in FRAMEWORKS:
        cluster = "pcie-a100:4" if name != "maxtext" else "tpu-v4:4"
        words = ["--cluster", cluster, "--for", name, "--global-batch", "8", "--memory-risk", "50%", "--top", "0"]
        code, out, err = run("plan", str(TINY), *words, "--json")
        assert code == 0, err
        found[name] = json.loads(out)
    return found


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_answer_inside_a_framework_is_confirmed_over_what_that_framework_runs(
    inside: dict[str, dict[str, Any]], name: str, tmp_path: pathlib.Path
) -> None:
    code, said, err = checked(inside[name], tmp_path / "plan.json")
    assert code == 0 and said["valid"], (said, err)
    assert f"what {name} runs" in said["checked"][1]


def test_settings_of_recomputation_are_spaces_none_of_which_may_be_missing(
    inside: dict[str, dict[str, Any]], tmp_path: pathlib.Path
) -> None:
    entry = copy.deepcopy(inside["megatron"])
    sets = entry["certificate"]["sets"]
    last = max(own["pool"] for own in sets)
    assert last >= 2, "several settings must be told apart, or this says nothing"
    entry["certificate"]["sets"] = [own for own in sets if own["pool"] != last]
    code, said, _ = checked(entry, tmp_path / "plan.json")
    assert code == 2 and "sets of the space are missing" in said["reason"]


def test_another_bound_inside_a_framework_is_refused(inside: dict[str, dict[str, Any]], tmp_path: pathlib.Path) -> None:
    entry = copy.deepcopy(inside["megatron"])
    other = entry["bound"]["value"] * 0.99
    entry["bound"] |= {"value": other, "gap_ratio": entry["objective"]["value"] / other - 1.0}
    entry["certificate"]["bound_seconds"] = other
    code, said, _ = checked(entry, tmp_path / "plan.json")
    assert code == 2 and not said["valid"], "sets closed at another bound are not those of the space"


def test_a_plan_outside_the_framework_of_its_question_is_refused(
    inside: dict[str, dict[str, Any]], folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    entry = copy.deepcopy(inside["torchtitan"])
    word = {"none": "selective", "alternate": "none"}.get(entry["stages"][0]["recompute"][1], "none")
    entry["stages"][0]["recompute"][1] = word
    code, said, err = checked(entry, tmp_path / "plan.json")
    assert code == 2 and not said.get("valid"), (said, err)


@pytest.mark.parametrize(
    "more", [("--objective", "dpo"), ("--objective", "dpo,reference=precomputed"), ("--sequence-length", "1")]
)
def test_an_answer_that_nobody_touched_is_confirmed(more: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "plan.json")
    assert (
        run("plan", str(TINY), "--cluster", "pcie-a100:2", "--global-batch", "8", "--no-what-if", *more, "--out", file)[0] == 0
    )
    code, _, err = run("check", file)
    assert (code, "refused" in err) == (0, False), err
    entry, again = json.loads(pathlib.Path(file).read_text()), json.loads(run("simulate", file, "--json")[1])
    assert again["step_seconds"] == pytest.approx(entry["step_seconds"], rel=1e-12)


def test_that_nothing_fits_is_confirmed_at_one_token_a_sample(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "nothing.json")
    asked = ("llama-3.1-8b", "--cluster", "flat:2,device=l4-24gb", "--global-batch", "8", "--sequence-length", "1")
    assert run("plan", *asked, "--no-what-if", "--out", file)[0] == 3
    assert run("check", file)[0] == 0
