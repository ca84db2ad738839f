"""Logs of DeepSpeed: its throughput timer's lines, those of its pipeline engine, memory, the configuration it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.validation._logs.entries import NUMBER, Line, Reading, TimedLine, between, moment, number, say

__all__ = ["reading", "without_timer"]

_TIMER = re.compile(rf"global_step=(\d+), RunningAvgSamplesPerSec=({NUMBER}), CurrSamplesPerSec=({NUMBER})")
_OLD_TIMER = re.compile(rf"\]\s+\d+/(\d+), (?:RunningAvg)?SamplesPerSec=({NUMBER})()")
_STEP = re.compile(r"\] step=(\d+), skipped=")
_BREAKDOWN = re.compile(rf"time \(ms\) \| (?:forward|fwd): ({NUMBER}) \| (?:backward|bwd): ({NUMBER}) \|.*\| step: ({NUMBER})")
_PIPELINE = re.compile(rf"steps: (\d+) loss: \S+ iter time \(s\): ({NUMBER}) samples/sec: ({NUMBER})")
_ALLOCATED = re.compile(rf"MaxMemA\s*llocated=({NUMBER})\s*GB")
_SEEN = re.compile(rf"Max_MA ({NUMBER}) GB .*Max_CA ({NUMBER}) GB")
_SETTING = re.compile(r"config\.py:\d+:print\]\s+(\w+) \.* (.*?)\s*$")  # dots up to 29 characters
_AWAY = re.compile(r"(offload_(?:param|optimizer))['\"]?[=:][^}=]*?device['\"]?[=:]\s*[<'\"]?(?:\w+\.)?(cpu|nvme)")
_OLD_AWAY = re.compile(r"(cpu_offload(?:_params)?)['\"]?[=:]\s*([Tt]rue)")
_BLOCK = re.compile(r"print_user_config\]\s+json = (\{.*)")
_STARTED = re.compile(r"timer\.py:\d+:stop\]")


def reading(lines: Sequence[Line]) -> Reading | None:
    """Return what a log says; None where it has no timed line of DeepSpeed.

    `lines`: of the file, with their numbers.
    """
    found, said = Reading("deepspeed"), dict[str, str]()
    steps: list[tuple[TimedLine, float]] = []
    updates: list[tuple[TimedLine, float]] = []
    old, twice = False, list[str]()
    for row, text in lines:
        if match := _PIPELINE.search(text):
            found.entries.append(TimedLine(row, int(match[1]), number(match[2]), samples_per_second=number(match[3])))
        elif match := _STEP.search(text):
            updates.append((TimedLine(row, int(match[1])), moment(text)))
        elif match := _TIMER.search(text) or _OLD_TIMER.search(text):
            old = not _TIMER.search(text)
            if not steps or steps[-1][0].step != int(match[1]):
                steps.append((TimedLine(row, int(match[1]), samples_per_second=number(match[3] or match[2])), moment(text)))
        elif _STARTED.search(text) and "vm %" not in text:
            found.notes.append(f"line {row}: the timer's line without its rate; left out")
        elif match := _SETTING.search(text):
            say(said, match[1], match[2], row, twice)
        if match := _ALLOCATED.search(text):
            found.allocated_bytes = max(found.allocated_bytes, number(match[1]) * 2.0**30)
        elif match := _SEEN.search(text):
            found.allocated_bytes = max(found.allocated_bytes, number(match[1]) * 2.0**30)
            found.reserved_bytes = max(found.reserved_bytes, number(match[2]) * 2.0**30)
    if not steps and not found.entries:
        return None
    found.notes += twice
    if old and len(updates) > 1:  # the timer of 2020 to 2022 counts micro-batches, these lines steps
        rate = steps[-1][0].samples_per_second
        steps = [(replace(entry, samples_per_second=rate), at) for entry, at in updates]
    found.entries = found.entries or list(between(steps, found.notes)) or [entry for entry, _ in steps]
    _settings(found, said)
    _config(found, said, _block(lines))
    return found


def without_timer(lines: Sequence[Line]) -> Reading | None:
    """Return what a log without the throughput timer says: its lines of every update, or ``wall_clock_breakdown``.

    `lines`: of the file, with their numbers. Returns None where it has neither.
    """
    found = Reading("deepspeed")
    updates: list[tuple[TimedLine, float]] = []
    sums: list[TimedLine] = []
    for row, text in lines:
        if match := _STEP.search(text):
            updates.append((TimedLine(row, int(match[1])), moment(text)))
        elif match := _BREAKDOWN.search(text):
            sums.append(TimedLine(row, len(sums) + 1, sum(number(part) for part in match.groups()) * 1e-3))
    found.entries = list(between(updates, found.notes))
    if not found.entries and sums:
        found.entries = sums
        found.notes.append("seconds are forward, backward and step of the breakdown: waiting for batches is not in them")
    return found if found.entries else None


def _settings(found: Reading, said: dict[str, str]) -> None:
    """Say the plan in the columns of runs of one's own, as far as the printed configuration tells it."""
    for column, name in (("global_batch", "train_batch_size"), ("micro_batch", "train_micro_batch_size_per_gpu")):
        if re.fullmatch(r"\d+", said.get(name, "")):
            found.settings[column] = said[name]
    stage = said.get("zero_optimization_stage", "")
    if stage in ("0", "1", "2", "3"):
        found.settings["shard"] = stage
    elif match := re.search(r"\bstage[\"']?[=:]\s*([0-3])", said.get("zero_config", "")):
        found.settings["shard"] = match[1]
    for name in ("bfloat16_enabled", "bf16_enabled"):
        if said.get(name) == "True":
            found.settings["precision"] = "bf16"
    if said.get("fp16_enabled") == "True":
        found.settings["precision"] = "fp16"
    enabled = [said[name] for name in ("bfloat16_enabled", "bf16_enabled", "fp16_enabled") if name in said]
    if len(enabled) > 1 and set(enabled) == {"False"}:
        found.settings["precision"] = "fp32"
    size = said.get("world_size", "")
    if re.fullmatch(r"[1-9]\d*", size):
        found.settings |= {"devices": size, "data": size, "tensor": "1", "pipeline": "1"}
        if "global_batch" in found.settings:
            found.notes.append("the log does not tell recomputation, nor other degrees than data: none but what the row says")


def _block(lines: Sequence[Line]) -> str:
    """Return the text of the user's file as it was printed last, and what follows before the next line with a moment."""
    found = list[str]()
    for _, text in lines:
        if match := _BLOCK.search(text):
            found = [match[1]]
        elif found and not text.startswith("["):
            found.append(text)
    return "\n".join(found)


def _config(found: Reading, said: Mapping[str, str], block: str) -> None:
    """Refuse what lies on the host, and say what is priced otherwise: by the attributes that are printed, and by the user's own
    file, which stands behind them.

    `block`: that file's text, and what else stands before the next line with a moment.
    """
    for place, text in (("zero_config", said.get("zero_config", "")), ("configuration", block)):
        if away := _AWAY.search(text) or _OLD_AWAY.search(text):
            what = f"{away[1]} lies on {away[2]}" if _AWAY.search(text) else f"{away[1]} is true"
            found.refused = f"{what} by its {place}, which cells of a row cannot say"
    content = _content(block) or _attributes(said)
    if not content:
        return
    from meshwright.frameworks.deepspeed import config

    zero, parallel, kept = (
        _table(content, name) for name in ("zero_optimization", "tensor_parallel", "activation_checkpointing")
    )
    level = int(found.settings.get("shard", "0"))
    other = [what for _, what in config.said_otherwise(content, zero, parallel, kept, level)]
    beside = re.search(r"overlap_comm['\"]?[=:]\s*(True|False)", said.get("zero_config", ""))
    told = {"overlap_comm": beside[1] == "True"} if beside else zero
    if told and config.reduces_late(told, level):
        found.framework = "deepspeed:late_reduce"
        other.append("overlap_comm is off: gradients are reduced late, as deepspeed:late_reduce")
    found.notes += [f"by the configuration in the log {what}" for what in other]


def _content(block: str) -> dict[str, Any]:
    """Return the entries of the first JSON object of a text; none where there is no whole one."""
    try:
        content, _ = json.JSONDecoder().raw_decode(block)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _attributes(said: Mapping[str, str]) -> dict[str, Any]:
    """Return entries of a configuration that printed attributes are, of those that are priced otherwise."""
    found: dict[str, Any] = {"zero_optimization": {}}
    if said.get("grad_accum_dtype", "None") != "None":
        found |= {"data_types": {"grad_accum_dtype": said["grad_accum_dtype"]}, "bf16": {"enabled": True}}
    if said.get("communication_data_type", "None") != "None":
        found["communication_data_type"] = said["communication_data_type"]
    for name, value in re.findall(r"\b(zero_(?:hpz_partition_size|quantized_\w+))=(\d+|True)", said.get("zero_config", "")):
        found["zero_optimization"][name] = True if value == "True" else int(value)
    return found


def _table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a configuration; empty where it has none."""
    value = content.get(name)
    return value if isinstance(value, dict) else {}
