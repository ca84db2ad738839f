"""The examples of training loops of one's own: the page shows the one that it runs, the other one runs here."""

from __future__ import annotations

import json
import pathlib
import re
import runpy
import signal
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
TWO = plan_of([(6, [0, 1], {"shard": 2})], sequence_length=48, global_batch=12)
ALONE = plan_of([(3, [0], {}), (3, [0], {})], schedule="interleaved_1f1b", sequence_length=48, global_batch=12)


def told(said: str) -> list[float]:
    """Return the losses that the example prints."""
    return [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", said, re.M)]


def losses(folder: pathlib.Path, *words: str) -> list[float]:
    """Run the example in two processes, as torchrun starts them, and return what it prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "own_loop.py"), str(folder / "plan.json"), *words]
    place = environment() | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(script, env=place | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said[1] == ""
    return told(said[0])


def test_the_script_on_the_page_is_the_example() -> None:
    page = (ROOT / "docs" / "howto" / "own_training_loop.md").read_text()
    shown = re.search(r"^```python file=own_script.py\n(.*?)^```$", page, re.M | re.S)
    assert shown and shown[1] == (ROOT / "examples" / "own_script.py").read_text()


def test_a_llama_learns_sonnets(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, under a plan of two stages for one device."""
    import torch.distributed as dist

    (tmp_path / "plan.json").write_text(json.dumps(ALONE))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(sys, "argv", ["own_loop.py", str(tmp_path / "plan.json"), "--steps", "8"])
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MESHWRIGHT_RENDEZVOUS": f"file://{tmp_path}/rendezvous"}.items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    try:
        runpy.run_path(str(ROOT / "examples" / "own_loop.py"), run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, before)
        dist.destroy_process_group()
    found = told(capsys.readouterr().out)
    assert len(found) == 8 and found[0] == pytest.approx(4.6, abs=0.2) and found[-1] < found[0] - 0.5


@pytest.mark.slow
def test_the_example_goes_on_from_its_checkpoint_in_the_middle_of_its_data(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(TWO))
    saved, whole = ("--save", str(tmp_path / "saved")), losses(tmp_path, "--steps", "6")
    assert len(whole) == 6
    assert [*losses(tmp_path, "--steps", "3", *saved), *losses(tmp_path, "--steps", "6", *saved)] == pytest.approx(
        whole, abs=2e-4
    )
