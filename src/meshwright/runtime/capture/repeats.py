"""Layers that repeat: shorten a run of equal modules to two, and put back what was taken out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["RepeatedModules", "restore", "shorten"]

_KEPT = 2  # the second shows what a layer does when it follows one of its own kind


@dataclass(frozen=True, slots=True)
class RepeatedModules:
    """A run of equal modules in a list.

    `container`: path of the ``ModuleList`` or ``Sequential``.
    `first`: position of the first of the run after all lists were shortened.
    `original`: its position before.
    `n_layers`: modules of the run; two of them are left.
    """

    container: str
    first: int
    original: int
    n_layers: int


def shorten(
    module: torch.nn.Module, n_apart: int = 0
) -> tuple[tuple[RepeatedModules, ...], list[tuple[torch.nn.Module, dict[str, Any]]]]:
    """Take all but two modules out of every run of at least three equal ones; runs inside runs stay.

    `module`: changed in place; `restore` undoes it.
    `n_apart`: modules at the beginning of each run that are no part of it: the first layer may read something else.

    Returns `runs`: what was shortened; `taken`: what `restore` needs.
    """
    runs: list[RepeatedModules] = []
    taken: list[tuple[torch.nn.Module, dict[str, Any]]] = []
    _visit(module, "", n_apart, runs, taken)
    return tuple(runs), taken


def restore(taken: list[tuple[torch.nn.Module, dict[str, Any]]]) -> None:
    """Put all modules back."""
    for container, children in taken:
        container._modules = children


def _visit(
    module: torch.nn.Module,
    path: str,
    n_apart: int,
    runs: list[RepeatedModules],
    taken: list[tuple[torch.nn.Module, dict[str, Any]]],
) -> None:
    """Shorten the lists in a module, outermost first."""
    children = dict(module._modules)
    is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and all(name.isdigit() for name in children)
    if not is_list:
        for name, child in children.items():
            if child is not None:
                _visit(child, f"{path}.{name}".lstrip("."), n_apart, runs, taken)
        return
    kept: list[torch.nn.Module] = []
    parts = [child for child in children.values() if child is not None]
    start = 0
    while start < len(parts):
        end = _end_of_run(parts, start)
        if end - start > _KEPT + n_apart:
            runs.append(RepeatedModules(path, len(kept) + n_apart, start + n_apart, end - start - n_apart))
            kept += parts[start : start + n_apart + _KEPT]
        else:
            for part in parts[start:end]:
                _visit(part, f"{path}.{len(kept)}".lstrip("."), n_apart, runs, taken)
                kept.append(part)
        start = end
    if len(kept) < len(parts):
        taken.append((module, children))
        module._modules = {str(i): part for i, part in enumerate(kept)}


def _end_of_run(parts: list[torch.nn.Module], start: int) -> int:
    """Return the position after the last module that equals the one at `start`."""
    end = start + 1
    signature = _signature(parts[start]) if end < len(parts) else ()
    distinct = {id(parts[start])}
    while end < len(parts) and id(parts[end]) not in distinct:
        following = _signature(parts[end])
        if not _alike(signature, following):
            break
        distinct.add(id(parts[end]))
        signature, end = following, end + 1
    return end


def _signature(module: torch.nn.Module) -> tuple[tuple[str, Any], ...]:
    """Return everything about a module that can decide what it computes: classes, plain attributes, shapes of weights."""
    entries: list[tuple[str, Any]] = []
    for path, part in module.named_modules():
        entries.append((path, type(part)))
        for name, value in sorted(vars(part).items()):
            if not name.startswith("_") and isinstance(value, (int, float, str, bool, tuple, type(None))):
                entries.append((f"{path}.{name}", value))
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                entries.append((f"{path}.{name}", (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)))
    return tuple(entries)


def _alike(left: tuple[tuple[str, Any], ...], right: tuple[tuple[str, Any], ...]) -> bool:
    """Whether two signatures are equal; a whole number that grows by one from layer to layer is the layer's own number."""
    if len(left) != len(right):
        return False
    for (name, value), (other, following) in zip(left, right, strict=True):
        numbered = type(value) is int and type(following) is int and following == value + 1
        if name != other or not (numbered or (type(value) is type(following) and value == following)):
            return False
    return True
