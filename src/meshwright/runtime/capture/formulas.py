"""FLOPs of one dispatched operator: PyTorch's own formulas, and ours for what it does not count."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

__all__ = ["attention_flops", "flops", "is_causal", "reading_weights", "recurrent_flops", "recurrent_kept"]

_BACKWARD_PRODUCTS = 2.5  # fused attention computes the scores once more: five products for the two of the forward pass


def flops(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the floating point operations of a product, convolution or attention, its square counted in full; 0 for others."""
    name = func._schema.name.partition("::")[2]
    if name.startswith("_scaled_dot_product") and "backward" not in name:
        return attention_flops(*args[:3], causal=False)[0]
    if name.startswith("_scaled_dot_product"):
        return attention_flops(*args[1:4], causal=False)[1]
    if name == "_grouped_mm":
        left, right = args[0], args[1]
        if left.ndim == 2 and right.ndim == 2:  # the gradient of the weights: rows are split between the groups
            return float(2.0 * left.shape[0] * left.shape[1] * right.shape[1])
        return float(2.0 * left.shape[-2] * left.shape[-1] * right.shape[-1] * (left.shape[0] if left.ndim == 3 else 1))
    if name == "convolution_backward":
        return _convolution_backward(*args)
    formula = flop_registry.get(func.overloadpacket)
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=out))


def _convolution_backward(grad: Any, inputs: Any, weight: Any, *rest: Any) -> float:
    """Each gradient takes the products of the forward pass:
    groups as well (PyTorch's own formula counts those of no groups).
    """
    transposed, wanted = rest[4], rest[7]
    positions = (inputs if transposed else grad).shape[2:].numel()
    return float(2.0 * inputs.shape[0] * positions * weight.numel() * sum(wanted[:2]))


def attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> tuple[float, float]:
    """Return the products of one fused attention, forward and backward; half of the square where it is causal.

    `query`, `key`, `value`: (..., rows, head), (..., columns, head), (..., columns, value); keys and values may have fewer
    heads.
    """
    square = query.numel() // query.shape[-1] * key.shape[-2]
    forward = 2.0 * square * (query.shape[-1] + value.shape[-1]) * (0.5 if causal else 1.0)
    return forward, _BACKWARD_PRODUCTS * forward


def is_causal(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call of fused attention lets positions see only those before them."""
    if not name.startswith("_scaled_dot_product") or "backward" in name:
        return False
    place = {"_scaled_dot_product_efficient_attention": 6}.get(name, 4)
    return bool(kwargs.get("is_causal", args[place] if len(args) > place else False))


def recurrent_flops(
    module: torch.nn.Module, inputs: list[torch.Tensor], weights: list[torch.nn.Parameter] | None = None
) -> float:
    """Return the forward products of a recurrent module: every weight matrix meets every step of every sample once.

    `inputs`: what it was called with; the first holds the steps, its last axis the features.
    `weights`: those counted; all where none are given.
    """
    counted = list(module.parameters()) if weights is None else weights
    return 2.0 * _steps(inputs) * sum(weight.numel() for weight in counted if weight.ndim == 2)


def reading_weights(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the weights of a recurrent module that meet what it reads: those of its first layer, in each direction."""
    names = ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")
    return [weight for name, weight in module.named_parameters() if name in names]


def recurrent_kept(module: torch.nn.Module, inputs: list[torch.Tensor]) -> int:
    """Return the elements that a recurrent module keeps inside: gates and states of every layer, direction and step."""
    gates = sum(weight.shape[0] for name, weight in module.named_parameters() if name.startswith("weight_hh"))
    states = 2 if "LSTM" in type(module).__name__ else 1
    hidden: int = module.hidden_size  # type: ignore[assignment]
    n_layers = sum(name.startswith("weight_hh") for name, _ in module.named_parameters())
    return _steps(inputs) * (gates + n_layers * states * hidden)


def _steps(inputs: list[torch.Tensor]) -> int:
    """Return the steps of all samples."""
    return inputs[0].numel() // inputs[0].shape[-1] if inputs else 0
