"""Backward passes in two halves: products keep their weight gradients for later, as zero-bubble schedules ask for.

References
----------
.. [1] Qi et al., Zero Bubble Pipeline Parallelism, 2023 (arXiv 2401.10241), section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["Later", "delay_weight_gradients"]


class Later:
    """Weight gradients that are not computed yet.

    While `collecting` is a list, products of the modules given to `delay_weight_gradients` append one function each to it in
    their backward pass instead of computing their weight gradients; while it is None they compute them at once.
    """

    def __init__(self) -> None:
        self.collecting: list[Callable[[], None]] | None = None


class _Product(torch.autograd.Function):
    """``x @ weight.T + bias`` whose weight gradient can wait."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, later: Later) -> torch.Tensor:
        """Return the product."""
        ctx.save_for_backward(x, weight)
        ctx.parameters, ctx.later = (weight, bias), later
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradient of the input; those of weight and bias now or later."""
        x, weight = ctx.saved_tensors
        parameter, bias = ctx.parameters
        of_input = gradient @ weight if ctx.needs_input_grad[0] else None

        def of_weight() -> torch.Tensor:
            return gradient.flatten(0, -2).T @ x.flatten(0, -2)

        def of_bias() -> torch.Tensor | None:
            return None if bias is None else gradient.flatten(0, -2).sum(0)

        if ctx.later.collecting is None:
            return of_input, of_weight(), of_bias(), None

        def run() -> None:
            _add(parameter, of_weight())
            if bias is not None:
                _add(bias, of_bias())

        ctx.later.collecting.append(run)
        return of_input, None, None, None


def _add(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient  # type: ignore[operator]


def delay_weight_gradients(module: nn.Module, later: Later) -> int:
    """Let the linear layers of a module keep their weight gradients for later.

    Parameters
    ----------
    module : torch.nn.Module
        Changed in place: its ``nn.Linear`` modules whose weights are plain tensors. Other weights (tables, norms, tensor-parallel
        products) keep computing their gradients together with those of their inputs.
    later : Later
        Where the waiting gradients go.

    Returns
    -------
    int
        Number of linear layers found.
    """
    found = 0
    for part in module.modules():
        if type(part) is nn.Linear and type(part.weight) is nn.Parameter and part.weight.requires_grad:
            part.forward = _forward_of(part, later)  # type: ignore[method-assign, assignment]
            found += 1
    return found


def _forward_of(part: nn.Linear, later: Later) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Product.apply(x, part.weight, part.bias, later)  # type: ignore[no-untyped-call]
        return result

    return forward
