"""``meshwright run``: what it prints, what it refuses before a process starts, what a dead rank leaves, how it goes on."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from runtime_processes import environment, plan_of

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

UNEVEN = [(3, [0], {}), (5, [1], {})]


def meshwright(*words: str, timeout_seconds: int = 200) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    command = [sys.executable, "-m", "meshwright", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout_seconds)


def written(folder: pathlib.Path, plan: dict[str, Any]) -> str:
    """Write a plan file and return its path."""
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return str(path)


def profiled(folder: pathlib.Path) -> str:
    """Measure the small model quickly and return the profile's path."""
    from meshwright.runtime.measure import profile_callable

    fields = profile_callable(
        "models:small", [4], [1], sequence_length=16, repeats=1, device="cpu", seed=0, say=lambda *_: None
    )  # fmt: skip
    path = folder / "profile.json"
    path.write_text(json.dumps({"format": "meshwright/profile/1", **fields}))
    return str(path)


def test_a_run_with_loss_and_optimizer_of_ones_own_equals_one_process_and_is_compared_with_its_prediction(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
    profile, plan = profiled(tmp_path), written(tmp_path, plan_of(UNEVEN))
    trace, better = tmp_path / "trace.json", tmp_path / "better.json"
    words = ("--model", "models:small", "--steps", "3", "--reference", "--json", "--trace", str(trace), "--profile", profile)
    own = ("--optimizer", "fragile:descent", "--loss", "fragile:half_of_cross_entropy", "--calibrate", str(better))
    done = meshwright("run", plan, *words, *own)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["format"] == "meshwright/run/1"
    assert answer["n_ranks"] == 2
    assert len(answer["losses"]) == len(answer["reference_losses"]) == 3
    assert max(abs(a - b) for a, b in zip(answer["losses"], answer["reference_losses"], strict=True)) < 2e-5
    assert answer["losses"][0] < 0.6 * 4.7  # half of what cross entropy of 101 words begins with
    assert answer["step_seconds"]["measured"] > 0 and answer["step_seconds"]["predicted"] > 0
    for stage in answer["stages"]:
        for row in ("compute_seconds", "communication_seconds", "peak_bytes"):
            assert stage[row]["measured"] >= 0 and stage[row]["predicted"] >= 0, row
        assert stage["compute_seconds"]["measured"] > 0 and stage["peak_bytes"]["measured"] > 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"forward", "backward", "wait", "optimizer"} <= {event["cat"] for event in events if event["ph"] == "X"}
    tracks = [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"]
    assert sum(name.startswith("measured: ") for name in tracks) == sum(name.startswith("predicted: ") for name in tracks) == 2
    before, after = (json.loads(pathlib.Path(path).read_text())["measures"] for path in (profile, better))
    assert [m["layer"] for m in before] == [m["layer"] for m in after] and before != after


@pytest.mark.parametrize(
    ("plan", "words", "told"),
    [
        (plan_of([(3, [0], {}), (4, [1], {})], n_layers=5), ("--model", "models:small"), "holds 6 layers, but the plan has 5"),
        (plan_of([(3, list(range(16)), {}), (5, [16], {})], global_batch=64), ("--model", "models:small"), "17 processes"),
        (
            plan_of([(3, [0, 1], {}), (5, [2], {})], global_batch=4),
            ("--model", "models:small"),
            "each replica needs at least one",
        ),
        (
            plan_of([(3, [0, 1], {"tensor": 2}), (5, [2], {})], sequence_length=15),
            ("--model", "nowhere:at_all"),
            "no module 'nowhere'",
        ),
        (plan_of(UNEVEN), ("--model", "models:smal"), "has no 'smal'"),
        (plan_of(UNEVEN), ("--model", "models:small", "--resume"), "need --save"),
        (plan_of(UNEVEN, schedule="1f2b"), ("--model", "models:small"), "did you mean '1f1b'"),
        (plan_of([(3, [0, 1, 2], {"tensor": 3}), (5, [3], {})]), ("--model", "models:small"), "does not divide"),
        (plan_of(UNEVEN), ("--model", "fragile:Decides"), "cannot be cut between its layers"),
        (plan_of(UNEVEN), ("--model", "fragile:HandsOnALength"), "a float is handed on"),
        (plan_of(UNEVEN), ("--model", "models:small", "--calibrate", "better.json"), "give that too"),
        (plan_of(UNEVEN), ("--model", "models:small", "--emulate"), "is not known"),
        (plan_of(UNEVEN), ("--model", "models:small", "--optimizer", "fragile:none"), "has no 'none'"),
    ],
    ids=[
        "another model",
        "too many ranks",
        "too few rows",
        "no module",
        "no callable",
        "no folder",
        "no schedule",
        "odd degree",
        "no cut",
        "no tensor",
        "no profile",
        "no cluster",
        "no optimizer",
    ],
)
def test_wrong_input_is_told_before_any_process_starts(
    plan: dict[str, Any], words: tuple[str, ...], told: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    from meshwright.commands import run as command
    from meshwright.errors import InputError
    from meshwright.runtime import launch

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "run", never)
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
    app = typer.Typer()
    command.register(app)
    with pytest.raises(InputError, match=told):
        app([written(tmp_path, plan), *words], standalone_mode=False)


@pytest.mark.parametrize("version", ["1.13.1", "2.5.1+cu124"])
def test_a_pytorch_that_is_too_old_is_told_before_it_is_imported(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    from meshwright.errors import InputError
    from meshwright.runtime import source

    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(InputError, match=r"2\.6 or newer is needed"):
        source.require_torch()


def test_under_torchrun_another_number_of_processes_is_told() -> None:
    from meshwright.errors import InputError
    from meshwright.runtime import launch

    with pytest.raises(InputError, match="--nproc-per-node 2"):
        launch.check_ranks(4, 2, "plan.json")


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_with_its_signal(tmp_path: pathlib.Path) -> None:
    words = ("--model", "models:small", "--steps", "5", "--data", "fragile:killed_in_step_two")
    died = meshwright("run", written(tmp_path, plan_of(UNEVEN)), *words)
    assert (died.returncode, died.stdout) == (1, "")
    assert "rank 1 (device 1, stage 1) ended the run: killed by signal 9 (SIGKILL)" in died.stderr


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_with_its_name_and_resume_goes_on(tmp_path: pathlib.Path) -> None:
    plan = written(tmp_path, plan_of([(3, [0, 1], {"shard": 1}), (5, [2], {})]))
    common = ("--model", "models:small", "--json", "--save", str(tmp_path / "saved"), "--save-every", "2")
    died = meshwright("run", plan, *common, "--steps", "6", "--data", "fragile:dies_on_rank_two_in_step_three")
    assert died.returncode == 1
    assert died.stdout == ""
    assert "rank 2 (device 2, stage 1) ended the run" in died.stderr
    assert "the disk is full" in died.stderr and "Traceback" in died.stderr
    resumed = meshwright("run", plan, *common, "--steps", "6", "--data", "fragile:tokens", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    through = meshwright("run", plan, "--model", "models:small", "--json", "--steps", "6", "--data", "fragile:tokens")
    again, whole = json.loads(resumed.stdout), json.loads(through.stdout)
    assert again["first_step"] == 2
    assert max(abs(a - b) for a, b in zip(again["losses"], whole["losses"][2:], strict=True)) < 1e-6


@pytest.mark.slow
def test_two_calls_in_a_script_of_ones_own_train_by_a_plan(tmp_path: pathlib.Path) -> None:
    script = """
import sys, torch, torch.distributed as dist
import fragile, models
from meshwright import runtime
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
torch.manual_seed(0)
model = models.small()
alone = fragile.tokens(0, 16)
expected = float(torch.nn.functional.cross_entropy(model(alone[0]).flatten(0, 1), alone[1].flatten()))
trainer = runtime.apply(model, f"{folder}/plan.json")
losses = [trainer.step(*alone) for _ in range(3)]
assert abs(losses[0] - expected) < 2e-5 and losses[2] < losses[0] - 0.01, (losses, expected)
assert trainer.notes == ()
dist.barrier()
dist.destroy_process_group()
"""
    written(tmp_path, plan_of(UNEVEN))
    words = [sys.executable, "-W", "ignore", "-c", script]
    processes = [
        subprocess.Popen([*words, str(rank), str(tmp_path)], env=environment(), stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
