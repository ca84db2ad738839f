"""Configurations that a run wrote down: Megatron-Bridge's ``run_config.yaml``, and the task files of NeMo-Run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import _exact
from meshwright.frameworks.megatron_bridge import fields, nemo
from meshwright.frameworks.megatron_bridge.said import Said

__all__ = ["is_dump", "parts", "read"]

_MARKS = ("_target_", "_call_", "_partial_", "_args_", "__version__")
"""Entries that say which class a table is, and not what it holds."""


def is_dump(text: str) -> bool:
    """Return whether a text is YAML that says fields of a configuration of Megatron-Bridge, or a task of NeMo."""
    if re.search(r"^\s*_target_:\s*(megatron\.bridge|nemo\.(collections\.llm|tron|lightning))\.", text, re.M):
        return True
    return re.search(r"^model:\s*(#.*)?$", text, re.M) is not None and "tensor_model_parallel_size:" in text


def read(path: str, text: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a file says.

    `n_devices`: how many there are, where the file does not say.

    Raises
    ------
    InputError
        When it is no YAML, a field is wrong, or fields contradict each other or the model.
    """
    sections, lines = parts(path, text)
    said = Said(path)
    _note_precision(said, sections, lines)
    known = fields.known()
    told = {**known["fields"], **known["dumped"]}
    told["model"] = [*known["fields"]["model"], *known["dumped"]["model"]]
    told |= {"strategy": nemo.STRATEGY, "mixed_precision": [*told["mixed_precision"], "precision", "recipe"]}
    for part, entries in sections.items():
        if part not in (*told, *known["sections"]):
            said.warnings.append(f"{path}: line {lines.get((part,), 1)}: nothing is known of {part}; it is left out")
        for name, value in entries.items():
            line = lines.get((part, name), 1)
            if part in told and name not in (*told[part], *_MARKS):
                said.unknown(part, name, line)
            said.put(part, name, _plain(value), line)
    _refuse(said, sections, lines)
    n_devices = _n_devices(said, sections) or n_devices
    if not n_devices:
        raise InputError(f"{path}: does not say how many processes there are; say on which cluster it runs")
    data = sections.get("dataset", {})
    length = next((data[name] for name in ("seq_length", "sequence_length") if isinstance(data.get(name), int)), 0)
    return said.config(graph, n_devices, length)


def parts(path: str, text: str) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, ...], int]]:
    """Return what a file holds.

    Returns
    -------
    sections : dict of str to dict
        The parts of a configuration (``model``, ``train``, ``ddp``, ...), each with its fields; NeMo's by the same names.
    lines : dict of tuple of str to int
        The line of each part and field.

    Raises
    ------
    InputError
        When it is no YAML, or no configuration.
    """
    content = _exact.yaml_entries(text, path, "Megatron-Bridge")
    lines = dict(_lines(text))
    if "trainer" in content or "task" in content:
        return nemo.sections(content, lines, path)
    renamed = {f"{part}_config": part for part in ("model", "train", "optimizer", "ddp", "dist", "dataset")}  # of 2025's first
    found: dict[str, dict[str, Any]] = {}
    for name, value in content.items():
        part = renamed.get(str(name), str(name))
        if value is not None and not isinstance(value, dict) and part not in ("mixed_precision", *_MARKS):
            raise InputError(f"{path}: line {lines.get((str(name),), 1)}: {name} is {value!r}; it must be a table of fields")
        if part not in _MARKS:
            found[part] = value if isinstance(value, dict) else {} if value is None else {"recipe": value}
    if not any(found.get(part) for part in ("model", "train")):
        raise InputError(f"{path}: sets no field of model or train; is it a configuration of Megatron-Bridge?")
    return found, lines


def _lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield where each key of a YAML text stands, by the keys that it lies in; lists have none."""
    waiting: list[tuple[tuple[str, ...], yaml.Node | None]] = [((), yaml.compose(text, Loader=yaml.SafeLoader))]
    while waiting:
        above, node = waiting.pop()
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            place = (*above, str(key.value))
            yield place, key.start_mark.line + 1
            waiting.append((place, value))


def _plain(value: Any) -> Any:
    """Return a field's value; what stands for an object is its class."""
    return value.get("_target_", value) if isinstance(value, dict) and "_target_" in value else value


def _note_precision(said: Said, sections: Mapping[str, Mapping[str, Any]], lines: Mapping[tuple[str, ...], int]) -> None:
    """Keep in which precision products are: by mixed_precision, its name or its fields, else by the model's own flags."""
    mixed, line = sections.get("mixed_precision", {}), lines.get(("mixed_precision",), 1)
    if "recipe" in mixed:
        said.mixed(str(mixed["recipe"]), line)
    elif mixed:
        said.numbers(mixed, line)
    elif {"bf16", "fp16", "params_dtype"} & set(sections.get("model", {})):
        said.numbers(sections["model"], lines.get(("model",), 1))


def _refuse(said: Said, sections: Mapping[str, Mapping[str, Any]], lines: Mapping[tuple[str, ...], int]) -> None:
    """Refuse adapters, which are not priced here."""
    if sections.get("peft"):
        raise InputError(
            f"{said.path}: line {lines.get(('peft',), 1)}: peft is set ({_plain(dict(sections['peft']))}); adapters of "
            "Megatron-Bridge are not priced: 'meshwright plan --lora' plans them for transformers and fsdp2"
        )


def _n_devices(said: Said, sections: Mapping[str, Mapping[str, Any]]) -> int:
    """Return how many devices a run had: what the trainer says, or the data ranks it noted times the other degrees; else 0."""
    trainer = sections.get("trainer", {})
    if trainer:
        counts = (trainer.get("devices"), trainer.get("num_nodes", 1))
        return counts[0] * counts[1] if all(isinstance(one, int) and one > 0 for one in counts) else 0
    data = said.found.get("comm_overlap.data_parallel_size")
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    degrees = [said.found.get(f"model.{name}") or 1 for name in names]
    if not isinstance(data, int) or not all(isinstance(one, int) for one in degrees):
        return 0
    return data * degrees[0] * degrees[1] * degrees[2]
