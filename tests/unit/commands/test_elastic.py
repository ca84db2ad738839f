"""What a run with --elastic does when devices are lost, with trainings that only pretend."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.clusters import left
from meshwright.commands import _elastic
from meshwright.runtime.job.job import Job
from meshwright.runtime.job.launch import Failure
from meshwright.runtime.ranks.plan_file import read_plan
from meshwright.writers import plan_json

LOST = Failure(1, "killed by signal 9 (SIGKILL)", False, lost=True)
DONE: dict[str, Any] = {"losses": [1.0]}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a plan for four devices."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    sizes = {"vocab_size": 64, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64, "model_type": "gpt2"}
    (path.parent / "config.json").write_text(json.dumps({**sizes, "architectures": ["GPT2LMHeadModel"]}))
    settings = {"schedules": "1f1b", "micro_batch": "1,2,3"}
    found = api.plan(str(path.parent / "config.json"), "flat:4", global_batch=12, training="fp32", settings=settings)
    plan_json.write(found, str(path))
    return str(path)


def _leg(plan: str, folder: pathlib.Path, **told: Any) -> _elastic.Leg:
    job = Job(plan, "models:small", save=str(folder / "saved"), save_every=1, elastic=True, **told)
    return _elastic.Leg(job, read_plan(plan), None, "")


def _run(plan: str, folder: pathlib.Path, outcomes: list[Any], n_allowed: int = 8, **told: Any) -> tuple[Any, Any, list[Any]]:
    """Run with outcomes told one after the other; return the last leg, what came of it, and all legs."""
    first, seen = _leg(plan, folder, **told), []

    def attempt(leg: _elastic.Leg) -> Any:
        seen.append(leg)
        outcome = outcomes[len(seen) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    leg, outcome = _elastic.run(first, _elastic.check(first.job), attempt, n_allowed)
    return leg, outcome, seen


def test_a_lost_device_leads_to_a_plan_for_the_others_and_to_the_newest_checkpoint(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leg, outcome, seen = _run(plan, tmp_path, [LOST, LOST, DONE])
    assert [part.job.resume for part in seen] == ["", "auto", "auto"] and seen[2] is leg
    assert [len(part.devices) for part in seen] == sorted((len(part.devices) for part in seen), reverse=True)
    assert all(max(part.devices) < n_left for part, n_left in zip(seen, (4, 3, 2), strict=True))
    assert {part.read.plan.global_batch for part in seen} == {12}
    assert [part.job.plan for part in seen[1:]] == [str(tmp_path / "saved" / f"plan-{i}.json") for i in (1, 2)]
    assert outcome["losses"] == [1.0] and [told["n_devices"] for told in outcome["restarts"]] == [3, 2]
    assert [told["plan"] for told in outcome["restarts"]] == [part.job.plan for part in seen[1:]]
    lost = [part.devices[1] for part in seen[:2]]
    assert [told["lost_devices"] for told in outcome["restarts"]] == [[device] for device in lost]
    first, second = [part.gpus for part in seen[1:]]
    assert first == tuple(gpu for gpu in range(4) if gpu != lost[0])
    assert second == tuple(gpu for i, gpu in enumerate(first) if i != lost[1])
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"meshwright: rank 1 (device {lost[0]}) is lost: killed by signal 9 (SIGKILL)"
    assert told[1].startswith("meshwright: planned again for the 3 devices left, in ")


def test_a_leg_without_losses_is_as_without_the_option(plan: str, tmp_path: pathlib.Path) -> None:
    for outcome in (DONE, 130, Failure(0, "a bug", False)):
        leg, found, seen = _run(plan, tmp_path, [outcome])
        assert found == outcome and seen == [leg] and leg.job.plan == plan and leg.visible == ()


def test_restarts_have_a_limit(plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, outcome, seen = _run(plan, tmp_path, [LOST] * 3, max_restarts=1)
    assert outcome is LOST and len(seen) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "meshwright: no more restarts (--max-restarts 1): the run ends"


def test_a_plan_that_cannot_be_run_makes_way_for_the_next_best(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leg, outcome, seen = _run(plan, tmp_path, [LOST, InputError("no such split"), DONE])
    assert len(seen) == 3 and leg.job.plan == str(tmp_path / "saved" / "plan-1-2.json")
    assert seen[1].read.plan != seen[2].read.plan and outcome["restarts"][0]["plan"] == leg.job.plan
    assert f"no such split; the next best plan is tried: {leg.job.plan}" in capsys.readouterr().err
    with pytest.raises(InputError, match="none of them"):
        _run(plan, tmp_path / "other", [LOST, *[InputError("none of them")] * 99])


def test_fewer_processes_than_devices_are_planned_for_at_once(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n_devices = len(_leg(plan, tmp_path).devices)
    leg, outcome, seen = _run(plan, tmp_path, [DONE], n_allowed=1)
    assert len(leg.devices) == 1 and len(seen) == 1 and outcome["restarts"][0]["n_devices"] == 1
    assert f"the plan needs {n_devices} processes, but 1 may be started" in capsys.readouterr().err
    for rank in (0, 1):
        joined = _elastic.fitted(_leg(plan, tmp_path), 1, rank, lambda _: None)
        assert joined is not None and joined.read.plan == leg.read.plan and joined.job.resume == "auto"
        assert (joined.job.plan == str(tmp_path / "saved" / "plan-1.json")) == (rank == 0), "no two write the same file"
        assert bool(capsys.readouterr().err) == (rank == 0)


def test_the_end_is_told_where_nothing_fits_on_what_is_left(
    plan: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_small(cluster: Any, lost: Any) -> Any:
        kinds = tuple(replace(kind, memory_bytes=1e4) for kind in cluster.kinds)
        return replace(cut(cluster, lost), kinds=kinds)

    cut = left.without
    monkeypatch.setattr(left, "without", too_small)
    _, outcome, seen = _run(plan, tmp_path, [LOST])
    assert outcome == 3 and len(seen) == 1
    assert "meshwright: nothing fits on the 3 devices left" in capsys.readouterr().err


def test_settings_that_suit_what_is_left_no_more_end_the_run_with_a_word(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bound = str(tmp_path / "bound.json")
    settings = {"pipeline": "2", "data": "2", "schedules": "1f1b", "micro_batch": "1"}
    config = pathlib.Path(plan).parent / "config.json"
    plan_json.write(api.plan(str(config), "flat:4", global_batch=12, training="fp32", settings=settings), bound)
    for newest in ("no checkpoint was written", str(tmp_path / "saved" / "step-6")):
        leg, outcome, seen = _run(bound, tmp_path, [LOST], resume="auto")
        assert outcome == 3 and seen == [leg]
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith("meshwright: nothing can be planned for the devices left: ") and "there are 3; " in told
        assert f"; {newest}" in told and told.endswith(": plan with other settings, and go on with --resume auto")
        (tmp_path / "saved" / "step-6").mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / "step-6" / "done.json").touch()


def test_what_cannot_be_planned_again_is_refused_before_anything_starts(plan: str, tmp_path: pathlib.Path) -> None:
    entry = json.loads(pathlib.Path(plan).read_text())
    for field, value, message in (("search", "by hand", "no search called"), ("cluster", None, "cluster")):
        path = tmp_path / f"{field}.json"
        path.write_text(json.dumps({**entry, field: value}))
        with pytest.raises(InputError, match=rf"--elastic: cannot plan again: .*{message}"):
            _elastic.check(_leg(str(path), tmp_path).job)
    (tmp_path / "saved" / "step-7").mkdir(parents=True)
    (tmp_path / "saved" / "step-7" / "done.json").write_text("{}")
    with pytest.raises(InputError, match=r"--elastic: .*step-7 is of an earlier run, .*; give --resume auto, or another"):
        _elastic.check(_leg(plan, tmp_path).job)
    assert _elastic.check(_leg(plan, tmp_path, resume="auto").job).answer.plan is not None
