"""The plan that a recipe of Megatron-Bridge says: ours, or any file that sets fields of one configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import _python_file
from meshwright.frameworks.megatron import told as megatron_told
from meshwright.frameworks.megatron_bridge import fields

__all__ = ["read"]

_CLASSES: Mapping[str, str] = MappingProxyType({
    "TrainingConfig": "train", "DistributedDataParallelConfig": "ddp", "DistributedInitConfig": "dist",
    "CommOverlapConfig": "comm_overlap", "MixedPrecisionConfig": "mixed_precision", "OptimizerConfig": "optimizer",
})  # fmt: skip
_ROOTS = ("model", "model_cfg", "model_config", "provider", "model_provider")  # variables that hold the model's part
_PLANNED = ("optimizer.use_distributed_optimizer", "comm_overlap.tp_comm_overlap", "mixed_precision.grad_reduce_in_fp32")
_OTHER_PARTS = (
    "model.cpu_offloading",
    "model.fine_grained_activation_offloading",
    "ddp.use_torch_fsdp2",
    "dist.use_torch_fsdp2",
)


class _Said:
    """What a recipe sets: values of fields by their dotted names, with their lines."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.found, self.precision = path, dict[str, Any](), "bf16_mixed"
        self.warnings: list[str] = []
        self.named = _python_file.constants(tree)
        self.names = fields.known()["fields"]
        self.planned = {*fields.VALUES.values(), *fields.FLAGS.values(), *_PLANNED, *_OTHER_PARTS}
        self.by_chance = {
            inner.lineno for node in ast.walk(tree) if isinstance(node, ast.If) and not _is_main(node)
            for inner in ast.walk(node) if isinstance(inner, ast.Assign)
        }  # fmt: skip

    def put(self, part: str, name: str, node: ast.expr) -> None:
        """Keep a field; warn of one that nothing is known of, and of one that is set under a condition."""
        place = f"{self.path}: line {node.lineno}"
        if part in self.names and name not in self.names[part]:
            self.warnings.append(f"{place}: nothing is known of {part}.{name}; it is left out")
            return
        if f"{part}.{name}" not in self.planned:
            return
        try:
            self.found[f"{part}.{name}"] = _python_file.value(node, self.named)
        except ValueError:
            if part == "mixed_precision":
                return  # noted only where it is False
            raise InputError(f"{place}: {part}.{name} is no constant but {ast.unparse(node)}") from None
        if node.lineno in self.by_chance:
            self.warnings.append(f"{place}: {part}.{name} is set under a condition, which is taken to hold")

    def mixed(self, node: ast.expr) -> None:
        """Keep which recipe of mixed precision is taken."""
        text = ast.unparse(node)
        name = text.strip("'\"").removesuffix("()").rpartition(".")[2].replace("-", "_")
        if text == "None":
            self.precision = ""
        elif name in ("bf16_with_fp8_delayed_scaling_mixed", "bf16_with_fp8_subchannel_scaling_mixed"):
            self.precision = "bf16_with_fp8_current_scaling_mixed"
            self.warnings.append(f"{self.path}: line {node.lineno}: {name} is priced as products in fp8")
        elif name in fields.PRECISIONS:
            self.precision = name
        elif not text.startswith(("MixedPrecisionConfig", "config.MixedPrecisionConfig")):
            known = ", ".join(fields.PRECISIONS)
            raise InputError(f"{self.path}: line {node.lineno}: mixed_precision is {text}; it must be None, {known}")


def _is_main(node: ast.If) -> bool:
    return "__name__" in ast.unparse(node.test)


def _collect(path: str, tree: ast.Module) -> _Said:
    """Return the fields that a recipe sets: where it makes its parts, then what it assigns."""
    said = _Said(path, tree)
    recipes = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and re.search(r"\.tensor_model_parallel_size = ", ast.unparse(node))
    ]  # fmt: skip
    if len(recipes) > 1:
        raise InputError(f"{path}: line {recipes[1].lineno}: holds {len(recipes)} recipes; leave one in a file of its own")
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        made = ast.unparse(call.func).rpartition(".")[2]
        part = "model" if made.endswith("Provider") else _CLASSES.get(made)
        for keyword in call.keywords:
            if part and keyword.arg:
                said.put(part, keyword.arg, keyword.value)
            elif keyword.arg == "mixed_precision":
                said.mixed(keyword.value)
    for parts, node, _ in _python_file.assigned(tree):
        if len(parts) == 3:
            said.put(parts[1], parts[2], node)
        elif len(parts) == 2 and parts[0] in _ROOTS:
            said.put("model", parts[1], node)
        elif len(parts) == 2 and parts[1] == "mixed_precision":
            said.mixed(node)
    if not said.found:
        raise InputError(f"{path}: sets no field of model, train or ddp; is it a recipe of Megatron-Bridge?")
    return said


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a recipe says.

    `n_devices`: how many there are, where no command in it says so.

    Raises
    ------
    InputError
        When it cannot be read, a field is wrong, or fields contradict each other or the model.
    """
    tree, text = _python_file.parsed(path)
    said = _collect(path, tree)
    n_devices = _python_file.started(text) or n_devices
    if not n_devices:
        raise InputError(f"{path}: no torchrun command in it says how many processes there are; say on which cluster it runs")
    for field in _OTHER_PARTS:
        if said.found.get(field):
            raise InputError(f"{path}: {field} is set; plans have nothing like it: leave it out")
    options = _options(said, graph)
    try:
        plan = megatron_told.plan_of(options, path, n_devices)
    except InputError as error:
        raise InputError(_in_fields(str(error))) from None
    n_layers = sum(len(stage.ops) for stage in plan.stages) - 2
    if n_layers != len(graph.ops) - 2:
        raise InputError(
            f"{path}: model.num_layers: makes {n_layers} layers, but {graph.name} has {len(graph.ops) - 2}: another model?"
        )
    one, overlap = plan.stages[0].strategy, said.found.get("comm_overlap.tp_comm_overlap", False)
    experts = any(operator.expert for op in graph.ops for operator in op.body)
    apart = one.tensor > 1 and one.sequence_parallel and not overlap
    if apart and experts:
        said.warnings.append(f"{path}: comm_overlap.tp_comm_overlap is not set; the tensor axis is priced with overlap")
    if said.found.get("mixed_precision.grad_reduce_in_fp32") is False:
        said.warnings.append(f"{path}: grad_reduce_in_fp32 is False; gradients are priced in four bytes")
    length = said.found.get("model.seq_length") or 0
    precision = fields.PRECISIONS.get(said.precision, "fp32")
    return RunConfig(plan, precision, length, tuple(said.warnings), "plain" if apart and not experts else "")


def _options(said: _Said, graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return Megatron-LM's options that the fields are; what a recipe leaves open is as a bare configuration has it."""
    found, ahead = dict(said.found), sum(op.name.startswith("mtp.") for op in graph.ops)
    found.setdefault("model.num_layers", len(graph.ops) - 2 - ahead)
    if ahead:
        found.setdefault("model.mtp_num_layers", ahead)
    if found.get("optimizer.use_distributed_optimizer") or "ddp.use_distributed_optimizer" not in found:
        found["ddp.use_distributed_optimizer"] = found.get("optimizer.use_distributed_optimizer", True)
    if found.get("model.mtp_num_layers") in (None, 0):
        found.pop("model.mtp_num_layers", None)
    options: dict[str, tuple[str, ...]] = {}
    for option, field in fields.VALUES.items():
        value = found.get(field)
        if isinstance(value, list) and field.endswith("layout"):
            value = _layout(value, said.path)
        if value is not None:
            options[option] = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
    for option, field in fields.FLAGS.items():
        value = found.get(field, False)
        if not isinstance(value, bool) and value is not None:
            raise InputError(f"{said.path}: {field} is {value!r}; it must be True or False")
        if value:
            options[option] = ()
    return options


def _layout(stages: list[Any], path: str) -> str:
    """Return a layout that is written as lists of words as Megatron-LM's option has it."""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    parts = [one if isinstance(one, list) else [one] for one in stages]
    unknown = [word for part in parts for word in part if word not in letters]
    if unknown:
        raise InputError(f"{path}: model.pipeline_model_parallel_layout names {unknown[0]}; there are {', '.join(letters)}")
    return "|".join("".join(letters[word] for word in part) for part in parts)


def _in_fields(text: str) -> str:
    """Return a message with fields in place of options."""
    for option, field in sorted({**fields.VALUES, **fields.FLAGS}.items(), key=lambda one: -len(one[0])):
        text = re.sub(rf"{option}(?![\w-])", field, text)
    return text
