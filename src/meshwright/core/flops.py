"""Floating point operations: of one operator as executed (`forward_flops`),
and of a model as utilisation counts them (`model_flops`).
"""

from __future__ import annotations

import math

from meshwright.core.graph import Graph, Operator

__all__ = ["forward_flops", "model_flops", "passes"]

_NORM_FLOPS = 5.0  # square or deviation, sum, reciprocal root, two products: per element
_SOFTMAX_FLOPS = 5.0  # maximum, subtraction, exponential, sum, division: per element


def forward_flops(operator: Operator) -> float:
    """Return the forward floating point operations of one operator for one sample.

    Parameters
    ----------
    operator : Operator
        With `flops` set, that number; otherwise derived from `dims` as `meshwright.core.graph.Operator` lists them.

    Returns
    -------
    float
        FLOP of one sample, multiply and add counted as two. Matrix products ``2 m k n``; of routed experts, ``top_k`` of them
        per token; causal attention half of the square; norms and soft maxima five per element, other element-wise work one per
        input and element; look-ups and movements none.

    Raises
    ------
    ValueError
        When the kind is none of those that `Operator` lists (an error of ours).
    """
    if operator.flops:
        return operator.flops
    size = operator.size
    elements = float(math.prod(size for _, size in operator.dims))
    match operator.kind:
        case "matmul":
            return 2.0 * elements
        case "grouped_matmul":
            return 2.0 * size("sequence") * size("top_k") * size("in") * size("out")
        case "attention" | "causal_attention":
            square = 2.0 * size("sequence") * size("key_sequence") * size("heads") * (size("head") + size("value"))
            return square / 2.0 if operator.kind == "causal_attention" else square
        case "norm":
            return _NORM_FLOPS * elements
        case "softmax" | "cross_entropy":
            return _SOFTMAX_FLOPS * elements
        case "elementwise" | "pooling":
            return elements
        case "convolution" | "combine":
            return 2.0 * elements
        case "embedding" | "dispatch" | "other":
            return 0.0
    raise ValueError(f"operator {operator.name}: unknown kind '{operator.kind}'")


def model_flops(graph: Graph, *, halve_causal: bool = False) -> float:
    """Return the FLOP per sample that model FLOPs utilisation counts: matrix products, forward and backward, nothing
    recomputed.

    Parameters
    ----------
    graph : Graph
        The model.
    halve_causal : bool
        Whether causal attention counts half of its square, as it is executed and as Megatron-LM reports it today; otherwise the
        square counts in full, as both references do.

    Returns
    -------
    float
        Three times the forward matrix products of one sample (the backward pass has two for each); of frozen weights the
        gradient is not counted, nor that of activations below everything that is trained.

    References
    ----------
    .. [1] Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B: 6 N + 12 L H Q T per token.
    .. [2] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section
       5.1: with full recomputation of the layers 96 B s l h^2 (1 + s / 6h + V / 16lh), that is four forward passes of the
       layers and three of the logits; without it, as here, 72 B s l h^2 (1 + s / 6h + V / 12lh).

    Notes
    -----
    Unlike [1] and [2], sliding windows count only the keys inside the window, and parameters of look-ups (embeddings) never
    count.
    """
    total = 0.0
    per_body: list[float] = []
    for i, op in enumerate(graph.ops):
        repeated = 0 <= op.like < i
        per_body.append(per_body[op.like] if repeated else sum(_product_flops(operator, halve_causal) for operator in op.body))
        total += per_body[i]
    return total


def passes(operator: Operator) -> float:
    """Return the forward passes that forward and backward of a product count for: the gradient of what it reads takes one, or
    two where it multiplies two activations, and that of its weights one.
    """
    if not operator.n_parameters or operator.kind in ("attention", "causal_attention"):
        return 3.0 if operator.input_gradient else 1.0
    return 1.0 + float(operator.input_gradient) + float(operator.n_trained_parameters > 0)


def _product_flops(operator: Operator, halve_causal: bool) -> float:
    """FLOP of a matrix product, forward and backward; 0 for anything else."""
    if operator.kind in ("matmul", "grouped_matmul", "attention", "convolution"):
        return passes(operator) * forward_flops(operator)
    if operator.kind == "causal_attention":
        return passes(operator) * forward_flops(operator) * (1.0 if halve_causal else 2.0)
    return passes(operator) * operator.flops
