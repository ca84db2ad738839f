"""Logs of torchtitan: step lines, the device mesh, batch and length of samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, between, moment, number

__all__ = ["reading"]

_STEP = re.compile(rf"step:\s*(\d+)\s+loss:.*?memory:\s*({NUMBER})GiB\(.*?(?:tps|wps):\s*({NUMBER})")
_RANK = re.compile(r"^\s*\[(?:rank|default)(\d+)\]")
_STARTED = re.compile(r"step:\s*(\d+)\s+loss:")
_FLOPS = re.compile(rf"tflops:\s*({NUMBER})")
_MESH = re.compile(r"Building device mesh with parallelism: (.*)")
_OLD_MESH = re.compile(r"Building \d-D device mesh with \[([^\]]*)\], \[([^\]]*)\]")
_TRAINER = re.compile(
    r"Trainer (?:is )?initialized with local batch size (\d+), global batch size (\d+),"
    r" gradient.accumulation.steps:? (\d+), sequence length (\d+)"
)
_CHECKPOINTING = re.compile(r"Applied (selective|full|SelectiveAC|FullAC)\b.*activation checkpointing", re.I)

_STARTS = re.compile(
    r"Training starts at step \d+, with local batch size (\d+), global batch size (\d+), sequence length (\d+)"
)
_EIGHT_BITS = (("mxfp8", re.compile(r"Swapped to MXLinear|MXFP8 training active")),
               ("fp8", re.compile(r"[Ff]loat8 [\w ]*training active|Swapped to \w*Float8Linear")))  # fmt: skip
_COMPILED = re.compile(r"torch\.compile")
_APPLIED = re.compile(r"Applied (FSDP|HSDP|DDP|fully_shard)|Applied \w* ?activation checkpointing", re.I)
_AWAY = re.compile(r"Applied CPU Offloading to the model", re.I)
_ASYNC = re.compile(r"Async TP is enabled|Applied [\w ]*Async Tensor Parallelism", re.I)

_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no step line of torchtitan.

    `lines`: of the file, with their numbers.
    """
    found = Reading("torchtitan")
    steps: list[tuple[TimedLine, float]] = []
    sizes: dict[str, int] = {}
    batch, checkpointing, first = (0, 0, 0), "", ""
    how: set[str] = set()
    for row, text in lines:
        rank = found_rank[1] if (found_rank := _RANK.match(text)) else ""
        if match := _STEP.search(text):
            flops = _FLOPS.search(text)
            entry = TimedLine(
                row, int(match[1]), device_tokens_per_second=number(match[3]),
                device_flops_per_second=number(flops[1]) * 1e12 if flops else 0.0,
            )  # fmt: skip
            first = first if steps else rank
            if rank == first and (not steps or steps[-1][0].step != entry.step):  # else another rank's line of the same step
                steps.append((entry, moment(text)))
            found.reserved_bytes = max(found.reserved_bytes, number(match[2]) * 2.0**30)
        elif _STARTED.search(text):
            found.notes.append(f"line {row}: the line of a step without its memory or rate; left out")
        elif match := _TRAINER.search(text) or _STARTS.search(text):
            numbers = [int(number) for number in match.groups()]
            batch = numbers[0], numbers[1], numbers[-1]
        elif own := _mesh(text):
            if steps and sizes and own != sizes:
                found.begun.append(row)
            sizes = own
        elif match := _CHECKPOINTING.search(text):
            checkpointing = match[1].lower()
        elif _AWAY.search(text):
            found.refused = (
                f"weights, gradients and optimizer state lie on the host by line {row}, which cells of a row cannot say"
            )
        how |= _how(text)
    if not steps and not found.notes:
        return None
    found.entries = list(between(steps, found.notes)) or [entry for entry, _ in steps]
    _settings(found, sizes, batch, checkpointing)
    _program(found, how | ({"applied"} if checkpointing else set()))
    return found


def _how(text: str) -> set[str]:
    """Return what a line says of how the program runs: 8-bit products, blocks compiled or sharded, an async tensor axis."""
    found = {word for word, line in _EIGHT_BITS if line.search(text)}
    others = (("compiled", _COMPILED), ("async_tensor", _ASYNC), ("applied", _APPLIED))
    return found | {word for word, line in others if line.search(text)}


def _program(found: Reading, how: set[str]) -> None:
    """Say precision and variant; ``applied``: the log has the lines between which blocks are compiled."""
    precisions = [word for word, _ in _EIGHT_BITS if word in how]
    if precisions:
        found.settings["precision"] = precisions[0]
    if "async_tensor" in how:
        found.framework = "torchtitan:async_tensor"
    elif "applied" in how and "compiled" not in how:
        found.framework = "torchtitan:eager"
        found.notes.append("no line says that blocks are compiled: torchtitan:eager is assumed")


def _mesh(text: str) -> dict[str, int]:
    """Return the degrees by axis where a line tells the device mesh."""
    if match := _MESH.search(text):
        return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", match[1])}
    if match := _OLD_MESH.search(text):
        return dict(zip(re.findall(r"\w+", match[1]), map(int, re.findall(r"\d+", match[2])), strict=False))
    return {}


def _settings(found: Reading, sizes: dict[str, int], batch: tuple[int, int, int], checkpointing: str) -> None:
    """Say the plan in the columns of runs of one's own, as far as the log tells it."""
    local, whole, length = batch
    if whole:
        found.settings |= {"global_batch": str(whole), "sequence_length": str(length)}
    if not sizes:
        return
    ranks, replicas, shards, context, tensor, expert = (sizes.get(name, 1) for name in _AXES)
    data = replicas * shards
    sharded = shards * context > 1
    found.settings |= {
        "devices": str(data * context * tensor * ranks), "data": str(data), "context": str(context), "tensor": str(tensor),
        "pipeline": str(ranks), "expert": str(expert), "shard": str((2 if ranks > 1 else 3) if sharded else 0),
        "recompute": {"": "none", "full": "full", "fullac": "full"}.get(checkpointing, "every_second_product"),
    }  # fmt: skip
    if replicas > 1 and shards > 1:
        found.settings["shard_degree"] = str(shards)
    if local:
        found.settings["micro_batch"] = str(local if ranks == 1 else 1)
    if ranks > 1:
        found.notes.append("the log does not tell schedule and micro-batch of the pipeline: 1F1B of 1 sample is assumed")
    if checkpointing.startswith("selective"):
        found.notes.append("selective activation checkpointing is read as that of every second product, torchtitan's default")
