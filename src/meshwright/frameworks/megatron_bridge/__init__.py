"""Megatron-Bridge: a recipe in Python for Megatron-Core; also what its runs, and those of NeMo, write down."""

from __future__ import annotations

from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.frameworks.megatron_bridge.limits import FRAMEWORK, VARIANTS

__all__ = [
    "FRAMEWORK",
    "OWN_MODELS",
    "VARIANTS",
    "limits_for",
    "model_of",
    "program",
    "read",
    "recognises",
    "refusals",
    "write",
]

OWN_MODELS = True
"""It trains models that it has itself: what it cannot be told of a model it does not run."""


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan Megatron-Core cannot run, or has no field."""
    from meshwright.frameworks.megatron import model, options

    spec, training = problem.model_spec, problem.training
    own = exceeded(FRAMEWORK.limits, plan, problem.graph, training.precision, training.optimizer)
    found = tuple(dict.fromkeys((*options.refusals(plan, problem), *own)))
    if spec.format != "huggingface" or not spec.spec:
        return found
    return (*found, *model.told_by_none(plan, spec.spec, problem.graph.sequence_length))


def limits_for(limits: FrameworkLimits, spec: ModelSpec, optimizer: str) -> FrameworkLimits:
    """Return its limits for a model, with any optimizer: Megatron-Core does not split experts with biases."""
    from meshwright.frameworks.megatron import model

    return model.limits_for(limits, spec)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write a recipe that trains a plan's model when it is started; returns what it is priced with and does not say."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.megatron_bridge import recipe

    _exact.check("megatron_bridge", refusals(result.plan, result.problem))
    return recipe.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: the recipe."""
    import shlex
    from pathlib import Path

    from meshwright.core.plan_forms import layout_of
    from meshwright.frameworks import _exact

    outermost = ("pipeline", "data") if layout_of(result.plan) == "data" else ("data", "pipeline")
    return StartCommand(
        _exact.torchrun("megatron_bridge", result, shlex.quote(Path(path).name)), ("tensor", "context", *outermost)
    )


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a recipe, or what a run wrote down, says; `n_devices`: how many there are, where no command in it says so."""
    from meshwright.frameworks.megatron_bridge import told

    return told.read(path, graph, n_devices)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model that a recipe names, or a configuration that a run wrote down describes."""
    from meshwright.frameworks.megatron_bridge import shape

    return shape.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text is a recipe of Megatron-Bridge, or what a run of it or of NeMo wrote down."""
    from meshwright.frameworks.megatron_bridge import dump

    return (
        "megatron.bridge" in text or ("ConfigContainer" in text and "tensor_model_parallel_size" in text) or dump.is_dump(text)
    )
