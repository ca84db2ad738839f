"""What a model takes, by name."""

from __future__ import annotations

import inspect

from torch import nn

__all__ = ["arguments_of"]

_HANDED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments_of(model: nn.Module) -> list[str]:
    """Return the names of the arguments of a model's ``forward``; of what a wrapper of ``peft`` wraps where it hands on all."""
    parameters = inspect.signature(model.forward).parameters.values()
    wrapped = getattr(model, "get_base_model", None)
    if wrapped is not None and all(parameter.kind in _HANDED_ON for parameter in parameters):
        return arguments_of(wrapped())
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
