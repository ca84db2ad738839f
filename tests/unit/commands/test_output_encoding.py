"""Standard output of an encoding that lacks characters: the command prints what it can and goes on; files are UTF-8."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

TINY = pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_table_is_printed_where_the_encoding_lacks_its_lines(encoding: str, tmp_path: pathlib.Path) -> None:
    words = ["plan", str(TINY), "--cluster", "pcie-a100:2", "--global-batch", "8", "--no-what-if", "--out", "plan.json"]
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *words], cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert b"GiB" in done.stdout and done.stdout.decode(encoding)
    assert (tmp_path / "plan.json").read_text(encoding="utf-8").startswith("{")
