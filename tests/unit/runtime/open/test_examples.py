"""The examples of training loops of one's own: the page shows the one that it runs, the other one runs here."""

from __future__ import annotations

import json
import pathlib
import re
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytest.importorskip("transformers", reason="needs transformers: pip install 'meshwright[huggingface]'")
pytestmark = pytest.mark.torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1])]

from runtime_processes import environment, plan_of  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[4]


def test_the_script_on_the_page_is_the_example() -> None:
    page = (ROOT / "docs" / "howto" / "own_training_loop.md").read_text()
    shown = re.search(r"^```python file=own_script.py\n(.*?)^```$", page, re.M | re.S)
    assert shown and shown[1] == (ROOT / "examples" / "own_script.py").read_text()


def losses(folder: pathlib.Path, *words: str) -> list[float]:
    """Run the example in two processes, as torchrun starts them, and return what it prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "own_loop.py"), str(folder / "plan.json"), *words]
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(script, env=environment() | told | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said[1] == ""
    return [float(found) for found in re.findall(r"^step \d+: loss ([\d.]+)$", said[0], re.M)]


def test_a_llama_learns_sonnets_in_two_processes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan_of([(3, [0], {}), (3, [1], {})], sequence_length=48, global_batch=12)))
    found = losses(tmp_path, "--steps", "8")
    assert len(found) == 8 and found[0] == pytest.approx(4.6, abs=0.2) and found[-1] < found[0] - 0.5


@pytest.mark.slow
def test_the_example_goes_on_from_its_checkpoint_in_the_middle_of_its_data(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan_of([(6, [0, 1], {"shard": 2})], sequence_length=48, global_batch=12)))
    saved = ("--save", str(tmp_path / "saved"))
    whole = losses(tmp_path, "--steps", "6")
    assert [*losses(tmp_path, "--steps", "3", *saved), *losses(tmp_path, "--steps", "6", *saved)] == pytest.approx(
        whole, abs=2e-4
    )
