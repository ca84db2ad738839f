"""Megatron-LM's arguments of a plan, as a shell script that starts ``pretrain_gpt.py`` with torchrun on every node."""

from __future__ import annotations

import shlex

from meshwright.base import files
from meshwright.core.result import Result
from meshwright.frameworks import _exact
from meshwright.frameworks.megatron import model as _megatron_model
from meshwright.frameworks.megatron import options as _options

__all__ = ["arguments", "write"]

Options = tuple[tuple[str, ...], ...]


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the script, whole or not at all.

    `result`: a plan of a language model. Returns what of the model's configuration the script leaves out.
    Raises `ExportError` when Megatron-LM cannot run the plan exactly, or has no options for the architecture.
    """
    options = arguments(result)
    spec = result.problem.model_spec
    model, notes = _megatron_model.arguments(spec.spec, spec.graph)
    if any(entry[0] == "--moe-token-dispatcher-type" for entry in model):
        sent = _options.dispatch(result.problem, result.plan)
        model = tuple(more for entry in model for more in (sent if entry[0] == "--moe-token-dispatcher-type" else [entry]))
    notes += _not_said(result)
    files.write(path, _script(result, model, options, notes))
    return notes


def _not_said(result: Result) -> tuple[str, ...]:
    """Return what a plan is priced with and options of several releases say differently."""
    variants = _options.framework_of(result.problem).variants
    told = {
        "experts_captured": "the step is priced with captured graphs: add --cuda-graph-impl as your release has it",
        "experts_drop": "the step is priced with a fixed capacity of experts: add --moe-expert-capacity-factor",
    }
    return tuple(told[variant] for variant in variants if variant in told)


def arguments(result: Result) -> Options:
    """Return the options that say how a plan is parallelised, each with its values.

    Raises
    ------
    ExportError
        When Megatron-LM cannot run the plan exactly.
    """
    return tuple(_options.arguments(result))


def _script(
    result: Result, model: tuple[tuple[str, ...], ...], options: tuple[tuple[str, ...], ...], notes: tuple[str, ...]
) -> str:
    """Return the script."""
    n_devices = result.plan.n_devices
    nodes, per_node = _exact.launch_sizes("megatron", result)
    step = "" if result.timeline is None else f", {result.timeline.step_seconds:.4g} s a step predicted"

    def block(name: str, entries: tuple[tuple[str, ...], ...]) -> list[str]:
        return [f"{name}=(", *(f"  {shlex.join(entry)}" for entry in entries), ")"]

    lines = [
        "#!/bin/bash",
        f"# {result.problem.model_spec.name} on {n_devices} devices, search {result.search}{step}; run in Megatron-LM's folder "
        "on every",
        "# node, with NODE_RANK and MASTER_ADDR set; data, tokenizer and learning rate come as arguments of this script.",
        *(f"# {note}" for note in notes),
        "set -eu",
        *block("LAUNCH", (
            ("--nnodes", str(nodes)),
            ("--nproc-per-node", str(per_node)),
        )),
        *block("MODEL", (*model, ("--transformer-impl", "transformer_engine"))),
        *block("PARALLEL", options),
        'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'
        if ("--use-megatron-fsdp",) not in options
        else "unset CUDA_DEVICE_MAX_CONNECTIONS",
        'exec torchrun "${LAUNCH[@]}" --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        '  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py "${MODEL[@]}" "${PARALLEL[@]}" "$@"',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
