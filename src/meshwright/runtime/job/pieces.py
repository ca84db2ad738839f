"""Which boxes of the model's tensors a rank holds and updates, as what is written, read or handed to other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from meshwright.runtime.job.holdings import Region
from meshwright.runtime.job.slices import Slice

if TYPE_CHECKING:
    from meshwright.runtime.job.trainer import Trainer

__all__ = ["begin_overwriting", "flat_parts", "weight_parts"]


def weight_parts(trainer: Trainer, *, writing: bool) -> list[Slice]:
    """Return this rank's parts of weights and buffers; for writing, those that no earlier stage writes."""
    return [
        Slice((holding.name,), holding.shape, holding.offset, holding.part())
        for holding in trainer.holdings
        if holding.writes or not writing
    ]


def flat_parts(trainer: Trainer, regions: Mapping[nn.Parameter, Sequence[Region]]) -> list[Slice]:
    """Return the boxes of weights that this rank updates for others too (ZeRO-1 and 2), where it does.

    `regions`: see `meshwright.runtime.job.holdings.regions_of`.
    """
    return [
        Slice((region.holding.name,), region.holding.shape, region.offset, region.of(parameter))
        for weights in trainer.weights.values()
        for parameter in weights.parts()
        for region in regions[parameter]
    ]


def begin_overwriting(trainer: Trainer) -> None:
    """Forget gradients, and what fully sharded layers gathered before: it would be used instead of what is written now."""
    for weights in trainer.weights.values():
        weights.reshard()
        weights.zero()
