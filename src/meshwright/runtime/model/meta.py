"""Models whose weights are on PyTorch's meta device: shapes without memory, until a process holds its part of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from meshwright.base.errors import InputError

__all__ = ["check", "copied", "device_of", "fill", "filled", "filled_in_turn", "on_meta", "weights_on_meta"]


@contextmanager
def weights_on_meta() -> Iterator[None]:
    """Let modules that are built hold their weights on the meta device, one after the other; buffers stay as they are."""
    register = nn.Module.register_parameter

    def as_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = as_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def on_meta(module: nn.Module) -> bool:
    """Whether any weight is on the meta device."""
    return any(parameter.is_meta for parameter in module.parameters())


def check(model: nn.Module, place: str) -> None:
    """Refuse a model of which more than weights is on the meta device, or whose routers add a loss, which is to be compared.

    Raises `InputError` with what to do instead.
    """
    name = next((name for name, buffer in model.named_buffers() if buffer.is_meta), "")
    if name:
        raise InputError(
            f"{place}: buffer '{name}' of the model is on the meta device, and checkpoints need not hold it; give the function "
            "that builds the model and weights=..., which keeps weights alone from being made"
        )
    if on_meta(model) and getattr(getattr(model, "config", None), "output_router_logits", False):
        raise InputError(f"{place}: a model whose routers add to its loss is compared with itself first; build it whole")


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module; states that it keeps of an earlier pass are cut off from what made them."""
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return copy.deepcopy(module, {id(value): value.detach().clone() for value in held if not value.is_leaf})


def device_of(tensor: torch.Tensor) -> torch.device:
    """Return where a tensor is; the CPU for one on the meta device, whose values are made up there for a while."""
    return torch.device("cpu") if tensor.is_meta else tensor.device


def _value(parameter: nn.Parameter) -> nn.Parameter:
    """Return a weight of the same shape with values such that layers neither vanish nor explode."""
    if parameter.dim() < 2:
        made = torch.ones(parameter.shape, dtype=parameter.dtype)
    else:
        made = torch.randn(parameter.shape).to(parameter.dtype) * (parameter.numel() / len(parameter)) ** -0.5
    return nn.Parameter(made, requires_grad=parameter.requires_grad)


def fill(module: nn.Module) -> nn.Module:
    """Give weights on the meta device values, in place, each once; return the module."""
    made: dict[int, nn.Parameter] = {}
    with torch.random.fork_rng([]):
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None and parameter.is_meta:
                    part._parameters[name] = made.setdefault(id(parameter), _value(parameter))
    return module


@contextmanager
def filled(module: nn.Module) -> Iterator[None]:
    """Give weights on the meta device values for a while."""
    held = [(part, dict(part._parameters)) for part in module.modules() if any(True for _ in part.parameters(recurse=False))]
    fill(module)
    try:
        yield
    finally:
        for part, parameters in held:
            part._parameters.update(parameters)


@contextmanager
def filled_in_turn(model: nn.Module) -> Iterator[None]:
    """Give the weights of every module values while it runs, so that few have them at a time."""
    if not on_meta(model):
        yield
        return
    running: list[tuple[nn.Module, dict[str, Any]]] = []

    def enter(module: nn.Module, _: Any) -> None:
        running.append((module, dict(module._parameters)))
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                module._parameters[name] = _value(parameter)

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        while running:  # those inside that an exception has ended
            part, parameters = running.pop()
            part._parameters.update(parameters)
            if part is module:
                break

    with ExitStack() as stack:
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        stack.callback(lambda: [part._parameters.update(parameters) for part, parameters in reversed(running)])
        yield
