"""The plan that a configuration of torchtitan says: a module of ours, or any with a ``ParallelismConfig`` in it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _exact
from meshwright.frameworks.torchtitan import flavors
from meshwright.frameworks.torchtitan.degrees import IN_A_V, SCHEDULES
from meshwright.frameworks.torchtitan.module import CHECKPOINTING, DTYPES

__all__ = ["model_of", "read"]

_CLASSES: Mapping[str, str] = MappingProxyType({"ParallelismConfig": "parallelism", "TrainingConfig": "training"})

_PARALLELISM = (
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward", "tensor_parallel_degree",
    "enable_sequence_parallel", "context_parallel_degree", "expert_parallel_degree", "pipeline_parallel_degree",
    "pipeline_parallel_microbatch_size", "pipeline_parallel_schedule", "module_fqns_per_model_part",
    "pipeline_parallel_schedule_csv",
)  # fmt: skip
_TRAINING = ("local_batch_size", "global_batch_size", "seq_len", "mixed_precision_param")
_WITHOUT_EFFECT = (  # on what a plan says
    "steps", "disable_cuda_graphs", "dtype", "mixed_precision_reduce", "max_norm", "spmd_backend", "enable_fsdp_symm_mem",
    "context_parallel_load_balancer", "context_parallel_ptrr_mask_key",
)  # fmt: skip


class _Fields:
    """What a module assigns to the parts of a configuration, each with its line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {"parallelism": {}, "training": {}}
        self.checkpointing: str | None = None
        self.order = ""
        self.warnings: list[str] = []
        self.family = self.flavor = ""
        self.start = ("", "")

    def put(self, part: str, name: str, node: ast.expr) -> None:
        """Keep a field; warn of one that nothing is known of."""
        place = f"{self.path}: line {node.lineno}: {part}.{name}"
        if name not in (*_PARALLELISM, *_TRAINING):
            if name not in _WITHOUT_EFFECT:
                self.warnings.append(f"{place}: nothing is known of it; it is left out")
            return
        try:
            self.found[part][name] = ast.literal_eval(node)
        except ValueError:
            if name != "pipeline_parallel_schedule_csv":
                raise InputError(f"{place}: is no constant but {ast.unparse(node)}") from None
            self.found[part][name] = ast.unparse(node)

    def assign(self, parts: list[str], node: ast.expr) -> None:
        """Keep what an assignment says: ``config.training.steps = 3``, in parts."""
        if len(parts) == 3 and parts[1] in self.found:
            self.put(parts[1], parts[2], node)
        elif parts[-1] == "activation_checkpoint" and len(parts) == 2:
            self.checkpoint(node)
        elif parts == ["ORDER"] and isinstance(node, ast.Constant):
            self.order = str(node.value)

    def checkpoint(self, node: ast.expr) -> None:
        """Keep the kind of activation checkpointing."""
        text = ast.unparse(node)
        kind = "" if text == "None" else text.partition("(")[0].removesuffix(".Config").rpartition(".")[2]
        if kind not in CHECKPOINTING.values():
            known = ", ".join(word for word in CHECKPOINTING.values() if word)
            raise InputError(f"{self.path}: line {node.lineno}: activation_checkpoint is {text}; it must be None, {known}")
        self.checkpointing = kind


def _collect(path: str) -> _Fields:
    """Return the fields that a module sets."""
    try:
        tree = ast.parse(_exact.read_text(path))
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: is no Python: {error.msg}") from None
    fields = _Fields(path)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    several = [node.lineno for node in calls if ast.unparse(node.func).endswith("ParallelismConfig")]
    if len(several) > 1:
        raise InputError(f"{path}: line {several[1]}: holds {len(several)} configurations; leave one in a file of its own")
    for call in calls:
        part = _CLASSES.get(ast.unparse(call.func).rpartition(".")[2])
        for keyword in call.keywords:
            if part and keyword.arg:
                fields.put(part, keyword.arg, keyword.value)
            elif keyword.arg == "activation_checkpoint":
                fields.checkpoint(keyword.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            fields.assign(ast.unparse(node.targets[0]).split("."), node.value)
    _note_model(tree, fields)
    if not fields.found["parallelism"] and not fields.found["training"]:
        raise InputError(f"{path}: sets no field of parallelism or training; is it a configuration of torchtitan?")
    return fields


def _note_model(tree: ast.Module, fields: _Fields) -> None:
    """Keep which model of the registry a module names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            family = str(node.module).split(".")[2]
            for name in node.names:
                flavor = flavors.flavor_of_function(family, name.name)
                fields.start = (family, flavor) if flavor else fields.start
                fields.family = family if name.name == "model_registry" else fields.family
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("model_registry") and node.args:
            fields.flavor = str(getattr(node.args[0], "value", ""))


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model that a configuration names, with samples of so many tokens; 0 for the configuration's own.

    Raises
    ------
    InputError
        When it names none, or one that is not among the built-in models.
    """
    from meshwright import models

    fields = _collect(path)
    family, flavor = (fields.family, fields.flavor) if fields.flavor else fields.start  # what the configuration starts from
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
    if local % micro or total % (local * strategy.data) or (n_ranks > 1 and total != local * strategy.data):
        raise InputError(
            f"{path}: local_batch_size {local}, micro-batches of {micro} and {strategy.data} replicas do not make "
            f"global_batch_size {total}"
        )
    stages, schedule = _stages(fields, parallelism, graph, n_ranks)
    words = dict(enumerate(_exact.layer_words(graph, word)))
    size = strategy.n_devices
    ranks = _ranks(len(stages), n_ranks, schedule)
    plan = Plan(
        tuple(
            Stage(ops, tuple(range(r * size, (r + 1) * size)), strategy, tuple(words[op] for op in ops))
            for ops, r in zip(stages, ranks, strict=True)
        ),
        total // (micro * strategy.data), micro, schedule, total,
    )  # fmt: skip
    precisions = {dtype: word for word, dtype in DTYPES.items()}
    precision = precisions.get(str(training.get("mixed_precision_param", "bfloat16")))
    if precision is None:
        raise InputError(
            f"{path}: mixed_precision_param is {training['mixed_precision_param']!r}; it must be bfloat16 or float32"
        )
    length = _exact.whole(training, "seq_len", path, 2048)
    return RunConfig(plan, precision, length, tuple(fields.warnings))


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


def _ranks(n_stages: int, n_ranks: int, schedule: str) -> list[int]:
    """Return the pipeline rank of every stage: dealt out in turn, or there and back."""
    if schedule in IN_A_V:
        return [*range(n_ranks), *range(n_ranks - 1, -1, -1)]
    return [i % n_ranks for i in range(n_stages)]


def _stages(fields: _Fields, parallelism: Mapping[str, Any], graph: Graph, n_ranks: int) -> tuple[list[tuple[int, ...]], str]:
    """Return the layers of every stage, and the schedule."""
    path, last = fields.path, len(graph.ops) - 1
    if n_ranks == 1:
        return [tuple(range(last + 1))], "1f1b"
    name = str(parallelism.get("pipeline_parallel_schedule", "1F1B"))
    schedule = next((word for word, said in SCHEDULES.items() if said.lower() == name.lower()), "")
    if not schedule:
        raise InputError(
            f"{path}: pipeline_parallel_schedule is {name!r}; known are {', '.join(dict.fromkeys(SCHEDULES.values()))}"
        )
    if parallelism.get("pipeline_parallel_schedule_csv"):
        if not fields.order or schedule not in ("1f1b", "zb_v"):
            raise InputError(f"{path}: pipeline_parallel_schedule_csv: an order of work that is none of our schedules")
        schedule = "zb_h1" if schedule == "1f1b" else schedule
    parts = parallelism.get("module_fqns_per_model_part") or _even(last - 1, n_ranks, schedule)
    known = {"tok_embeddings": 0, "norm": last, "lm_head": last, **{f"layers.{i}": i + 1 for i in range(last - 1)}}
    flat = [fqn for part in parts for fqn in part]
    unknown = [fqn for fqn in flat if fqn not in known]
    lost = [fqn for fqn in known if fqn not in flat]
    if unknown or lost or len(flat) != len(known):
        why = (
            f"names {unknown[0]}, which {graph.name} has not"
            if unknown
            else f"leaves out {lost[0]}"
            if lost
            else "names one twice"
        )
        raise InputError(f"{path}: module_fqns_per_model_part {why}; torchtitan would train another model without a word")
    if not any({"norm", "lm_head"} <= set(part) for part in parts):
        raise InputError(f"{path}: module_fqns_per_model_part: norm and lm_head lie apart; plans hold them together")
    if len(parts) % n_ranks or (schedule in IN_A_V and len(parts) != 2 * n_ranks):
        raise InputError(f"{path}: {len(parts)} parts of the model for {n_ranks} pipeline ranks and schedule {name}")
    return [tuple(dict.fromkeys(known[fqn] for fqn in part)) for part in parts], schedule


def _even(n_layers: int, n_ranks: int, schedule: str) -> list[list[str]]:
    """Return torchtitan's own split: first and last stage one layer less, what is over to the first stages."""
    n_stages = n_ranks * (1 if schedule in ("1f1b", "gpipe", "zb_h1") else 2)
    each, more = divmod(n_layers + 2, n_stages)
    modules = ["tok_embeddings", *(f"layers.{i}" for i in range(n_layers)), "lm_head"]
    found, first = [], 0
    for i in range(n_stages):
        n = each + (i < more)
        found.append(modules[first : first + n])
        first += n
    found[-1].insert(-1, "norm")
    return found
