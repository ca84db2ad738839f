"""The plan that a configuration of nanotron says."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _command_line, _exact, _python_file
from meshwright.frameworks.megatron.surroundings import QUEUES
from meshwright.frameworks.nanotron import split
from meshwright.frameworks.nanotron.config import DTYPES, ENGINES

__all__ = ["is_script", "model_of", "read"]

_Override = tuple[str, str, int]
"""A dotted name, its value, and the line where the launcher sets it."""


def read(path: str, graph: Graph) -> RunConfig:
    """Return what a configuration says.

    Raises
    ------
    InputError
        When it is no YAML, an entry is wrong, or entries contradict each other or the model.
    """
    path, text, content, started, warnings = _content(path)
    parts = {name: _table(content, name, path) for name in ("parallelism", "tokens", "optimizer", "model")}
    model = _table(parts["model"], "model_config", path)
    parallelism = parts["parallelism"]
    warnings += _unknown(content, parts, model, text, path)
    for name in ("expert_parallel_size", "context_parallel_size"):
        if _exact.whole(parallelism, name, path, 1) > 1:
            raise InputError(
                f"{path}: parallelism.{name} is {parallelism[name]}: only 1 is read; see --for megatron or torchtitan"
            )
    data, ranks, tensor = (_exact.whole(parallelism, name, path) for name in ("dp", "pp", "tp"))
    started = started or _python_file.started(text)
    if started and started != data * ranks * tensor:
        raise InputError(f"{path}: dp x pp x tp make {data * ranks * tensor} devices, the command starts {started}")
    mode = str(parallelism.get("tp_mode") or "ALL_REDUCE").upper()
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        raise InputError(f"{path}: parallelism.tp_mode is {mode}; it must be ALL_REDUCE or REDUCE_SCATTER")
    if mode == "ALL_REDUCE" and tensor > 1 and _flag(parallelism, "tp_linear_async_communication", False, path):
        raise InputError(
            f"{path}: parallelism.tp_linear_async_communication is true with tp_mode ALL_REDUCE, with which nanotron stops "
            "(TensorParallelRowLinear); take REDUCE_SCATTER, or false"
        )
    level = _exact.whole(parts["optimizer"], "zero_stage", path, least=0) if parts["optimizer"] else 0
    if level > 1:
        raise InputError(f"{path}: optimizer.zero_stage is {level}; it must be 0 or 1")
    strategy = Strategy(data, tensor, 1, 1, mode == "REDUCE_SCATTER" and tensor > 1, level if data > 1 else 0)
    plan = _plan(path, graph, strategy, ranks, parts, model)
    dtype = str(parts["model"].get("dtype") or "bfloat16")
    precision = {name: word for word, name in DTYPES.items()}.get(dtype)
    if precision is None:
        raise InputError(f"{path}: model.dtype is {dtype}; it must be {', '.join(DTYPES.values())}")
    if precision == "bf16" and not _flag(parts["optimizer"], "accumulate_grad_in_fp32", True, path):
        warnings.append(f"{path}: optimizer.accumulate_grad_in_fp32 is false: gradients are priced in four bytes")
    beside = _flag(parallelism, "tp_linear_async_communication", False, path) and strategy.sequence_parallel
    length = _exact.whole(parts["tokens"], "sequence_length", path)
    return RunConfig(plan, precision, length, tuple(warnings), "async_tensor" if beside else "")


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model that a configuration describes, with samples of so many tokens; 0 for the configuration's own.

    Raises
    ------
    InputError
        When it leaves a dimension open.
    """
    from meshwright.models.readers import huggingface

    path, _, content, _, _ = _content(path)
    said = _table(_table(content, "model", path), "model_config", path)
    biased = _flag(said, "attention_bias", said.get("is_qwen2_config") is True, path)
    qwen = said.get("is_qwen2_config") is True and biased  # of queries, keys and values only
    if not said or (said.get("num_experts") or said.get("moe_config")):
        raise InputError(f"{path}: model.model_config is {'of a mixture' if said else 'missing'}; give --model")
    sizes = (
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "num_hidden_layers",
        "vocab_size",
        "num_key_value_heads",
    )
    fields: dict[str, Any] = {name: _exact.whole(said, name, path, said.get("num_attention_heads", 0)) for name in sizes}
    fields |= {"model_type": "qwen2" if qwen else "llama", "tie_word_embeddings": said.get("tie_word_embeddings") is True}
    fields |= {} if qwen else {"attention_bias": biased}
    length = sequence_length or _exact.whole(_table(content, "tokens", path), "sequence_length", path)
    name = f"the model of {path}"
    graph = huggingface.graph_of(fields, name, sequence_length=length)
    return ModelSpec(name, "huggingface", "", graph, fields, costs="analytic", search="best")


def _content(path: str) -> tuple[str, str, dict[str, Any], int, list[str]]:
    """Return a configuration's path, text and entries, how many processes a script starts with it, and what is told of that."""
    text = _exact.read_text(path)
    if not is_script(text):
        return path, text, _exact.yaml_entries(text, path, "nanotron"), 0, []
    file, started, overrides, warnings = _of_script(text, path)
    script, text = text, _exact.read_text(file)
    content = _exact.yaml_entries(text, file, "nanotron")
    for override in overrides:
        _override(content, override, path)
    _queues(content, script, path)
    return file, text, content, started, warnings


def _queues(content: dict[str, Any], script: str, path: str) -> None:
    """Refuse other queues of a device than its asynchronous products assert [1]_.

    References
    ----------
    .. [1] nanotron/parallel/tensor_parallel/functional.py: _ColumnLinearAsyncCommunication.
    """
    value, line = _command_line.read(script, path).environment.get(QUEUES, ("1", 0))
    parallelism = _table(content, "parallelism", path)
    if value != "1" and parallelism.get("tp_linear_async_communication") is True and parallelism.get("tp", 1) != 1:
        raise InputError(
            f"{path}: line {line}: {QUEUES} is {value or 'taken out'} beside parallelism.tp_linear_async_communication, with "
            "which nanotron stops unless it is 1"
        )


def is_script(text: str) -> bool:
    """Return whether a text is a shell script that starts nanotron's training, or its launcher."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return (
        re.search(
            r"\b(run_train\.py\b[^\n]*(\\\n[^\n]*)*--config-file|launcher\.py\b[^\n]*(\\\n[^\n]*)*--config-path)\b", lines
        )
        is not None
    )


def _of_script(text: str, path: str) -> tuple[str, int, list[_Override], list[str]]:
    """Return the configuration that a script names, how many processes it starts (0 where that is not known), what the launcher
    sets over the file, and warnings.
    """
    said = _command_line.read(text, path)
    options, warnings = said.options, list(said.warnings)
    word = " ".join(options.get("--config-file") or options["--config-path"])
    counts = [" ".join(options.get(name, default)) for name, default in (("--nproc-per-node", ()), ("--nnodes", ("1",)))]
    n_devices = int(counts[0]) * int(counts[1]) if all(count.isdecimal() for count in counts) else 0
    known = (
        "--config-file",
        "--config-path",
        "--override",
        "--run",
        "--logs-path",
        "--slurm",
        "--nodes",
        *_command_line.TORCHRUN,
    )
    warnings += [
        f"{path}: line {said.lines[name]}: nothing is known of {name}; it is left out" for name in options if name not in known
    ]
    overrides = [(*word.partition("=")[::2], said.lines["--override"]) for word in options.get("--override", ())]
    if overrides and "--slurm" not in options:
        warnings.append(
            f"{path}: line {overrides[0][2]}: --override: without --slurm nanotron's launcher starts the file as it stands"
        )
        overrides = []
    for place in (Path(path).parent / word, Path(path).parent / Path(word).name, Path(word)):
        if place.is_file():
            return str(place), n_devices, overrides, warnings
    option = "--config-file" if "--config-file" in options else "--config-path"
    raise InputError(f"{path}: {option} is {word}, which is not there; put it beside this script")


def _override(content: dict[str, Any], said: _Override, path: str) -> None:
    """Set one entry, as ``launcher.py`` does it: a dotted name, and a Python value or else a word."""
    name, word, line = said
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        value = word
    *parts, own = name.split(".")
    table = content
    for part in parts:
        if not isinstance(table.get(part), dict):
            raise InputError(f"{path}: line {line}: --override {name}: the file has no table {part}")
        table = table[part]
    table[own] = value


def _plan(
    path: str, graph: Graph, strategy: Strategy, n_ranks: int, parts: dict[str, dict[str, Any]], model: dict[str, Any]
) -> Plan:
    """Return the plan: stages as nanotron cuts them."""
    n_layers = _exact.whole(model, "num_hidden_layers", path) if model else len(graph.ops) - 2
    if n_layers != len(graph.ops) - 2:
        raise InputError(
            f"{path}: model_config.num_hidden_layers is {n_layers}, but {graph.name} has {len(graph.ops) - 2}: another model?"
        )
    engine = str(parts["parallelism"].get("pp_engine") or "afab")
    schedule = next((word for word, name in ENGINES.items() if name == engine), "")
    if not schedule:
        raise InputError(f"{path}: parallelism.pp_engine is {engine}; it must be {', '.join(ENGINES.values())}")
    stages: list[tuple[int, ...]] | None = [tuple(range(len(graph.ops)))]
    if n_ranks > 1:
        needed = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "vocab_size")
        stages = split.of_fields({name: _exact.whole(model, name, path) for name in needed}, n_ranks)
    if stages is None:
        raise InputError(f"{path}: parallelism.pp is {n_ranks}: nanotron's cut of this model leaves a rank without layers")
    full = _flag(parts["parallelism"], "recompute_layer", False, path)
    words, size = _exact.layer_words(graph, "full" if full else "none"), strategy.n_devices
    micro, count = (_exact.whole(parts["tokens"], n, path) for n in ("micro_batch_size", "batch_accumulation_per_replica"))
    made = tuple(
        Stage(ops, tuple(range(r * size, (r + 1) * size)), strategy, tuple(words[op] for op in ops))
        for r, ops in enumerate(stages)
    )
    return Plan(made, count, micro, schedule if n_ranks > 1 else "1f1b", count * micro * strategy.data)


def _unknown(
    content: dict[str, Any], parts: dict[str, dict[str, Any]], model: dict[str, Any], text: str, path: str
) -> Iterator[str]:
    """Yield a warning for every entry that nanotron does not have."""
    data = (Path(__file__).parents[1] / "data" / "nanotron_options.json").read_text(encoding="utf-8")
    known = json.loads(data)["fields"]
    for name, table in {"": content, **parts, "model_config": model}.items():
        for key in table:
            if key not in known[name]:
                yield f"{path}: line {_line(text, str(key))}: nothing is known of {key}; it is left out"


def _table(content: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    value = content.get(name) or {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} is {value!r}; it must be a table of entries")
    return value


def _flag(table: dict[str, Any], name: str, default: bool, path: str) -> bool:
    value = default if table.get(name) is None else table[name]
    if not isinstance(value, bool):
        raise InputError(f"{path}: {name} is {value!r}; it must be true or false")
    return value


def _line(text: str, key: str) -> int:
    """Return the line that an entry stands in."""
    found = re.search(rf"^\s*{re.escape(key)}\s*:", text, re.M)
    return text.count("\n", 0, found.end()) + 1 if found else 1
