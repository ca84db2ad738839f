"""A plan as Accelerate's configuration file. What belongs to the training script (batches, length of samples) stands in the
launch command, in the file's comments, from where it is read back.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _exact, _one_config

__all__ = ["degrees", "precision_of", "read", "synchronised", "unknown", "write"]

_PRECISIONS: Mapping[str, str] = MappingProxyType({"bf16": "bf16", "fp16": "fp16", "fp32": "no"})

_TOP = (
    "compute_environment", "debug", "distributed_type", "downcast_bf16", "enable_cpu_affinity", "fsdp_config", "machine_rank",
    "main_process_ip", "main_process_port", "main_training_function", "mixed_precision", "num_machines", "num_processes",
    "parallelism_config", "rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_use_cluster", "tpu_use_sudo",
)  # fmt: skip
_FSDP = (
    "fsdp_version", "fsdp_reshard_after_forward", "fsdp_activation_checkpointing", "fsdp_auto_wrap_policy",
    "fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type", "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states",
    "fsdp_offload_params", "fsdp_use_orig_params", "fsdp_forward_prefetch", "fsdp_backward_prefetch",
)  # fmt: skip
_EXCHANGES: Mapping[str, str] = MappingProxyType({"alltoall": "ring", "allgather": "all_gather"})
"""Accelerate's ``cp_comm_strategy``; by all-to-all it passes keys and values on, in a ring."""

_STRATEGIES: Mapping[str, tuple[int, bool]] = MappingProxyType({
    "FULL_SHARD": (3, False), "SHARD_GRAD_OP": (2, False), "NO_SHARD": (0, False), "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True), "1": (3, False), "2": (2, False), "3": (0, False), "4": (3, True), "5": (2, True),
    "TRUE": (3, False), "FALSE": (2, False),
})  # fmt: skip
"""What each ``fsdp_sharding_strategy`` of FSDP 1 shards, and whether over a host's devices only; numbers are older words."""

_SIZES = ("dp_replicate", "dp_shard", "tp", "cp")
_PARALLELISM = (*(f"parallelism_config_{axis}_size" for axis in _SIZES), "parallelism_config_cp_comm_strategy",
                "parallelism_config_cp_backend")  # fmt: skip


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the file of a plan that is not refused, whole or not at all.

    Raises
    ------
    ExportError
        When transformers does not build the model.
    """
    plan, problem = result.plan, result.problem
    fields = _exact.decoder("accelerate", problem)
    nodes, per_node = _exact.launch_sizes("accelerate", result)
    one, words = plan.stages[0].strategy, plan.stages[0].recompute
    shard = one.shard_degree or one.data
    content: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": _PRECISIONS[problem.training.precision],
        "num_machines": nodes,
        "num_processes": nodes * per_node,
        "machine_rank": 0,
        "main_training_function": "main",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": one.shard != 2,
            "fsdp_activation_checkpointing": "full" in words,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": _exact.DECODERS[str(fields["model_type"])][1],
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    sizes = dict(zip(_SIZES, (one.data // shard, shard, one.tensor, one.context), strict=True))
    content["parallelism_config"] = {f"parallelism_config_{axis}_size": size for axis, size in sizes.items()}
    if one.context > 1:
        word = next(word for word, kind in _EXCHANGES.items() if kind == one.context_exchange)
        content["parallelism_config"]["parallelism_config_cp_comm_strategy"] = word
    command = " ".join([*_one_config.script_options(plan, problem, checkpointing=False), *synchronised(plan, problem)])
    where = " --machine_rank N --main_process_ip HOST" if nodes > 1 else ""
    head = [
        f"# {problem.model_spec.name} on {plan.n_devices} devices{_exact.predicted(result)}; for Accelerate 1.15.",
        f"# accelerate launch --config_file {Path(path).name}{where} run_clm.py \\",
        f"#   {command}",
        f"# {_one_config.model_parts(problem)}.",
    ]
    files.write(path, "\n".join(head) + "\n" + yaml.safe_dump(content, sort_keys=False))
    return ()


def synchronised(plan: Plan, problem: Problem) -> list[str]:
    """Return the option of the training script, in shell words, that keeps gradients sharded between micro-batches."""
    kept = _one_config.synchronised(plan, problem)
    return ["--accelerator_config", shlex.quote(json.dumps(kept))] if kept else []


def read(path: str, graph: Graph) -> RunConfig:
    """Return what a file says.

    Raises
    ------
    InputError
        When it is no YAML, an entry is wrong, or entries contradict each other or the model.
    """
    text = _exact.read_text(path)
    content = _exact.yaml_entries(text, path, "Accelerate")
    warnings = unknown(content, text, path)
    strategy, own = degrees(content, path, text)
    said = _one_config.options(text)
    counts = tuple(
        _one_config.arguments(said, name, path, default)
        for name, default in (("--gradient_accumulation_steps", 1), ("--per_device_train_batch_size", 8))
    )
    for name, assumed in (("--per_device_train_batch_size", 8), ("--gradient_accumulation_steps", 1)):
        if name not in said:
            warnings.append(f"{path}: no command in its comments says {name}: transformers' default, {assumed}, is taken")
    full = own or said.get("--gradient_checkpointing") == "True"
    words = _exact.layer_words(graph, "full" if full else "none")
    length = _one_config.arguments(said, "--block_size", path) if "--block_size" in said else 0
    plan = _exact.one_mesh(path, graph, strategy, words, (counts[0], counts[1]))
    whole = _one_config.unsynchronised(_accelerator(said, path), strategy, counts[0], path)
    variant = "+no_sync" if whole else ""
    return RunConfig(plan, precision_of(content, path), length, (*warnings, *whole), variant)


def _accelerator(said: Mapping[str, str], path: str) -> dict[str, Any]:
    """Return the table of the training script's ``--accelerator_config``; empty for none."""
    word = said.get("--accelerator_config", "")
    try:
        content = json.loads(word) if word.lstrip().startswith("{") else None
    except ValueError:
        content = None
    if word and not isinstance(content, dict):
        raise InputError(f"{path}: --accelerator_config is '{word}'; write its table here, in JSON")
    return content or {}


def unknown(content: dict[str, Any], text: str, path: str) -> list[str]:
    """Return a warning for every entry of a file that nothing is known of."""
    fsdp, sizes = (_exact.table(content, name, path) for name in ("fsdp_config", "parallelism_config"))
    first = content.get("distributed_type") == "FSDP" and str(fsdp.get("fsdp_version", 1)) == "1"
    words = (*_FSDP, "fsdp_sharding_strategy", "fsdp_min_num_params") if first else _FSDP
    wrapped, fetched = (str(fsdp.get(f"fsdp_{name}", "")).upper() for name in ("auto_wrap_policy", "backward_prefetch"))
    otherwise = [("fsdp_auto_wrap_policy", "layers are priced as sharded one by one")] * (
        wrapped in ("NO_WRAP", "SIZE_BASED_WRAP")
    )
    otherwise += [("fsdp_backward_prefetch", "weights are priced as gathered ahead")] * (first and fetched == "NO_PREFETCH")
    told = [f"{path}: line {_line(text, key)}: {key} is {fsdp[key]}; {what}" for key, what in otherwise]
    return (
        [f"{path}: PyTorch's first FSDP (fsdp_version 1) is priced as its second, fully_shard"] * first
        + told
        + [
            f"{path}: line {_line(text, key)}: nothing is known of {key}; it is left out"
            for table, known in ((content, _TOP), (fsdp, words), (sizes, _PARALLELISM))
            for key in table
            if key not in known
        ]
    )


def precision_of(content: Mapping[str, Any], path: str) -> str:
    """Return the precision of products that a file says; fp32 where it says none.

    Raises
    ------
    InputError
        When it is none of those that Accelerate has here.
    """
    mixed = str(content.get("mixed_precision", "no")).replace("False", "no")  # YAML reads a bare no as false
    precision = {word: own for own, word in _PRECISIONS.items()}.get(mixed)
    if precision is None:
        raise InputError(f"{path}: mixed_precision is '{mixed}'; it must be {', '.join(_PRECISIONS.values())}")
    return precision


def degrees(content: dict[str, Any], path: str, text: str = "") -> tuple[Strategy, bool]:
    """Return the degrees that a file's entries say, and whether they recompute layers; `text`: the file's, for lines.

    Raises
    ------
    InputError
        When they say another kind of training than FSDP2, an entry is wrong, or entries contradict each other.
    """
    fsdp, sizes = (_exact.table(content, name, path) for name in ("fsdp_config", "parallelism_config"))
    kind, version = content.get("distributed_type"), str(fsdp.get("fsdp_version", 1))
    if kind == "DEEPSPEED":
        raise InputError(
            f"{path}: distributed_type DEEPSPEED: its ZeRO is read from DeepSpeed's own JSON file; write one "
            "(zero_optimization, train_micro_batch_size_per_gpu, gradient_accumulation_steps) and give that"
        )
    if kind != "FSDP":
        raise InputError(
            f"{path}: line {_line(text, 'distributed_type')}: distributed_type is {kind}; only FSDP is read: write it as FSDP"
        )
    if version not in ("1", "2"):
        where = f"line {_line(text, 'fsdp_version')}: fsdp_config.fsdp_version"
        raise InputError(f"{path}: {where} is {version}; it must be 1 or 2: take 2, PyTorch's fully_shard")
    if _flag(fsdp, "fsdp_offload_params", False, path):
        raise _exact.none_on_host("accelerate", path, "fsdp_offload_params is true")
    n_devices = _exact.whole(content, "num_processes", path)
    named = {axis: _exact.whole(sizes, f"parallelism_config_{axis}_size", path, 1) for axis in _SIZES}
    if not sizes:
        named["dp_shard"] = n_devices  # its default: sharded over all
    total = named["dp_replicate"] * named["dp_shard"] * named["tp"] * named["cp"]
    if total != n_devices:
        raise InputError(f"{path}: the sizes of parallelism_config make {total} devices, num_processes says {n_devices}")
    if version == "1":
        return _of_version_1(content, fsdp, n_devices, path), _flag(fsdp, "fsdp_activation_checkpointing", False, path)
    data = named["dp_replicate"] * named["dp_shard"]
    reshard = _flag(fsdp, "fsdp_reshard_after_forward", True, path)
    strategy = Strategy(
        data, named["tp"], named["cp"], 1, False, 0 if data * named["cp"] == 1 else 3 if reshard else 2,
        named["dp_shard"] if named["dp_replicate"] > 1 else 0, _exchange(sizes, path) if named["cp"] > 1 else "ring",
    )  # fmt: skip
    return strategy, _flag(fsdp, "fsdp_activation_checkpointing", False, path)


def _of_version_1(content: dict[str, Any], fsdp: dict[str, Any], n_devices: int, path: str) -> Strategy:
    """Return the degrees of PyTorch's first FSDP, whose file names what is sharded, and over a host's devices or all."""
    if content.get("parallelism_config"):
        raise InputError(f"{path}: parallelism_config is of fsdp_version 2, and the file says 1, which is also its default")
    word = str(fsdp.get("fsdp_sharding_strategy", fsdp.get("fsdp_reshard_after_forward", "FULL_SHARD"))).upper()
    if word not in _STRATEGIES:
        raise InputError(f"{path}: fsdp_sharding_strategy is {word}; it must be {', '.join(sorted(set(_STRATEGIES)))}")
    level, hybrid = _STRATEGIES[word]
    hosts = _exact.whole(content, "num_machines", path, 1)
    if hybrid and n_devices % hosts:
        raise InputError(f"{path}: {word} shards over the devices of a host, and {n_devices} processes lie on {hosts} hosts")
    degree = n_devices // hosts if hybrid and 1 < hosts < n_devices else 0
    return Strategy(n_devices, shard=level if n_devices > 1 else 0, shard_degree=degree)


def _exchange(sizes: dict[str, Any], path: str) -> str:
    """Return how keys and values are exchanged over the context axis; gathered is Accelerate's default."""
    word = sizes.get("parallelism_config_cp_comm_strategy", "allgather")
    if word not in _EXCHANGES:
        raise InputError(f"{path}: parallelism_config_cp_comm_strategy is {word!r}; it must be {', '.join(_EXCHANGES)}")
    return _EXCHANGES[word]


def _flag(table: dict[str, Any], name: str, default: bool, place: str) -> bool:
    value = table.get(name, default)
    if str(value).lower() not in ("true", "false"):
        raise InputError(f"{place}: {name} is {value!r}; it must be true or false")
    return str(value).lower() == "true"


def _line(text: str, key: object) -> int:
    """Return the line that an entry stands in."""
    found = re.search(rf"^\s*['\"]?{re.escape(str(key))}['\"]?\s*:", text, re.M)
    return text.count("\n", 0, found.start() + len(found[0]) - len(found[0].lstrip())) + 1 if found else 1
