"""torchtitan and PyTorch pipelining."""

from __future__ import annotations

from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig

__all__ = ["FRAMEWORK", "OWN_MODELS", "VARIANTS", "model_of", "program", "read", "recognises", "refusals", "write"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "torchtitan.toml")

OWN_MODELS = True
"""It trains models that it has itself: what it cannot be told of a model it does not run."""


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what its configuration cannot say of a plan; for the variant ``functions``, what its trainer cannot do."""
    if problem.framework.name == FRAMEWORK.name and problem.framework.variant == "functions":
        from meshwright.frameworks.torchtitan import in_trainer

        return in_trainer.refusals(problem.framework.limits, plan, problem)
    return _untold(plan, problem)


def _untold(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits or its degrees, and a model that is none of a Hugging Face configuration."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.torchtitan import degrees

    found = _exact.unsaid(FRAMEWORK.limits, plan, problem)
    if len({stage.strategy for stage in plan.stages}) == 1:
        found += tuple(degrees.refusals(plan))
    form = problem.model_spec.format
    return (
        found
        if form in FRAMEWORK.limits.formats
        else (*found, f"a model of format {form}; it trains models of its own registry")
    )


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write a Python module whose function ``plan`` is the configuration, for ``--module`` and ``--config``."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.torchtitan import module

    reasons = _untold(result.plan, result.problem)
    if reasons and result.problem.framework.variant == "functions" and result.problem.framework.name == FRAMEWORK.name:
        reasons += ("it runs by meshwright.torchtitan_functions instead",)
    _exact.check("torchtitan", reasons)
    return module.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: torchtitan's trainer with the module that was written."""
    from meshwright.frameworks import _exact

    words = f"-m torchtitan.train --module {Path(path).stem} --config plan"
    return StartCommand(_exact.torchrun("torchtitan", result, words), environment=_exact.environment(FRAMEWORK))


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a configuration module says; `n_devices`: how many there are, where it leaves a degree open."""
    from meshwright.frameworks.torchtitan import told

    return told.read(path, graph, n_devices)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model whose flavor a configuration module names."""
    from meshwright.frameworks.torchtitan import told

    return told.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text is a configuration of torchtitan."""
    from meshwright.frameworks.torchtitan import toml_file

    return (
        "torchtitan" in text
        or toml_file.is_toml(text)
        or toml_file.is_script(text)
        or ("ParallelismConfig(" in text and "TrainingArguments(" not in text and "DPOConfig(" not in text)
    )
