"""A run that loses two of its three devices trains as one that loses none."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from runtime_processes import ROOT, environment

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

_PATIENCE_SECONDS = 400


def _meshwright(*words: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    told = environment() | {"PERISHED": str(folder)}
    told["PYTHONPATH"] += os.pathsep + str(pathlib.Path(__file__).parent)
    command = [sys.executable, "-m", "meshwright", *words]
    return subprocess.run(
        command, env=told, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, cwd=ROOT / "examples", check=False
    )


def test_a_run_goes_on_with_the_devices_that_are_left_and_its_losses_are_those_of_a_whole_one(tmp_path: pathlib.Path) -> None:
    plan, saved, log = (str(tmp_path / name) for name in ("plan.json", "saved", "log.jsonl"))
    question = (
        "--cluster",
        "flat:3",
        "--global-batch",
        "24",
        "--precision",
        "fp32",
        "--set",
        "schedules=1f1b",
        "--set",
        "micro_batch=8",
    )
    planned = _meshwright("plan", "sonnets.json", *question, "--out", plan, folder=tmp_path)
    assert planned.returncode == 0, planned.stderr
    common = ("--model", "sonnets:model", "--steps", "8", "--json")
    words = ("--elastic", "--save", saved, "--save-every", "2", "--log", log, "--data", "perishing:killed_twice")
    done = _meshwright("run", plan, *common, *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [told["n_devices"] for told in found["restarts"]] == [2, 1] and (found["first_step"], found["n_ranks"]) == (4, 1)
    assert "rank 2 (device 2) is lost: killed by signal 9 (SIGKILL)" in done.stderr
    assert "planned again for the 2 devices left" in done.stderr and "planned again for the one device left" in done.stderr
    whole = _meshwright("run", plan, *common, "--data", "perishing:tokens", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr
    expected = json.loads(whole.stdout)["losses"]
    assert found["losses"] == pytest.approx(expected[4:], abs=1e-5)
    lines = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 3, 4, 5, 5, 6, 7, 8]
    assert [line["loss"] for line in lines] == pytest.approx([expected[line["step"] - 1] for line in lines], abs=1e-5)
    refused = _meshwright("run", plan, *common, *words, folder=tmp_path)
    assert refused.returncode == 2 and "step-8 is of an earlier run" in refused.stderr and not refused.stdout
