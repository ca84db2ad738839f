"""Context parallelism: a rank works on a part of every sequence; attention sees the keys and values of all parts.

References
----------
.. [1] Llama Team, The Llama 3 Herd of Models, 2024 (arXiv 2407.21783), section 3.3.2: keys and values are gathered, queries
   stay.

Notes
-----
Parts are contiguous, so that under a causal mask later ranks have more to do than earlier ones; every rank computes the masked
products too, in this form, and all take as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.overrides import TorchFunctionMode

__all__ = ["InContext", "gathered", "parts_of_sequence", "spans_context"]

Whole = Callable[[torch.Tensor], torch.Tensor]
"""From this rank's keys or values to those of all ranks."""


def spans_context(n_layers: int, op: int) -> bool:
    """Whether a layer works on parts of sequences: all but the first and the last, which hold positions, table and head."""
    return n_layers <= 2 or 0 < op < n_layers - 1


def gathered(mesh: DeviceMesh) -> Whole:
    """Return the function that puts keys or values together along the sequence, their last dimension but one."""

    def whole(value: torch.Tensor) -> torch.Tensor:
        parts = DTensor.from_local(value, mesh, [Shard(value.dim() - 2)], run_check=False)
        result: torch.Tensor = parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return result

    return whole


class _WholeKeys(TorchFunctionMode):
    """Gives attention all keys and values, and the rows of its mask that belong to this rank's queries."""

    def __init__(self, whole: Whole, rank: int, degree: int) -> None:
        super().__init__()
        self.whole, self.rank, self.degree = whole, rank, degree

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)) | (kwargs or {})
        length, device = given["query"].shape[-2], given["query"].device
        rows = torch.arange(self.rank * length, (self.rank + 1) * length, device=device)
        mask = given.get("attn_mask")
        if mask is not None and mask.shape[-2] == length * self.degree:
            mask = mask[..., rows, :]
        elif given.get("is_causal"):
            mask = rows[:, None] >= torch.arange(length * self.degree, device=device)
        whole = {name: self.whole(given[name]) for name in ("key", "value")}
        return func(**given | whole | {"attn_mask": mask, "is_causal": False})


class InContext(nn.Module):
    """A layer that works on a part of every sequence.

    `layer`: the layer; one of a Hugging Face model is told which positions are its own.
    `whole`: see `gathered`.
    `rank`, `degree`: place on the context axis, and its length.
    """

    def __init__(self, layer: nn.Module, whole: Whole, rank: int, degree: int) -> None:
        super().__init__()
        self.layer, self.told = layer, (whole, rank, degree)
        if hasattr(layer, "positions"):
            layer.positions = (rank, degree)  # type: ignore[assignment]

    def forward(self, *carried: torch.Tensor) -> Any:
        """Run the layer."""
        with _WholeKeys(*self.told):
            return self.layer(*carried)


def parts_of_sequence(values: Sequence[torch.Tensor], rank: int, degree: int) -> tuple[torch.Tensor, ...]:
    """Return a rank's part of hidden states (floating tensors of three dimensions or more); other tensors stay whole."""
    return tuple(value.chunk(degree, 1)[rank] if value.dim() >= 3 and value.is_floating_point() else value for value in values)
