"""What every command loads before it does anything of its own: no package that it has no use for."""

from __future__ import annotations

import os
import pathlib
import platform
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
    late = set() if "numpy._core" in modules else {"numpy"}  # stands for itself until something of it is used
    return code, set(modules) - late


READING = (*KERNELS, *SOLVERS, *TABLES)
LISTS = (*READING, "numpy", "email", "tempfile", "zipfile")
LAID_OUT = ("numba", "llvmlite") if sys.platform == "linux" and platform.machine() == "x86_64" else ("numba",)
PLANNING = (*LAID_OUT, "yaml", "email", *SOLVERS, *TABLES)
PLAN = ("--cluster", "dgx-a100:1", "--global-batch", "8", "--json", "--no-what-if")


@pytest.mark.parametrize(
    ("words", "code", "most", "without"),
    [
        (("--help",), "0", 196, (*LISTS, "pydantic")),
        (("--version",), "0", 196, LISTS),
        (("nosuch",), "2", 196, LISTS),
        (("plan", "--help"), "0", 171, LISTS),
        (("plan", "gpt2", "--nosuch"), "2", 170, LISTS),
        (("list", "models"), "0", 213, LISTS),
        (("list", "schedules"), "0", 219, LISTS),
        (("list", "topologies"), "0", 237, LISTS),
        (("show", "gpt2"), "0", 232, LISTS),
        (("show", "dgx-h100:8"), "0", 364, READING),
        (("plan", "gpt-two", "--cluster", "flat:4"), "2", 258, LISTS),
        (("plan", "gpt2", "--cluster", "flat:none"), "2", 242, LISTS),
        (("check", "nosuch.json"), "2", 177, LISTS),
        (("export", "nosuch.json", "--to", "megatron"), "2", 168, LISTS),
        (("plan", "gpt2", *PLAN), "0", 525, PLANNING),
        (("plan", "gpt2", *PLAN, "--search", "data_parallel"), "0", 525, PLANNING),
        (("plan", "tests/reference/piper/bert32a100.json", "--json"), "0", 482, (*LAID_OUT, "email", *SOLVERS[1:])),
        (("plan", "pase:alexnet", "--json"), "0", 458, (*LAID_OUT, "email", *SOLVERS[1:])),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_command_loads_no_more_than_it_needs(words: tuple[str, ...], code: str, most: int, without: tuple[str, ...]) -> None:
    if "numba" in without and "numpy" not in without and code == "0":
        loaded(*words)  # compiles what is not kept yet
    ended, modules = loaded(*words)
    assert ended == code
    assert {name.partition(".")[0] for name in modules} & set(without) == set()
    assert len(modules) <= most
