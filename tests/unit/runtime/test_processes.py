"""What a process does besides training: memory that it keeps, its end with its launcher, joining others; context's two ends."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="running plans needs PyTorch: pip install 'meshwright[torch]'")
pytestmark = pytest.mark.torch

from runtime_processes import environment  # noqa: E402

from meshwright.base import files  # noqa: E402
from meshwright.base.errors import InputError  # noqa: E402
from meshwright.runtime.job import allocator, launch, lifeline, worker  # noqa: E402
from meshwright.runtime.job.job import Job  # noqa: E402
from meshwright.runtime.model.sequence import part_of_sequence  # noqa: E402
from meshwright.runtime.open import building  # noqa: E402
from meshwright.runtime.parallel import context_parallel  # noqa: E402
from meshwright.runtime.profile import links  # noqa: E402


def test_freed_memory_is_kept_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    answers: list[int] = []

    def mallopt(name: int, value: int) -> int:
        asked.append((name, value))
        return answers.pop(0)

    monkeypatch.setattr(allocator.sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt) if name is None else None)
    for given, kept, n_asked in (([1, 1], True, 2), ([1, 0], False, 2), ([0, 1], False, 1)):
        asked.clear()
        answers[:] = given
        assert allocator.keep_freed_memory() is kept and len(asked) == n_asked
    answers[:] = [1, 1]
    asked.clear()
    allocator.keep_freed_memory()
    assert asked == [(-1, 1073741824), (-3, 33554432)], "glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD"
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: SimpleNamespace())
    assert allocator.keep_freed_memory() is False
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("another C library is left alone"))
    assert allocator.keep_freed_memory() is False


def test_a_process_ends_once_its_input_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def note(name: str, answer: Any = None) -> Any:
        return lambda *told: done.append((name, *told)) or answer

    class Thread:
        def __init__(self, target: Any, daemon: bool) -> None:
            done.append(("thread", daemon))
            self.start = target

    names = {"dup": 9, "open": 8, "dup2": 0, "close": None, "read": b"", "_exit": None}
    monkeypatch.setattr(
        lifeline, "os", SimpleNamespace(devnull="/dev/null", O_RDONLY=0, **{k: note(k, v) for k, v in names.items()})
    )
    monkeypatch.setattr(lifeline, "threading", SimpleNamespace(Thread=Thread))
    monkeypatch.setattr(lifeline.signal, "signal", note("signal"))
    monkeypatch.setattr(lifeline, "_die_with_parent", note("asked Linux"))
    lifeline.hold()
    assert done == [
        ("asked Linux",),
        ("dup", 0), ("open", "/dev/null", 0), ("dup2", 8, 0), ("close", 8), ("signal", signal.SIGINT, signal.SIG_IGN),
        ("thread", True), ("read", 9, 1), ("_exit", 1),
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with its parent")
@pytest.mark.parametrize("known", [{"TORCHELASTIC_RUN_ID": "x"}, {}])
def test_a_worker_of_torchrun_ends_with_its_agent(known: dict[str, str], tmp_path: pathlib.Path) -> None:
    """Killed, the agent ends nobody; what another program started is left alone."""
    place = tmp_path / "pid"
    source = f"""
import os, signal, time
if not os.fork():
    os.environ.pop("TORCHELASTIC_RUN_ID", None)
    os.environ.update({known})
    from meshwright.runtime.job import lifeline
    lifeline.end_with_agent()
    open({str(place)!r} + "-", "w").write(str(os.getpid()))
    os.rename({str(place)!r} + "-", {str(place)!r})
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", source], env=environment()) as agent:
        deadline = time.monotonic() + 60
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        agent.kill()
    worker = int(place.read_text())
    deadline = time.monotonic() + (20 if known else 0.3)
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = _runs(worker)
    if left:
        os.kill(worker, signal.SIGKILL)
    assert left == (not known)


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_script_of_ones_own_under_torchrun_ends_with_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(lifeline, "end_with_agent", lambda: asked.append(1))
    with pytest.raises(InputError, match="parallelize"):
        building.build(torch.nn.Linear(1, 1), 3)  # type: ignore[arg-type]
    assert asked == [1]


@pytest.mark.parametrize("result", [{"a": 1}, None])
def test_a_worker_reads_its_job_and_says_where_it_is_when_asked(
    result: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("plan.json", "m:f", folder=str(tmp_path), seed=5)
    job.write(tmp_path / "job.json")
    seen: list[Any] = []
    monkeypatch.setattr(worker.lifeline, "hold", lambda: seen.append("held"))
    monkeypatch.setattr(worker.sys, "argv", ["worker", str(tmp_path / "job.json")])
    monkeypatch.setattr(
        worker.faulthandler, "register", lambda number, file, all_threads: seen.append((number, file.name, all_threads))
    )
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(worker, "join", lambda given: seen.append(given.seed) or result)
    assert worker.main() == 0
    assert seen == ["held", (signal.SIGUSR1, str(tmp_path / "where-3"), False), 5]
    assert (tmp_path / "result.json").exists() == (result is not None)
    monkeypatch.setattr(links.lifeline, "hold", lambda: None)
    (tmp_path / "job.json").write_text(json.dumps({"device": "cpu"}))
    (tmp_path / "result.json").unlink(missing_ok=True)
    monkeypatch.setattr(links, "join", lambda kind: result and {kind: 2})
    assert links.main() == 0 and (tmp_path / "result.json").exists() == (result is not None)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_processes_join_as_the_environment_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    for module in (worker, links):
        monkeypatch.setattr(module, "dist", SimpleNamespace(
            init_process_group=lambda backend, *, init_method, rank, world_size, **_: done.append(
                (backend, init_method, rank, world_size)
            ),
            barrier=lambda: done.append("barrier"), destroy_process_group=lambda: done.append("left"),
        ))  # fmt: skip
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(device))
    monkeypatch.setattr(lifeline, "end_with_agent", lambda: done.append("ends with torchrun"))
    monkeypatch.setattr(worker, "train", lambda job: {"trained": job.backend})
    monkeypatch.setattr(links, "measure", lambda device: {"measured": str(device)})
    for name, value in (("RANK", "2"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("MESHWRIGHT_RENDEZVOUS", raising=False)
    backend = "nccl" if kind == "cuda" else "gloo"
    gpu = [torch.device("cuda", 0)] if kind == "cuda" else []
    assert worker.join(Job("p", "m", backend=backend)) == {"trained": backend}
    assert done == ["ends with torchrun", *gpu, (backend, "env://", 2, 4), "barrier", "left"]
    done.clear()
    monkeypatch.setenv("MESHWRIGHT_RENDEZVOUS", "file:///there")
    assert links.join(kind) == {"measured": "cuda:0" if kind == "cuda" else "cpu"}
    assert done == [*gpu, (backend, "file:///there", 2, 4), "barrier", "left"]


def test_hidden_states_enter_a_context_by_rank_and_leave_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a hidden state has three axes and is floating; anything else passes."""
    monkeypatch.setattr(context_parallel.tensor_parallel, "enter_sequence", lambda mesh: lambda carried: carried)
    monkeypatch.setattr(context_parallel.tensor_parallel, "leave_sequence", lambda mesh: lambda carried: carried)
    hidden, ids, flat = torch.arange(24.0).view(1, 8, 3), torch.arange(24).view(1, 8, 3), torch.arange(8.0).view(1, 8)
    inside = context_parallel.enter_context(None, 2)((hidden, ids, flat))
    expected = torch.cat([part_of_sequence(hidden, 1, rank, 2) for rank in range(2)], 1)
    assert torch.equal(inside[0], expected) and inside[1] is ids and inside[2] is flat and not torch.equal(inside[0], hidden)
    outside = context_parallel.leave_context(None, 2)(inside)
    assert torch.equal(outside[0], hidden) and outside[1] is ids and outside[2] is flat


def test_a_mask_of_ones_own_is_taken_by_rows_or_whole() -> None:
    """Keys of all ranks; the rows of a mask of all pairs that are this rank's, any other mask as it is."""
    query, key = torch.randn(1, 1, 8, 4), torch.randn(1, 1, 8, 4)

    class Attends(torch.nn.Module):
        def __init__(self, mask: Any, **told: Any) -> None:
            super().__init__()
            self.mask, self.told = mask, told

        def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*qkv, attn_mask=self.mask, **self.told)

    by_rank = torch.cat([part_of_sequence(key, 2, rank, 2) for rank in range(2)], 2)
    full = torch.rand(8, 8)
    for mask, told in ((full, {}), (None, {}), (torch.rand(1, 8), {}), (None, {"is_causal": True})):
        whole = Attends(mask, **told)(query, key, key)
        for rank in range(2):
            mine = [part_of_sequence(value, 2, rank, 2) for value in (query, key, key)]
            inside = context_parallel.InContext(Attends(mask, **told), lambda _: by_rank, rank, 2)
            assert torch.allclose(inside(*mine), part_of_sequence(whole, 2, rank, 2), atol=1e-6)
    layer = torch.nn.Linear(4, 4)
    layer.positions = (0, 1)
    context_parallel.InContext(layer, lambda value: value, 1, 2)
    assert layer.positions == (1, 2) and torch.equal(context_parallel.InContext(layer, lambda v: v, 0, 2)(query), layer(query))


class _Full:
    """A file on a disk that is full, that takes the beginning of what is written."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text[:5])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_cannot_grow_ends_the_run_in_one_line_and_keeps_whole_lines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, job = tmp_path / "log.jsonl", Job("p", "m", log=str(tmp_path / "log.jsonl"), save=str(tmp_path))
    worker._log(job, None, {"step": 1})
    monkeypatch.setattr(worker, "open", lambda *_, **__: _Full(log), raising=False)
    with pytest.raises(InputError, match=r"--log .*: step 2 cannot be written: No space left on device: make room") as refused:
        worker._log(job, None, {"step": 2})
    assert log.read_text() == '{"step": 1}\n' and "\n" not in str(refused.value)


def test_an_error_that_cannot_be_left_for_the_launcher_is_printed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(worker, "join", lambda _: {"a": 1})
    monkeypatch.setattr(worker.os, "_exit", ends)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(SystemExit) as ended:
        worker._joined(Job("p", "m"), tmp_path / "gone")
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("meshwright: rank 4: output ") and said.count("\n") == 1


def test_a_run_without_room_for_its_files_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(files.tempfile, "TemporaryDirectory", full)
    with pytest.raises(InputError, match="no temporary folder can be made: No usable temporary directory found; make room"):
        launch.run(Job("p", "m"), 1)
