"""MaxText: JAX on a device mesh, told by a YAML file over its ``base.yml``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig

__all__ = ["FRAMEWORK", "OWN_MODELS", "VARIANTS", "model_of", "read", "recognises", "refusals", "write"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "maxtext.toml")

OWN_MODELS = True
"""It trains models that it has itself: what it cannot be told of a model it does not run."""


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, or no axes of its mesh say. Those of the variants are inside where they
    run: searches keep to one of them, because limits say nothing of pairs.
    """
    from meshwright.frameworks import _exact

    one, limits = plan.stages[0].strategy, FRAMEWORK.limits
    found: tuple[str, ...] = ()
    if one.shard < 3 and one.context * one.expert > 1:
        found += (f"sharding level {one.shard} beside a context or expert axis; weights are always sharded over them",)
    if one.expert > 1 and one.tensor * one.context > 1:
        found += ("experts beside a tensor or context axis; its expert axis lies inside of them, ours outside",)
    elif one.shard == 3 and (one.shard_degree or one.data) % one.expert:
        found += (f"an expert degree of {one.expert}; it must divide the ranks that weights are sharded over",)
    if not found:
        limits = replace(limits, degrees=(*limits.degrees, "context", "expert"))
    return (*_exact.unsaid(limits, plan, problem), *found)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the YAML file for ``maxtext.trainers.pre_train.train``."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.maxtext import config

    _exact.check("maxtext", refusals(result.plan, result.problem))
    return config.write(result, path)


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a file says; `n_devices`: how many there are, where it leaves an axis open."""
    from meshwright.frameworks.maxtext import told

    return told.read(path, graph, n_devices)


def on_devices(said: RunConfig, problem: Problem, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of a file's axes MaxText refuses on the hosts of a cluster, and what is to be said of them."""
    from meshwright.frameworks.maxtext import told

    return told.on_devices(said, problem, path)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model that such a file names, or describes by its dimensions."""
    from meshwright.frameworks.maxtext import named

    return named.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text is a configuration of MaxText, or starts it with one."""
    from meshwright.frameworks.maxtext import command

    said = re.search(r"^\s*(ici|dcn)_\w+_parallelism\s*:|^base_config\s*:", text, re.M) is not None
    return said or command.is_script(text)
