"""The plan that a configuration of torchtitan says: a module of ours, or any with a ``ParallelismConfig`` in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _exact
from meshwright.frameworks.torchtitan import fields as fields_of
from meshwright.frameworks.torchtitan import flavors, stages, toml_file
from meshwright.frameworks.torchtitan.fields import Fields
from meshwright.frameworks.torchtitan.module import CHECKPOINTING, DTYPES

__all__ = ["model_of", "read"]


def _collect(path: str) -> Fields:
    """Return the fields that a configuration sets: a Python module, TOML, or a script that starts the trainer."""
    text = _exact.read_text(path)
    if toml_file.is_toml(text):
        return toml_file.of_toml(path)
    return toml_file.of_script(path) if toml_file.is_script(text) else fields_of.of_module(path)


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model that a configuration names, with samples of so many tokens; 0 for the configuration's own.

    Raises
    ------
    InputError
        When it names none, or one that is not among the built-in models.
    """
    from meshwright import models

    fields = _collect(path)
    fields.complete()
    family, flavor = fields.family, fields.flavor
    if not flavor:
        raise InputError(f"{path}: no model_registry(...) names the model; give --model")
    name = flavors.model_name(family, flavor)
    if not name:
        raise InputError(f"{path}: model_registry: {family} {flavor} is none of the built-in models; give --model")
    length = sequence_length or _exact.whole(fields.found["training"], "seq_len", path, 2048)
    return models.read(name, sequence_length=length)


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a configuration says.

    `n_devices`: how many there are, for a degree of -1 (the rest).

    Raises
    ------
    InputError
        When it cannot be read, a field is wrong, or fields contradict each other or the model.
    """
    fields = _collect(path)
    fields.complete()
    n_devices = fields.n_devices or n_devices
    parallelism, training = fields.found["parallelism"], fields.found["training"]
    n_layers = flavors.n_layers(fields.family, fields.flavor)
    if n_layers and n_layers != len(graph.ops) - 2:
        raise InputError(
            f"{path}: model_registry: {fields.family} {fields.flavor} has {n_layers} layers, but {graph.name} has "
            f"{len(graph.ops) - 2}: another model?"
        )
    n_ranks = _exact.whole(parallelism, "pipeline_parallel_degree", path, 1)
    strategy = _strategy(parallelism, path, n_ranks, n_devices)
    if fields.checkpointing is None:
        fields.warnings.append(f"{path}: activation_checkpoint is not set: torchtitan's default, SelectiveAC, is taken")
    kind = "SelectiveAC" if fields.checkpointing is None else fields.checkpointing
    word = {name: word for word, name in CHECKPOINTING.items()}[kind]
    local, total = _exact.whole(training, "local_batch_size", path, 8), training.get("global_batch_size", -1)
    micro = _exact.whole(parallelism, "pipeline_parallel_microbatch_size", path, 1) if n_ranks > 1 else local
    total = local * strategy.data if total == -1 else _exact.whole(training, "global_batch_size", path)
    one_pass = local * strategy.data
    if n_ranks > 1 and not (local % micro or total % one_pass) and total != one_pass:
        raise InputError(
            f"{path}: global_batch_size {total} runs the pipeline {total // one_pass} times a step, which is not priced; "
            f"say {one_pass}, or a local_batch_size of {total // strategy.data}"
        )
    if local % micro or total % (local * strategy.data) or (n_ranks > 1 and total != local * strategy.data):
        raise InputError(
            f"{path}: local_batch_size {local}, micro-batches of {micro} and {strategy.data} replicas do not make "
            f"global_batch_size {total}"
        )
    cut, schedule = stages.stages(fields, graph, n_ranks)
    on, size = stages.ranks(len(cut), n_ranks, schedule), strategy.n_devices
    recompute = stages.words(fields, graph, cut, on, word)
    plan = Plan(
        tuple(
            Stage(ops, tuple(range(r * size, (r + 1) * size)), strategy, own)
            for ops, r, own in zip(cut, on, recompute, strict=True)
        ),
        total // (micro * strategy.data), micro, schedule, total,
    )  # fmt: skip
    variant = fields.priced_as()
    if variant == "eager":
        fields.warnings.append(f"{path}: compile is not enabled for the model: it is priced as eager, torchtitan:eager")
    precisions = {dtype: word for word, dtype in DTYPES.items()}
    precision = precisions.get(str(training.get("mixed_precision_param", "bfloat16")))
    if precision is None:
        raise InputError(
            f"{path}: mixed_precision_param is {training['mixed_precision_param']!r}; it must be bfloat16 or float32"
        )
    _warn_of_types(fields, training, precision, path)
    length = _exact.whole(training, "seq_len", path, 2048)
    return RunConfig(plan, fields.precision or precision, length, tuple(fields.warnings), variant)


def _warn_of_types(fields: Fields, training: Mapping[str, Any], precision: str, path: str) -> None:
    """Say which types of numbers are priced otherwise than a file has them."""
    if fields.precision and precision == "fp32":
        fields.warnings.append(
            f"{path}: training.mixed_precision_param is float32: weights are gathered, and other products run, in four bytes; "
            f"both are priced in two, as beside {fields.precision} and bf16"
        )
    if training.get("mixed_precision_reduce", "float32") != "float32":
        word = training["mixed_precision_reduce"]
        fields.warnings.append(
            f"{path}: training.mixed_precision_reduce is {word}; gradients are priced as scattered in float32"
        )


def _strategy(parallelism: Mapping[str, Any], path: str, n_ranks: int, n_devices: int) -> Strategy:
    """Return the degrees, and what the data axis shards."""
    replicate = _exact.whole(parallelism, "data_parallel_replicate_degree", path, 1)
    tensor, context, expert = (
        _exact.whole(parallelism, f"{axis}_parallel_degree", path, 1) for axis in ("tensor", "context", "expert")
    )
    shard = parallelism.get("data_parallel_shard_degree", -1)
    others = replicate * tensor * context * n_ranks
    if shard == -1:
        if not n_devices or n_devices % others:
            raise InputError(
                f"{path}: data_parallel_shard_degree is -1, the rest of {n_devices or 'unknown'} devices, and the others "
                f"make {others}; say on which cluster it runs, or the degree"
            )
        shard = n_devices // others
    shard = _exact.whole({"data_parallel_shard_degree": shard}, "data_parallel_shard_degree", path)
    reshard = parallelism.get("fsdp_reshard_after_forward", "default")
    if reshard not in ("always", "never", "default"):
        raise InputError(f"{path}: fsdp_reshard_after_forward is {reshard!r}; it must be default, always or never")
    level = 0 if shard * context == 1 else 2 if reshard == "never" or (reshard == "default" and n_ranks > 1) else 3
    sequence = parallelism.get("enable_sequence_parallel", True)
    if not isinstance(sequence, bool):
        raise InputError(f"{path}: enable_sequence_parallel is {sequence!r}; it must be True or False")
    return Strategy(
        replicate * shard, tensor, context, expert, sequence and tensor > 1, level, shard if level and replicate > 1 else 0
    )
