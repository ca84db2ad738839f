"""A whole run in this process, under plans for one device: steps, checkpoints, damaged ones, signals, what is not a number."""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_processes import environment, plan_of

from recorded import Recorded

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.plan import Plan, Stage  # noqa: E402
from meshwright.core.strategy import Strategy  # noqa: E402
from meshwright.runtime.job import checkpoint_folders, checkpoints, crossings, memory, worker  # noqa: E402
from meshwright.runtime.job import trainer as trainer_module  # noqa: E402
from meshwright.runtime.job.holdings import names_of  # noqa: E402
from meshwright.runtime.job.job import Job  # noqa: E402
from meshwright.runtime.job.reference import reference_steps  # noqa: E402
from meshwright.runtime.job.trainer import NonFiniteError, Trainer, adamw, apply  # noqa: E402
from meshwright.runtime.model.data import default_loss  # noqa: E402
from meshwright.runtime.parallel import tied_weights  # noqa: E402
from meshwright.runtime.ranks.layout import Layout  # noqa: E402
from meshwright.runtime.step.executor import Span  # noqa: E402

NAMES = ["0", "1", "2"]


def small() -> nn.Module:
    """Return three layers, the last with a buffer."""
    chain = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3))
    chain[2].register_buffer("seen", torch.zeros(2))
    return chain


def data(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step."""
    drawn = torch.randn(n_samples, 7, generator=torch.Generator().manual_seed(step))
    return drawn[:, :4].contiguous(), drawn[:, 4:].contiguous()


def broken(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step, in the third one with an infinite target."""
    inputs, targets = data(step, n_samples)
    return inputs, targets.fill_(math.inf) if step == 2 else targets


def asks_to_stop(step: int, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step; in the third one a signal comes."""
    if step == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return data(step, n_samples)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Halve the learning rate at every step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """Be a process group of one."""
    before = signal.getsignal(signal.SIGTERM)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def plan(tmp_path: pathlib.Path) -> str:
    """Return a plan of two virtual stages on one device."""
    stages = [(1, [0], {}), (2, [0], {"recompute": ["full", "none"]})]
    path = tmp_path / "plan.json"
    entry = plan_of(stages, schedule="interleaved_1f1b", names=NAMES, n_microbatches=2, global_batch=5, sequence_length=1)
    path.write_text(json.dumps(entry))
    return str(path)


def job(plan: str, **told: Any) -> Job:
    return Job(plan, f"{__name__}:small", data=told.pop("data", f"{__name__}:data"), memory=told.pop("memory", False), **told)


def alone(n_steps: int, clip_norm: float = 0.0, schedule: Callable[..., Any] | None = None) -> list[Any]:
    """Return the losses and norms of the same training without a plan."""
    torch.manual_seed(0)
    model = small()
    optimizer = adamw(list(model.parameters()), 1e-3)

    def batches(step: int) -> Any:
        inputs, targets = data(step, 5)
        return (inputs,), targets

    told = {"n_steps": n_steps, "n_parts": 2, "clip_norm": clip_norm, "schedule": schedule and schedule(optimizer)}
    return reference_steps(model, batches, optimizer, default_loss, **told)


def test_a_run_trains_as_without_a_plan_and_leaves_what_happened(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], recorded: Recorded
) -> None:
    log, saved = tmp_path / "log.jsonl", tmp_path / "saved"
    told = {"log": str(log), "save": str(saved), "save_every": 2, "keep": 1, "keep_every": 4, "clip_norm_value": 0.4}
    found = worker.train(job(plan, n_steps=11, memory=True, lr_schedule=f"{__name__}:halving", **told))
    assert found is not None
    expected = alone(11, 0.4, halving)
    assert found["losses"] == pytest.approx([step.loss for step in expected], rel=1e-5)
    assert found["gradient_norms"] == pytest.approx([step.gradient_norm for step in expected], rel=1e-5)
    assert max(found["gradient_norms"]) > 0.4 and len(found["step_seconds"]) == 11 and "stopped_after" not in found
    (rank,) = found["ranks"]
    assert all(rank["compute_seconds"][i] > 0 and rank["cpu_seconds"][i] > 0 for i in (0, 1)) and rank["host"]
    assert rank["spans"][0][3] >= 0 and all(start <= end for *_, start, end in rank["spans"])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["loss"] for line in lines] == found["losses"] and [line["step"] for line in lines] == list(range(1, 12))
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3 * 0.5**i for i in range(11)])
    seconds = found["step_seconds"]
    assert [line["samples_per_second"] * s for line, s in zip(lines, seconds, strict=True)] == pytest.approx([5.0] * 11)
    assert not any(line["skipped"] for line in lines) and all(line["tokens_per_second"] is None for line in lines)
    steps = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert steps == [f"step {i} of 11" for i in range(1, 12)]
    recorded([
        _names(saved), [span[:3] for span in rank["spans"]], rank["peak_bytes"],
        found["first_step"], rank["rank"], rank["device"], sorted(json.loads((saved / "step-11" / "done.json").read_text())),
    ])  # fmt: skip


def test_of_a_single_step_everything_is_told(plan: str) -> None:
    found = worker.train(job(plan, n_steps=1))
    assert found is not None
    (rank,) = found["ranks"]
    for stage in (0, 1):
        passes = [end - start for i, _, phase, start, end in rank["spans"] if i == stage and phase in ("forward", "backward")]
        assert len(passes) == 4 and rank["compute_seconds"][stage] == pytest.approx(sum(passes), rel=1e-9)
    assert rank["peak_bytes"] == {} and found["losses"] == pytest.approx([alone(1)[0].loss], rel=1e-5)


@pytest.mark.parametrize("schedule", ["zb_h1", "gpipe"])
def test_every_half_of_a_backward_pass_is_done_once(schedule: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_of([(3, [0], {})], schedule=schedule, names=NAMES, global_batch=5, sequence_length=1)))
    found = worker.train(job(str(path), n_steps=3))
    expected = alone(3)
    assert found is not None and found["losses"] == pytest.approx([step.loss for step in expected], rel=1e-5)
    assert found["gradient_norms"] == pytest.approx([step.gradient_norm for step in expected], rel=1e-5)


def test_of_many_steps_the_first_and_every_tenth_are_told(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.train(job(plan, n_steps=25)) is not None
    told = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()]
    assert told == [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]


def test_a_run_goes_on_from_its_newest_checkpoint_with_everything_it_had(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "saved")
    told = {"lr_schedule": f"{__name__}:halving", "save": saved}
    whole = worker.train(job(plan, n_steps=4, lr_schedule=told["lr_schedule"]))
    first = worker.train(job(plan, n_steps=2, **told))
    torch.manual_seed(77)  # what was drawn since must not matter
    rest = worker.train(job(plan, n_steps=4, resume="last", **told))
    assert whole is not None and first is not None and rest is not None
    assert rest["first_step"] == 2 and [*first["losses"], *rest["losses"]] == pytest.approx(whole["losses"], rel=1e-9)
    assert _names(pathlib.Path(saved)) == ["step-2", "step-4"], "two are kept"
    capsys.readouterr()
    again = worker.train(job(plan, n_steps=4, resume="last", **told))
    assert capsys.readouterr().err == "meshwright: 4 steps are trained already: --steps 4 asks for none\n"
    assert again is not None and again["losses"] == [] and again["ranks"][0]["spans"] == []
    shutil.rmtree(saved)
    worker.train(job(plan, n_steps=1, save=saved))
    with pytest.raises(InputError, match=r"--lr-schedule: .*step-1 was written without one; resume without it, or begin anew"):
        worker.train(job(plan, n_steps=2, resume="last", **told))
    with pytest.raises(InputError, match=r"--resume: no folder .* holds no complete checkpoint; run without --resume to begin"):
        worker.train(job(plan, n_steps=2, resume="last"))


def one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)


def test_what_a_schedule_changes_beside_learning_rates_goes_on_too(plan: str, tmp_path: pathlib.Path) -> None:
    told = {"lr_schedule": f"{__name__}:one_cycle"}
    whole = worker.train(job(plan, n_steps=6, **told))
    worker.train(job(plan, n_steps=3, save=str(tmp_path / "saved"), **told))
    rest = worker.train(job(plan, n_steps=6, save=str(tmp_path / "saved"), resume="last", **told))
    assert whole is not None and rest is not None
    assert rest["losses"] == pytest.approx(whole["losses"][3:], rel=1e-9)


def _cut_off(folder: pathlib.Path) -> str:
    victim = next(folder.glob("*.distcp"))
    victim.write_bytes(victim.read_bytes()[:-1])
    return victim.name


def _changed(folder: pathlib.Path) -> str:
    victim = next(folder.glob("*.distcp"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(bytes(content))
    return victim.name


def _gone(folder: pathlib.Path) -> str:
    (folder / ".metadata").unlink()
    return ".metadata"


def _a_folder(folder: pathlib.Path) -> str:
    name = _gone(folder)
    (folder / name).mkdir()
    return name


def _two_at_once(folder: pathlib.Path) -> str:
    _changed(folder)
    return _gone(folder)  # the first by name is told


def _done_cut_off(folder: pathlib.Path) -> str:
    (folder / "done.json").write_text((folder / "done.json").read_text()[:-9])
    return "done.json"


def _done_without(key: str) -> Callable[[pathlib.Path], str]:
    def fault(folder: pathlib.Path) -> str:
        content = json.loads((folder / "done.json").read_text())
        del content[key]
        (folder / "done.json").write_text(json.dumps(content))
        return "done.json"

    return fault


def _done_is(content: object) -> Callable[[pathlib.Path], str]:
    def fault(folder: pathlib.Path) -> str:
        (folder / "done.json").write_text(json.dumps(content))
        return "done.json"

    return fault


def _done_has(key: str, value: object) -> Callable[[pathlib.Path], str]:
    def fault(folder: pathlib.Path) -> str:
        content = {**json.loads((folder / "done.json").read_text()), key: value}
        content["sum"] = checkpoint_folders.sum_of_description(content)
        (folder / "done.json").write_text(json.dumps(content))
        return "done.json"

    return fault


def _one_file_more(folder: pathlib.Path) -> str:
    _done_has("files", {"a": [3, 4]})(folder)
    return "a"


FAULTS = {
    "cut off": _cut_off, "a bit changed": _changed, "a file gone": _gone, "a folder for a file": _a_folder,
    "two files": _two_at_once, "its description cut off": _done_cut_off, "no steps in it": _done_without("step"),
    "no plan in it": _done_without("plan"), "a list for it": _done_is([1]), "nothing for it": _done_is(None),
    "a word for the steps": _done_has("step", "two"), "a list of files": _done_has("files", ["a"]),
    "a file that never was": _one_file_more,
}  # fmt: skip


def _names(folder: pathlib.Path) -> list[str]:
    """Return what lies in a folder of checkpoints, but for the file that says whose it is."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, pathlib.Path, str]:
    """Return a trainer after three steps, and the checkpoints of the second and third."""
    folder = tmp_path_factory.mktemp("trained")
    path = folder / "plan.json"
    path.write_text(json.dumps(plan_of([(3, [0], {})], names=NAMES, global_batch=4, sequence_length=1)))
    trainer = apply(small(), str(path))
    for step in range(3):
        trainer.step(*data(step, 4))
        if step:
            checkpoints.save(trainer, str(folder / "saved"), step + 1)
    return trainer, folder / "saved", str(path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_checkpoint_is_named_and_an_older_one_taken(
    fault: str, trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, saved, _ = trained
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    victim = folder / "step-3" / FAULTS[fault](folder / "step-3")
    with pytest.raises(InputError) as refused:
        checkpoints.load(trainer, str(folder))
    assert str(victim) in str(refused.value)
    if victim.name != "done.json":
        told = f"--resume: {victim} is not what was written (cut off or changed); --resume auto takes an older checkpoint"
        assert str(refused.value) == told
    assert checkpoints.load_newest_whole(trainer, str(folder)) == 2
    assert capsys.readouterr().err == f"meshwright: {victim} is not what was written; an older checkpoint is tried\n"
    FAULTS[fault](folder / "step-2")
    assert checkpoints.load_newest_whole(trainer, str(folder)) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"meshwright: {folder} holds no whole checkpoint: training begins at step 1"


def test_what_else_lies_in_the_folder_is_no_checkpoint(trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path) -> None:
    """A copy by hand, a file, a folder that was never finished, and steps in the order of numbers."""
    trainer, saved, _ = trained
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    shutil.copytree(saved / "step-2", folder / "step-4.old")
    shutil.copytree(saved / "step-2", folder / "step-10")
    (folder / "step-11").mkdir()
    (folder / "step-notes").write_text("")
    assert checkpoints.last(str(folder)) == folder / "step-10" and checkpoints.last(str(tmp_path)) is None
    assert checkpoints.load(trainer, str(folder)) == 2
    checkpoints.save(trainer, str(folder), 12, keep=1, keep_every=3)
    kept = _names(folder)
    assert kept == ["step-11", "step-12", "step-3", "step-4.old", "step-notes"], "of whole ones the newest, and every third"
    (folder / ".step-9.partial").mkdir()
    checkpoints.save(trainer, str(folder), 13, keep=2)
    assert _names(folder) == ["step-11", "step-12", "step-13", "step-4.old", "step-notes"]


def test_what_was_just_written_stays_where_later_steps_of_an_earlier_run_lie(
    trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path
) -> None:
    """A run that begins anew since its checkpoints are damaged would lose every new one, and begin anew for ever."""
    trainer, saved, _ = trained
    folder = tmp_path / "saved"
    for step in (8, 10):
        shutil.copytree(saved / "step-2", folder / f"step-{step}")
        _changed(folder / f"step-{step}")
    for step in (1, 2, 3):
        checkpoints.save(trainer, str(folder), step)  # two are kept
        assert (folder / f"step-{step}" / "done.json").is_file()
    assert _names(folder) == ["step-10", "step-2", "step-3", "step-8"]
    assert checkpoints.load_newest_whole(trainer, str(folder)) == 3


def test_a_damaged_checkpoint_passed_over_does_not_count_among_those_that_stay(
    trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path
) -> None:
    """What the run began from stays until as many whole ones are newer; then the damaged ones go, too."""
    trainer, saved, _ = trained
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    shutil.copytree(saved / "step-3", folder / "step-5")
    for damaged in ("step-3", "step-5"):
        _changed(folder / damaged)
    assert checkpoints.load_newest_whole(trainer, str(folder)) == 2
    stays = {6: "2 3 5 6", 7: "6 7"}
    for step, names in stays.items():
        checkpoints.save(trainer, str(folder), step, keep=2)
        assert _names(folder) == [f"step-{name}" for name in names.split()]
    _changed(folder / "step-7")
    assert checkpoints.load_newest_whole(trainer, str(folder)) == 6
    for step, names in {7: "6 7", 8: "7 8"}.items():  # written again, it counts
        checkpoints.save(trainer, str(folder), step, keep=2)
        assert _names(folder) == [f"step-{name}" for name in names.split()]


def test_a_folder_that_another_run_writes_to_is_left_to_it(
    trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path
) -> None:
    """Also where it has written nothing yet; once its process has ended, however, the folder is free."""
    trainer = trained[0]
    folder = tmp_path / "saved"
    source = f"""
import pathlib, time
from meshwright.runtime.job import checkpoint_folders
checkpoint_folders._lock({str(folder)!r})
(pathlib.Path({str(tmp_path)!r}) / "held").touch()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", source], env=environment()) as other:
        deadline = time.monotonic() + 50
        while not (tmp_path / "held").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(InputError) as refused:
            checkpoints.save(trainer, str(folder), 4)
        written = _names(folder)
        other.kill()
    who = f"process {other.pid} on {socket.gethostname()}"
    assert str(refused.value) == (
        f"--save: another run writes its checkpoints to {folder} ({who}); end that one, or name another folder"
    )
    assert written == []
    checkpoints.save(trainer, str(folder), 4)
    assert _names(folder) == ["step-4"]


def test_a_folder_that_cannot_be_written_to_is_told(trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path) -> None:
    trainer, _, _ = trained
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "below", "Not a directory")):
        with pytest.raises(InputError) as refused:
            checkpoints.claim(trainer, str(place))
        assert str(refused.value) == f"--save: {place} cannot be written to: {why}; name another folder"


def test_a_run_asks_for_its_folder_before_it_trains(plan: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written to: File exists"):
        worker.train(job(plan, n_steps=2, data=f"{__name__}:never", save=str(tmp_path / "file")))


def never(step: int, n_samples: int) -> Any:
    pytest.fail("no step begins")


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "No space left on device; there is no earlier one: make room, then go on with --resume"),
        (errno.EROFS, "Read-only file system; there is no earlier one: see that the folder can be written to, then go on with"),
    ],
)
def test_what_helps_goes_by_why_a_checkpoint_cannot_be_written(
    number: int, told: str, trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checkpoints, "_write", fails)
    with pytest.raises(InputError) as refused:
        checkpoints.save(trained[0], str(tmp_path / "saved"), 4)
    assert told in str(refused.value)


def test_a_checkpoint_of_another_plan_is_taken_with_a_word(
    trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, saved, _ = trained
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    _done_has("plan", [[3, [1], 1, 1, 1, 1, 0, 0]])(folder / "step-3")
    _done_has("global_batch", 8)(folder / "step-3")
    assert checkpoints.load(trainer, str(folder)) == 3
    place = folder / "step-3"
    assert capsys.readouterr().err.splitlines() == [
        f"meshwright: {place} was written under another plan: weights and state are dealt anew",
        f"meshwright: {place} is of steps of 8 samples; this plan has 4",
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "meshwright/checkpoint/9", r"step-3 is of the format 'meshwright/checkpoint/9'; this version reads '"),
        ("format", None, r"step-3 is of an earlier version, whose names belong to one plan; this version reads '"),
        ("optimizer", "SGD", r"step-3 holds the state of the optimizer SGD, but this run has AdamW; resume with the optimizer"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_and_never_passed_over(
    key: str, value: object, message: str, trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path
) -> None:
    trainer, saved, _ = trained
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    _done_has(key, value)(folder / "step-3")
    for load in (checkpoints.load, checkpoints.load_newest_whole):
        with pytest.raises(InputError, match=f"--resume: .*{message}"):
            load(trainer, str(folder))


def test_a_checkpoint_of_another_model_is_refused_with_the_weight_that_differs(
    trained: tuple[Any, pathlib.Path, str], tmp_path: pathlib.Path
) -> None:
    _, saved, _ = trained
    changes: list[tuple[str, Any, str]] = [
        ("2.weight", torch.nn.Parameter(torch.zeros(2, 2)), r"'\S+' has shape \(.*\) there and \(2, 2\) here"),
        ("2.more", torch.nn.Parameter(torch.zeros(3)), r"'2.more' is not in it"),
        ("2.bias", None, r"'2.bias' is not in this one"),
    ]
    for name, value, message in changes:
        model = small()
        place, _, attribute = name.rpartition(".")
        model.get_submodule(place).register_parameter(attribute, value)
        with pytest.raises(InputError, match=rf"--resume: .*step-3 holds another model: {message}; resume with the model"):
            checkpoints.check(str(saved), names_of(model))
    place, content = checkpoints.check(str(saved), names_of(small()))
    assert place == saved / "step-3" and content["step"] == 3
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    (folder / "step-3" / ".metadata").write_bytes(b"")
    with pytest.raises(InputError, match=r"step-3/.metadata is not what was written \(cut off or changed\)"):
        checkpoints.check(str(folder), names_of(small()))


def test_loading_brings_back_weights_buffers_state_and_random_numbers(trained: tuple[Any, pathlib.Path, str]) -> None:
    trainer, saved, _ = trained
    (weights,) = trainer.weights.values()
    checkpoints.load(trainer, str(saved))
    before = [parameter.detach().clone() for parameter in weights.parameters]
    state = [{k: v.clone() for k, v in trainer.optimizer.state[p].items()} for p in weights.parameters]
    drawn = torch.rand(3)
    with torch.no_grad():
        for parameter in weights.parameters:
            parameter.fill_(9.0)
        for buffer in weights.module.buffers():
            buffer.fill_(8.0)
    group = trainer.optimizer.param_groups[0]
    rates = (group["lr"], group["weight_decay"])
    assert checkpoints.load(trainer, str(saved)) == 3
    assert all(torch.equal(a, b) for a, b in zip(before, weights.parameters, strict=True))
    assert all(float(buffer.abs().sum()) == 0.0 for buffer in weights.module.buffers())
    for mine, parameter in zip(state, weights.parameters, strict=True):
        assert all(torch.equal(value, trainer.optimizer.state[parameter][key]) for key, value in mine.items())
    assert torch.equal(torch.rand(3), drawn) and (group["lr"], group["weight_decay"]) == rates == (1e-3, 1e-2)
    assert all(parameter.grad is None for parameter in weights.parameters)


def test_a_signal_ends_the_run_after_the_step_at_hand(plan: str, tmp_path: pathlib.Path) -> None:
    saved = tmp_path / "saved"
    found = worker.train(job(plan, n_steps=9, data=f"{__name__}:asks_to_stop", save=str(saved), save_every=7))
    assert found is not None
    assert (found["stopped_after"], len(found["losses"])) == (3, 3) and _names(saved) == ["step-3"]
    rest = worker.train(job(plan, n_steps=4, save=str(saved), resume="auto"))
    assert rest is not None and rest["first_step"] == 3 and "stopped_after" not in rest


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_what_is_not_a_number_ends_the_run_before_it_reaches_the_weights(
    with_checkpoints: bool, plan: str, tmp_path: pathlib.Path
) -> None:
    saved = tmp_path / "saved"
    told = {"save": str(saved), "save_every": 1} if with_checkpoints else {}
    with pytest.raises(NonFiniteError) as ended:
        worker.train(job(plan, n_steps=4, data=f"{__name__}:broken", **told))
    left = f"; the newest checkpoint is {saved / 'step-2'}" if with_checkpoints else ""
    assert str(ended.value) == (
        f"step 3: the loss or a gradient is not finite on rank 0 (stages 0, 1); the step was not taken{left}"
    )


def test_a_step_that_is_not_a_number_is_left_out_where_so_told(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    found = worker.train(
        job(plan, n_steps=30, data=f"{__name__}:broken", non_finite="skip", log=str(log), lr_schedule=f"{__name__}:halving")
    )
    assert found is not None
    assert [math.isfinite(loss) for loss in found["losses"]] == [step != 2 for step in range(30)]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["skipped"] for line in lines] == [step == 2 for step in range(30)]
    assert lines[2]["loss"] is None and lines[2]["gradient_norm"] is None and lines[3]["gradient_norm"] > 0
    assert lines[3]["learning_rate"] == lines[2]["learning_rate"] == 2 * lines[4]["learning_rate"], "a step left out is none"
    err = capsys.readouterr().err
    assert err.count("; the loss or a gradient is not finite: skipped") == 1 and "step 3 of 30: loss inf; the loss" in err


def test_products_in_fp16_scale_the_loss_and_keep_the_scale_in_checkpoints(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "saved")
    log = tmp_path / "log.jsonl"
    told_so = {"precision": "fp16", "non_finite": "skip", "save": saved, "log": str(log)}
    found = worker.train(job(plan, n_steps=4, data=f"{__name__}:broken", **told_so))
    assert found is not None
    told = capsys.readouterr().err
    assert "gradients overflowed: skipped, loss scale now 32768" in told or "not finite: skipped" in told
    assert [json.loads(line)["skipped"] for line in log.read_text().splitlines()] == [False, False, True, False]
    assert found["losses"][0] == pytest.approx(alone(1)[0].loss, rel=1e-2)
    content = json.loads((tmp_path / "saved" / "step-4" / "done.json").read_text())
    assert content["loss_scale"] == {"value": 2.0**15, "n_good_steps": 1}
    rest = worker.train(job(plan, n_steps=5, precision="fp16", save=saved, resume="last"))
    assert rest is not None and len(rest["losses"]) == 1
    content = json.loads((tmp_path / "saved" / "step-5" / "done.json").read_text())
    assert content["loss_scale"] == {"value": 2.0**15, "n_good_steps": 2}


class _Given:
    """The gradients of a stage, as given."""

    def __init__(self, *held: tuple[torch.Tensor, float]) -> None:
        self.gradients = held

    def held(self) -> list[tuple[torch.Tensor, float]]:
        return list(self.gradients)


def test_the_norm_counts_every_part_once_and_clipping_scales_to_it(trained: tuple[Any, pathlib.Path, str]) -> None:
    one, two, half = torch.tensor([3.0, 4.0]), torch.tensor([[12.0]], dtype=torch.float64), torch.tensor([8.0])
    stages = {0: _Given((one, 1.0), (torch.empty(0), 1.0)), 1: _Given((two, 0.5), (half, 0.25))}
    trainer: Any = SimpleNamespace(executor=SimpleNamespace(device=torch.device("cpu")), weights=stages, clip_norm=2.0)
    trainer._held = lambda: Trainer._held(trainer)
    squared = Trainer._squared_norm(trainer)
    assert (squared.dtype, float(squared)) == (torch.float64, 25.0 + 72.0 + 16.0) and len(trainer._held()) == 3
    for clip, norm, ratio in (
        (2.0, 1.9, 1.0),
        (2.0, 2.0, 1.0),
        (2.0, 4.0, 2.0 / (4.0 + 1e-6)),
        (0.0, 9.0, 1.0),
        (0.5, 0.51, 0.5 / 0.510001),
    ):
        trainer.clip_norm, trainer.gradient_norm = clip, norm
        before = float(two)
        Trainer._clip(trainer)
        assert float(two) == pytest.approx(ratio * before, rel=1e-9)


def test_what_crosses_a_boundary_is_known_by_its_rows() -> None:
    crossing = crossings.crossing
    by_rows = crossing(torch.zeros(3, 5), 3)
    assert (by_rows.sizes, by_rows.by_rows, by_rows.comes_back) == ((5,), True, True)
    whole = crossing(torch.zeros(4, 5), 3)
    assert (whole.sizes, whole.by_rows, whole.comes_back) == ((4, 5), False, False)
    number, choice = crossing(torch.zeros(()), 1), crossing(torch.zeros(3, 2, dtype=torch.int64), 3)
    assert (number.sizes, number.by_rows) == ((), False) and (choice.by_rows, choice.comes_back) == (True, False)
    assert by_rows.blank(7, torch.device("cpu")).shape == (7, 5) and whole.blank(7, torch.device("cpu")).shape == (4, 5)
    places: Any = SimpleNamespace(n_stages=4)
    crossings.check_tensors([torch.zeros(1)], places, 2)
    told = "stage 2: its layers hand on a float, but only tensors can be sent to the next stage; cut elsewhere or compute it "
    with pytest.raises(InputError, match=told):
        crossings.check_tensors([torch.zeros(1), 2.0], places, 2)


def test_a_step_that_a_scaler_skips_moves_no_learning_rate() -> None:
    torch.manual_seed(0)
    model = small()
    optimizer = adamw(list(model.parameters()), 1e-3)

    def batches(step: int) -> Any:
        inputs, targets = broken(step, 4)
        return (inputs,), targets

    told = {"n_steps": 5, "n_parts": 1, "precision": torch.float16, "schedule": halving(optimizer)}
    steps = reference_steps(model, batches, optimizer, default_loss, **told)
    n_taken = sum(math.isfinite(step.gradient_norm) for step in steps)
    assert n_taken < 5 and optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * 0.5**n_taken)


def test_weights_of_several_stages_are_tied_among_all_who_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight in the first and last stage, one in both stages of the second pipeline rank, one held once."""
    made: list[Any] = []
    monkeypatch.setattr(trainer_module.dist, "new_group", lambda ranks: made.append(ranks) or tuple(ranks))
    units: Any = [nn.Linear(2, 2, bias=False) for _ in range(4)]
    units[3].weight, units[1].other = units[0].weight, nn.Parameter(torch.zeros(1))
    units[2].other, units[0].more, units[3].more = units[1].other, nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    stages = tuple(
        Stage((i,), devices, strategy)
        for i, (devices, strategy) in enumerate(
            [((0, 1), Strategy(tensor=2)), ((2,), Strategy()), ((2,), Strategy()), ((0, 1), Strategy(data=2))]
        )
    )
    places = Layout(Plan(stages), (0, 1, 2), ((0, 1), (2,), (2,), (0, 1)), SimpleNamespace())
    holders = tied_weights._holders(places, units)
    assert [holders[p] for p in (units[0].weight, units[1].other, units[0].more, units[1].weight)] == [[0, 3], [1, 2], [0], [1]]
    found = {rank: tied_weights.ties_of(places, rank, units) for rank in range(3)}
    assert made == [[0, 1]] * 3 and all(tied == {units[0].weight, units[1].other} for tied, _ in found.values())
    told = {
        rank: [(tie.parameter is units[0].weight, tie.group, tie.counts) for tie in ties] for rank, (_, ties) in found.items()
    }
    assert told == {0: [(True, (0, 1), True)], 1: [(True, (0, 1), False)], 2: [(False, None, True)]}
    assert [tied_weights.first_holder(places, rank, units, found[rank][1][0]) for rank in range(3)] == [0, 0, 1]
    assert tied_weights.first_holder(places, 0, units, found[2][1][0]) == -1


def test_a_plan_for_more_processes_than_there_are_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_of([(3, [0, 1], {})], names=NAMES, sequence_length=1)))
    with pytest.raises(InputError, match=r"plan\.json: needs 2 processes, but there are 1"):
        apply(small(), str(path))


def test_what_a_stage_took_is_the_median_over_steps_of_its_passes() -> None:
    def step(scale: float) -> list[Span]:
        phases = ("forward", "backward_input", "backward_weight", "wait", "reduce")
        return [Span(stage, 0, phase, 0.0, scale * (stage + 1), 7.0) for stage in (0, 1) for phase in phases]

    steps = [step(scale) for scale in (1.0, 5.0, 2.0)]
    assert worker._median(steps, 1, lambda span: span.end_seconds - span.start_seconds) == 3 * 2 * 2.0
    assert worker._median(steps, 0, lambda span: span.cpu_seconds) == 21.0 and worker._median([], 0, lambda _: 1.0) == 0.0
    for seconds, chosen in (([3.0, 1.0, 2.0], 2), ([4.0, 1.0, 2.0, 3.0], 2), ([1.0], 0)):
        told: Any = [(float(i), []) for i in range(len(seconds))]
        assert worker._typical(seconds, told)[0] == chosen


@pytest.mark.parametrize(
    ("error", "status", "wrong"),
    [(InputError("no file"), 2, True), (NonFiniteError("step 3"), 1, False), (OSError("full"), 1, False),
     (KeyboardInterrupt(), 1, False)],
)  # fmt: skip
def test_what_ends_a_process_is_left_in_words(
    error: BaseException, status: int, wrong: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Job) -> None:
        raise error

    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(worker, "join", fails)
    monkeypatch.setattr(worker.os, "_exit", ends)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(SystemExit) as ended:
        worker._joined(Job("p", "m"), tmp_path)
    left = json.loads((tmp_path / "error-4.json").read_text())
    assert (ended.value.code, left["wrong_input"]) == (status, wrong) and left["time"] > 1e9
    plain = wrong or isinstance(error, NonFiniteError)
    assert left["text"] == str(error) if plain else "Traceback" in left["text"] and type(error).__name__ in left["text"]


def test_results_are_left_by_the_rank_that_has_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "join", lambda _: {"losses": []})
    assert worker._joined(Job("p", "m"), tmp_path) == 0 and json.loads((tmp_path / "result.json").read_text()) == {"losses": []}
    (tmp_path / "result.json").unlink()
    monkeypatch.setattr(worker, "join", lambda _: None)
    assert worker._joined(Job("p", "m"), tmp_path) == 0 and not (tmp_path / "result.json").exists()


def test_bytes_kept_for_a_backward_pass_count_each_storage_once_and_no_weight() -> None:
    weight, first = torch.ones(3), torch.ones(8)
    count = memory.SavedBytes({weight.untyped_storage().data_ptr()})
    assert count.pack(weight) is weight and count.pack(torch.empty(0)).numel() == 0 and count.now_bytes == 0
    one, two = count.pack(first), count.pack(first[2:])
    other = count.pack(torch.ones(4, dtype=torch.float64))
    assert (count.now_bytes, count.peak_bytes) == (64, 64)
    assert count.unpack(one) is first and torch.equal(count.unpack(two), first[2:]) and count.unpack(weight) is weight
    del one
    assert count.now_bytes == 64
    del two
    assert count.now_bytes == 32
    del other
    assert (count.now_bytes, count.peak_bytes) == (0, 64)
    again = count.pack(first[:1])
    assert (count.now_bytes, count.peak_bytes) == (32, 64) and again is not None


def test_a_step_needs_weights_gradients_state_and_what_autograd_keeps() -> None:
    """By hand: a linear layer of 4 by 2 without bias, three rows, Adam's two moments; kept are the rows."""
    layer = nn.Linear(4, 2, bias=False)
    optimizer = adamw(list(layer.parameters()))
    rows = torch.ones(3, 4)

    def step() -> float:
        loss = layer(rows).sum()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    weights = SimpleNamespace(parameters=list(layer.parameters()), optimized=lambda: list(layer.parameters()))
    trainer: Any = SimpleNamespace(weights={2: weights, 5: SimpleNamespace(parameters=[], optimized=list)}, optimizer=optimizer)
    loss, peak = memory.peak_bytes(trainer, step)
    assert loss == pytest.approx(float((rows @ layer.weight.detach().T).sum()), abs=0.2)
    assert peak == {2: 32.0 + 32.0 + 64.0 + 48.0, 5: 32.0 + 32.0 + 64.0 + 48.0}
