"""Starting the processes of a run on one machine, watching them, and telling which one failed and why."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.runtime.job.job import Job

__all__ = [
    "Failure",
    "check_ranks",
    "describe",
    "run",
    "run_module",
    "shared_store",
    "torchrun_commands",
    "torchrun_lines",
    "under_torchrun",
]

_TIME_TO_WRITE_SECONDS = 0.5
_CALLS_TOLD = 6
_GRACE_SECONDS = 25.0  # Slurm and Kubernetes kill after thirty
_NOT_IN_TIME = -2


@dataclass(frozen=True, slots=True)
class Failure:
    """A process that ended a run.

    `rank`: which.
    `text`: its traceback, or how it was killed.
    `wrong_input`: whether the user's input was to blame.
    `lost`: whether it was killed from outside and told nothing, as with a machine that is gone.
    `signal`: the signal by which the run was asked to stop; 0 where it was not.
    """

    rank: int
    text: str
    wrong_input: bool
    lost: bool = False
    signal: int = 0

    @property
    def status(self) -> int:
        """Exit status of a command that ends so."""
        return 2 if self.wrong_input else 128 + self.signal if self.signal else 1


def under_torchrun() -> bool:
    """Whether this process was started by torchrun (or something that sets the same variables)."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def shared_store() -> list[str]:
    """Return a warning where torchrun's agents keep one store for all attempts: those left after a loss may miss each other.

    An agent remembers where the store of the first attempt was. Where the agent that had it is lost, or places change, others
    look for each other there without end (PyTorch 2.13).
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return []
    return [
        "torchrun's agents share one store for all attempts, and may not find each other after a loss: start torchrun with "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    ]


def run(
    job: Job,
    n_ranks: int,
    *,
    timeout_seconds: float = 0.0,
    prefixes: Sequence[Sequence[str]] = (),
    gpus: Sequence[int] = (),
) -> dict[str, Any] | Failure:
    """Start the processes, wait for them, and return what they measured, or which of them failed first.

    `timeout_seconds`: when to give up; 0 for never.
    `prefixes`: words before the command of each rank, for example ``("ip", "netns", "exec", "name")``; none for none.
    `gpus`: those of this machine that the ranks use, in their order; none for the first ones.
    """
    if gpus and job.backend == "nccl":
        prefixes = [["env", f"CUDA_VISIBLE_DEVICES={_visible(gpus)}"]] * n_ranks
    with files.temporary_folder("meshwright-run-") as folder:
        path = Path(folder) / "job.json"
        replace(job, folder=folder).write(path)
        return _run("meshwright.runtime.job.worker", path, n_ranks, timeout_seconds, prefixes)


def _visible(gpus: Sequence[int]) -> str:
    """Return some of the GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` names them."""
    known = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    return ",".join(known[gpu] if known else str(gpu) for gpu in gpus)


def run_module(
    module: str, n_ranks: int, told: dict[str, Any], *, timeout_seconds: float = 0.0, is_script: bool = False
) -> dict[str, Any] | Failure:
    """Start a module of ours in several processes; return the JSON object that it leaves as ``result.json``.

    `module`: its name; it gets the path of a file in the folder for results.
    `told`: what that file holds, as JSON.
    `timeout_seconds`: when to give up; 0 for never.
    `is_script`: whether it runs a script of the user's, whose standard output is ours.
    """
    with files.temporary_folder("meshwright-run-") as folder:
        path = Path(folder) / "job.json"
        files.write(path, json.dumps(told))
        return _run(module, path, n_ranks, timeout_seconds, (), is_script=is_script)


def _run(
    module: str,
    path: Path,
    n_ranks: int,
    timeout_seconds: float,
    prefixes: Sequence[Sequence[str]],
    *,
    is_script: bool = False,
) -> dict[str, Any] | Failure:
    """Start the processes in the folder of a job file, watch them, and return what they left."""
    processes: list[subprocess.Popen[bytes]] = []
    with _asked_to_stop() as asked:
        try:
            for rank in range(n_ranks):
                prefix = list(prefixes[rank]) if prefixes else []
                processes.append(_start(module, rank, n_ranks, path, prefix, prints=is_script))
            failed = _watch(processes, timeout_seconds, asked)
            ended = {rank: code for rank, process in enumerate(processes) if (code := process.poll()) is not None}
            if failed == -1:
                _ask_where(processes)
        finally:
            _stop(processes)
    if failed == _NOT_IN_TIME:
        return Failure(
            -1, f"asked to stop by {asked[0].name}, it had not done so after {_GRACE_SECONDS:g} s", False, signal=int(asked[0])
        )
    if asked and failed is not None and failed >= 0 and processes[failed].returncode == -signal.SIGTERM:
        text = f"asked to stop by {asked[0].name}{'' if is_script else ' before the first step'}"
        return Failure(-1, text, False, signal=int(asked[0]))
    failure = _failure(processes, path.parent, failed, ended)
    if failure is not None:
        return failure
    result: dict[str, Any] = json.loads((path.parent / "result.json").read_text())
    return result | ({"signal": int(asked[0])} if asked else {})


@contextmanager
def _asked_to_stop() -> Iterator[list[signal.Signals]]:
    """Take Ctrl-C and SIGTERM as the wish to stop after the step at hand; a second one ends at once.

    Yields: the signals so far.
    """
    asked: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def heed(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signal.Signals(number))
        print(f"meshwright: {asked[0].name}: ending after this step; a second one ends at once", file=sys.stderr, flush=True)

    before = [(number, signal.signal(number, heed)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _start(
    module: str, rank: int, n_ranks: int, path: Path, prefix: list[str], *, prints: bool = False
) -> subprocess.Popen[bytes]:
    """Start one process; unless it `prints` itself, what it prints goes to our stderr, so that stdout holds the answer only."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n_ranks),
        "MESHWRIGHT_RENDEZVOUS": f"file://{path.parent}/rendezvous",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join(entry for entry in (os.getcwd(), *sys.path) if entry),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
    if not prints:
        environment.setdefault("KINETO_LOG_LEVEL", "6")  # else PyTorch's profiler tells of every beginning and end
    if not prefix and "GLOO_SOCKET_IFNAME" not in environment and any(name == "lo" for _, name in socket.if_nameindex()):
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [*prefix, sys.executable, "-m", module, str(path)]
    return subprocess.Popen(command, env=environment, stdout=None if prints else sys.stderr.fileno(), stdin=subprocess.PIPE)


def _watch(processes: list[subprocess.Popen[bytes]], timeout_seconds: float, asked: Sequence[signal.Signals]) -> int | None:
    """Wait until all have ended well, or return the first that has not; -1 when the time is up.

    `asked`: signals that came; the first is handed on to all, who then have a while to end.
    """
    deadline, told = time.monotonic() + timeout_seconds if timeout_seconds else float("inf"), float("inf")
    while True:
        if asked and told == float("inf"):
            told = time.monotonic()
            for process in processes:
                process.send_signal(signal.SIGTERM)
        if time.monotonic() - told > _GRACE_SECONDS:
            return _NOT_IN_TIME
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code not in (None, 0):
                time.sleep(0.3)
                # who was killed is the cause; who lost its connection to it is not
                killed = [i for i, process in enumerate(processes) if (process.poll() or 0) < 0]
                return killed[0] if killed else rank
        if all(code == 0 for code in codes):
            return None
        if time.monotonic() > deadline:
            return -1
        time.sleep(0.05)


def _ask_where(processes: list[subprocess.Popen[bytes]]) -> None:
    """Let what still runs write down where it is."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGUSR1)
    time.sleep(_TIME_TO_WRITE_SECONDS)


def _where(folder: Path) -> str:
    """Return where each rank was, innermost call first, as `_ask_where` made it write."""
    told = []
    for path in sorted(folder.glob("where-*"), key=lambda path: int(path.name.rpartition("-")[2])):
        calls = [line.strip() for line in path.read_text().splitlines() if line.startswith("  File")]
        if calls:
            told.append("\n  ".join([f"\nrank {path.name.rpartition('-')[2]} was at", *calls[:_CALLS_TOLD]]))
    return "".join(told)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End what still runs."""
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _failure(
    processes: list[subprocess.Popen[bytes]], folder: Path, failed: int | None, ended: Mapping[int, int] = MappingProxyType({})
) -> Failure | None:
    """Return who failed first, by the time at which each left its error; processes that were killed leave none, nor do those
    that left without a word, which others can only have missed.

    `ended`: exit status of those that ended by themselves.
    """
    if failed is None:
        return None
    errors = []
    for path in folder.glob("error-*.json"):
        try:
            content = json.loads(path.read_text())
        except ValueError:
            continue
        errors.append((content["time"], int(path.stem.rpartition("-")[2]), content))
    if failed >= 0:
        code = processes[failed].returncode
        if code is not None and code < 0 and not any(rank == failed for _, rank, _ in errors):
            return Failure(failed, f"killed by signal {-code} ({signal.Signals(-code).name})", False, lost=True)
    known = {rank for _, rank, _ in errors}
    silent = next((rank for rank, code in ended.items() if code > 0 and rank not in known), None)
    if silent is not None:
        return Failure(silent, f"ended with status {ended[silent]} and left no traceback", False)
    if errors:
        _, rank, content = min(errors, key=lambda error: error[:2])
        early = {other for other, code in ended.items() if code == 0} | _ended_before(folder, content["time"])
        gone = ", ".join(map(str, sorted(early)))
        told = f"\nrank {gone} had ended before, with status 0" if gone and not content["wrong_input"] else ""
        return Failure(rank, content["text"].rstrip() + told, content["wrong_input"])
    if failed < 0:
        return Failure(-1, f"the time given is up{_where(folder)}", False)
    return Failure(failed, f"ended with status {processes[failed].returncode} and left no traceback", False)


def _ended_before(folder: Path, moment: float) -> set[int]:
    """Return the ranks whose script had come to its end before: their processes may take a while to go."""
    found = set()
    for path in folder.glob("ended-*"):
        with suppress(ValueError):  # killed while it wrote
            if float(path.read_text()) < moment:
                found.add(int(path.name.rpartition("-")[2]))
    return found


def check_ranks(n_ranks: int, wanted: int, place: str) -> None:
    """Refuse a plan for another number of processes than there are.

    Raises `InputError` when the numbers differ.
    """
    if n_ranks != wanted:
        raise InputError(
            f"{place}: the plan needs {wanted} processes, but torchrun started {n_ranks}; give --nproc-per-node {wanted}"
        )


def torchrun_lines(job: Job, profile: str, n_ranks: int, n_machines: int, place: str, more: Sequence[str] = ()) -> list[str]:
    """Return the command that starts a run with torchrun, one for each machine.

    `profile`: of ``--profile``.
    `more`: further options, as they were written.
    `n_ranks`, `n_machines`: processes in all, and machines that share them evenly; machine i holds the i-th part of the
    plan's devices in ascending order.
    Raises `InputError` when the machines cannot share the processes evenly.
    """
    words = ["meshwright", "run", job.plan, "--model", job.model]
    defaults = Job(job.plan, job.model)
    options = (
        "n_steps",
        "data",
        "loss",
        "optimizer",
        "learning_rate_value",
        "seed",
        "backend",
        "save",
        "save_every",
        "keep",
        "precision",
        "non_finite",
        "clip_norm_value",
        "log",
        "lr_schedule",
        "keep_every",
        "max_restarts",
        "monitor",
        "weights",
    )
    for name in options:
        value = getattr(job, name)
        if value != getattr(defaults, name):
            words += ["--" + name.removeprefix("n_").removesuffix("_value").replace("_", "-"), str(value)]
    words += {"": [], "last": ["--resume"], "auto": ["--resume", "auto"]}[job.resume]
    words += ["--elastic"] if job.elastic else []
    words += [*(["--profile", profile] if profile else []), *more]
    return torchrun_commands(shlex.join(words), n_ranks, n_machines, place)


def torchrun_commands(command: str, n_ranks: int, n_machines: int, place: str) -> list[str]:
    """Return the torchrun command of each machine.

    `command`: name and words of a module, which torchrun is told by ``--`` not to read as its own (``--log`` may be several).
    Raises `InputError` when the machines cannot share the processes evenly.
    """
    each, rest = divmod(n_ranks, n_machines)
    if rest or not each:
        raise InputError(
            f"{place}: {n_machines} machines cannot share the plan's {n_ranks} processes evenly; give --torchrun 1, or a "
            "divisor"
        )
    if n_machines == 1:
        return [f"torchrun --standalone --nproc-per-node {each} -m -- {command}"]
    return [
        f"torchrun --nnodes {n_machines} --node-rank {machine} --nproc-per-node {each} "
        f'--master-addr "$MASTER_ADDR" --master-port 29500 -m -- {command}'
        for machine in range(n_machines)
    ]


def describe(failure: Failure, plan: Plan) -> str:
    """Say which process ended a run, what it was working on, and why."""
    if failure.rank < 0:
        return f"the run was ended: {failure.text}"
    if failure.wrong_input:
        return failure.text
    devices = sorted({device for stage in plan.stages for device in stage.devices})
    device = devices[failure.rank]
    stages = ", ".join(str(i) for i, stage in enumerate(plan.stages) if device in stage.devices)
    return f"rank {failure.rank} (device {device}, stage {stages}) ended the run: {failure.text.rstrip()}"
