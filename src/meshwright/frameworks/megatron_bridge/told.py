"""The plan that a recipe of Megatron-Bridge says: ours, or any file that sets fields of one configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from types import MappingProxyType

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import _exact, _python_file
from meshwright.frameworks.megatron import surroundings
from meshwright.frameworks.megatron_bridge import dump, fields
from meshwright.frameworks.megatron_bridge.said import RecipeFields

__all__ = ["read"]

_CLASSES: Mapping[str, str] = MappingProxyType({
    "TrainingConfig": "train", "DistributedDataParallelConfig": "ddp", "DistributedInitConfig": "dist",
    "CommOverlapConfig": "comm_overlap", "MixedPrecisionConfig": "mixed_precision", "OptimizerConfig": "optimizer",
})  # fmt: skip
_ROOTS = ("model", "model_cfg", "model_config", "provider", "model_provider")  # variables that hold the model's part


class _Recipe(RecipeFields):
    """What a recipe in Python sets."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        super().__init__(path)
        self.named = _python_file.constants(tree)
        self.names = fields.known()["fields"]
        self.by_chance = _python_file.by_chance(tree)

    def assign(self, part: str, name: str, node: ast.expr) -> None:
        """Keep a field; warn of one that nothing is known of, and of one that is set under a condition."""
        place = f"{self.path}: line {node.lineno}"
        if part in self.names and name not in self.names[part]:
            self.unknown(part, name, node.lineno)
            return
        if f"{part}.{name}" not in self.planned:
            return
        try:
            self.put(part, name, _python_file.value(node, self.named), node.lineno)
        except ValueError:
            if part == "mixed_precision":
                return  # noted only where it is False
            raise InputError(f"{place}: {part}.{name} is no constant but {ast.unparse(node)}") from None
        if node.lineno in self.by_chance:
            self.warnings.append(f"{place}: {part}.{name} is set under a condition, which is taken to hold")

    def take_mixed(self, node: ast.expr) -> None:
        """Keep which recipe of mixed precision is taken."""
        text = ast.unparse(node)
        if not text.startswith(("MixedPrecisionConfig", "config.MixedPrecisionConfig")):
            self.mixed(None if text == "None" else text.strip("'\""), node.lineno)


def _collect(path: str, tree: ast.Module) -> _Recipe:
    """Return the fields that a recipe sets: where it makes its parts, then what it assigns."""
    said = _Recipe(path, tree)
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
                said.assign(part, keyword.arg, keyword.value)
            elif keyword.arg == "mixed_precision":
                said.take_mixed(keyword.value)
    for parts, node, _ in _python_file.assigned(tree):
        if len(parts) == 3:
            said.assign(parts[1], parts[2], node)
        elif len(parts) == 2 and parts[0] in _ROOTS:
            said.assign("model", parts[1], node)
        elif len(parts) == 2 and parts[1] == "mixed_precision":
            said.take_mixed(node)
    said.warnings += _started_from(path, tree)
    if not said.found:
        raise InputError(f"{path}: sets no field of model, train or ddp; is it a recipe of Megatron-Bridge?")
    return said


def _started_from(path: str, tree: ast.Module) -> list[str]:
    """Return a warning for every function that makes the configuration whose fields a recipe then sets."""
    own = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    roots = {parts[0] for parts, _, _ in _python_file.assigned(tree) if len(parts) == 3}
    return [
        f"{path}: line {node.lineno}: what {ast.unparse(node.value.func)} sets by itself is not read"
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) in roots
        and ast.unparse(node.value.func).rpartition(".")[2] not in (*own, "ConfigContainer")
    ]  # fmt: skip


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what a recipe, or a configuration that a run wrote down, says.

    `n_devices`: how many there are, where no command in it says so.

    Raises
    ------
    InputError
        When it cannot be read, a field is wrong, or fields contradict each other or the model.
    """
    written = _exact.read_text(path)
    if dump.is_dump(written):
        return dump.read(path, written, graph, n_devices)
    tree, text = _python_file.parsed(path)
    said = _collect(path, tree)
    n_devices = _python_file.started(text) or n_devices
    if not n_devices:
        raise InputError(f"{path}: no torchrun command in it says how many processes there are; say on which cluster it runs")
    for line, what in surroundings.wrong(
        {"--use-megatron-fsdp": ()} if said.found.get("ddp.use_megatron_fsdp") else {}, _python_file.environment(tree)
    ):
        raise InputError(f"{path}: line {line}: {what.replace('--use-megatron-fsdp', 'ddp.use_megatron_fsdp')}")
    return said.config(graph, n_devices)
