"""Seconds, CPU seconds and memory of whole commands, kernels not yet compiled and compiled: the first minute and later ones.

``python benchmarks/first_minute.py`` prints a table in Markdown. Each line is a fresh process; of the warm commands the
least of `--runs`. Cold commands find an empty folder of kernels; a plan's figures are what it takes more than warm.
Commands keep Python's bytecode, whatever ``PYTHONDONTWRITEBYTECODE`` says here: without it, every start compiles our
modules anew, which takes twice as long as all of `list`.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from typing import NamedTuple

DATA = pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference"
VGG_19 = ("--set", "global_batch=2048", "--set", "machines=8,16", "--set", "profile_batch=32")
COLD = (
    (("compile",), 60.0),
    (("plan", "llama-3.1-70b", "--cluster", "dgx-h100:64", "--no-what-if", "--json"), 10.0),
)
WARM = (
    (("--help",), 0.15),
    (("list", "models"), 0.15),
    (("show", "gpt2"), 0.15),
    (("plan", "gpt-two", "--cluster", "dgx-h100:8"), 0.15),
    (("plan", "llama-3.1-8b", "--cluster", "dgx-h100:8", "--json"), 0.6),
    (("plan", "llama-3.1-70b", "--cluster", "dgx-h100:64"), 2.0),
    (("plan", str(DATA / "piper" / "bert32a100.json"), "--json"), 0.5),
    (("plan", str(DATA / "dapple" / "vgg-19-pbs-32.txt"), *VGG_19, "--json"), 0.5),
    (("plan", "pase:alexnet", "--json"), 0.5),
)


class Used(NamedTuple):
    """What a process took, with all processes that it started; bytes are those of the largest of them."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: float


def measure(arguments: tuple[str, ...], kernels: str = "") -> Used:
    """Run one command in a process of its own; `kernels`: the folder of compiled kernels, empty for the user's own."""
    environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": kernels} if kernels else {})
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "meshwright", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
    ) as process:  # fmt: skip
        _, _, usage = os.wait4(process.pid, 0)
    wall_seconds = time.perf_counter() - started
    return Used(wall_seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0)


def least(arguments: tuple[str, ...], n_runs: int, kernels: str = "") -> Used:
    """Return the least of several runs, each column for itself."""
    return Used(*map(min, zip(*(measure(arguments, kernels) for _ in range(n_runs)))))


def line(kind: str, arguments: tuple[str, ...], goal_seconds: float, used: Used) -> str:
    """Return a line of the table."""
    words = " ".join(word if os.sep not in word else pathlib.Path(word).name for word in arguments)
    figures = f"{used.wall_seconds:.2f} | {used.cpu_seconds:.2f} | {goal_seconds:g} | {used.peak_bytes / 1e6:.0f}"
    return f"| {kind} | `{words}` | {figures} |"


def main() -> None:
    """Print one line per command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of which the least is taken (warm)")
    parser.add_argument("--warm", action="store_true", help="leave out what compiles")
    options = parser.parse_args()
    print("| kernels | command | wall s | CPU s | goal, wall s | MB |\n|---|---|---|---|---|---|", flush=True)
    for arguments, goal_seconds in () if options.warm else COLD:
        with tempfile.TemporaryDirectory() as kernels:
            cold = measure(arguments, kernels)
            warm = measure(arguments, kernels) if arguments[0] != "compile" else Used(0.0, 0.0, 0.0)
        needed = Used(cold.wall_seconds - warm.wall_seconds, cold.cpu_seconds - warm.cpu_seconds, cold.peak_bytes)
        print(line("none", arguments, goal_seconds, needed), flush=True)
    for arguments, goal_seconds in WARM:
        measure(arguments)  # compiles what is missing, and brings files into memory
        print(line("compiled", arguments, goal_seconds, least(arguments, options.runs)), flush=True)


if __name__ == "__main__":
    main()
