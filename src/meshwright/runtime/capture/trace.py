"""What a traced module did, in plain Python: one record per operator, with shapes, producers, weights,
FLOPs and saved bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["COPIES", "Trace", "TracedOperator", "TracedTensor"]

COPIES = ("clone", "_to_copy", "copy")
"""Operators that lay out or cast what they read: a copy of weights is still those weights."""


class TracedTensor(NamedTuple):
    """A tensor that went through an operator: its sizes, its type as PyTorch names it, and whether that is a floating one."""

    shape: tuple[int, ...]
    dtype: str
    floating: bool

    @property
    def n_elements(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator of the forward pass, with what the backward pass did because of it.

    `name`: the operator as PyTorch names it, without its namespace: ``mm``, ``_scaled_dot_product_flash_attention_for_cpu``.
    `module`: path of the module that ran it: ``model.layers.0.mlp.up_proj``; empty for the outermost.
    `inputs`, `outputs`: tensors read and written, in the order of the call.
    `sources`: for every input the operator that made it; -1 for inputs of the model, weights and constants.
    `weights`: for every input the parameter it is, or is a view of; empty where it is none.
    `numbers`: whole numbers among the arguments: the axes of a transposition.
    `trained`: whether the result depends on a parameter; what does not (positions, masks) is a constant of the model.
    `fed`: whether it depends on an input of the model.
    `view`: whether the result shares memory with the input: nothing is computed.
    `causal`: of attention: whether a position sees only those before it.
    `forward_flops`, `backward_flops`: of products, convolutions and attention; 0 for anything else.
    `n_backward`: operators that the backward pass ran for this one.
    `differentiated`: for every input whether its gradient is computed: it depends on a parameter that is trained.
    `saved_bytes`, `saved_other_bytes`: bytes kept for the backward pass, each tensor at the first operator that keeps it: in
    the type of the weights, and in any other.
    """

    name: str
    module: str
    inputs: tuple[TracedTensor, ...]
    outputs: tuple[TracedTensor, ...]
    sources: tuple[int, ...]
    weights: tuple[str, ...]
    numbers: tuple[int, ...]
    trained: bool
    fed: bool
    view: bool
    causal: bool
    forward_flops: float
    backward_flops: float
    n_backward: int
    saved_bytes: int
    saved_other_bytes: int
    differentiated: tuple[bool, ...] = ()

    @property
    def activations(self) -> tuple[tuple[TracedTensor, int], ...]:
        """Floating inputs that are no weights, with their producers."""
        return tuple(
            (tensor, source)
            for tensor, source, weight in zip(self.inputs, self.sources, self.weights, strict=True)
            if tensor.floating and not weight
        )

    @property
    def input_gradient(self) -> bool:
        """Whether the backward pass computes the gradient of an activation that was read."""
        return not self.differentiated or any(
            wanted for wanted, weight in zip(self.differentiated, self.weights, strict=True) if not weight
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """One forward and one backward pass.

    `operators`: in the order they ran; ids are positions.
    `classes`: class of every module, by its path.
    `parameters`: shape of every parameter met, by its name.
    `item_bytes`: bytes of an element of the weights' type.
    `batch`: samples that went through.
    `lists`: paths of lists of modules.
    `notes`: what was changed in order to trace.
    `frozen`: parameters that are not trained.
    """

    operators: tuple[TracedOperator, ...]
    classes: Mapping[str, str]
    parameters: Mapping[str, tuple[int, ...]]
    item_bytes: int
    batch: int
    lists: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()
