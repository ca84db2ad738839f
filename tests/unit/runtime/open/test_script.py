"""``meshwright run SCRIPT.py --plan PLAN``: what is refused, what a script finds, how it ends."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

from runtime_processes import environment, plan_of  # noqa: E402

from meshwright import cli  # noqa: E402

TWO = plan_of([(3, [0], {}), (5, [1], {})])
TELLS = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MESHWRIGHT_PLAN")
told = {"words": sys.argv, "environment": {name: os.environ.get(name) for name in names}, "beside": sys.path[0]}
with open(f"told-{os.environ['RANK']}.json", "w") as file:
    json.dump(told, file)
print("from rank", os.environ["RANK"], flush=True)
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Be in a folder with a plan and a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(TWO))
    (tmp_path / "train.py").write_text(TELLS)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command in this process, the script's processes apart."""
    monkeypatch.setattr(sys, "argv", ["meshwright", "run", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train.py",), "run train.py: give the script's plan: --plan plan.json"),
        (("none.py", "--plan", "plan.json"), "none.py: no such script"),
        (("train.py", "--plan", "none.json"), "none.json: cannot be read: no such file"),
        (("train.py", "--plan", "plan.json", "--steps", "3"), "--steps: is for runs of a plan file"),
        (("train.py", "--plan", "plan.json", "--model", "a:b"), "--model: is for runs of a plan file"),
        (("train.py", "--plan", "plan.json", "--resume"), "--resume: is for runs of a plan file"),
        (("train.py", "--plan", "plan.json", "--backend", "mpi"), "--backend mpi: must be gloo or nccl"),
        (("train.py", "--plan", "plan.json", "--processes", "1"), "plan.json: the plan needs 2 processes"),
        (("train.py", "--plan", "plan.json", "--timeout", "-1"), "--timeout -1: must be a number of seconds"),
        (("train.py", "--plan", "plan.json", "--torchrun", "3"), "3 machines cannot share the plan's 2 processes evenly"),
        (("plan.json", "--plan", "plan.json"), "run: --plan goes with SCRIPT.py"),
        (("plan.json",), "run: --model is missing; write 'run PLAN --model package.module:callable'"),
        (("train.py", "--plan", "shaped.json"), "which works on whole tensors"),
        (("train.py", "--plan", "hangs.json"), "did you mean '1f1b'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_told_in_one_line_before_a_process_starts(
    words: tuple[str, ...], told: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright.runtime.job import launch

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "run_module", never)
    (folder / "shaped.json").write_text(json.dumps({**TWO, "training": {"optimizer": "muon", "state_bytes": 4}}))
    (folder / "hangs.json").write_text(json.dumps(plan_of([(3, [0], {}), (5, [1], {})], schedule="1f2b")))
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert told in said.err and said.err.count("\n") == 1 and not said.out


def test_a_script_runs_in_every_process_with_its_words_and_torchruns_environment(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "train.py").rename(inner / "train.py")
    assert run(monkeypatch, "inner/train.py", "--plan", "plan.json", "--", "--steps", "3", "") == 0
    said = capfd.readouterr()
    assert sorted(said.out.splitlines()) == ["from rank 0", "from rank 1"], "what a script prints is what the command prints"
    assert said.err.count("never called meshwright.parallelize") == 1
    told = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)]
    for rank, one in enumerate(told):
        assert one["words"] == ["inner/train.py", "--steps", "3", ""] and one["beside"] == str(inner)
        found = one["environment"]
        assert found["RANK"] == found["LOCAL_RANK"] == str(rank) and found["WORLD_SIZE"] == found["LOCAL_WORLD_SIZE"] == "2"
        assert found["MESHWRIGHT_PLAN"] == str(folder / "plan.json") and found["MASTER_ADDR"] == "127.0.0.1"
    assert told[0]["environment"]["MASTER_PORT"] == told[1]["environment"]["MASTER_PORT"]
    assert 1024 <= int(told[0]["environment"]["MASTER_PORT"]) < 2**16


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("raise RuntimeError('the disk is full')", 1, "train.py: rank 1 (device 1, stage 1) ended the run: Traceback"),
        ("sys.exit(7)", 1, "train.py: rank 1 (device 1, stage 1) ended the run: exit status 7"),
        ("os.kill(os.getpid(), 9)", 1, "rank 1 (device 1, stage 1) ended the run: killed by signal 9 (SIGKILL)"),
        ("from meshwright.base.errors import InputError; raise InputError('no such layer')", 2, "meshwright: no such layer\n"),
        ("sys.exit(0)", 0, ""),
    ],
)
def test_how_a_script_ends_is_how_the_command_ends(
    line: str,
    code: int,
    told: str,
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    others = "while code: time.sleep(0.1)"
    (folder / "train.py").write_text(
        f"import os, sys, time\ncode = {code}\nif os.environ['RANK'] == '1':\n    {line}\n{others}\n"
    )
    assert run(monkeypatch, "train.py", "--plan", "plan.json") == code
    said = capfd.readouterr().err
    assert told in said and ("the disk is full" in said or "disk" not in line)
    assert "--resume" not in said, "that is for runs of a plan file"


def test_a_script_that_ends_early_in_one_process_is_told_though_that_takes_a_while_to_go(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text(
        "import atexit, os, time\n"
        "if os.environ['RANK'] == '1':\n    atexit.register(time.sleep, 60)\n"
        "else:\n    time.sleep(1)\n    raise RuntimeError('connection closed by peer')\n"
    )
    assert run(monkeypatch, "train.py", "--plan", "plan.json") == 1
    assert capfd.readouterr().err.endswith("connection closed by peer\nrank 1 had ended before, with status 0\n")


def test_a_script_whose_time_is_up_tells_where_each_rank_was(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text("import time\ndef waits():\n    time.sleep(60)\nwaits()\n")
    assert run(monkeypatch, "train.py", "--plan", "plan.json", "--timeout", "3") == 1
    said = capfd.readouterr().err
    assert "the run was ended: the time given is up" in said and said.count("in waits") == 2


def test_a_signal_ends_every_process_of_a_script(folder: pathlib.Path) -> None:
    (folder / "train.py").write_text(
        "import os, time\nopen('pid-' + os.environ['RANK'], 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "meshwright", "run", "train.py", "--plan", "plan.json"]
    started = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while len(list(folder.glob("pid-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate(timeout=100)
    assert started.returncode == 143 and "train.py: the run was ended: asked to stop by SIGTERM\n" in said
    for path in folder.glob("pid-*"):
        assert not pathlib.Path(f"/proc/{path.read_text()}").exists()


def test_a_script_that_is_ended_at_once_does_not_say_that_nothing_was_written(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshwright.runtime.job import launch

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "run_module", interrupted)
    assert run(monkeypatch, "train.py", "--plan", "plan.json") == 130
    assert capsys.readouterr().err == "meshwright: train.py: ended at once\n"


def test_the_torchrun_command_is_printed_and_joins(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--backend", "gloo", "--torchrun")
    assert run(monkeypatch, "train.py", "--plan", "plan.json", *words, "1", "--", "--steps", "3 4") == 0
    assert capsys.readouterr().out == (
        "torchrun --standalone --nproc-per-node 2 -m -- meshwright run train.py --plan plan.json --backend gloo "
        "-- --steps '3 4'\n"
    )
    assert run(monkeypatch, "train.py", "--plan", "plan.json", "--torchrun", "2") == 0
    assert [line.split(" -m -- ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "meshwright run train.py --plan plan.json"
    ] * 2
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MESHWRIGHT_PLAN", raising=False)
    monkeypatch.setenv("MESHWRIGHT_PLAN", "")  # so that what the script is told is undone
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run(monkeypatch, "train.py", "--plan", "plan.json", "--", "word") == 0
    told = json.loads((folder / "told-1.json").read_text())
    assert told["words"] == ["train.py", "word"] and told["environment"]["MESHWRIGHT_PLAN"] == str(folder / "plan.json")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert run(monkeypatch, "train.py", "--plan", "plan.json") == 2
    assert "the plan needs 2 processes, but torchrun started 3" in capsys.readouterr().err
