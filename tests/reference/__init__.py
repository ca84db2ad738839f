"""Published answers and inputs that tests and benchmarks compare with: one folder a system, whose README says where each is
from.

This is the one way to them: ``path("piper/gnmt.json")``, ``rows("piper/piper.csv")``. Measured runs are part of the package:
``meshwright.validation.measured``.
"""

from __future__ import annotations

import csv
import pathlib

__all__ = ["path", "rows"]

FOLDER = pathlib.Path(__file__).resolve().parent


def path(name: str) -> pathlib.Path:
    """Return the file or folder of that name; one that is not there is an error, never a reason to skip a test."""
    found = FOLDER / name
    if not found.exists():
        raise FileNotFoundError(f"tests/reference holds no {name}")
    return found


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table, each as cells by column."""
    with path(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
