"""One stage of a plan as a module: its layers in order, each recomputed in the backward pass as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

__all__ = ["StageModule"]


class _Recomputed(nn.Module):
    """A layer that keeps nothing, or only its products, for the backward pass."""

    def __init__(self, layer: nn.Module, how: str) -> None:
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, *carried: torch.Tensor) -> Any:
        """Run the layer under a checkpoint."""
        contexts: dict[str, Any] = {}
        if self.how == "selective":
            contexts["context_fn"] = _keep_products
        return checkpoint.checkpoint(self.layer, *carried, use_reentrant=False, **contexts)


def _keep_products() -> tuple[Any, Any]:
    """Return contexts that keep the results of matrix products of weights and recompute everything else."""
    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default]
    made: tuple[Any, Any] = checkpoint.create_selective_checkpoint_contexts(kept)
    return made


class StageModule(nn.Module):
    """Layers of one stage.

    `layers`: in order; each takes what the one before returns.
    `recompute`: one of `meshwright.core.strategy.RECOMPUTE` for each layer.
    `before`: what is done to hidden states before a layer, by its place, or after the last.
    """

    def __init__(
        self, layers: Sequence[nn.Module], recompute: Sequence[str], before: Mapping[int, Sequence[Callable[..., Any]]]
    ) -> None:
        super().__init__()
        how = tuple(recompute) or ("none",) * len(layers)
        self.layers = nn.ModuleList(
            layer if kind == "none" else _Recomputed(layer, kind) for layer, kind in zip(layers, how, strict=True)
        )
        self.before = before

    def forward(self, *carried: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the next stage needs."""
        for i, layer in enumerate(self.layers):
            for change in self.before.get(i, ()):
                carried = change(carried)
            carried = layer(*carried)
        for change in self.before.get(len(self.layers), ()):
            carried = change(carried)
        return carried
