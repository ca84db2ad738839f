"""Models whose forward cannot be traced, but which run a list of layers one after the other:
cut by watching one sample pass.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.runtime.model.as_given import evaluating, untouched
from meshwright.runtime.model.data import repeated
from meshwright.runtime.model.naming import first_tensor
from meshwright.runtime.model.tracing import autocast_state

__all__ = ["cut", "fits"]

_MORE_SAMPLES = 4
"""Samples watched besides the one given."""


def fits(paths: Sequence[str]) -> bool:
    """Whether all layers between first and last are members of one list."""
    return len(paths) > 2 and all(paths[1:-1]) and len({path.rpartition(".")[0] for path in paths[1:-1]}) == 1


def cut(model: nn.Module, paths: Sequence[str], row: torch.Tensor) -> list[nn.Module]:
    """Return one module per layer: what runs before the list, its layers, what runs after it.

    `paths`: paths of the plan's layers; `fits` them.
    `row`: one sample.
    Raises `InputError` when layers get more tensors than the one that the layer before returns, or do not run once each, in
    order.
    """
    for sample in _others(model, row):  # a forward that goes by values shows it on some sample, and is refused
        _watch(model, paths[1:-1], sample)
    _watch(model, paths[1:-1], repeated((row,))[0], evaluated=False)  # for what it does if self.training, and around layers
    seen = _watch(model, paths[1:-1], row)
    first = _part(model, {**_unused(model, seen.before), **dict.fromkeys(paths[1:-1], _Stop)})
    blanks = {path: _Blank(model.get_submodule(path), shape) for path, shape in seen.made.items()}
    last = _part(model, {**_unused(model, seen.after), **blanks, **dict.fromkeys(paths[1:-1], _Pass)})
    last.get_submodule(paths[-2]).__dict__["gives"] = True
    layers = [_Layer(model.get_submodule(path), *seen.handed[path]) for path in paths[1:-1]]
    return [_First(first), *layers, _Last(last, row, {path: seen.tuples[path] for path in paths[1:-1]})]


def _others(model: nn.Module, row: torch.Tensor) -> list[torch.Tensor]:
    """Return a few more samples of the same shape."""
    generator = torch.Generator().manual_seed(0)
    if row.is_floating_point():
        return [torch.randn(row.shape, generator=generator).to(row) for _ in range(_MORE_SAMPLES)]
    words = next((module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)), 2)
    return [torch.randint(words, row.shape, generator=generator).to(row) for _ in range(_MORE_SAMPLES)]


class _Seen:
    """What was seen while a sample passed: modules run before and after the layers, and what the layers got."""

    def __init__(self) -> None:
        self.before: set[str] = set()
        self.after: set[str] = set()
        self.made: dict[str, tuple[int, ...]] = {}
        self.handed: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.tuples: dict[str, bool] = {}
        self.carried: list[Any] = []
        self.around: tuple[Any, ...] = ()


def _watch(model: nn.Module, layers: Sequence[str], row: torch.Tensor, *, evaluated: bool = True) -> _Seen:
    """Send a sample through the model and return what happens around its layers."""
    seen, order = _Seen(), list(layers)

    handles = []
    for path, module in model.named_modules():
        if path:
            handles.append(module.register_forward_pre_hook(_entering(model, path, order, seen), with_kwargs=True))
            handles.append(module.register_forward_hook(_leaving(path, order, seen)))
    try:
        with torch.set_grad_enabled(not evaluated), evaluating(model) if evaluated else untouched(model):
            seen.around = (torch.is_grad_enabled(), autocast_state())
            model(row)
    finally:
        for handle in handles:
            handle.remove()
    if list(seen.handed) != order:
        raise InputError(
            f"{type(model).__name__}: does not run its layers {order[0]} to {order[-1]} once each, so it cannot be cut between "
            "its layers"
        )
    holders = {".".join(order[0].split(".")[:i]) for i in range(1, order[0].count(".") + 1)}
    seen.before.update(holders)
    seen.after.update(holders)
    return seen


def _entering(model: nn.Module, path: str, order: Sequence[str], seen: _Seen) -> Any:
    """Return a hook for the beginning of a module."""
    inside = any(path.startswith(f"{layer}.") for layer in order)

    def hook(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        expected = order[len(seen.handed)] if len(seen.handed) < len(order) else ""
        if path in order:
            _check(model, path, expected, arguments, named, seen)
            seen.handed[path] = (arguments[1:], named)
        elif not inside:
            (seen.before if expected else seen.after).add(path)

    return hook


def _leaving(path: str, order: Sequence[str], seen: _Seen) -> Any:
    """Return a hook for the end of a module."""

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if path in order:
            seen.tuples[path] = isinstance(output, tuple)
            seen.carried[:] = [output[0] if isinstance(output, tuple) else output]
        elif not seen.handed and isinstance(output, torch.Tensor):
            for inner in [other for other in seen.made if other.startswith(f"{path}.")]:
                del seen.made[inner]
            seen.made[path] = tuple(output.shape[1:])

    return hook


def _check(model: nn.Module, path: str, expected: str, arguments: tuple[Any, ...], named: dict[str, Any], seen: _Seen) -> None:
    """Refuse layers that are not run as one list."""
    if path != expected or not arguments or not isinstance(arguments[0], torch.Tensor):
        raise InputError(
            f"{type(model).__name__}: runs '{path}' where '{expected}' was expected, or without a tensor; it cannot be cut "
            "between its layers"
        )
    if seen.carried and seen.carried[0] is not arguments[0]:
        raise InputError(
            f"{type(model).__name__}: computes something before '{path}' that belongs to no layer; it cannot be cut between "
            "its layers"
        )
    if (torch.is_grad_enabled(), autocast_state()) != seen.around:
        raise InputError(
            f"{type(model).__name__}: runs '{path}' without gradients, or under autocast; do that inside its layers, or plan "
            "with a single stage of one layer"
        )
    if any(isinstance(value, torch.Tensor) for value in (*arguments[1:], *named.values())):
        raise InputError(
            f"{type(model).__name__}: hands '{path}' more tensors than the one of the layer before; it cannot be cut between "
            "its layers"
        )


def _unused(model: nn.Module, used: set[str]) -> dict[str, Any]:
    """Return stand-ins for modules with weights that a part does not run."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{other}.") for other in found)
        needed = path in used or any(other.startswith(f"{path}.") for other in used)
        if (
            path
            and not inside
            and not needed
            and any(True for _ in module.parameters())
            and not isinstance(module, nn.ModuleList)
        ):
            found[path] = _Pass
    return found


def _part(model: nn.Module, replaced: dict[str, Any]) -> nn.Module:
    """Return a copy of the model that shares its weights, with some modules replaced."""
    part = _twin(model)
    for path, stand_in in replaced.items():
        holder, _, name = path.rpartition(".")
        module = part.get_submodule(holder) if holder else part
        module._modules[name] = stand_in(model.get_submodule(path)) if isinstance(stand_in, type) else stand_in
    return part


def _twin(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin.__dict__["_parameters"], twin.__dict__["_buffers"] = dict(module._parameters), dict(module._buffers)
    twin.__dict__["_modules"] = {name: child if child is None else _twin(child) for name, child in module._modules.items()}
    return twin


class _StandIn(nn.Module):
    """Answers for the attributes of a module without holding its weights."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["stands_for"] = (copy.deepcopy(layer).to("meta"),)

    def __getattr__(self, name: str) -> Any:
        """Return what the layer has."""
        return getattr(self.__dict__["stands_for"][0], name)


class _Stopped(Exception):
    """Carries what reaches the first layer."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _Stop(_StandIn):
    """Ends the forward."""

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Raise with the input."""
        raise _Stopped(hidden)


class _Pass(_StandIn):
    """Returns its input, or, in place of the last layer, what it was given beforehand;
    as a tuple where its layer returns one.
    """

    gives, in_tuple = False, False
    value: Any = None

    def forward(self, hidden: Any, *_: Any, **__: Any) -> Any:
        """Return a tensor."""
        found = self.__dict__["value"] if self.gives else hidden
        return (found,) if self.in_tuple else found


class _Blank(_StandIn):
    """Stands for what runs before the layers: zeros of its result's shape."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__(module)
        self.__dict__["shape"], self.__dict__["like"] = shape, None

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return zeros."""
        like: torch.Tensor = self.__dict__["like"]
        return torch.zeros(len(like), *self.__dict__["shape"], device=like.device, dtype=like.dtype)


class _First(nn.Module):
    """From the sample to the input of the first layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor]:
        """Return what reaches the first layer."""
        try:
            self.model(inputs)
        except _Stopped as stopped:
            return (stopped.hidden,)
        raise InputError("the model runs none of its layers")


class _Layer(nn.Module):
    """One layer, with what it is handed besides the tensor."""

    def __init__(self, layer: nn.Module, rest: tuple[Any, ...], named: dict[str, Any]) -> None:
        super().__init__()
        self.layer, self.rest, self.named = layer, rest, named

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the tensor after the layer."""
        output = self.layer(hidden, *self.rest, **self.named)
        return (output[0] if isinstance(output, tuple) else output,)


class _Last(nn.Module):
    """From the output of the last layer to what the model returns."""

    def __init__(self, model: nn.Module, row: torch.Tensor, tuples: dict[str, bool]) -> None:
        super().__init__()
        self.model, self.sizes, self.kind = model, tuple(row.shape[1:]), row.dtype
        stand_ins = {path: model.get_submodule(path) for path in tuples}
        for path, stand_in in stand_ins.items():
            stand_in.__dict__["in_tuple"] = tuples[path]
        self.given = (list(stand_ins.values())[-1],)
        self.blanks = tuple(module for module in model.modules() if isinstance(module, _Blank))

    def forward(self, hidden: torch.Tensor) -> tuple[Any]:
        """Return the model's first tensor."""
        for blank in self.blanks:
            blank.__dict__["like"] = hidden
        self.given[0].__dict__["value"] = hidden
        try:
            return (first_tensor(self.model(torch.zeros(len(hidden), *self.sizes, dtype=self.kind, device=hidden.device))),)
        finally:
            for stand_in, name in ((self.given[0], "value"), *((blank, "like") for blank in self.blanks)):
                stand_in.__dict__[name] = None
