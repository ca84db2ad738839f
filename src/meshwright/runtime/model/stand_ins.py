"""What stands in a copy of a model for what the copy does not run."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

__all__ = ["Blank", "Ending", "Keep", "Pass", "StandIn", "Stopped"]


class StandIn(nn.Module):
    """Answers for the attributes of a module without holding its weights.

    `n_values`: how many values a layer returns as a tuple, the tensor first; 0 where it returns the tensor alone.
    """

    n_values = 0

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["stands_for"] = (copy.deepcopy(layer).to("meta"),)

    def __getattr__(self, name: str) -> Any:
        """Return what the layer has."""
        return getattr(self.__dict__["stands_for"][0], name)

    def as_given(self, tensor: Any) -> Any:
        """Return a tensor as the layer does: in a tuple, if it returns one, in which all else is None."""
        return (tensor, *(None,) * (self.n_values - 1)) if self.n_values else tensor


class Stopped(Exception):
    """Carries what reaches the first layer."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class Ending(StandIn):
    """Ends the forward."""

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Raise with the input."""
        raise Stopped(hidden)


class Pass(StandIn):
    """Returns its input, or, in place of the last layer, what it was given beforehand."""

    gives = False
    value: Any = None

    def forward(self, hidden: Any, *_: Any, **__: Any) -> Any:
        """Return a tensor."""
        found = self.__dict__["value"] if self.gives else hidden
        return self.as_given(found)


class Keep(StandIn):
    """Keeps what a layer is handed besides the tensor; the last one ends the forward."""

    ends = False

    def forward(self, hidden: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Return the input."""
        self.__dict__["kept"] = (rest, named)
        if self.ends:
            raise Stopped(hidden)
        return self.as_given(hidden)


class Blank(StandIn):
    """Stands for what runs before the layers: zeros of its result's shape."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__(module)
        self.__dict__["shape"], self.__dict__["like"] = shape, None

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return zeros."""
        like: torch.Tensor = self.__dict__["like"]
        return torch.zeros(len(like), *self.__dict__["shape"], device=like.device, dtype=like.dtype)
