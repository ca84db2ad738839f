"""What every command loads before it does anything of its own: no package that it has no use for."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ("numba", "llvmlite")
SOLVERS = ("scipy", "rustworkx", "joblib")
TABLES = ("rich", "yaml", "torch", "dask", "ray", "multiprocessing", "asyncio")
BESIDE_NUMBA = ("rustworkx", "joblib", "rich", "torch", "dask", "ray", "asyncio")  # which itself loads SciPy and YAML
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
        [sys.executable, "-c", COUNTED, *words], capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT / "src")}
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    return code, set(modules)


@pytest.mark.parametrize(
    ("words", "code", "most", "without"),
    [
        (("--help",), "0", 240, (*KERNELS, *SOLVERS, *TABLES, "numpy", "pydantic")),
        (("list", "models"), "0", 440, (*KERNELS, *SOLVERS, *TABLES)),
        (("show", "gpt2"), "0", 460, (*KERNELS, *SOLVERS, *TABLES)),
        (("plan", "gpt-two", "--cluster", "flat:4"), "2", 470, (*KERNELS, *SOLVERS, *TABLES)),
        (("plan", "gpt2", "--cluster", "dgx-a100:2", "--search", "data_parallel", "--json"), "0", 1000, BESIDE_NUMBA),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_command_loads_no_more_than_it_needs(words: tuple[str, ...], code: str, most: int, without: tuple[str, ...]) -> None:
    ended, modules = loaded(*words)
    assert ended == code
    assert not {name.partition(".")[0] for name in modules} & set(without)
    assert len(modules) <= most
