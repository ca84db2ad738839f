"""Models with some of their modules replaced, which share everything else with the whole."""

from __future__ import annotations

import copy

from torch import nn

__all__ = ["graft", "shallow"]


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
