"""Meshwright: how to split, place and schedule the training of a neural network on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.api import codesign, plan, pose, read, simulate
    from meshwright.api.export import export
    from meshwright.core.cluster import Cluster
    from meshwright.core.graph import Graph
    from meshwright.core.plan import Plan
    from meshwright.core.problem import Batch, Problem, Reading, Stop, Training
    from meshwright.core.result import Result
    from meshwright.core.timeline import Timeline
    from meshwright.validation import validate

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

_HOMES = (
    ("meshwright.api", ("codesign", "plan", "pose", "read", "simulate")),
    ("meshwright.api.export", ("export",)),
    ("meshwright.core.cluster", ("Cluster",)),
    ("meshwright.core.graph", ("Graph",)),
    ("meshwright.core.plan", ("Plan",)),
    ("meshwright.core.problem", ("Batch", "Problem", "Reading", "Stop", "Training")),
    ("meshwright.core.result", ("Result",)),
    ("meshwright.core.timeline", ("Timeline",)),
    ("meshwright.validation", ("validate",)),
)


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that ``import meshwright`` costs nothing."""
    import importlib

    for module, known in _HOMES:
        if name in known:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'meshwright' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
