"""What the contract tests feed to plug-ins: a sample of every reader, those of other packages included."""

from __future__ import annotations

import pathlib
from functools import cache

from meshwright import models
from meshwright.base import registry
from meshwright.core.problem import ModelSpec

__all__ = ["FOLDER", "of_reader", "read"]

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "readers"


def of_reader(name: str) -> tuple[str, ...]:
    """Return what a user would type to have a reader read: files ``tests/data/readers/NAME.*``, and its ``EXAMPLE``."""
    example = getattr(registry.load("readers", name, "format"), "EXAMPLE", None)
    files = sorted(str(path) for path in FOLDER.glob(f"{name}.*"))
    return tuple(files) if example is None else (*files, example)


@cache
def read(spec: str) -> ModelSpec:
    """Return what a sample holds."""
    return models.read(spec)
