"""Runs commands inside the test process, which spares starting Python a hundred times."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

TINY = pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json"


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, standard output, standard error without the lines that only say that work goes on."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        entry: dict[str, Any] = json.loads(self.out)
        return entry


Run = Callable[..., Outcome]


@pytest.fixture
def meshwright(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> Run:
    """Run one command in an empty folder."""
    from meshwright import cli

    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["meshwright", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        err = "".join(line for line in captured.err.splitlines(keepends=True) if not line.endswith(" ...\n"))
        return Outcome(int(stopped.value.code or 0), captured.out, err)

    return run


@pytest.fixture
def tiny() -> str:
    """Path of a four-layer Llama that plans in a tenth of a second."""
    return str(TINY)
