"""Logs of Megatron-LM, and of Megatron-DeepSpeed: iteration lines, memory lines, the arguments printed at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, number, say

__all__ = ["reading"]

_ITERATION = re.compile(r"iteration[:= ]\s*(\d+)\s*/\s*\d+\s*\|(.*)")
_ARGUMENT = re.compile(r"(?:^|[\s:\]])(\w+) \.{2,} ?(.*?)\s*$")  # launchers write ranks, hosts and moments before it
_MEMORY = re.compile(r"memory \((MB|GB)\) \|(.*)")

_LENGTHS = (("ms", 1e-3), ("s", 1.0))  # units, and their length in seconds


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no iteration line of Megatron-LM.

    `lines`: of the file, with their numbers.
    """
    found, arguments, inside = Reading("megatron"), dict[str, str](), False
    start, before, twice = 0, dict[str, str](), list[str]()
    for row, text in lines:
        if "- end of arguments -" in text:
            inside = False
            if found.entries and before and _options(before) != _options(arguments):
                found.begun.append(start)
        elif re.search(r"-{5,} arguments -{5,}", text):
            inside, start, before, arguments = True, row, arguments, {}
        elif inside and (match := _ARGUMENT.search(text)):
            say(arguments, match[1], match[2], row, twice)
        elif match := _ITERATION.search(text):
            _iteration(found, row, int(match[1]), match[2])
        elif match := _MEMORY.search(text):
            _memory(found, match[1], match[2])
    if not found.entries and not found.notes:
        return None
    found.notes += twice
    if arguments:
        if arguments.get("deepspeed") == "True":
            found.framework = "megatron_deepspeed"
        found.options = _options(arguments)
        found.denied = tuple(f"--{name.replace('_', '-')}" for name, value in arguments.items() if value == "False")
        if re.fullmatch(r"\d+", arguments.get("world_size", "")):
            found.settings["devices"] = arguments["world_size"]
    return found


def _iteration(found: Reading, row: int, step: int, text: str) -> None:
    """Add what a line of one or more iterations says."""
    cells = {}
    for cell in text.split("|"):
        name, _, value = cell.replace("=", ":").partition(":")
        cells[re.sub(r"[\s_]+", " ", name).strip().lower()] = value.strip()
    seconds = 0.0
    for unit, length in _LENGTHS:
        for name in (f"elapsed time per iteration ({unit})", f"elapsed time per iteration {unit}"):
            seconds = number(cells[name]) * length if name in cells else seconds
    if not 0.0 < seconds < float("inf"):
        found.notes.append(f"line {row}: iteration {step} tells no time above 0; left out")
        return
    if found.entries and found.entries[-1].step == step:
        return  # another rank's line of the same iteration
    batch = number(cells.get("global batch size", cells.get("gloabl batch size", "0")))
    flops = next((number(cells[name]) for name in ("throughput per gpu (tflop/s/gpu)", "tflops") if name in cells), 0.0)
    rate = number(cells.get("samples per second", "0"))
    found.entries.append(
        TimedLine(row, step, seconds, int(batch) if batch >= 1.0 else 0, rate if rate > 0.0 else 0.0,
              device_flops_per_second=flops * 1e12 if flops > 0.0 else 0.0)
    )  # fmt: skip


def _memory(found: Reading, unit: str, text: str) -> None:
    """Take the largest memory of a report: MB of 2**20 bytes (``report_memory``), or GB of 10**9 (Megatron Bridge)."""
    scale = 2.0**20 if unit == "MB" else 1e9
    for name, value in re.findall(rf"([\w -]+?): *({NUMBER})", text):
        key = name.strip()
        if key in ("max allocated", "mem-max-allocated-gigabytes"):
            found.allocated_bytes = max(found.allocated_bytes, number(value) * scale)
        elif key in ("max reserved", "mem-max-reserved-gigabytes"):
            found.reserved_bytes = max(found.reserved_bytes, number(value) * scale)


_RENAMED: Mapping[str, str] = MappingProxyType({
    "fp8": "--fp8-format", "fp4": "--fp4-format",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank", "use_custom_fsdp": "--use-megatron-fsdp",
})  # fmt: skip
"""Arguments whose name is not that of their option."""


_NUMBERS: Mapping[str, str] = MappingProxyType(
    {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
)
"""Types of PyTorch's, as the parser makes them of what its options say."""


def _options(arguments: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the options that printed arguments stand for."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in arguments.items():
        if value in ("None", "False", ""):
            continue
        value = value.removeprefix("AttnBackend.")
        value = _NUMBERS.get(value, value)
        option = _RENAMED.get(name, f"--{name.replace('_', '-')}")
        words = re.findall(r"[^\s,'\"\[\]]+", value) if value.startswith("[") else [value]
        words = ["".join(value.split())] if value.startswith("(") else words
        found[option] = () if value == "True" else tuple(words)
    if arguments.get("checkpoint_activations") == "True":  # Megatron-DeepSpeed
        found |= {"--recompute-granularity": ("full",), "--recompute-method": ("uniform",), "--recompute-num-layers": ("1",)}
    if arguments.get("add_bias_linear") == "False":
        found["--disable-bias-linear"] = ()
    if arguments.get("deepspeed") == "True" and arguments.get("zero_stage", "0") != "0":
        found["--use-distributed-optimizer"] = ()
    return found
