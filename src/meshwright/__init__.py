"""Meshwright: how to split, place and schedule the training of a neural network on a cluster."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = [
    "Batch",
    "Cluster",
    "Graph",
    "Plan",
    "Problem",
    "Reading",
    "Result",
    "Stop",
    "Timeline",
    "Training",
    "codesign",
    "export",
    "plan",
    "pose",
    "read",
    "simulate",
    "validate",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``import meshwright`` costs nothing."""
    homes = {
        "Batch": "problem", "Cluster": "cluster", "Graph": "graph", "Plan": "plan", "Problem": "problem", "Reading": "problem",
        "Result": "result", "Stop": "problem", "Timeline": "timeline", "Training": "problem", "plan": "api", "pose": "api",
        "read": "api", "simulate": "api", "validate": "validation", "codesign": "api",
        "export": "exporting",
    }  # fmt: skip
    if name not in homes:
        raise AttributeError(f"module 'meshwright' has no attribute '{name}'")
    return getattr(importlib.import_module(f"meshwright.{homes[name]}"), name)


class _Package(ModuleType):
    """The package: `plan` and `codesign` stay its functions, although a module and a folder of these names lie in it."""

    def __setattr__(self, name: str, value: object) -> None:
        # Python sets a submodule as an attribute of its package when it is first imported, by whomever
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
