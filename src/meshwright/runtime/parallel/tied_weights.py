"""Weights that several stages hold, as a word table and the head that shares it: who holds them, and who answers for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from meshwright.runtime.parallel.sharding import Tie
from meshwright.runtime.ranks.layout import Layout

__all__ = ["first_holder", "ties_of"]


def _holders(places: Layout, units: Sequence[nn.Module]) -> dict[nn.Parameter, list[int]]:
    """Return the stages that hold each weight."""
    holders: dict[nn.Parameter, list[int]] = {}
    for stage, part in enumerate(places.plan.stages):
        for parameter in {parameter for op in part.ops for parameter in units[op].parameters()}:
            holders.setdefault(parameter, []).append(stage)
    return holders


def ties_of(places: Layout, rank: int, units: Sequence[nn.Module]) -> tuple[set[nn.Parameter], list[Tie]]:
    """Return the weights that several stages hold, and this rank's share in them; makes a group for each set of ranks.

    Scalar weights of stages that are sharded fully are such weights too: `fully_shard` takes no scalars, so all ranks of the
    stage hold them whole.
    """
    tied, ties = set(), []
    made: dict[tuple[int, ...], Any] = {}
    order = [parameter for unit in units for parameter in unit.parameters()]
    holders = _holders(places, units)
    for parameter in dict.fromkeys(order):
        stages = holders.get(parameter, [])
        alone = len(stages) < 2 and not (parameter.dim() == 0 and _is_sharded_fully(places, stages))
        if alone:
            continue
        tied.add(parameter)
        ranks = tuple(sorted({r for stage in stages for r in places.ranks_of_stage[stage]}))
        if ranks not in made:
            made[ranks] = dist.new_group(list(ranks)) if len(ranks) > 1 else None
        if rank in ranks:
            first = next(stage for stage in stages if stage in places.stages_of(rank))
            ties.append(Tie(parameter, made[ranks], places.seat(rank, first).inner == 0))
    return tied, ties


def _is_sharded_fully(places: Layout, stages: Sequence[int]) -> bool:
    return any(places.plan.stages[stage].strategy.shard == 3 for stage in stages)


def first_holder(places: Layout, rank: int, units: Sequence[nn.Module], tie: Tie) -> int:
    """Return the first stage of this rank that holds a tied weight."""
    for stage in places.stages_of(rank):
        if any(parameter is tie.parameter for op in places.plan.stages[stage].ops for parameter in units[op].parameters()):
            return stage
    return -1
