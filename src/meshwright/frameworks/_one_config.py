"""A launcher's command line beside a configuration file: what it says of a training script, and its reading."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy

__all__ = [
    "MODEL_PARTS", "NEEDS", "arguments", "model_parts", "of_so_many", "options", "script_options", "started", "synchronised",
    "unsynchronised",
]  # fmt: skip

MODEL_PARTS = "the training script is transformers' run_clm.py; MODEL is a folder with the model's config.json"


def model_parts(problem: Problem) -> str:
    """Return `MODEL_PARTS`, and as what transformers knows the model's layers where it does not know its family."""
    from meshwright.frameworks import _exact
    from meshwright.models.readers import huggingface

    twin = _exact.TWINS.get(str(huggingface.said_of(problem.model_spec.spec).get("model_type")), "")
    return f"{MODEL_PARTS}{f', in which model_type is {twin}, whose layers it has' if twin else ''}"


_SYNCHRONISED: Mapping[str, Any] = MappingProxyType({"gradient_accumulation_kwargs": {"sync_each_batch": True}})

NEEDS = (("MODEL", "a folder with the config.json of the model"),)
"""What a launcher's script asks for (`Program.needs`)."""


def script_options(plan: Plan, problem: Problem, *, checkpointing: bool) -> list[str]:
    """Return the options of transformers' training script that a plan decides; `checkpointing`: whether layers recompute.

    The script's own precision has to be that of DeepSpeed's file, which it compares.
    """
    precision = problem.training.precision
    return [
        "--config_name", "MODEL", "--block_size", str(problem.graph.sequence_length),
        "--per_device_train_batch_size", str(plan.micro_batch), "--gradient_accumulation_steps", str(plan.n_microbatches),
        *([f"--{precision}", "True"] if precision in ("bf16", "fp16") else []),
        *(["--gradient_checkpointing", "True"] if checkpointing else []),
    ]  # fmt: skip


def synchronised(plan: Plan, problem: Problem) -> dict[str, Any]:
    """Return the Trainer's ``accelerator_config`` with which FSDP's gradients stay sharded between micro-batches; empty where
    there is one micro-batch, nothing sharded, or a plan priced with whole gradients.
    """
    if plan.n_microbatches == 1 or plan.stages[0].strategy.shard < 2 or problem.framework.whole_gradients:
        return {}
    return dict(_SYNCHRONISED)


def unsynchronised(config: Mapping[str, Any], strategy: Strategy, n_microbatches: int, path: str) -> tuple[str, ...]:
    """Return a warning where FSDP's gradients stand whole between micro-batches, as the Trainer leaves them by default.

    `config`: the Trainer's ``accelerator_config``, empty for none. `n_microbatches`: of a step.

    Raises
    ------
    InputError
        When an entry is of another kind.
    """
    kept = config.get("gradient_accumulation_kwargs") or {}
    if not isinstance(kept, dict) or kept.get("sync_each_batch", False) not in (True, False):
        raise InputError(
            f"{path}: accelerator_config.gradient_accumulation_kwargs is {kept!r}; it must be a table with sync_each_batch "
            "true or false"
        )
    if n_microbatches == 1 or strategy.shard < 2 or kept.get("sync_each_batch"):
        return ()
    return (
        f"{path}: {n_microbatches} micro-batches without sync_each_batch: every device holds whole gradients of all layers "
        f"between them, and is priced so; accelerator_config with {json.dumps(dict(_SYNCHRONISED))} keeps them sharded",
    )


def started(plan: Plan, problem: Problem, *, checkpointing: bool) -> str:
    """Return transformers' training script and its options in shell words; the model's folder is the variable MODEL."""
    words = " ".join(script_options(plan, problem, checkpointing=checkpointing))
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
