"""What every command loads before it does anything of its own: no package that it has no use for."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ("numba", "llvmlite")
SOLVERS = ("scipy", "rustworkx", "joblib")
TABLES = ("rich", "yaml", "torch", "dask", "ray", "multiprocessing", "asyncio")
KEPT = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")  # where compiled kernels lie
COUNTED = """
import sys
from meshwright import cli
try:
    cli.main()
except SystemExit as ended:
    print(ended.code, *sys.modules, file=sys.stderr)
"""


def loaded(*words: str) -> tuple[str, set[str]]:
    """Exit code of a command, and the modules that it had loaded in the end."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")} | {name: os.environ[name] for name in KEPT if name in os.environ},
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    return code, set(modules)


READING = (*KERNELS, *SOLVERS, *TABLES)
NAMES = ("numpy", "email", *READING)  # what is read has names and figures, no arrays
PLANNING = ("numba", "numpy.ma", "yaml", "email", "meshwright.costs.sharded", *SOLVERS, *TABLES)
PUBLISHED = ("numba", "numpy.ma", "email", "meshwright.costs.analytic", *SOLVERS[1:])
DAPPLE = "tests/reference/dapple/vgg-19-pbs-32.txt"
VGG_19 = ("--set", "global_batch=2048", "--set", "machines=8,16", "--set", "profile_batch=32")
PLAN = ("--cluster", "dgx-a100:1", "--global-batch", "8", "--json", "--no-what-if")


@pytest.mark.parametrize(
    ("words", "code", "most", "without"),
    [
        (("--help",), "0", 205, (*NAMES, "pydantic")),
        (("--version",), "0", 205, NAMES),
        (("nosuch",), "2", 205, NAMES),
        (("plan", "--help"), "0", 178, NAMES),
        (("plan", "gpt2", "--nosuch"), "2", 178, NAMES),
        (("list", "models"), "0", 215, NAMES),
        (("list", "schedules"), "0", 320, (*READING, "email")),
        (("list", "topologies"), "0", 245, NAMES),
        (("list", "clusters"), "0", 245, NAMES),
        (("list", "formats"), "0", 260, NAMES),
        (("list", "frameworks"), "0", 260, NAMES),
        (("show", "gpt2"), "0", 230, NAMES),
        (("show", "dgx-h100:8"), "0", 365, READING),
        (("plan", "gpt-two", "--cluster", "flat:4"), "2", 260, NAMES),
        (("plan", "gpt2", "--cluster", "flat:none"), "2", 245, NAMES),
        (("plan", "gpt2", "--cluster", "dgx-h100:0"), "2", 245, NAMES),
        (("check", "nosuch.json"), "2", 190, NAMES),
        (("export", "nosuch.json", "--to", "megatron"), "2", 175, NAMES),
        (("plan", "gpt2", *PLAN), "0", 540, PLANNING),
        (("plan", "gpt2", *PLAN, "--search", "data_parallel"), "0", 540, PLANNING),
        (("plan", "tests/reference/piper/bert32a100.json", "--json"), "0", 500, PUBLISHED),
        (("plan", "pase:alexnet", "--json"), "0", 475, ("numba", "numpy.ma", "email", *SOLVERS[1:])),
        (("plan", DAPPLE, *VGG_19, "--json"), "0", 515, PUBLISHED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_command_loads_no_more_than_it_needs(words: tuple[str, ...], code: str, most: int, without: tuple[str, ...]) -> None:
    if "numba" in without and "numpy" not in without and code == "0":
        loaded(*words)  # compiles what is not kept yet
    ended, modules = loaded(*words)
    assert ended == code
    assert {*modules, *(name.partition(".")[0] for name in modules)} & set(without) == set()
    assert len(modules) <= most
