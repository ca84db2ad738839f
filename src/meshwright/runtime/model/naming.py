"""What parts of a model are called: which submodule a layer of a plan is, and which value its result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError

__all__ = ["first_tensor", "layer_names", "resolve"]

_NUMBERED = re.compile(r"^(?:.*\.)?(?:layers|blocks|h|layer)\.(\d+)$")


def resolve(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the path of the submodule that each name means; empty for what lies before or after the repeated layers.

    `names`: layers of the plan, in order.
    Raises `InputError` when a name in the middle means nothing in this model, or the model has more or fewer repeated layers
    than the plan.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    if len(names) == 1 and names[0] not in known:
        return [""]
    numbers = {i: int(match[1]) for i, name in enumerate(names) if (match := _NUMBERED.match(name))}
    stack = _stack(model, names, numbers)
    beginning = _beginning(
        known, [name for i, name in enumerate(names) if name not in known and i not in numbers and "." in name]
    )
    paths = []
    for i, name in enumerate(names):
        if i in numbers and stack is not None:
            paths.append(stack[numbers[i]])
        elif name in known and name:
            paths.append(name)
        elif beginning and f"{beginning}.{name}" in known:
            paths.append(f"{beginning}.{name}")
        elif i in (0, len(names) - 1) and (numbers or beginning or len(names) == 2):
            paths.append("")
        else:
            raise InputError(
                f"{type(model).__name__}: has no layer '{name}'; is this the plan of another model? Its parts are: "
                f"{_parts(model)}"
            )
    return paths


def _beginning(known: Mapping[str, nn.Module], names: Sequence[str]) -> str:
    """Return the shortest path that all names stand under, which captured graphs leave out; empty where there is none."""
    found = [{path[: -len(name) - 1] for path in known if path.endswith(f".{name}")} for name in names]
    return min(set.intersection(*found), key=lambda path: (len(path), path), default="") if found else ""


def _stack(model: nn.Module, names: Sequence[str], numbers: dict[int, int]) -> list[str] | None:
    """Return the paths of the repeated layers where the plan numbers them under another path than the model.

    Raises `InputError` when the model repeats another number of layers.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    if not numbers:
        return None
    if all(names[i] in known for i in numbers):
        holder = names[min(numbers)].rpartition(".")[0]
        held = len(known[holder]._modules)
        _same_count(model, held, len(numbers), holder)
        return None
    wanted = len(numbers)
    stacks = _lists(model)
    outer = {path: keys for path, keys in stacks.items() if not any(path.startswith(f"{other}.") for other in stacks if other)}
    fitting = [path for path, keys in outer.items() if len(keys) == wanted] or [
        path for path, keys in stacks.items() if len(keys) == wanted
    ]
    if not fitting:
        longest = max(outer, key=lambda path: len(outer[path]), default=None)
        if longest is None:
            raise InputError(
                f"{type(model).__name__}: has no repeated layers, but the plan has {wanted}; is this the plan of another model?"
            )
        _same_count(model, len(outer[longest]), wanted, longest)
    path = fitting[0]
    return [f"{path}.{key}" if path else key for key in stacks[path]]


def _lists(model: nn.Module) -> dict[str, list[str]]:
    """Return the lists of layers in a model by path, each with the names of its members.

    A dictionary of unlike modules (``{"wte": ..., "h": ..., "ln_f": ...}``) is none.
    """
    found = {}
    for path, module in model.named_modules():
        listed = isinstance(module, (nn.ModuleList, nn.Sequential))
        if listed or (isinstance(module, nn.ModuleDict) and len({type(child) for child in module.values()}) == 1):
            found[path] = list(module._modules)
    return {path: names for path, names in found.items() if len(names) > 1}


def _same_count(model: nn.Module, held: int, wanted: int, place: str) -> None:
    if held != wanted:
        raise InputError(
            f"{type(model).__name__}: {place or 'it'} holds {held} layers, but the plan has {wanted}; "
            "is this the plan of another model?"
        )


def _parts(model: nn.Module) -> str:
    paths = [path for path, _ in model.named_modules() if path and path.count(".") < 2]
    return ", ".join(paths[:20]) + (", ..." if len(paths) > 20 else "")


def layer_names(model: nn.Module) -> list[str]:
    """Return names for the layers of a model in the words of our readers: ``embed``, ``layers.0``, ..., ``head``.

    `model`: a sequence of modules, or a module with one list of repeated layers.
    Raises `InputError` when it has no repeated layers.
    """
    if isinstance(model, nn.Sequential):
        return list(model._modules)
    stacks = _lists(model)
    outer = {path: len(keys) for path, keys in stacks.items() if not any(path.startswith(f"{other}.") for other in stacks)}
    if not outer:
        raise InputError(f"{type(model).__name__}: has no repeated layers to cut it at")
    return ["embed", *[f"layers.{i}" for i in range(max(outer.values()))], "head"]


def first_tensor(value: Any) -> Any:
    """Return the first tensor of what a model gives back: itself, of a tuple, or its ``logits`` where it has some."""
    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "logits"):
        return value.logits
    if isinstance(value, (tuple, list)) and value:
        return first_tensor(value[0])
    if isinstance(value, dict) and value:
        return first_tensor(value["logits"] if "logits" in value else next(iter(value.values())))
    return value
