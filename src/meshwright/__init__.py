"""Meshwright: how to split, place and schedule the training of a neural network on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.api import codesign, make_problem, plan, read, simulate
    from meshwright.api.advise import Advice, advise
    from meshwright.api.export import export, torchtitan_config, torchtitan_functions
    from meshwright.api.sizes.sizing import size
    from meshwright.core.cluster import Cluster
    from meshwright.core.graph import Graph
    from meshwright.core.plan import Plan
    from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem, Stop
    from meshwright.core.result import Result
    from meshwright.core.timeline import Timeline
    from meshwright.runtime import parallelize
    from meshwright.sizing.answer import Sizing
    from meshwright.validation import calibrate, validate

__all__ = [
    "Advice",
    "Batch",
    "Cluster",
    "Graph",
    "MixedPrecision",
    "ModelSpec",
    "Plan",
    "Problem",
    "Result",
    "Sizing",
    "Stop",
    "Timeline",
    "advise",
    "calibrate",
    "codesign",
    "export",
    "make_problem",
    "parallelize",
    "plan",
    "read",
    "simulate",
    "size",
    "torchtitan_config",
    "torchtitan_functions",
    "validate",
]

__version__ = "0.1.0"

_HOMES = (
    ("meshwright.api", ("codesign", "plan", "make_problem", "read", "simulate")),
    ("meshwright.api.advise", ("Advice", "advise")),
    ("meshwright.api.export", ("export", "torchtitan_config", "torchtitan_functions")),
    ("meshwright.api.sizes.sizing", ("size",)),
    ("meshwright.core.cluster", ("Cluster",)),
    ("meshwright.core.graph", ("Graph",)),
    ("meshwright.core.plan", ("Plan",)),
    ("meshwright.core.problem", ("Batch", "Problem", "ModelSpec", "Stop", "MixedPrecision")),
    ("meshwright.core.result", ("Result",)),
    ("meshwright.core.timeline", ("Timeline",)),
    ("meshwright.runtime", ("parallelize",)),
    ("meshwright.sizing.answer", ("Sizing",)),
    ("meshwright.validation", ("calibrate", "validate")),
)

_RENAMED = (("Reading", "ModelSpec"), ("Training", "MixedPrecision"), ("pose", "make_problem"))
"""Names from before the first release, which they outlive by one."""


if not TYPE_CHECKING:  # so that a wrong name is an error for type checkers too

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for, so that ``import meshwright`` costs nothing."""
        import importlib

        if name in dict(_RENAMED):
            import warnings

            new = dict(_RENAMED)[name]
            warnings.warn(f"meshwright.{name} is now called meshwright.{new}", DeprecationWarning, stacklevel=2)
            return __getattr__(new)
        for module, known in _HOMES:
            if name in known:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module 'meshwright' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
