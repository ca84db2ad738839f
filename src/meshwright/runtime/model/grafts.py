"""Models with some of their modules replaced, which share everything else with the whole."""

from __future__ import annotations

import copy

import torch
from torch import nn

from meshwright.runtime.model.as_given import evaluating

__all__ = ["drop_unused", "graft", "shallow"]


def graft(model: nn.Module, replaced: dict[str, nn.Module]) -> nn.Module:
    """Return the model with some submodules replaced; everything else is shared with it."""
    root = shallow(model)
    for path, module in replaced.items():
        *steps, name = path.split(".")
        holder = root
        for step in steps:
            inner = shallow(getattr(holder, step))
            holder._modules[step] = inner
            holder = inner
        holder._modules[name] = module
    return root


def shallow(module: nn.Module) -> nn.Module:
    """Return a module that shares all it holds with another one, of which what is replaced there is not the other's."""
    twin = copy.copy(module)
    for name in ("_modules", "_parameters", "_buffers"):
        twin.__dict__[name] = dict(module.__dict__[name])
    return twin


def drop_unused(part: nn.Module, given: torch.Tensor) -> None:
    """Take modules with parameters that a part never runs on what it is given out of it,
    so that it holds its own weights only.
    """
    used: set[nn.Module] = set()
    handles = [module.register_forward_pre_hook(lambda module, _: used.add(module)) for module in part.modules()]
    with torch.no_grad(), evaluating(part):
        part(given)
    for handle in handles:
        handle.remove()
    for name, child in list(part._modules.items()):
        part._modules[name] = _trimmed(child, used)


def _trimmed(module: nn.Module | None, used: set[nn.Module]) -> nn.Module | None:
    """Return a module without what holds parameters and was not used. Where it loses something it is another one: other parts
    of the model share it as it is.
    """
    if module is None or not any(True for _ in module.parameters()):
        return module
    if not any(inner in used for inner in module.modules()):
        return nn.Identity()
    run = module in used  # and so are its lists of weights, which nobody calls
    lists = (nn.ParameterList, nn.ParameterDict)
    kept = {
        name: child if run and isinstance(child, lists) else _trimmed(child, used) for name, child in module._modules.items()
    }
    if all(kept[name] is child for name, child in module._modules.items()):
        return module
    twin = shallow(module)
    twin._modules.update(kept)
    return twin
