"""A plan as DeepSpeed's configuration: JSON, alone or inside the shell script that starts it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _exact, _one_config, _optimizers

__all__ = ["check", "read", "reduces_late", "said_otherwise", "write"]

_KNOWN = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16", "fp16", "zero_optimization",
    "tensor_parallel", "activation_checkpointing", "sequence_parallel_size", "data_types",
)  # fmt: skip
_WITHOUT_EFFECT = (
    "optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "dump_state",
    "prescale_gradients",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "gradient_predivide_factor", "dataloader_drop_last",
    "memory_breakdown", "disable_python_gc", "log_level", "seed", "vocabulary_size", "tensorboard", "wandb", "csv_monitor",
    "flops_profiler", "comms_logger", "checkpoint",
)  # fmt: skip
_UNPRICED: Mapping[str, str] = MappingProxyType({
    "zero_hpz_partition_size": "weights are priced as gathered from all data ranks in both passes",
    "zero_quantized_weights": "weights are priced as gathered without it",
    "zero_quantized_nontrainable_weights": "weights are priced as gathered without it",
    "zero_quantized_gradients": "gradients are priced as reduced without it", "compression_training": "it is priced without it",
    "zenflow": "the update is priced as ZeRO's own", "torch_autocast": "products are priced in what bf16 and fp16 say",
    "amp": "products are priced in what bf16 and fp16 say", "communication_data_type": "gradients are priced as without it",
    "sparse_attention": "attention is priced as dense", "progressive_layer_drop": "all layers are priced",
    "elasticity": "the batch is priced as the file has it",
})  # fmt: skip
"""What DeepSpeed has and changes what a step takes, and how it is priced."""

_ZERO = (
    "stage", "overlap_comm", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size",
    "allgather_bucket_size", "allgather_partitions", "round_robin_gradients", "sub_group_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save", "elastic_checkpoint", "ignore_unused_parameters", "override_module_apply",
    "log_trace_cache_warnings", "enable_sanity_checks",
)  # fmt: skip


_USUAL: Mapping[str, float] = MappingProxyType({
    "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5, "stage3_max_live_parameters": 1e9,
    "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8,
})  # fmt: skip
"""Defaults of deepspeed/runtime/zero/config.py."""

_HOSTS = ("offload_optimizer", "offload_param")


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the configuration of a plan that is not refused, whole or not at all; returns how to start it.

    Raises
    ------
    ExportError
        When transformers does not build the model.
    """
    plan, problem = result.plan, result.problem
    _exact.decoder("deepspeed", problem)
    nodes, per_node = _exact.launch_sizes("deepspeed", result)
    full = "full" in plan.stages[0].recompute
    text = json.dumps(_content(result), indent=2)
    script = path.endswith(".sh")
    name = f"{Path(path).stem}.json" if script else Path(path).name
    options = " ".join(_one_config.script_options(plan, problem, checkpointing=full))
    hosts = " --hostfile hostfile" if nodes > 1 else ""
    command = f"deepspeed --num_nodes {nodes} --num_gpus {per_node}{hosts} run_clm.py --deepspeed {name} {options}"
    if not script:
        files.write(path, text + "\n")
        return (f"start it with: {command} ({_one_config.model_parts(problem)})", *_one_config.of_so_many(result))
    head = f"# {problem.model_spec.name} on {plan.n_devices} devices{_exact.predicted(result)}; for DeepSpeed 0.19."
    lines = [
        "#!/bin/bash", head, f"# {_one_config.model_parts(problem)}; its other options come as arguments of this script.",
        "set -eu",
        f"cat > {name} <<'JSON'", text, "JSON", f'exec {command} "$@"',
    ]  # fmt: skip
    files.write(path, "\n".join(lines) + "\n")
    return ()


def _content(result: Result) -> dict[str, Any]:
    """Return the configuration."""
    plan, one = result.plan, result.plan.stages[0].strategy
    own = result.problem.framework
    beside = own.name != "deepspeed" or own.overlaps_reduce
    zero: dict[str, Any] = {"stage": one.shard, "overlap_comm": beside, "contiguous_gradients": True, "reduce_scatter": True}
    content: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.n_microbatches,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    precision = result.problem.training.precision
    if precision != "fp32":
        content[precision] = {"enabled": True}
    if one.tensor > 1:
        content["tensor_parallel"] = {"autotp_size": one.tensor}
    content |= _optimizers.to_deepspeed(result.problem.training.optimizer)
    if "full" in plan.stages[0].recompute:
        content["activation_checkpointing"] = {"number_checkpoints": len(plan.stages[0].ops) - 2}
    return content


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a configuration, or a launcher with one in it, says.

    `n_devices`: how many there are, where train_batch_size does not say.

    Raises
    ------
    InputError
        When it is no JSON, an entry is wrong, or entries contradict each other or the model.
    """
    text = _exact.read_text(path)
    inside = re.search(r"<<-?'?JSON'?\n(.*?)\nJSON\n", text, re.S)
    said = _one_config.options(text) if inside else {}
    body = inside[1] if inside else text
    first = text.count("\n", 0, inside.start(1)) if inside else 0
    try:
        content, repeated = files.load_json(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON: {error}") from None
    if repeated or not isinstance(content, dict):
        raise InputError(f"{path}: {repeated or 'is no configuration of DeepSpeed: it holds no entries'}")
    zero, parallel, kept = (
        _exact.table(content, key, path) for key in ("zero_optimization", "tensor_parallel", "activation_checkpointing")
    )
    offloaded = [key for key in _HOSTS if _exact.table(zero, key, path).get("device", "none") != "none"]
    if offloaded:
        raise _exact.none_on_host("deepspeed", path, f"zero_optimization.{offloaded[0]}")
    if (ranks := _exact.whole(content, "sequence_parallel_size", path, 1)) > 1:
        raise InputError(f"{path}: sequence_parallel_size is {ranks}; plans of it have no such axis: only 1 is read")
    level, tensor = _exact.whole(zero, "stage", path, least=0) if zero else 0, _exact.whole(parallel, "autotp_size", path, 1)
    check(zero, path)
    warnings = [
        f"{path}: line {first + _line(body, key)}: {what}" for key, what in said_otherwise(content, zero, parallel, kept, level)
    ]
    micro, count, data = _batches(content, path, n_devices, tensor)
    if level > 3:
        line = first + _line(body, "stage")
        raise InputError(f"{path}: line {line}: zero_optimization.stage is {level}; it must be 0 to 3: take 3 to shard all")
    strategy = Strategy(data, tensor, 1, 1, False, level if data > 1 else 0)
    if n_devices and strategy.n_devices != n_devices:
        raise InputError(f"{path}: its batch sizes and autotp_size make {strategy.n_devices} devices; there are {n_devices}")
    full = bool(kept.get("number_checkpoints")) or said.get("--gradient_checkpointing") == "True"
    if not full and not inside:
        warnings.append(f"{path}: does not say whether the model recomputes layers (number_checkpoints): none is assumed")
    said_of = {word: _exact.table(content, word, path).get("enabled") for word in ("bf16", "fp16")}
    chosen = [word for word, enabled in said_of.items() if enabled in (True,)]
    if not chosen and (left := [word for word, enabled in said_of.items() if enabled == "auto"]):
        chosen = left[:1]
        warnings.append(f"{path}: {' and '.join(left)}: auto: the training script's own options decide; {chosen[0]} is assumed")
    warnings += _assumed(content, micro, count, path)
    if len(chosen) > 1:
        raise InputError(f"{path}: bf16 and fp16 are both enabled; keep one")
    words = _exact.layer_words(graph, "full" if full else "none")
    plan = _exact.one_mesh(path, graph, strategy, words, (count, micro))
    length = _one_config.arguments(said, "--block_size", path) if "--block_size" in said else 0
    precision = chosen[0] if chosen else "fp32"
    optimizer, notes = _optimizers.of_deepspeed(content, path)
    variant = "late_reduce" if strategy.data > 1 and reduces_late(zero, level) else ""
    held = _optimizers.held(precision, optimizer)
    return RunConfig(plan, precision, length, (*warnings, *notes), variant, training=held)


def check(zero: Mapping[str, Any], place: str) -> None:
    """Refuse switches and sizes of ``zero_optimization`` that are none; ``auto`` is DeepSpeed's own default.

    `zero`: its entries. `place`: where they stand, for messages.

    Raises
    ------
    InputError
        When a value is of another kind.
    """
    for name in ("overlap_comm", "reduce_scatter"):
        if (value := zero.get(name)) not in (None, "auto", True, False):  # 1 and 0 too, as DeepSpeed takes them
            raise InputError(f"{place}: zero_optimization.{name} is {value!r}; it must be true or false")
    for name in _USUAL:
        value = zero.get(name, "auto")
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise InputError(f"{place}: zero_optimization.{name} is {value!r}; it must be a number from 0 on")


def reduces_late(zero: Mapping[str, Any], level: int) -> bool:
    """Return whether buckets of gradients wait for the stream that computes, as ``late_reduce`` prices it [1]_.

    `zero`: the entries of ``zero_optimization``. `level`: its stage, 0 for none.

    References
    ----------
    .. [1] deepspeed/runtime/zero/config.py, overlap_comm_valid: on by default with ZeRO-3 only.
    """
    return level in (1, 2) and zero.get("overlap_comm") != 1  # as true is


def said_otherwise(
    content: Mapping[str, Any], zero: Mapping[str, Any], parallel: Mapping[str, Any], kept: Mapping[str, Any], level: int
) -> list[tuple[str, str]]:
    """Return entries that are priced otherwise than they say, and those of which nothing is known, with what is to be told.

    `content`, `zero`, `parallel`, `kept`: the whole configuration, its ``zero_optimization``, ``tensor_parallel`` and
    ``activation_checkpointing``. `level`: the stage of ZeRO.
    """
    known = ((content, (*_KNOWN, *_WITHOUT_EFFECT)), (zero, (*_ZERO, *_HOSTS)), (parallel, ("autotp_size",)))
    found = []
    for table, names in known:
        for key, value in table.items():
            if key in _UNPRICED and (value is True or value not in (False, None, 1)):
                found.append((key, f"{key}: {_UNPRICED[key]}"))
            elif key not in names and key not in _UNPRICED:
                found.append((key, f"nothing is known of {key}; it is left out"))
    return [*found, *((key, f"{key}: {what}") for key, what in _otherwise(content, zero, kept, level))]


def _otherwise(
    content: Mapping[str, Any], zero: Mapping[str, Any], kept: Mapping[str, Any], level: int
) -> Iterator[tuple[str, str]]:
    """Yield entries with a value that changes what a step takes, and how it is priced."""
    kept_in = _exact.table(content, "data_types", "").get("grad_accum_dtype")
    if level and kept_in in ("fp32", "float32") and _exact.table(content, "bf16", "").get("enabled"):
        yield "grad_accum_dtype", "gradients are priced in two bytes, as DeepSpeed accumulates them by default"
    if zero.get("overlap_comm") in (False,) and level == 3:
        yield "overlap_comm", "collectives are priced as overlap_comm true runs them"
    if zero.get("reduce_scatter") is False and level in (1, 2):
        yield "reduce_scatter", "gradients are priced as scattered, not reduced whole"
    for key in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters"):
        if level == 3 and zero.get(key, "auto") not in ("auto", _USUAL[key]):
            yield key, f"weights are priced as gathered with DeepSpeed's own {_USUAL[key]:g}"
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        if level and zero.get(key, "auto") not in ("auto", _USUAL[key]):
            yield key, f"its buffer is priced with DeepSpeed's own {_USUAL[key]:g} elements"
    for key in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if _exact.table(content, "bf16", "").get(key) is True:
            yield key, "masters, gradients and moments are priced in four bytes"
    for key, what in (("cpu_checkpointing", "on the device"), ("partition_activations", "whole on every rank")):
        if kept.get(key) is True:
            yield key, f"what recomputation keeps is priced {what}"


def _batches(content: dict[str, Any], path: str, n_devices: int, tensor: int) -> tuple[int, int, int]:
    """Return samples of a micro-batch, micro-batches, and data ranks: what is not said follows from the rest."""
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    micro, count, total = (None if content.get(n, "auto") == "auto" else _exact.whole(content, n, path) for n in names)
    data = n_devices // tensor if n_devices else 0
    if not data:
        if not (micro and total):
            raise InputError(f"{path}: {names[0]} and {names[2]} do not both say a number; say on which cluster it runs")
        data = total // (micro * (count or 1))
    if micro is None:
        micro = total // (data * (count or 1)) if total else 1
    if count is None:
        count = total // (data * micro) if total else 1
    if not data or total not in (None, micro * count * data) or not micro or not count:
        made = (total or 0) // (micro * count) * tensor if micro and count and not (total or 0) % (micro * count) else 0
        hint = f"; it is that of {made} devices: give a cluster of so many" if made else ""
        what = f"{micro} samples x {count} micro-batches x {data} data ranks"
        raise InputError(f"{path}: train_batch_size {total} is not {what}{hint}")
    return micro, count, data


def _assumed(content: dict[str, Any], micro: int, count: int, path: str) -> list[str]:
    """Return what is taken of the batch where neither a number nor the rest of the file says it."""
    if content.get("train_batch_size", "auto") != "auto":
        return []
    names = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": count}
    open_ = [name for name in names if content.get(name, "auto") == "auto"]
    return [f"{path}: {name} is left to the training script's own options; {names[name]} is assumed" for name in open_]


def _line(text: str, key: str) -> int:
    """Return the line that an entry stands in."""
    place = text.find(json.dumps(key))
    return text.count("\n", 0, max(place, 0)) + 1
