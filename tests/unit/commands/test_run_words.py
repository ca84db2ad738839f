"""Every word of ``meshwright run`` reaches the job, and none another's place."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch


@pytest.fixture
def told(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a run was told, in the place of running it."""
    from meshwright.commands import run
    from meshwright.runtime.job import options

    asked: list[Any] = []
    monkeypatch.setattr(options, "check", lambda job, limits, profiles, *, emulate: asked.append((limits, profiles, emulate)))
    monkeypatch.setattr(run, "execute", lambda *found: asked.append(found) or 0)

    def of(*words: str) -> tuple[Any, ...]:
        asked.clear()
        done = meshwright("run", *words)
        assert done.code == 0, done.err
        (limits, profiles, emulate), (job, n_machines, again, emulated, how) = asked
        assert limits == again and emulate == emulated
        return job, n_machines, limits, profiles, emulate, how

    return of


PLAIN = ("plan.json", "--model", "a:b")


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("--steps", "7"), "n_steps", 7), (("--data", "a:c"), "data", "a:c"), (("--loss", "a:d"), "loss", "a:d"),
        (("--optimizer", "a:e"), "optimizer", "a:e"), (("--learning-rate", "0.5"), "learning_rate_value", 0.5),
        (("--lr-schedule", "a:f"), "lr_schedule", "a:f"), (("--precision", "bf16"), "precision", "bf16"),
        (("--seed", "9"), "seed", 9), (("--backend", "nccl"), "backend", "nccl"), (("--save", "there"), "save", "there"),
        (("--save-every", "3"), "save_every", 3), (("--keep", "5"), "keep", 5), (("--keep-every", "4"), "keep_every", 4),
        (("--resume",), "resume", "last"), (("--resume", "auto"), "resume", "auto"), (("--elastic",), "elastic", True),
        (("--non-finite", "skip"), "non_finite", "skip"),
        (("--clip-norm", "0.25"), "clip_norm_value", 0.25), (("--elastic", "--max-restarts", "6"), "max_restarts", 6),
        (("--trace", "folder/"), "profiled", "folder"),
    ],
)  # fmt: skip
def test_an_option_is_that_part_of_the_job_and_changes_no_other(
    words: tuple[str, ...], name: str, value: Any, told: Any
) -> None:
    job = told(*PLAIN, *words)[0]
    plain = told(*PLAIN)[0]
    found = getattr(job, name)
    assert (pathlib.Path(found).name if name == "profiled" else found) == value
    others = [
        other
        for other in type(job).__dataclass_fields__
        if other != name and not (name == "max_restarts" and other == "elastic")
    ]
    assert [getattr(job, other) for other in others] == [getattr(plain, other) for other in others]


def test_what_is_compared_and_limited_is_as_it_was_told(told: Any, tmp_path: pathlib.Path) -> None:
    job, n_machines, limits, profiles, emulate, how = told(*PLAIN)
    assert (job.plan, job.model, job.resume, job.log, job.profiled) == ("plan.json", "a:b", "", "", "")
    assert (n_machines, limits, profiles, emulate) == (0, (0, 0.0), ("", ""), False)
    assert (how.trace, how.calibrate, how.profile, how.reference, how.json) == ("", "", "", False, False)
    words = (
        "--log",
        "l.jsonl",
        "--torchrun",
        "2",
        "--processes",
        "3",
        "--timeout",
        "4",
        "--profile",
        "p.json",
        "--calibrate",
        "c.json",
    )
    job, n_machines, limits, profiles, emulate, how = told(
        *PLAIN, *words, "--trace", "t.json", "--emulate", "--reference", "--json"
    )
    assert job.log == str(tmp_path / "l.jsonl") and (n_machines, limits, emulate) == (2, (3, 4.0), True)
    assert profiles == ("p.json", "c.json") and job.profiled == ""
    assert (how.trace, how.calibrate, how.profile, how.reference, how.json) == ("t.json", "c.json", "p.json", True, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan.json",), "--model is missing"), (("plan.json", "--plan", "p.json"), "--plan goes with SCRIPT.py"),
        ((*PLAIN, "--plan", "p.json"), "--plan goes with SCRIPT.py"), ((*PLAIN, "other.json"), "unexpected word 'other.json'"),
        ((*PLAIN, "auto"), "unexpected word 'auto'"),
        ((*PLAIN, "--max-restarts", "2"), "--max-restarts: is for runs with --elastic"),
        (("train.py",), "give the script's plan: --plan plan.json"),
        (("train.py", "--plan", "p.json", "--steps", "3"), "--steps: is for runs of a plan file"),
        (("train.py", "--plan", "p.json", "--model", "a:b"), "--model: is for runs of a plan file"),
    ],
)  # fmt: skip
def test_words_that_do_not_go_together_are_refused(words: tuple[str, ...], said: str, meshwright: Any) -> None:
    done = meshwright("run", *words)
    assert done.code == 2 and said in done.err and done.out == ""


def test_a_script_is_told_its_plan_its_words_and_the_backend_that_is_given(
    meshwright: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.runtime.job import launch
    from meshwright.runtime.open import script

    seen: list[Any] = []

    def start(told: Any, *, processes: int, timeout_seconds: float) -> int:
        seen.append((told, processes, timeout_seconds))
        return 3

    monkeypatch.setattr(script, "start", start)
    monkeypatch.setattr(script, "join", lambda told: seen.append(told) or 4)
    monkeypatch.setattr(script, "torchrun_lines", lambda told, n: [f"torchrun {told.plan} {n}"])
    words = ("train.py", "--plan", "p.json")
    assert meshwright("run", *words, "--processes", "5", "--timeout", "6", "--", "--lr", "1").code == 3
    ((first, *limits),) = seen
    assert (first, limits) == (script.Script("train.py", "p.json", ("--lr", "1"), ""), [5, 6.0])
    assert meshwright("run", *words, "--backend", "gloo").code == 3 and seen[1][0] == script.Script(
        "train.py", "p.json", (), "gloo"
    )
    assert meshwright("run", *words, "--torchrun", "2").out == "torchrun p.json 2\n" and len(seen) == 2
    monkeypatch.setattr(launch, "under_torchrun", lambda: True)
    assert meshwright("run", *words).code == 4 and seen[2] == script.Script("train.py", "p.json", (), "")
