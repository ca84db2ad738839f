"""nanotron, told by one YAML file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig

__all__ = ["FRAMEWORK", "OWN_MODELS", "VARIANTS", "model_of", "program", "read", "recognises", "refusals", "write"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "nanotron.toml")

OWN_MODELS = True
"""It trains models that it has itself: what it cannot be told of a model it does not run."""


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits. A pipeline cut as nanotron cuts it is inside: searches leave them out only
    because they cannot choose the cut.
    """
    from meshwright.frameworks import _exact
    from meshwright.frameworks.nanotron import split

    limits, n_ranks = FRAMEWORK.limits, len(plan.ranks())
    own = split.of_problem(problem, n_ranks)
    cut = [stage.ops for stage in plan.stages]
    if n_ranks > 1 and own == cut:
        return _exact.unsaid(replace(limits, degrees=(*limits.degrees, "pipeline")), plan, problem)
    found = _exact.unsaid(limits, plan, problem)
    if n_ranks == 1 and plan.schedule != "1f1b":
        found += (f"schedule {plan.schedule} without a pipeline; that is 1f1b",)
    elif n_ranks > 1 and own is not None:
        sizes, mine = (", ".join(str(len(ops)) for ops in stages) for stages in (cut, own))
        found += (f"stages of {sizes} layers, embedding and head counted; it cuts this model into {mine} on {n_ranks} ranks",)
    return found


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the YAML file for ``run_train.py --config-file``; returns what of the model's configuration it leaves out."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.nanotron import config

    _exact.check("nanotron", refusals(result.plan, result.problem))
    return config.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: nanotron's ``run_train.py`` with the file that was written."""
    import shlex

    from meshwright.frameworks import _exact

    why = "nanotron's README starts it so: collectives keep the order in which they are issued"
    return StartCommand(
        _exact.torchrun("nanotron", result, f"run_train.py --config-file {shlex.quote(Path(path).name)}"),
        environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1", why),),
    )


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a file says; its degrees say how many devices there are."""
    from meshwright.frameworks.nanotron import told

    return told.read(path, graph)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model that such a file describes."""
    from meshwright.frameworks.nanotron import told

    return told.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text is a configuration of nanotron, or starts it with one."""
    from meshwright.frameworks.nanotron import told

    said = re.search(r"^parallelism\s*:", text, re.M) is not None and re.search(r"^tokens\s*:", text, re.M) is not None
    return said or told.is_script(text)
