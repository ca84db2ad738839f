"""Starting a training script of the user's own in as many processes as a plan wants, or running it in one of torchrun's."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from meshwright.base.errors import InputError
from meshwright.runtime.job import launch, preflight
from meshwright.runtime.open.script_process import run_here
from meshwright.runtime.ranks import meshes, message_order
from meshwright.runtime.ranks.layout import Layout, layout
from meshwright.runtime.ranks.plan_file import read_plan

__all__ = ["Script", "join", "start", "torchrun_lines"]


@dataclass(frozen=True, slots=True)
class Script:
    """A script to start.

    `path`: its file.
    `plan`: the plan file, which `meshwright.parallelize` finds in the environment.
    `arguments`: words for the script.
    `backend`: ``gloo`` or ``nccl``; empty for NCCL where there are GPUs.
    """

    path: str
    plan: str
    arguments: tuple[str, ...]
    backend: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What `meshwright.parallelize` reads in every process."""
        return {"MESHWRIGHT_PLAN": str(Path(self.plan).absolute()), "MESHWRIGHT_BACKEND": self.backend}


def _check(script: Script) -> Layout:
    """Return the plan as ranks, after looking at all that can be wrong before there is a model.

    Raises `InputError` when something is.
    """
    if not Path(script.path).is_file():
        raise InputError(f"{script.path}: no such script")
    if script.backend not in ("", "gloo", "nccl"):
        raise InputError(f"--backend {script.backend}: must be gloo or nccl")
    read = read_plan(script.plan)
    preflight.check_optimizer(read.entry, "the script's own", script.plan)
    places = layout(read.plan)
    meshes.check(places)
    message_order.check(places, script.plan)
    return places


def start(script: Script, *, processes: int, timeout_seconds: float) -> int:
    """Start the script in every process of the plan, wait for them, and return the exit status.

    Parameters
    ----------
    script : Script
        What to start.
    processes : int
        Most processes to start; 0 for one per GPU, or per core but at least eight.
    timeout_seconds : float
        When to give up; 0 for never.

    Raises
    ------
    InputError
        When the plan or an option is wrong; scripts are judged by what they do.
    """
    if min(processes, timeout_seconds) < 0:
        raise InputError("--processes and --timeout must not be negative")
    places = _check(script)
    backend = preflight.backend_of(script.backend)
    preflight.check_machine(places, backend, processes, script.plan)
    environment = {**script.environment, "MESHWRIGHT_BACKEND": backend, "MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0"}
    environment |= {"MASTER_PORT": str(_free_port()), "LOCAL_WORLD_SIZE": str(places.n_ranks)}
    told = {"script": script.path, "arguments": list(script.arguments), "environment": environment}
    try:
        outcome = launch.run_module(
            "meshwright.runtime.open.script_process", places.n_ranks, told, timeout_seconds=timeout_seconds, is_script=True
        )
    except KeyboardInterrupt:
        print(f"meshwright: {script.path}: ended at once", file=sys.stderr)
        return 130
    if isinstance(outcome, launch.Failure):
        print(f"meshwright: {_told(outcome, script, places)}", file=sys.stderr)
        return outcome.status
    return 128 + int(outcome["signal"]) if "signal" in outcome else 0


def _told(failure: launch.Failure, script: Script, places: Layout) -> str:
    """Say which process ended a script, and why."""
    if failure.wrong_input:
        return failure.text
    if failure.rank < 0:
        return f"{script.path}: the run was ended: {failure.text}"
    stages = ", ".join(map(str, places.stages_of(failure.rank)))
    device = places.device_of_rank[failure.rank]
    return f"{script.path}: rank {failure.rank} (device {device}, stage {stages}) ended the run: {failure.text.rstrip()}"


def _free_port() -> int:
    """Return a port that is free now, for scripts that make the process group themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def join(script: Script) -> int:
    """Run the script in this process, one of those that torchrun started; return the exit status.

    Raises `InputError` when the plan is wrong, or for another number of processes.
    """
    launch.check_ranks(int(os.environ["WORLD_SIZE"]), _check(script).n_ranks, script.plan)
    os.environ.update({key: value for key, value in script.environment.items() if value})
    run_here(script.path, script.arguments)
    return 0


def torchrun_lines(script: Script, n_machines: int) -> list[str]:
    """Return the command that starts the script with torchrun, one for each machine.

    Raises `InputError` when the plan is wrong, or the machines cannot share its processes evenly.
    """
    words = ["meshwright", "run", script.path, "--plan", script.plan]
    words += ["--backend", script.backend] if script.backend else []
    words += ["--", *script.arguments] if script.arguments else []
    return launch.torchrun_commands(shlex.join(words), _check(script).n_ranks, n_machines, script.plan)
