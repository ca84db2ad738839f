"""DeepSpeed: ZeRO with its own tensor parallelism."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig

__all__ = ["FRAMEWORK", "VARIANTS", "program", "read", "recognises", "refusals", "write"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "deepspeed.toml")


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, or its configuration cannot say."""
    from meshwright.frameworks import _exact

    return _exact.unsaid(FRAMEWORK.limits, plan, problem)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write its JSON configuration, or, where the name ends in ``.sh``, the launcher with the configuration in it."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.deepspeed import config

    _exact.check("deepspeed", refusals(result.plan, result.problem))
    return config.write(result, path)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: transformers' training script by torchrun, which keeps the order of hosts.

    Raises
    ------
    ExportError
        When `path` is a script: that starts DeepSpeed's own launcher already.
    """
    import shlex

    from meshwright.base.errors import ExportError
    from meshwright.frameworks import _exact, _one_config

    if path.endswith(".sh"):
        raise ExportError(
            f"deepspeed: {path} would start DeepSpeed's launcher itself; with --launch, name a file ending in .json"
        )
    options = _one_config.started(result.plan, result.problem, checkpointing="full" in result.plan.stages[0].recompute)
    words = f"{options} --deepspeed {shlex.quote(Path(path).name)}"
    return StartCommand(_exact.torchrun("deepspeed", result, words), needs=_one_config.NEEDS)


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a file says; `n_devices`: how many there are, where its batch sizes leave that open."""
    from meshwright.frameworks.deepspeed import config

    return config.read(path, graph, n_devices)


def recognises(text: str) -> bool:
    """Return whether a file's text is a configuration of DeepSpeed, or a launcher with one in it."""
    from meshwright.frameworks import megatron_deepspeed

    own = re.search(r'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"\s*:', text) is not None
    trainer = re.search(r'(TrainingArguments|DPOConfig)\(|"per_device_train_batch_size"', text) is not None
    return (
        own and not trainer and not megatron_deepspeed.recognises(text)
    )  # those are of transformers, and of Megatron-DeepSpeed
