"""What the stages of a cut model hand on to the next one, found before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from meshwright.base.errors import InputError
from meshwright.runtime.model.as_given import evaluating
from meshwright.runtime.model.data import Sample
from meshwright.runtime.ranks.layout import Layout
from meshwright.runtime.step.executor import StageRun
from meshwright.runtime.step.p2p import BoundaryTensor

__all__ = ["check_tensors", "crossing", "crossings_of"]


def crossings_of(places: Layout, runs: dict[int, StageRun], sample: Sample) -> list[tuple[BoundaryTensor, ...]]:
    """Return what every stage hands on, found by sending a sample through: stage after stage, every rank is told.

    `runs`: the stages of this rank. `sample`: some samples on its device.
    Raises `InputError` where a stage hands on something that is no tensor.
    """
    crossings: list[tuple[BoundaryTensor, ...]] = []
    n_rows, device = len(sample[0]), sample[0].device
    for stage in range(places.n_stages):
        found: list[Any] = [None]
        if stage in runs:
            module = runs[stage].module
            carried: Sequence[torch.Tensor] = sample
            if stage > 0:
                carried = [entry.blank(n_rows, device).zero_() for entry in crossings[-1]]
            with torch.no_grad(), evaluating(module):
                result = module(*carried)
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()  # what follows asks for the weights of a stage as they are held, not as they are gathered
            check_tensors(result, places, stage)
            found = [tuple(crossing(tensor, n_rows) for tensor in result)]
        dist.broadcast_object_list(found, src=places.ranks_of_stage[stage][0])
        crossings.append(found[0])
    return crossings


def crossing(tensor: torch.Tensor, n_rows: int) -> BoundaryTensor:
    """Return what is known of a tensor that is handed on, before a run: with rows of samples, or not."""
    by_rows = tensor.dim() > 0 and tensor.shape[0] == n_rows
    return BoundaryTensor(tuple(tensor.shape[1:] if by_rows else tensor.shape), tensor.dtype, by_rows)


def check_tensors(result: Sequence[Any], places: Layout, stage: int) -> None:
    """Raise `InputError` where a stage hands on something that is no tensor."""
    for value in result:
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"stage {stage}: its layers hand on a {type(value).__name__}, but only tensors can be sent to the next stage; "
                f"cut elsewhere or compute it inside the layers ({places.n_stages} stages)"
            )
