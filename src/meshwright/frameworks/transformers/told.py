"""The plan that ``TrainingArguments`` say: a Python file that makes them, ours or any, a JSON file, or a shell script."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import ModelSpec
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _adapters, _exact, _one_config, _optimizers, _python_file
from meshwright.frameworks.accelerate import config
from meshwright.frameworks.deepspeed import config as zero_config
from meshwright.frameworks.transformers import adapters, command, pairs
from meshwright.frameworks.transformers.arguments import PRECISIONS

__all__ = ["model_of", "read"]

_PLANNED = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "tf32", "activation_checkpointing",
    "gradient_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs", "fsdp", "fsdp_config",
    "deepspeed", "parallelism_config", "optim", "optim_args", "torch_compile", "use_liger_kernel", "auto_find_batch_size",
    "accelerator_config",
)  # fmt: skip
"""Arguments that decide what a plan is or what it takes."""

_UNPRICED: Mapping[str, str] = MappingProxyType({
    "torch_empty_cache_steps": "caches are priced as never emptied", "use_cpu": "the cluster's devices are priced",
})  # fmt: skip

_OFFLOADED = ("offload_optimizer", "offload_param")
_ZERO_TABLES = ("zero_optimization", "tensor_parallel", "activation_checkpointing")


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a file says.

    `n_devices`: how many there are, where no command in it says so.

    Raises
    ------
    InputError
        When it cannot be read, an argument is wrong, or arguments contradict each other or the model.
    """
    text = _exact.read_text(path)
    of_script: tuple[str, ...] = ()
    if command.starts(text):
        said, lines, length, started, of_script = command.said(path, text)
    else:
        said, lines, length = _json(path, text) if text.lstrip().startswith("{") else _python(path)
        started = _python_file.started(text)
    lora, told = _adapters_of(said, lines, graph, path, text)
    objective, of_pairs = pairs.taken(said, text, path)
    told += of_pairs
    if objective:
        own_length = said.pop("max_length", None) or pairs.USUAL_LENGTH
        length = length or _exact.whole({"max_length": own_length}, "max_length", path)
    for name in ("deepspeed", "fsdp_config", "accelerator_config"):
        if isinstance(said.get(name), str):
            said[name] = command.table(said[name], name, path)
    own, of_file = _launched(said, path, started)
    warnings = [*of_script, *told, *_unknown(said, lines, path), *of_file]
    n_devices = (_exact.whole(own, "num_processes", path) if own else started) or n_devices
    if not n_devices:
        raise InputError(f"{path}: no torchrun command in it says how many processes there are; say on which cluster it runs")
    by_deepspeed = bool(said.get("deepspeed"))
    if by_deepspeed and said.get("fsdp"):
        raise InputError(f"{path}: deepspeed and fsdp are both set; keep one")
    if own.get("distributed_type") == "FSDP":
        strategy, full = config.degrees(own, str(said["config_file"]))
        full = full or _checkpointed(said, path)
    else:
        strategy, full = (_deepspeed if by_deepspeed else _mesh)(said, path, n_devices)
    if by_deepspeed:
        zero, parallel, kept = (_table(said["deepspeed"], name, path) for name in _ZERO_TABLES)
        zero_config.check(zero, f"{path}: deepspeed")
        otherwise = zero_config.said_otherwise(said["deepspeed"], zero, parallel, kept, strategy.shard)
        warnings += [f"{path}: deepspeed: {what}" for _, what in otherwise]
    warnings += [one for one in _assumed(said, path) if not (lora and "dtype is" in one)]  # adapters' weights are in bf16
    counts = tuple(
        _exact.whole(said, name, path, usual)
        for name, usual in (("gradient_accumulation_steps", 1), ("per_device_train_batch_size", 8))
    )
    words = _exact.layer_words(graph, "full" if full else "none")
    plan = _exact.one_mesh(path, graph, strategy, words, (counts[0], counts[1]))
    variant = _zero_variant(said, strategy, path) if by_deepspeed else "compiled" if said.get("torch_compile") else ""
    variant = variant or ("context" if strategy.context > 1 else "")
    kept = {} if by_deepspeed else _table(said, "accelerator_config", path)
    if not by_deepspeed and (whole := _one_config.unsynchronised(kept, strategy, counts[0], path)):
        variant, warnings = f"{variant}+no_sync", [*warnings, *whole]
    precision = _precision(said, path) or config.precision_of(said if "mixed_precision" in said else own, path)
    optimizer, notes = _optimizers.of_trainer(said, path)
    if by_deepspeed and said["deepspeed"].get("optimizer"):
        optimizer, notes = _optimizers.of_deepspeed(said["deepspeed"], path)
    held = _optimizers.held(precision, optimizer)
    return RunConfig(plan, precision, length, (*warnings, *notes), variant, lora, held, objective)


def _adapters_of(
    said: dict[str, Any], lines: Mapping[str, int], graph: Graph, path: str, text: str
) -> tuple[str, tuple[str, ...]]:
    """Return the adapters that a file trains, as after ``--lora``, and what is to be said of them."""
    if command.starts(text) or text.lstrip().startswith("{"):
        return adapters.taken(said, graph, path, lines)
    tree, _ = _python_file.parsed(path)
    return _adapters.in_python(tree, graph, path, _python_file.constants(tree))


def _launched(said: dict[str, Any], path: str, started: int) -> tuple[dict[str, Any], list[str]]:
    """Return the entries of the file that ``accelerate launch`` is given, empty for none, and warnings of what is not taken.

    DeepSpeed's are put to `said`. `started`: processes that the command line says, which the file's give way to; 0 for none.

    Raises
    ------
    InputError
        When it is missing or of a kind that is not read, or says what an argument says too.
    """
    word = said.get("config_file")
    if not isinstance(word, str):
        return {}, []
    text = command.beside(word, "config_file", path)
    entries = _exact.yaml_entries(text, word, "Accelerate") | ({"num_processes": started} if started else {})
    kind = entries.get("distributed_type")
    if kind not in ("FSDP", "DEEPSPEED", "MULTI_GPU", "NO"):
        raise InputError(f"{word}: distributed_type is {kind}; it must be FSDP, DEEPSPEED, MULTI_GPU or NO")
    if kind in ("FSDP", "DEEPSPEED") and (said.get("fsdp") or said.get("deepspeed")):
        raise InputError(f"{path}: {word} and an argument both say how weights are sharded; keep one")
    told = _exact.table(entries, "deepspeed_config", word) if kind == "DEEPSPEED" else {}
    if kind == "DEEPSPEED":
        inside = told.get("deepspeed_config_file")
        zero: dict[str, Any] = {name: {"device": told[f"{name}_device"]} for name in _OFFLOADED if f"{name}_device" in told}
        zero["stage"] = _exact.whole(told, "zero_stage", word, 2, least=0)
        said["deepspeed"] = command.table(str(inside), "deepspeed_config_file", path) if inside else {"zero_optimization": zero}
    taken = ("deepspeed_config_file", "zero_stage", *(f"{name}_device" for name in _OFFLOADED))
    left = [f"{word}: deepspeed_config.{key} is left out" for key in told if key not in taken]
    others = {key: value for key, value in entries.items() if key != "deepspeed_config"}
    return entries, [*config.unknown(others, text, word), *left]


def _json(path: str, text: str) -> tuple[dict[str, Any], dict[str, int], int]:
    """Return the arguments of a JSON file, their lines, and the length of samples."""
    try:
        content, repeated = files.load_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON: {error}") from None
    if repeated or not isinstance(content, dict):
        raise InputError(f"{path}: {repeated or 'holds no arguments'}")
    keys = re.finditer(r'"(\w+)"\s*:', text)
    lines = {found[1]: text.count("\n", 0, found.start()) + 1 for found in reversed(list(keys))}
    length = _exact.whole(content, "block_size", path) if content.get("block_size") is not None else 0
    return content, lines, length


def _python(path: str) -> tuple[dict[str, Any], dict[str, int], int]:
    """Return the arguments of a Python file, their lines, and the length of samples where a constant says it."""
    tree, _ = _python_file.parsed(path)
    named = _python_file.constants(tree)
    calls = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("TrainingArguments", "DPOConfig"))
    ]  # fmt: skip
    if len(calls) != 1:
        where = f"line {calls[1].lineno}: " if calls else ""
        raise InputError(f"{path}: {where}makes TrainingArguments {len(calls)} times; leave one in a file of its own")
    said: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for keyword in calls[0].keywords:
        place = f"{path}: line {keyword.value.lineno}"
        if keyword.arg is None:
            raise InputError(f"{place}: takes arguments out of {ast.unparse(keyword.value)}; write them out")
        lines[keyword.arg] = keyword.value.lineno
        for inner in ast.walk(keyword.value):
            keys = inner.keys if isinstance(inner, ast.Dict) else []
            lines |= {str(key.value): key.lineno for key in keys if isinstance(key, ast.Constant)}
        try:
            said[keyword.arg] = _python_file.value(keyword.value, named)
        except ValueError:
            if keyword.arg in _PLANNED:
                raise InputError(f"{place}: {keyword.arg} is no constant but {ast.unparse(keyword.value)}") from None
            said[keyword.arg] = None
    length = _exact.whole(named, "SEQUENCE_LENGTH", path) if "SEQUENCE_LENGTH" in named else 0
    return said, lines, length


def _unknown(said: Mapping[str, Any], lines: Mapping[str, int], path: str) -> Iterator[str]:
    """Yield a warning for every argument that transformers does not have."""
    known = json.loads((Path(__file__).parents[1] / "data" / "transformers_options.json").read_text(encoding="utf-8"))
    tables = (
        (said, (*known["arguments"], *known["script"], "config_file", "mixed_precision")),
        (_without_prefix(_table(said, "fsdp_config", path)), known["fsdp_config"]),
        (_table(said, "parallelism_config", path), known["parallelism_config"]),
    )
    for table, names in tables:
        for key in table:
            if key not in names:
                yield f"{path}: line {lines.get(key, 1)}: nothing is known of {key}; it is left out"


def _assumed(said: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield what of the arguments is priced otherwise than they say, or not said."""
    if said.get("use_liger_kernel"):
        yield f"{path}: use_liger_kernel is set: PyTorch's own loss and norms are priced"
    if said.get("torch_compile") and said.get("deepspeed"):
        yield f"{path}: torch_compile is set: eager layers are priced under DeepSpeed"
    if said.get("auto_find_batch_size"):
        yield f"{path}: auto_find_batch_size is set: per_device_train_batch_size is priced as it stands"
    for name in ("dtype", "torch_dtype"):
        if str(said.get(name)).removeprefix("torch.") in ("bfloat16", "float16"):
            products = "" if said.get("bf16") or said.get("fp16") else ", and products as without mixed precision"
            yield f"{path}: {name} is {said[name]}: weights, gradients and moments are priced in fp32{products}"
    for name, what in _UNPRICED.items():
        if said.get(name):
            yield f"{path}: {name} is set: {what}"
    if "per_device_train_batch_size" not in said:
        yield f"{path}: does not say per_device_train_batch_size: transformers' default, 8, is taken"


def _checkpointed(said: Mapping[str, Any], path: str) -> bool:
    """Return whether the arguments recompute all layers; ``gradient_checkpointing`` is the older name."""
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        every = _table(said, f"{name}_kwargs", path).get("every_n_layers", 1)
        if every != 1:
            raise InputError(f"{path}: {name}_kwargs.every_n_layers is {every!r}; plans of it recompute all layers or none: 1")
        if _flag(said, name, False, path):
            return True
    return False


def _mesh(said: Mapping[str, Any], path: str, n_devices: int) -> tuple[Strategy, bool]:
    """Return the degrees of DDP or FSDP2, and whether layers recompute."""
    config = _without_prefix(_table(said, "fsdp_config", path))
    old = " ".join(str(word) for word in said["fsdp"]) if isinstance(said.get("fsdp"), list) else str(said.get("fsdp") or "")
    sharded = old not in ("", "False")
    if sharded and (str(config.get("version", 2)) != "2" or config.get("xla")):
        raise InputError(f"{path}: fsdp_config: version {config.get('version', 2)}: only version 2 is read, without xla")
    if sharded and ("offload" in old.split() or _flag(config, "cpu_offload", False, path)):
        raise _exact.none_on_host("transformers", path, "fsdp_config.cpu_offload")
    if old not in ("", "False", "True") and set(old.split()) - {"full_shard", "shard_grad_op", "auto_wrap"}:
        raise InputError(f"{path}: fsdp is {old!r}; it must be True with an fsdp_config, full_shard or shard_grad_op")
    gathers_again = _flag(config, "reshard_after_forward", "shard_grad_op" not in old.split(), path)
    full, own = _checkpointed(said, path), sharded and _flag(config, "activation_checkpointing", False, path)
    if full and own:
        raise InputError(
            f"{path}: activation_checkpointing and fsdp_config.activation_checkpointing are both True; the Trainer takes one"
        )
    mesh = _table(said, "parallelism_config", path)
    if mesh.get("sp_size") not in (None, 1):
        raise InputError(f"{path}: parallelism_config.sp_size is {mesh['sp_size']}; plans have no such axis: leave it out")
    tensor, context = (_exact.whole(mesh, f"{axis}_size", path, 1) for axis in ("tp", "cp"))
    others = tensor * context
    whole = n_devices // others or 1
    usual = (1, whole) if sharded else (whole, 1)
    names = ("dp_replicate_size", "dp_shard_size")
    stated = any(mesh.get(name) is not None for name in names)
    replicate, shard = (_exact.whole(mesh, name, path, 1 if stated else n) for name, n in zip(names, usual, strict=True))
    if replicate * shard * others != n_devices:
        raise InputError(
            f"{path}: the sizes of parallelism_config make {replicate * shard * others} devices; there are {n_devices}"
        )
    if not sharded and shard > 1:
        raise InputError(f"{path}: parallelism_config.dp_shard_size is {shard}, but fsdp is not set")
    level = 0 if not sharded or replicate * shard * context == 1 else 3 if gathers_again else 2
    degree = shard if level and replicate > 1 else 0
    return Strategy(replicate * shard, tensor, context, 1, False, level, degree), full or own


def _deepspeed(said: Mapping[str, Any], path: str, n_devices: int) -> tuple[Strategy, bool]:
    """Return the degrees of the DeepSpeed integration, and whether layers recompute."""
    config = said["deepspeed"]
    zero, parallel = (_table(config, name, path) for name in ("zero_optimization", "tensor_parallel"))
    for name in _OFFLOADED:
        if _table(zero, name, path).get("device", "none") != "none":
            raise _exact.none_on_host("transformers", path, f"zero_optimization.{name}")
    level = _exact.whole(zero, "stage", path, least=0) if zero else 0
    tensor = _exact.whole(parallel, "autotp_size", path, 1)
    if level > 3 or n_devices % tensor:
        wrong = (
            f"zero_optimization.stage is {level}; it must be 0 to 3" if level > 3 else f"autotp_size {tensor} does not divide"
        )
        raise InputError(f"{path}: {wrong}{'' if level > 3 else f' {n_devices} devices'}")
    for own, name in (("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),) + (
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ):
        if config.get(own, "auto") not in ("auto", said.get(name, 8 if name.startswith("per") else 1)):
            raise InputError(f"{path}: deepspeed.{own} is {config[own]}, {name} says otherwise; write 'auto'")
    data = n_devices // tensor
    return Strategy(data, tensor, 1, 1, False, level if data > 1 else 0), _checkpointed(said, path)


def _zero_variant(said: Mapping[str, Any], strategy: Strategy, path: str) -> str:
    """Return the variant that a DeepSpeed configuration starts."""
    zero = _table(said["deepspeed"], "zero_optimization", path)
    return "deepspeed_late" if strategy.data > 1 and zero_config.reduces_late(zero, strategy.shard) else "deepspeed"


def _precision(said: Mapping[str, Any], path: str) -> str:
    """Return the precision of products; empty where the arguments say none: what the launcher says then counts."""
    chosen = [precision for precision, name in PRECISIONS.items() if _flag(said, name, False, path)]
    if "bf16" in chosen and "fp16" in chosen:
        raise InputError(f"{path}: bf16 and fp16 are both True; keep one")
    return chosen[0] if chosen else ""


def _without_prefix(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of fsdp_config as the Trainer takes them: a prefix ``fsdp_`` is dropped."""
    return {key.removeprefix("fsdp_"): value for key, value in table.items()}


def _table(said: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    value = said.get(name) or {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} is {value!r}; it must be a table of entries")
    return value


def _flag(table: Mapping[str, Any], name: str, default: bool, path: str) -> bool:
    value = table.get(name, default)
    value = default if value is None else value
    if str(value).lower() not in ("true", "false"):
        raise InputError(f"{path}: {name} is {value!r}; it must be True or False")
    return str(value).lower() == "true"


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model that a script or a JSON file of arguments names, with samples of so many tokens; 0 for its own.

    Raises
    ------
    InputError
        When it names none, or one that is unknown here.
    """
    from meshwright import models

    text = _exact.read_text(path)
    if command.starts(text):
        said = command.said(path, text)[0]
    else:
        said = _json(path, text)[0] if text.lstrip().startswith("{") else {}
    names = [said[key] for key in ("model_name_or_path", "model_name", "config_name") if isinstance(said.get(key), str)]
    if not names:
        raise InputError(f"{path}: does not say the model (model_name_or_path); give --model")
    beside = Path(path).parent / names[0]
    return models.read(str(beside) if beside.exists() else names[0], sequence_length=sequence_length)
