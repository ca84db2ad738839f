"""What a signal, a dead launcher, a damaged checkpoint or a loss that is no number leave behind."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from forked_commands import meshwright, started
from runtime_processes import environment, plan_of

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

_PATIENCE_SECONDS = 200


def _words(folder: pathlib.Path, *words: str) -> list[str]:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan_of([(3, [0], {}), (5, [1], {})])))
    return ["run", str(path), "--model", "models:small", *words]


def _started(folder: pathlib.Path, *words: str) -> subprocess.Popen[str]:
    """Start the program and its workers as they are started outside of tests."""
    command = [sys.executable, "-m", "meshwright", *_words(folder, *words)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _done(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    return meshwright(*_words(folder, *words))


def _wait_for(found: object) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not found():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def _workers(folder: pathlib.Path) -> list[int]:
    """Return the processes that train under this folder's plan: their environment names a rendezvous, their parent the run."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"runtime.job.worker" in (entry / "cmdline").read_bytes()
                and str(folder).encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not pathlib.Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_workers_end_with_a_launcher_that_is_killed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the rendezvous lies there, so that we know our workers
    saved = tmp_path / "saved"
    run = _started(tmp_path, "--data", "fragile:slowly", "--steps", "5000", "--save", str(saved), "--save-every", "1")
    _wait_for(lambda: (saved / "step-1").exists())
    assert len(_workers(tmp_path)) == 2
    run.kill()
    run.communicate()
    _wait_for(lambda: not _workers(tmp_path))


def test_sigterm_saves_and_the_newest_whole_checkpoint_goes_on(tmp_path: pathlib.Path) -> None:
    saved = tmp_path / "saved"
    common = ("--data", "fragile:slowly", "--save", str(saved), "--keep", "3")
    words = _words(tmp_path, *common, "--steps", "5000", "--save-every", "2", "--resume", "auto")
    with started(*words, timeout_seconds=_PATIENCE_SECONDS) as (process, ended):
        _wait_for(lambda: (saved / "step-4").exists())
        os.kill(process, signal.SIGTERM)
        run = ended()
    err = run.stderr
    assert run.returncode == 128 + signal.SIGTERM and not run.stdout
    assert "holds no whole checkpoint: training begins at step 1" in err
    steps = sorted(int(path.name.removeprefix("step-")) for path in saved.glob("step-*"))
    assert f"ended after step {steps[-1]} of 5000; --resume goes on from {saved / f'step-{steps[-1]}'}" in err
    assert len(steps) <= 3 and steps[-2] < steps[-1]
    victim = next((saved / f"step-{steps[-1]}").glob("*.distcp"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(bytes(content))
    refused = _done(tmp_path, *common, "--steps", str(steps[-2] + 1), "--resume")
    assert refused.returncode == 2 and f"{victim} is not what was written" in refused.stderr
    assert "Traceback" not in refused.stderr
    resumed = _done(tmp_path, *common, "--steps", str(steps[-2] + 1), "--resume", "auto", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{victim} is not what was written; an older checkpoint is tried" in resumed.stderr
    assert json.loads(resumed.stdout)["first_step"] == steps[-2]


@pytest.mark.parametrize("what", ["stop", "skip"])
def test_a_loss_that_is_no_number_leaves_the_weights_as_they_were(what: str, tmp_path: pathlib.Path) -> None:
    saved = tmp_path / "saved"
    words = (
        "--data",
        "fragile:tokens",
        "--loss",
        "fragile:broken_loss",
        "--steps",
        "4",
        "--save",
        str(saved),
        "--save-every",
        "1",
    )
    done = _done(tmp_path, *words, "--non-finite", what, "--json")
    if what == "stop":
        assert (done.returncode, done.stdout) == (1, "")
        assert "step 3: the loss or a gradient is not finite on ranks 0, 1 (stages 0, 1); the step was not taken" in done.stderr
        assert f"the newest checkpoint is {saved / 'step-2'}" in done.stderr and "Traceback" not in done.stderr
        return
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert losses[2] is None and losses[3] is not None, "the step after is a number again"
    assert "step 3 of 4: loss nan; the loss or a gradient is not finite: skipped" in done.stderr


def test_a_run_that_a_signal_ended_does_not_say_that_nothing_was_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright import cli
    from meshwright.commands import run

    monkeypatch.setattr(run, "execute", lambda *_: 128 + signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["meshwright", *_words(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130 and "nothing was written" not in capsys.readouterr().err
