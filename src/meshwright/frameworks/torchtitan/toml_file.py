"""Configurations of torchtitan in TOML, as its releases up to 0.2 read them, and the command lines that start with one.

References
----------
.. [1] pytorch/torchtitan, torchtitan/config/job_config.py of 2025 (``JobConfig``); before that, torchtitan/config_manager.py,
   where degrees stood in ``training`` and ``experimental``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.strategy import ALTERNATE
from meshwright.frameworks import _command_line, _exact
from meshwright.frameworks.torchtitan import flavors
from meshwright.frameworks.torchtitan.fields import ELSEWHERE, Fields
from meshwright.frameworks.torchtitan.module import CHECKPOINTING

__all__ = ["is_script", "is_toml", "of_script", "of_toml"]

_MOVED: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType({
    ("training", "data_parallel_degree"): ("parallelism", "data_parallel_shard_degree"),
    ("training", "batch_size"): ("training", "local_batch_size"), ("training", "compile"): ("compile", "enable"),
    ("experimental", "enable_async_tensor_parallel"): ("compile", "enable_async_tensor_parallel"),
    ("parallelism", "enable_async_tensor_parallel"): ("compile", "enable_async_tensor_parallel"),
})  # fmt: skip
"""Where fields of other releases are now."""

_CONVERTERS: Mapping[str, str] = MappingProxyType({
    "float8": "Float8", "mx": "MXFP8", "quantize.linear.float8": "Float8", "quantize.linear.mx": "MXFP8",
    "quantize.dense.float8": "Float8", "quantize.dense.mx": "MXFP8",
})  # fmt: skip
"""Names in ``model.converters`` of products that are dense; those of experts are not priced."""

_UNPRICED: Mapping[str, str] = MappingProxyType({
    "parallelism.disable_loss_parallel": "the loss is priced as split over the tensor axis",
    "parallelism.enable_compiled_autograd": "the backward pass is priced as compiled block by block",
    "optimizer.early_step_in_backward": "the update is priced after the backward pass",
    "float8.enable_fsdp_float8_all_gather": "weights are priced as gathered in bf16",
    "quantize.linear.float8.enable_fsdp_float8_all_gather": "weights are priced as gathered in bf16",
    "debug.deterministic": "kernels are priced as without it", "training.deterministic": "kernels are priced as without it",
    "fault_tolerance.enable": "replicas are priced as reducing every step",
    "validation.enable": "a step of training is priced", "validation.enabled": "a step of training is priced",
})  # fmt: skip
"""What is priced otherwise where it is true."""

_MODES: Mapping[str, str] = MappingProxyType({"none": "", "full": CHECKPOINTING["full"], "selective": CHECKPOINTING[ALTERNATE]})


def is_toml(text: str) -> bool:
    """Return whether a text is such a file."""
    return re.search(r"^\[(parallelism|experimental|training)\]\s*(#.*)?$", text, re.M) is not None and (
        re.search(r"^\[(model|job)\]", text, re.M) is not None
    )


def is_script(text: str) -> bool:
    """Return whether a text starts torchtitan's trainer."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    started = r"-m\s+torchtitan\.train\b|\btorchtitan/train\.py\b|\brun_train\.sh\b|--(job\.config[-_]file|parallelism\.\w+)\b"
    return re.search(started, lines) is not None and "import torchtitan" not in lines and "from torchtitan" not in lines


def of_toml(path: str) -> Fields:
    """Return the fields that a TOML file sets.

    Raises
    ------
    InputError
        When it is no TOML, or a field is wrong.
    """
    fields = Fields(path)
    _fill(fields, path)
    return fields


def _fill(fields: Fields, path: str) -> None:
    """Put what a TOML file says into fields."""
    text = _exact.read_text(path)
    content = files.read_toml(path)
    flat = dict(_flat(content, ""))
    said: dict[tuple[str, str], tuple[str, Any]] = {}
    for name, value in flat.items():
        other, before = said.setdefault(_place(name), (name, value))
        if before != value:
            raise fields.wrong(
                _line(text, name), f"{name} is {value!r}, but {other}, which says the same, {before!r}; keep one"
            )
        _one(fields, name, value, _line(text, name))
    if fields.checkpointing is None:
        fields.checkpointing, fields.every_nth_layer = _MODES["selective"], 2
        fields.warnings.append(
            f"{path}: activation_checkpoint is not set: every second layer recomputes, as in releases of 2025"
        )
    what = "is TOML, which releases up to 0.2 read; it is priced and judged as 0.3.0, which reads Python"
    fields.warnings.append(f"{path}: {what}")


def _flat(content: Mapping[str, Any], before: str) -> list[tuple[str, Any]]:
    """Return all entries with their dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in content.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]
    return found


def _place(name: str) -> tuple[str, str]:
    """Return the section and the field that an entry of any release is now."""
    part, _, own = name.partition(".")
    part, own = _MOVED.get((part, own), (part, own))
    moved = r"(_parallel_(degree|schedule|microbatch\w*|split\w*|method)|^data_parallel_(shard|replicate)_degree)$"
    return ("parallelism" if part in ("training", "experimental") and re.search(moved, own) else part), own


def _one(fields: Fields, name: str, value: Any, line: int) -> None:
    """Keep one entry."""
    part, own = _place(name)
    if name in _UNPRICED and value:
        fields.warnings.append(f"{fields.path}: line {line}: {name}: {_UNPRICED[name]}")
    elif _apart(fields, name, value, line):
        return
    elif part == "activation_checkpoint":
        _checkpoint(fields, own, value, line)
    elif part in fields.found:
        fields.keep(part, own, _named(own, value), line)
    elif name not in _UNPRICED and part not in (*ELSEWHERE, "model", "float8", "mx", "quantize"):
        fields.warnings.append(f"{fields.path}: line {line}: {name}: nothing is known of it; it is left out")


def _apart(fields: Fields, name: str, value: Any, line: int) -> bool:
    """Keep an entry that 0.3.0 says otherwise, and return whether it is one."""
    if name == "model.name":
        fields.family = str(value)
    elif name == "model.flavor":
        fields.flavor = str(value)
    elif name == "model.converters":
        _convert(fields, value, line)
    elif name == "float8.enable_float8_linear":  # of releases of 2024, before converters
        if value:
            fields.convert("Float8", line)
    elif name == "parallelism.expert_tensor_parallel_degree":
        if value != 1:
            fields.warnings.append(f"{fields.path}: line {line}: {name} is {value}: experts are priced as whole, as with 1")
    elif name == "optimizer.name":
        if value not in ("AdamW", "Adam"):
            raise fields.wrong(line, f"optimizer.name is {value!r}; AdamW and Adam are priced")
    elif name == "optimizer.implementation":
        if value == "for-loop":
            fields.warnings.append(f"{fields.path}: line {line}: {name} is {value}: the update is priced as fused")
    else:
        return False
    return True


def _named(own: str, value: Any) -> Any:
    """Return a value in the words of 0.3.0, whose head is called ``lm_head``."""
    if own == "pipeline_parallel_split_points" and isinstance(value, str):
        value = [one.strip() for one in value.split(",") if one.strip()]
    if own != "module_fqns_per_model_part" or not isinstance(value, list):
        return value
    return [["lm_head" if fqn == "output" else fqn for fqn in part] for part in value if isinstance(part, list)]


def _convert(fields: Fields, value: Any, line: int) -> None:
    """Keep the precision that converters make."""
    for name in map(str, value) if isinstance(value, list) else filter(None, re.split(r"\s*,\s*", str(value).strip())):
        if name not in _CONVERTERS:
            fields.warnings.append(
                f"{fields.path}: line {line}: model.converters: {name}: nothing is known of it; it is left out"
            )
        else:
            fields.convert(_CONVERTERS[name], line)


def _checkpoint(fields: Fields, own: str, value: Any, line: int) -> None:
    """Keep how layers recompute: by operator, or every so many of them whole."""
    if own == "mode":
        if not isinstance(value, str) or value not in _MODES:
            raise fields.wrong(line, f"activation_checkpoint.mode is {value!r}; priced are {', '.join(_MODES)}")
        fields.checkpointing = _MODES[value]
        if value == "selective" and not fields.every_nth_layer:
            fields.every_nth_layer = 2  # selective_ac_option, unless it is said
    elif own == "selective_ac_option":
        if value != "op" and not re.fullmatch(r"[1-9]\d{0,3}", str(value)):
            raise fields.wrong(
                line, f"activation_checkpoint.selective_ac_option is {value!r}; it must be op or a number of layers"
            )
        fields.every_nth_layer = -1 if value == "op" else int(value)


def of_script(path: str) -> Fields:
    """Return what a script says that starts the trainer: its TOML file, or the module beside it, and what it sets over that.

    Raises
    ------
    InputError
        When it names no file that is there, or a field is wrong.
    """
    from meshwright.frameworks.torchtitan import fields as _fields

    text = _exact.read_text(path)
    read = _command_line.read(text, path)
    given = {name[2:].replace("-", "_"): values for name, values in read.options.items()}
    lines = {name[2:].replace("-", "_"): line for name, line in read.lines.items()}
    fields = Fields(path)
    file = " ".join(given.get("job.config_file", ())) or _variable(text, "CONFIG_FILE")
    module = " ".join(given.get("module", ())) or _variable(text, "MODULE")
    config = " ".join(given.get("config", ())) or _variable(text, "CONFIG")
    if file:
        fields = of_toml(_beside(file, path))
    elif module and (Path(path).parent / f"{module}.py").is_file():
        fields = _fields.of_module(str(Path(path).parent / f"{module}.py"))
    elif config in flavors.recipes():
        fields.start = config
    else:
        known = f"a function of torchtitan's registry ({', '.join(flavors.recipes())})"
        raise InputError(
            f"{path}: starts neither a TOML file (--job.config_file), nor a module beside this script, nor {known}"
        )
    fields.path = path
    fields.warnings += read.warnings
    for name, values in given.items():
        if "." in name and name != "job.config_file":
            part, own = name.split(".", 1)
            negated = own.startswith("no_") and not values
            _one(fields, f"{part}.{own.removeprefix('no_') if negated else own}", _value(values, negated), lines[name])
    fields.n_devices = _n_devices(given, text)
    return fields


def _variable(text: str, name: str) -> str:
    """Return what a script sets a variable of run_train.sh to; empty where it does not."""
    found = re.findall(rf"\b{name}=(?:\$\{{{name}:-)?[\"']?([\w./-]+)", text)
    return found[-1] if found else ""


def _beside(file: str, path: str) -> str:
    """Return where a file is that a script names, as seen from its folder or from here."""
    for place in (Path(path).parent / file, Path(path).parent / Path(file).name, Path(file)):
        if place.is_file():
            return str(place)
    raise InputError(f"{path}: --job.config_file is {file}, which is not there; put it beside this script")


def _value(values: tuple[str, ...], negated: bool) -> Any:
    """Return a value of the command line: a flag alone is true."""
    if not values:
        return not negated
    found = [_word(word) for word in values]
    return found[0] if len(found) == 1 else found


def _word(word: str) -> Any:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    return int(word) if re.fullmatch(r"-?\d{1,12}", word) else word


def _n_devices(given: Mapping[str, tuple[str, ...]], text: str) -> int:
    """Return how many processes a script starts; 0 where that is not known."""
    numbers = [" ".join(given.get(name, ())) for name in ("nproc_per_node", "nnodes")]
    numbers = [numbers[0] or _variable(text, "NGPU"), numbers[1] or "1"]
    return int(numbers[0]) * int(numbers[1]) if all(word.isdecimal() for word in numbers) else 0


def _line(text: str, name: str) -> int:
    """Return the line that an entry stands in."""
    part, _, own = name.rpartition(".")
    section = re.search(rf"^\s*\[\s*{re.escape(part)}\s*\]", text, re.M)
    start = section.end() if section else 0
    found = re.compile(rf"^\s*{re.escape(own)}\s*=", re.M).search(text, start)
    return text.count("\n", 0, found.end()) + 1 if found else 1
