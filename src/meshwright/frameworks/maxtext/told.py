"""The plan that a configuration of MaxText says; what it leaves open is as in ``base.yml``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import ExportError, InputError
from meshwright.core.graph import Graph
from meshwright.core.launch import hosts_of
from meshwright.core.problem import Problem
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _exact
from meshwright.frameworks.maxtext import command
from meshwright.frameworks.maxtext.config import REMAT, known

__all__ = ["content_of", "on_devices", "read"]

_EXCHANGES: Mapping[str, str] = MappingProxyType({"ring": "ring", "all_gather": "all_gather", "ulysses": "all_to_all"})
_AXES = ("data", "fsdp", "context", "tensor", "tensor_sequence", "expert")
_OTHERS = (
    "diloco", "fsdp_transpose", "sequence", "context_usp_ulysses", "context_autoregressive", "tensor_transpose", "pipeline",
    "autoregressive",
)  # fmt: skip


_UNPRICED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType({
    "opt_type": (("adamw", "adam_pax"), "the state of AdamW in fp32 is priced"),
    "mu_dtype": (("", "float32"), "moments are priced in four bytes"),
    "weight_dtype": (("", "float32"), "masters are priced in four bytes"),
    "grad_dtype": (("", "float32"), "gradients are priced in four bytes"),
    "num_vocab_tiling": ((1,), "logits are priced as held whole"),
})  # fmt: skip
"""Entries that change what a step takes: values that do not, and how others are priced."""


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a configuration says.

    `n_devices`: how many there are, where an axis is -1, the rest.

    Raises
    ------
    InputError
        When it is no YAML, an entry is wrong, or entries contradict each other or the model.
    """
    content, lines, warnings = content_of(path)
    facts = known()
    _check_layers(content, facts["models"], graph, path)
    warnings += [
        f"{path}: line {lines.get(str(key), 1)}: nothing is known of {key}; it is left out"
        for key in content
        if key not in facts["fields"]
    ]
    for name in ("optimizer_memory_host_offload", "parameter_memory_host_offload"):
        if content.get(name):
            raise _exact.none_on_host("maxtext", path, name)
    strategy = _strategy(content, path, n_devices)
    if n_devices and strategy.n_devices > n_devices:
        raise InputError(f"{path}: its axes make {strategy.n_devices} devices; there are {n_devices}")
    micro = _micro_batch(content, strategy, path)
    count = _exact.whole(content, "gradient_accumulation_steps", path, 1)
    policy = str(content.get("remat_policy", "full"))
    word = {**{name: word for word, name in REMAT.items()}, "minimal": "none", "minimal_flash": "none"}.get(policy)
    if word is None:
        raise InputError(f"{path}: remat_policy is {policy}; it must be minimal_with_context, minimal, full")
    experts = any(operator.expert for op in graph.ops for operator in op.body)
    warnings += _assumed(content, strategy, policy, path, experts=experts)
    warnings += [f"{path}: line {lines.get(key, 1)}: {what}" for key, what in _otherwise(content)]
    plan = _exact.one_mesh(path, graph, strategy, _exact.layer_words(graph, word), (count, micro))
    length = _exact.whole(content, "max_target_length", path, 2048)
    variant = "context" if strategy.context > 1 else ""
    attention = "unfused" if content.get("attention") == "dot_product" else ""
    return RunConfig(plan, _precision(content, path), length, tuple(warnings), variant, attention=attention)


def content_of(path: str) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """Return the entries of a file, or those that a script sets, the line of each, and warnings."""
    text = _exact.read_text(path)
    if command.is_script(text):
        content, lines, warnings = command.entries(text, path)
        return content, lines, list(warnings)
    content = _exact.yaml_entries(text, path, "MaxText")
    return content, {str(key): _line(text, str(key)) for key in content}, []


def _check_layers(content: dict[str, Any], models: dict[str, str], graph: Graph, path: str) -> None:
    """Raise `InputError` where the file is of a model with other layers."""
    ahead = sum(op.name.startswith("mtp.") for op in graph.ops)
    own, name = len(graph.ops) - 2 - ahead, content.get("model_name", "default")
    told = next((int(key.split()[1]) for key, word in models.items() if word == name), 0)
    if (name == "default" or content.get("override_model_config") is True) and "base_num_decoder_layers" in content:
        told = _exact.whole(content, "base_num_decoder_layers", path)
    if told and told != own:
        what = "base_num_decoder_layers is" if "base_num_decoder_layers" in content else f"model_name {name} has"
        raise InputError(f"{path}: {what} {told}, but {graph.name} has {own} layers: another model?")


def on_devices(said: RunConfig, problem: Problem, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what MaxText refuses, and what is to be said, of axes that do not fill hosts with GPUs, which are its slices."""
    cluster = problem.cluster
    tpus = cluster is not None and any(kind.name.lower().startswith("tpu") for kind in cluster.kinds)
    try:
        hosts = None if cluster is None or tpus or cluster.devices_per_host else hosts_of(said.plan, cluster)
    except ExportError as error:
        return (str(error),), ()
    content = content_of(path)[0]
    sizes = {name: size for name, size in _sizes(content, path, said.plan.n_devices).items() if name.startswith("ici")}
    inside = math.prod(sizes.values())
    if hosts is None or len(hosts.devices) == 1 or inside == hosts.per_host:
        return (), ()
    reason = (
        f"axes inside slices (ici_) of {inside} devices, where every host with {hosts.per_host} GPUs is a slice: "
        "what goes over hosts are the axes called dcn_"
    )
    if -1 in [content.get(name, -1 if "fsdp" in name else 1) for name in sizes]:  # it then works out others, and does not stop
        return (), (f"{path}: is read with {reason}",)
    return (reason,), ()


def _sizes(content: dict[str, Any], path: str, n_devices: int) -> dict[str, int]:
    """Return the sizes of all axes inside slices (``ici``) and over them (``dcn``), those that are -1 worked out."""
    for axis in _OTHERS:
        for place in ("ici", "dcn"):
            name = f"{place}_{axis}_parallelism"
            if content.get(name, 1) != 1:
                raise InputError(f"{path}: {name} is {content[name]}; plans of it have no such axis: only 1 is read")
    usual = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
    names = [f"{place}_{axis}_parallelism" for axis in _AXES for place in ("ici", "dcn")]
    stated = {name: content.get(name, usual.get(name, 1)) for name in names}
    sizes = {name: 1 if size == -1 else _exact.whole(stated, name, path) for name, size in stated.items()}
    left = [name for name, size in stated.items() if size == -1]
    inside = [name for name in left if name.startswith("ici")] or left  # one slice: nothing is left for the axes over slices
    fixed = math.prod(sizes.values())
    if len(inside) > 1 or (inside and n_devices % fixed):
        raise InputError(f"{path}: {' and '.join(inside)}: -1, and the other axes make {fixed} of {n_devices} devices")
    if inside and inside[0].startswith("ici") and not n_devices:
        raise InputError(f"{path}: {inside[0]} is -1, the rest; say on which cluster it runs, or the degree")
    return sizes | ({inside[0]: n_devices // fixed} if inside and n_devices else {})


def _strategy(content: dict[str, Any], path: str, n_devices: int) -> Strategy:
    """Return the degrees of the mesh."""
    sizes = _sizes(content, path, n_devices)
    split = [axis for axis in _AXES if sizes[f"ici_{axis}_parallelism"] > 1]  # inside slices, the slowest first
    over = [axis for axis in _AXES if sizes[f"dcn_{axis}_parallelism"] > 1]
    if wrong := [axis for axis in over if split and _AXES.index(axis) > _AXES.index(split[0])]:
        name = f"dcn_{wrong[0]}_parallelism"
        raise InputError(
            f"{path}: {name} is {sizes[name]}; plans of it lie on devices in order: only axes outside of those that slices "
            "split may span them"
        )
    total = {axis: sizes[f"ici_{axis}_parallelism"] * sizes[f"dcn_{axis}_parallelism"] for axis in _AXES}
    if total["tensor"] > 1 and total["tensor_sequence"] > 1:
        raise InputError(f"{path}: tensor and tensor_sequence axes are both split; plans have one of them")
    sharded = total["fsdp"] * total["expert"]
    data, tensor = total["data"] * sharded, total["tensor"] * total["tensor_sequence"]
    level = 3 if sharded * total["context"] > 1 else 0
    if not level and data > 1 and content.get("shard_optimizer_over_data") is True:
        level = 1
    degree = sharded if level == 3 and total["data"] > 1 else 0
    exchange = _exchange(content, path) if total["context"] > 1 else "ring"
    return Strategy(data, tensor, total["context"], total["expert"], total["tensor_sequence"] > 1, level, degree, exchange)


def _exchange(content: dict[str, Any], path: str) -> str:
    """Return how keys and values are exchanged over the context axis."""
    word = content.get("context_parallel_strategy", "all_gather")
    if word not in _EXCHANGES:
        raise InputError(f"{path}: context_parallel_strategy is {word!r}; plans of it have {', '.join(_EXCHANGES)}")
    return _EXCHANGES[word]


def _micro_batch(content: dict[str, Any], strategy: Strategy, path: str) -> int:
    """Return the samples of a data rank: those of a device on all devices that share them."""
    value = content.get("per_device_batch_size", 12.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InputError(f"{path}: per_device_batch_size is {value!r}; it must be a number above 0")
    samples = int(value * strategy.n_devices)
    if not samples or samples % strategy.data:
        raise InputError(
            f"{path}: per_device_batch_size {value} on {strategy.n_devices} devices makes {samples} samples, no multiple of "
            f"the {strategy.data} ranks that they are dealt to"
        )
    return samples // strategy.data


def _precision(content: dict[str, Any], path: str) -> str:
    """Return the precision of products."""
    dtype, quantization = str(content.get("dtype", "bfloat16")), str(content.get("quantization") or "")
    if quantization not in ("", "fp8", "fp8_full"):
        raise InputError(f"{path}: quantization is {quantization}; it must be empty, fp8 or fp8_full")
    if dtype not in ("bfloat16", "float32"):
        raise InputError(f"{path}: dtype is {dtype}; it must be bfloat16 or float32")
    return "fp8" if quantization else "bf16" if dtype == "bfloat16" else "fp32"


def _assumed(content: dict[str, Any], strategy: Strategy, policy: str, path: str, *, experts: bool) -> Iterator[str]:
    """Yield what is priced otherwise than the file says."""
    if policy in ("minimal", "minimal_flash"):
        yield f"{path}: remat_policy {policy} is priced as minimal_with_context"
    if strategy.context > 1 and "context_parallel_strategy" not in content:
        yield f"{path}: does not say context_parallel_strategy: MaxText's default, all_gather, is taken"
    if strategy.shard == 3 and strategy.data > 1 and content.get("shard_optimizer_over_data"):
        yield f"{path}: shard_optimizer_over_data beside sharded weights is not priced"
    if content.get("sparse_matmul") is False and experts:
        how = (
            "without a capacity_factor every token goes through every expert, and it is priced as through its own alone"
            if float(content.get("capacity_factor", -1)) < 0
            else "tokens beyond capacity_factor are dropped and the rest padded, and it is priced as dropping none"
        )
        yield f"{path}: sparse_matmul is false: {how}"
    if "per_device_batch_size" not in content:
        yield f"{path}: does not say per_device_batch_size: MaxText's default, 12, is taken"


def _otherwise(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield entries that are priced otherwise than they say, each with a sentence without a full stop."""
    for key, what in _UNPRICED.items():
        if content.get(key) not in (None, *what[0]):
            yield key, f"{key} is {content[key]}; {what[1]}"
    if content.get("model_name", "default") == "default":
        return
    for key in content:
        if key.startswith("base_") and key != "base_config" and key not in ("base_output_directory", "base_num_decoder_layers"):
            yield key, f"{key}: the sizes of model_name are priced; give --model for others"


def _line(text: str, key: str) -> int:
    """Return the line that an entry stands in."""
    found = re.search(rf"^\s*{re.escape(key)}\s*:", text, re.M)
    return text.count("\n", 0, found.end()) + 1 if found else 1
