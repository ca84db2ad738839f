"""Fields of torchtitan's configuration, wherever they are set: what decides a plan, what does not, what nothing is known of."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.frameworks import _exact, _python_file
from meshwright.frameworks.torchtitan import flavors
from meshwright.frameworks.torchtitan.module import CHECKPOINTING

__all__ = ["ELSEWHERE", "Fields", "of_module"]

_CLASSES: Mapping[str, str] = MappingProxyType(
    {"ParallelismConfig": "parallelism", "TrainingConfig": "training", "CompileConfig": "compile"}
)

_READ: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "parallelism": (
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
        "tensor_parallel_degree", "enable_sequence_parallel", "context_parallel_degree", "expert_parallel_degree",
        "pipeline_parallel_degree", "pipeline_parallel_microbatch_size", "pipeline_parallel_schedule",
        "module_fqns_per_model_part", "pipeline_parallel_schedule_csv", "pipeline_parallel_first_stage_less_layers",
        "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_layers_per_stage", "pipeline_parallel_split_points",
    ),
    "training": (
        "local_batch_size", "global_batch_size", "seq_len", "mixed_precision_param", "mixed_precision_reduce",
        "enable_cpu_offload",
    ),
    "compile": ("enable", "enable_async_tensor_parallel", "components"),
})  # fmt: skip

_WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = MappingProxyType({  # on what a plan says
    "parallelism": (
        "spmd_backend", "enable_fsdp_symm_mem", "context_parallel_load_balancer", "context_parallel_ptrr_mask_key",
        "context_parallel_rotate_method", "expert_parallel_comm_backend",
    ),
    "training": (
        "steps", "disable_cuda_graphs", "max_norm", "gc_freq", "gc_debug", "seed", "deterministic",
        "dataset", "dataset_path", "debug_moe_force_load_balance",
    ),
    "compile": ("backend", "model_backend_override"),
})  # fmt: skip

ELSEWHERE = (
    "checkpoint", "comm", "dataloader", "debug", "dump_folder", "experimental", "fault_tolerance", "hf_assets_path", "job",
    "loss", "lr_scheduler", "memory_estimation", "metrics", "model_spec", "optimizer", "profiler", "profiling", "tokenizer",
    "validation", "validator",
)  # fmt: skip
"""Parts of a configuration of which nothing is a plan's, but for the optimizer's name."""

_CONVERTERS: Mapping[str, str] = MappingProxyType({"Float8": "fp8", "MXFP8": "mxfp8", "NVFP4": "fp4"})
"""The precision of products that each converter makes, by how the name of its class begins."""


class Fields:
    """What a configuration sets, each field with its line.

    Parameters
    ----------
    path : str
        The file, for messages.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {"parallelism": {}, "training": {}, "compile": {}}
        self.checkpointing: str | None = None
        self.every_nth_layer = 0
        self.order = ""
        self.warnings: list[str] = []
        self.family = self.flavor = ""
        self.start = ""
        self.made_anew: set[str] = set()
        self.precision = ""
        self.n_devices = 0

    def wrong(self, line: int, what: str) -> InputError:
        """Return the error of a line."""
        return InputError(f"{self.path}: line {line}: {what}")

    def known(self, part: str, name: str, line: int) -> bool:
        """Return whether a field is read; warn of one that nothing is known of."""
        if name in _READ[part]:
            return True
        if name not in _WITHOUT_EFFECT[part] and (part, name) != ("training", "dtype"):
            self.warnings.append(f"{self.path}: line {line}: {part}.{name}: nothing is known of it; it is left out")
        return False

    def keep(self, part: str, name: str, value: Any, line: int) -> None:
        """Keep a field whose value is known."""
        if (part, name) == ("training", "enable_cpu_offload") and value:
            raise self.wrong(
                line, "training.enable_cpu_offload: plans hold neither weights nor gradients on the host; leave it out"
            )
        if (part, name) == ("training", "dtype") and value != "float32":
            self.warnings.append(
                f"{self.path}: line {line}: training.dtype is {value}: masters and moments are priced in four bytes"
            )
        if self.known(part, name, line):
            self.found[part][name] = value

    def put(self, part: str, name: str, node: ast.expr) -> None:
        """Keep a field that a module sets to an expression."""
        try:
            value = ast.literal_eval(node)
        except ValueError:
            if not self.known(part, name, node.lineno):
                return
            if name != "pipeline_parallel_schedule_csv":
                raise self.wrong(node.lineno, f"{part}.{name}: is no constant but {ast.unparse(node)}") from None
            value = ast.unparse(node)
        self.keep(part, name, value, node.lineno)

    def assign(self, parts: list[str], node: ast.expr) -> None:
        """Keep what an assignment says: ``config.training.steps = 3``, in parts."""
        if len(parts) == 3 and parts[1] in self.found:
            self.put(parts[1], parts[2], node)
        elif parts[-1] == "activation_checkpoint" and len(parts) == 2:
            self.checkpoint(node)
        elif parts == ["ORDER"] and isinstance(node, ast.Constant):
            self.order = str(node.value)
        elif len(parts) > 1 and parts[1] not in (*self.found, *ELSEWHERE, "activation_checkpoint"):
            name = ".".join(parts[1:])
            self.warnings.append(f"{self.path}: line {node.lineno}: {name}: nothing is known of it; it is left out")

    def checkpoint(self, node: ast.expr) -> None:
        """Keep the kind of activation checkpointing."""
        text = ast.unparse(node)
        kind = "" if text == "None" else text.partition("(")[0].removesuffix(".Config").rpartition(".")[2]
        if kind not in CHECKPOINTING.values():
            known = ", ".join(word for word in CHECKPOINTING.values() if word)
            raise self.wrong(node.lineno, f"activation_checkpoint is {text}; it must be None, {known}")
        self.checkpointing = kind

    def convert(self, name: str, line: int) -> None:
        """Keep the precision of products that a converter makes."""
        precision = next((word for begin, word in _CONVERTERS.items() if name.startswith(begin)), "")
        if not precision:
            raise self.wrong(line, f"converters: {name} is none that is priced; {', '.join(_CONVERTERS)} are")
        self.precision = precision

    def complete(self) -> None:
        """Take what is not set from the function of torchtitan's registry that the configuration starts from."""
        recipe = flavors.recipes().get(self.start, {})
        if not recipe:
            return
        for part in self.found.keys() - self.made_anew:
            self.found[part] = {**recipe.get(part, {}), **self.found[part]}
        if self.checkpointing is None:
            self.checkpointing = recipe["checkpointing"]
        self.family, self.flavor = self.family or recipe["family"], self.flavor or recipe["flavor"]
        self.precision = self.precision or recipe.get("precision", "")

    def priced_as(self) -> str:
        """Return the variant that it starts."""
        said = self.found["compile"]
        compiled = said.get("enable") is True and "model" in (said.get("components") or ("model",))
        if not compiled:
            return "eager"
        return "async_tensor" if said.get("enable_async_tensor_parallel") is True else ""


def of_module(path: str) -> Fields:
    """Return the fields that a Python module sets.

    Raises
    ------
    InputError
        When it is no Python, holds several configurations or none, or a field is wrong.
    """
    try:
        tree = ast.parse(_exact.read_text(path))
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: is no Python: {error.msg}") from None
    fields = Fields(path)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    several = [node.lineno for node in calls if ast.unparse(node.func).endswith("ParallelismConfig")]
    if len(several) > 1:
        raise fields.wrong(several[1], f"holds {len(several)} configurations; leave one in a file of its own")
    for call in calls:
        name = ast.unparse(call.func).removesuffix(".Config").rpartition(".")[2]
        part = _CLASSES.get(name)
        fields.made_anew |= {part} if part else set()
        for keyword in call.keywords:
            if part and keyword.arg:
                fields.put(part, keyword.arg, keyword.value)
            elif keyword.arg == "activation_checkpoint":
                fields.checkpoint(keyword.value)
        if name.endswith("Converter"):
            fields.convert(name, call.lineno)
    _assignments(tree, fields)
    _note_model(tree, fields)
    if not fields.found["parallelism"] and not fields.found["training"]:
        raise InputError(f"{path}: sets no field of parallelism or training; is it a configuration of torchtitan?")
    return fields


def _assignments(tree: ast.Module, fields: Fields) -> None:
    """Keep what a module assigns, in its order; raises `InputError` when several functions set fields of their own."""
    setting: dict[int, int] = {}  # the line of a function, and the first in it that sets a field
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    conditional = _python_file.by_chance(tree)
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and len(node.targets) == 1]
    for node in sorted(assigned, key=lambda one: one.lineno):
        parts = ast.unparse(node.targets[0]).split(".")
        fields.assign(parts, node.value)
        if len(parts) < 2 or parts[1] not in (*fields.found, "activation_checkpoint"):
            continue
        if node.lineno in conditional:
            name = ".".join(parts[1:])
            fields.warnings.append(
                f"{fields.path}: line {node.lineno}: {name} is set under a condition, which is taken to hold"
            )
        inside = [one.lineno for one in functions if one.lineno <= node.lineno <= (one.end_lineno or one.lineno)]
        if inside:
            setting.setdefault(min(inside), node.lineno)
    if len(setting) > 1:
        line = sorted(setting.values())[1]
        raise fields.wrong(line, f"is of the second of {len(setting)} configurations; leave one in a file of its own")


def _note_model(tree: ast.Module, fields: Fields) -> None:
    """Keep which model of the registry a module names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            family = str(node.module).split(".")[2]
            for name in node.names:
                fields.start = name.name if name.name in flavors.recipes() else fields.start
                fields.family = family if name.name == "model_registry" else fields.family
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("model_registry") and node.args:
            fields.flavor = str(getattr(node.args[0], "value", ""))
