"""A plain PyTorch script: ``fully_shard`` on every layer, on a device mesh."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy

__all__ = ["FRAMEWORK", "VARIANTS", "limits_for", "model_of", "program", "read", "recognises", "refusals", "write"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "fsdp2.toml")


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, or no script says."""
    from meshwright.frameworks import _adapters, _exact
    from meshwright.frameworks.fsdp2 import script

    tensor = max(stage.strategy.tensor for stage in plan.stages)
    found = _exact.unsaid(FRAMEWORK.limits, plan, problem)
    found += script.unsplit(problem.model_spec, plan.stages[0].strategy)
    return (*found, *_adapters.refusals(problem, tensor=tensor, quantised=True))  # of four bits the limits say so


def limits_for(limits: FrameworkLimits, spec: ModelSpec, optimizer: str) -> FrameworkLimits:
    """Return its limits for a model, with any optimizer: the script splits only some families over a tensor or context axis."""
    from meshwright.frameworks.fsdp2 import script

    heads = script.n_heads(spec)
    asked = {"tensor": Strategy(1, max(heads, 2)), "context": Strategy(1, 1, 2)}
    left = [axis for axis, strategy in asked.items() if script.unsplit(spec, strategy)]
    return replace(limits, degrees=tuple(axis for axis in limits.degrees if axis not in left), tensor_heads=heads)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write a script that trains a plan's model with PyTorch and transformers alone; it says all of the plan."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.fsdp2 import script

    _exact.check("fsdp2", refusals(result.plan, result.problem))
    return script.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: the script that was written."""
    import shlex

    from meshwright.frameworks import _exact

    return StartCommand(_exact.torchrun("fsdp2", result, shlex.quote(Path(path).name)))


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a script says; the script says how many devices there are."""
    from meshwright.frameworks.fsdp2 import script

    return script.read(path, graph)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model whose configuration stands in a script."""
    from meshwright.frameworks.fsdp2 import script

    return script.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text is a script of ours."""
    return "NODES, GPUS_PER_NODE = " in text
