"""What a model takes, by name."""

from __future__ import annotations

import inspect

from torch import nn

__all__ = ["arguments_of"]

_HANDED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments_of(model: nn.Module) -> list[str]:
    """Return the names of the arguments of a model's ``forward``; behind those of a wrapper of ``peft``, which hands others on,
    those of what it wraps.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    wrapped = getattr(model, "get_base_model", None)
    if wrapped is None:
        return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    own = [parameter.name for parameter in parameters if parameter.kind not in _HANDED_ON]
    handed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return [*own, *(name for name in arguments_of(wrapped()) if handed_on and name not in own)]
