"""Megatron-LM: options of ``pretrain_gpt.py``."""

from __future__ import annotations

import re

from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.frameworks.megatron.limits import FRAMEWORK, VARIANTS

__all__ = [
    "FRAMEWORK",
    "VARIANTS",
    "limits_for",
    "model_of",
    "on_devices",
    "program",
    "read",
    "recognises",
    "refusals",
    "write",
]


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits or has no option, and what of the model its options cannot say."""
    from meshwright.frameworks.megatron import model, options

    found = options.refusals(plan, problem)
    spec = problem.model_spec
    if spec.format == "huggingface" and spec.spec:
        more = model.told_by_none(plan, spec.spec, problem.graph.sequence_length)
        return (*found, *filter(None, (model.no_decoder(spec.spec), options.grouped_products(problem))), *more)
    return found


def limits_for(limits: FrameworkLimits, spec: ModelSpec, optimizer: str) -> FrameworkLimits:
    """Return its limits for a model, with any optimizer: Megatron-Core does not split experts with biases."""
    from meshwright.frameworks.megatron import model

    return model.limits_for(limits, spec)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write a script that starts it on every node; returns what of the model's configuration it leaves out."""
    from meshwright.frameworks.megatron import options
    from meshwright.frameworks.megatron.writers import megatron_args

    reasons = refusals(result.plan, result.problem)
    if reasons:
        raise options.refused(reasons)
    return megatron_args.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: the script, which calls torchrun."""
    import shlex
    from pathlib import Path

    from meshwright.core.plan_forms import layout_of

    outermost = ("pipeline", "data") if layout_of(result.plan) == "data" else ("data", "pipeline")
    return StartCommand(f'bash {shlex.quote(Path(path).name)} "$@"', ("tensor", "context", *outermost))


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a script or command line says; `n_devices`: how many there are, where it leaves that open."""
    from meshwright.frameworks.megatron import told

    return told.read(path, graph, n_devices)


def on_devices(said: RunConfig, problem: Problem, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of a run's environment Megatron-LM refuses on the devices it has, and what is to be said of it."""
    from meshwright.frameworks.megatron import surroundings

    return surroundings.on_devices(said, problem, path)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model that a script's options describe."""
    from meshwright.frameworks.megatron import shape

    return shape.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text is a command line of Megatron-LM."""
    from meshwright.frameworks import megatron_deepspeed

    own = re.search(r"\bpretrain_\w+\.py\b|--(tensor|pipeline)-model-parallel-size\b", text) is not None
    return own and not megatron_deepspeed.recognises(text)
