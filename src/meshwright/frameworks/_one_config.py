"""A launcher's command line beside a configuration file: what it says of a training script, and its reading."""

from __future__ import annotations

import json
import re
import shlex

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy

__all__ = [
    "MODEL_PARTS",
    "NEEDS",
    "SYNCED",
    "WHOLE",
    "arguments",
    "is_synced",
    "model_parts",
    "of_so_many",
    "options",
    "script_options",
    "started",
    "whole_gradients",
]

MODEL_PARTS = "the training script is transformers' run_clm.py; MODEL is a folder with the model's config.json"


def model_parts(problem: Problem) -> str:
    """Return `MODEL_PARTS`, and as what transformers knows the model's layers where it does not know its family."""
    from meshwright.frameworks import _exact
    from meshwright.models.readers import huggingface

    twin = _exact.TWINS.get(str(huggingface.said_of(problem.model_spec.spec).get("model_type")), "")
    return f"{MODEL_PARTS}{f', in which model_type is {twin}, whose layers it has' if twin else ''}"


NEEDS = (("MODEL", "a folder with the config.json of the model"),)
"""What a launcher's script asks for (`Program.needs`)."""


SYNCED = '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'
"""The Trainer's ``accelerator_config`` with which FSDP2 scatters the gradients of every micro-batch [1]_; without it they stand
whole on every device until the last one [2]_.

References
----------
.. [1] accelerate/utils/dataclasses.py: GradientAccumulationPlugin.sync_each_batch.
.. [2] transformers/trainer.py: no_sync around all micro-batches but the last; accelerate/accelerator.py, no_sync:
       set_requires_gradient_sync(False).
"""

WHOLE = "accumulates"
"""The variant that holds whole gradients for want of it."""


def is_synced(text: str) -> bool:
    """Tell whether an ``accelerator_config`` as JSON has `SYNCED`."""
    try:
        own = json.loads(text)
    except ValueError:
        return False
    kwargs = own.get("gradient_accumulation_kwargs") if isinstance(own, dict) else None
    return isinstance(kwargs, dict) and kwargs.get("sync_each_batch") is True


def whole_gradients(graph: Graph, strategy: Strategy, place: str) -> str:
    """Return what is to be said of a run that accumulates gradients whole."""
    n_bytes = 2.0 * sum(op.n_trained_parameters for op in graph.ops) / strategy.tensor
    return (
        f"{place}: gradient_accumulation_steps: FSDP2 holds whole gradients until the last micro-batch, about "
        f"{n_bytes / 2.0**30:.3g} GiB on every device, which is priced; accelerator_config with gradient_accumulation_kwargs "
        "{sync_each_batch: true} scatters each"
    )


def script_options(plan: Plan, problem: Problem, *, checkpointing: bool, shards: bool = False) -> list[str]:
    """Return the options of transformers' training script that a plan decides; `checkpointing`: whether layers recompute;
    `shards`: whether by FSDP.

    The script's own precision has to be that of DeepSpeed's file, which it compares.
    """
    precision = problem.training.precision
    return [
        "--config_name", "MODEL", "--block_size", str(problem.graph.sequence_length),
        "--per_device_train_batch_size", str(plan.micro_batch), "--gradient_accumulation_steps", str(plan.n_microbatches),
        *([f"--{precision}", "True"] if precision in ("bf16", "fp16") else []),
        *(["--gradient_checkpointing", "True"] if checkpointing else []),
        *(["--accelerator_config", shlex.quote(SYNCED)] if shards and plan.n_microbatches > 1 else []),
    ]  # fmt: skip


def started(plan: Plan, problem: Problem, *, checkpointing: bool, shards: bool = False) -> str:
    """Return transformers' training script and its options in shell words; the model's folder is the variable MODEL."""
    words = " ".join(script_options(plan, problem, checkpointing=checkpointing, shards=shards))
    return "run_clm.py " + words.replace("--config_name MODEL ", '--config_name "$MODEL" ')


def of_so_many(result: Result) -> tuple[str, ...]:
    """Return what is to be told of a file that does not say on how many devices it runs, where a plan leaves some aside."""
    n_devices = 0 if result.problem.cluster is None else result.problem.cluster.n_devices
    if result.plan.n_devices >= n_devices:
        return ()
    return (f"the file does not say that {result.plan.n_devices} of the {n_devices} devices run it: the command above does",)


def options(text: str) -> dict[str, str]:
    """Return the options of the launcher's command line that stands in a file's comments or lines; empty for none."""
    lines = [re.sub(r"^#\s?", "", line).strip() for line in text.splitlines()]
    found: dict[str, str] = {}
    for i, line in enumerate(lines):
        if not re.match(r"(exec )?(accelerate launch|deepspeed) ", line):
            continue
        while line.endswith("\\") and i + 1 < len(lines):
            i += 1
            line = f"{line[:-1]} {lines[i]}"
        name = ""
        for word in shlex.split(line):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                found[name] = value if equals else ""
            elif name and not found[name]:
                found[name] = word
    return found


def arguments(found: dict[str, str], name: str, place: str, default: int = 0) -> int:
    """Return a whole number of a command line; a default of 0 stands for none. Raises `InputError` when it is wrong."""
    text = found.get(name, str(default or ""))
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        what = f"is '{text}'; it must be a whole number from 1 on" if text else "is missing from the command in its comments"
        raise InputError(f"{place}: {name} {what}")
    return int(text)
