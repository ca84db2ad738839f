"""Random numbers between split products: there each rank of a tensor axis has values of its own, as heads, and drops others
than the other ranks do; where all hold the same values all drop the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from meshwright.runtime.model.as_given import compiled_parts
from meshwright.runtime.ranks.random_numbers import Generators

__all__ = ["draw_apart"]


class _OwnDraws:
    """Lets the numbers of a rank be its own from a product split by outputs to the next one split by inputs.

    They follow from those that all ranks have where it begins, so that a layer that is recomputed draws them again. DTensor's
    random numbers do the same for operators on DTensors; between split products stand plain tensors.

    `numbers`: of this process. `rank`: place on the tensor axis.
    """

    def __init__(self, numbers: Generators, rank: int) -> None:
        self.numbers, self.rank, self.turn = numbers, rank, 0
        self.before: list[torch.Tensor] | None = None

    def reset(self, _: nn.Module, __: Any) -> None:
        """Begin a pass of the layer; one that ended early, as recomputation does, was followed by other numbers anyway."""
        self.before, self.turn = None, 0

    def enter(self, module: nn.Module, _: Any, __: Any) -> None:
        """Begin the rank's own numbers."""
        if self.before is None and module.training:
            self.before = self.numbers.states()
            self.numbers.begin_apart(self.before, self.turn, self.rank)
            self.turn += 1

    def leave(self, *_: Any) -> None:
        """Go on with those that all ranks have."""
        if self.before is not None:
            self.numbers.put_back(self.before)
            self.before = None


def draw_apart(layer: nn.Module, columns: Iterable[str], rows: Iterable[str], rank: int, device: torch.device) -> None:
    """Let a rank draw numbers of its own between the products of a layer, in place; nowhere in one that its model compiles,
    since PyTorch's compiler does not take states of random numbers.

    `columns`, `rows`: paths of the products that are split by outputs, and by inputs. `rank`: place on the tensor axis.
    """
    if compiled_parts(layer):
        return
    own = _OwnDraws(Generators(device), rank)
    layer.register_forward_pre_hook(own.reset)
    layer.register_forward_hook(own.leave)
    for path in columns:
        layer.get_submodule(path).register_forward_hook(own.enter)
    for path in rows:
        layer.get_submodule(path).register_forward_pre_hook(own.leave)
