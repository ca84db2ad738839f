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

from meshwright.runtime.model.in_place import as_own

__all__ = ["DeferredWeightGrad", "WaitingGradient", "delay_weight_gradients", "is_hooked"]

WaitingGradient = tuple[Callable[[], None], tuple[nn.Parameter, ...]]
"""What computes the gradients of some weights, and which."""


class DeferredWeightGrad:
    """Weight gradients that are not computed yet.

    While `collecting` is a list, products of the modules given to `delay_weight_gradients` append an entry each to it in
    their backward pass instead of computing their weight gradients; while it is None they compute them at once.
    """

    def __init__(self) -> None:
        self.collecting: list[WaitingGradient] | None = None


class _Product(torch.autograd.Function):
    """``x @ weight.T + bias`` whose weight gradient can wait."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, later: DeferredWeightGrad
    ) -> torch.Tensor:
        """Return the product."""
        ctx.save_for_backward(x, weight)
        ctx.parameters, ctx.later = (weight, bias), later
        return as_own(nn.functional.linear(x, weight, bias))  # of a view, autograd lets nobody change what comes out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the gradient of the input; those of weight and bias now or later."""
        x, weight = ctx.saved_tensors
        parameter, bias = ctx.parameters
        of_input = (gradient @ weight.to(gradient.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        rows = gradient.flatten(0, -2)
        columns = x.flatten(0, -2).to(gradient.dtype)  # of another type under autocast only

        def of_bias() -> torch.Tensor | None:
            return None if bias is None else rows.sum(0).to(bias.dtype)

        if ctx.later.collecting is None:
            return of_input, (rows.T @ columns).to(weight.dtype), of_bias(), None

        @torch.no_grad()  # x still hangs in the graph of the forward pass, which the gradient must not keep alive
        def run() -> None:
            if parameter.grad is None:
                parameter.grad = (rows.T @ columns).to(parameter.dtype)
            elif parameter.dtype == rows.dtype:  # in place: nothing of the weight's size is made, and none of it read twice
                parameter.grad.addmm_(rows.T, columns)
            else:
                parameter.grad.add_(rows.T @ columns)
            if bias is not None:
                bias.grad = of_bias() if bias.grad is None else bias.grad.add_(of_bias())

        ctx.later.collecting.append((run, (parameter,) if bias is None else (parameter, bias)))
        return of_input, None, None, None


def is_hooked(weight: torch.Tensor | None) -> bool:
    """Whether something is called with the gradient of a weight, or once it has one."""
    return bool(getattr(weight, "_backward_hooks", None)) or bool(getattr(weight, "_post_accumulate_grad_hooks", None))


def delay_weight_gradients(module: nn.Module, later: DeferredWeightGrad) -> int:
    """Let the linear layers of a module keep their weight gradients for later.

    `module`: changed in place: its ``nn.Linear`` modules whose weights are plain tensors. Other weights (tables, norms,
    tensor-parallel products) keep computing their gradients together with those of their inputs, and so do layers whose weights
    have hooks, which are called then.
    `later`: where the waiting gradients go.
    Returns: number of linear layers found.
    """
    found = 0
    for part in module.modules():
        if type(part) is not nn.Linear or is_hooked(part.weight) or is_hooked(part.bias):
            continue
        if type(part.weight) is nn.Parameter and part.weight.requires_grad:
            part.forward = _forward_of(part, later)  # type: ignore[method-assign, assignment]
            found += 1
    return found


def _forward_of(part: nn.Linear, later: DeferredWeightGrad) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        if torch._C._are_functorch_transforms_active():  # in vmap and its like functions of our own cannot run: nothing waits
            return nn.functional.linear(x, part.weight, part.bias)
        result: torch.Tensor = _Product.apply(x, part.weight, part.bias, later)  # type: ignore[no-untyped-call]
        return result

    return forward
