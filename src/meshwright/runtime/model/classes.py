"""Logits of which each rank of a tensor group has some classes, and what losses make of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from meshwright.runtime.model.in_place import changeable

__all__ = ["as_classes", "number", "whole"]


def as_classes(logits: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a rank's logits as its part of all classes, as PyTorch's ``loss_parallel`` takes them."""
    return DTensor.from_local(logits, mesh, [Shard(logits.dim() - 1)], run_check=False)


def whole(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor put together from the parts of all ranks; one that is whole as it is."""
    if not isinstance(value, DTensor):
        return value
    made: torch.Tensor = changeable(value.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()]))
    return made


def number(value: Any) -> Any:
    """Return a loss that all ranks have as the tensor that it is; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
