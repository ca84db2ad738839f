"""Accelerate: PyTorch's ``fully_shard`` and its device mesh, told by one YAML file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from meshwright.base import files
from meshwright.core import framework_file
from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import fsdp2

__all__ = ["FRAMEWORK", "VARIANTS", "limits_for", "program", "read", "recognises", "refusals", "write"]

_DATA = Path(__file__).parents[1] / "data" / "accelerate.toml"
FRAMEWORK, VARIANTS = framework_file.of_content(files.read_toml(_DATA), _DATA.stem, _DATA.name, fsdp2.FRAMEWORK)


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, or its configuration cannot say."""
    from meshwright.frameworks import _exact

    found = _exact.unsaid(FRAMEWORK.limits, plan, problem)
    one = plan.stages[0].strategy
    shard = one.shard_degree or one.data
    if one.tensor * one.context > 1 and one.data // shard > 1 and shard == 1:
        found += ("replicas beside a tensor or context axis that shard nothing; it needs a sharding degree then",)
    if one.tensor > 1 and _exact.family(problem.model_spec) in _exact.NO_TENSOR_PLAN:
        found += (f"a tensor axis; transformers up to 5.23 has no tensor parallelism for {problem.model_spec.name}",)
    own = limits_for(FRAMEWORK.limits, problem.model_spec, problem.training.optimizer)
    if one.context > 1 and "context" not in own.degrees:
        found += (f"a context axis; PyTorch's ring attention does not run that of {problem.model_spec.name}",)
    return found


def limits_for(limits: FrameworkLimits, spec: ModelSpec, optimizer: str) -> FrameworkLimits:
    """Return its limits for a model, with any optimizer: transformers and PyTorch split only some families over a tensor or
    context axis.
    """
    from meshwright.frameworks import _exact

    own = _exact.without_tensor_plan(limits, spec)
    rings = "context" in fsdp2.limits_for(limits, spec, optimizer).degrees
    return own if rings else replace(own, degrees=tuple(axis for axis in own.degrees if axis != "context"))


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the YAML file for ``accelerate launch --config_file``, with the command in its comments."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.accelerate import config

    _exact.check("accelerate", refusals(result.plan, result.problem))
    return config.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: Accelerate's launcher with transformers' training script."""
    import shlex

    from meshwright.frameworks import _one_config
    from meshwright.frameworks.accelerate import config

    kept = config.synchronised(result.plan, result.problem)
    options = " ".join([_one_config.started(result.plan, result.problem, checkpointing=False), *kept])
    return StartCommand(
        f'accelerate launch --config_file {shlex.quote(Path(path).name)} --machine_rank "$NODE_RANK" '
        f'--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" {options} "$@"',
        needs=_one_config.NEEDS,
    )


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a file says; batches are read from the command in its comments."""
    from meshwright.frameworks.accelerate import config

    return config.read(path, graph)


def recognises(text: str) -> bool:
    """Return whether a file's text is a configuration of Accelerate."""
    return re.search(r"^distributed_type\s*:", text, re.M) is not None
