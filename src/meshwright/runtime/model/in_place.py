"""Results that a model may change in place, as it may those of PyTorch's own layers: of autograd functions that give views of
what they were given, autograd refuses that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["as_own", "changeable", "let_change"]


def as_own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory that is no view, for use inside an autograd function."""
    found: torch.Tensor = torch.ops.aten._unsafe_view.default(tensor, tensor.shape)
    return found


class _Own(torch.autograd.Function):
    """Hands a tensor on, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, as no view."""
        return as_own(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the gradient."""
        return gradient


def changeable(output: Any) -> Any:
    """Return a result that may be changed in place, and with gradients as before."""
    if not isinstance(output, torch.Tensor) or not output.requires_grad:
        return output
    return _Own.apply(output)  # type: ignore[no-untyped-call]


def let_change(module: nn.Module) -> None:
    """Let what comes out of a module be changed in place; a module whose results are its own, and seen by nobody else."""

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return changeable(output)

    module.register_forward_hook(hook)
