"""Which part of which of the model's tensors a rank holds, under the names that ``model.state_dict()`` gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from meshwright.base.errors import InputError
from meshwright.runtime.parallel.experts import ExpertParallel
from meshwright.runtime.parallel.pools import local
from meshwright.runtime.parallel.products import RankOrder
from meshwright.runtime.parallel.sharding import StageWeights
from meshwright.runtime.ranks.layout import Layout

__all__ = [
    "HeldTensor",
    "ModelNames",
    "NamedOwner",
    "Region",
    "boxes",
    "holdings_of",
    "names_of",
    "owners_of",
    "regions_of",
    "strays",
]


@dataclass(frozen=True, slots=True, eq=False)
class ModelNames:
    """Names and shapes of a model's weights and lasting buffers, before it is cut.

    `shapes`: of each under its first name.
    `aliases`: further names of weights that stand at several places, and the first of each.
    `by_identity`: from the ``id`` of a tensor to its first name; holds as long as the model is whole.
    """

    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    by_identity: Mapping[int, str]


@dataclass(frozen=True, slots=True, eq=False)
class NamedOwner:
    """Where a tensor stands in a layer: sharding later puts another object at the same place.

    `module`, `attribute`: the module that has it, and its name there.
    `name`: in the whole model.
    """

    module: nn.Module
    attribute: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensor:
    """A box of a tensor of the model that this rank holds: all that it holds of it, or of a product whose outputs are several
    parts what it holds of one.

    `name`: in the whole model.
    `shape`: of the whole tensor.
    `offset`: where the box begins.
    `parameter`: the weight; None for a buffer.
    `owner`: where it stands.
    `writes`: whether this rank may write it to a checkpoint: of several stages that hold it, the first does.
    `inside`: the box in what this rank holds of the tensor; empty where it is all.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    parameter: nn.Parameter | None
    owner: NamedOwner
    writes: bool
    inside: tuple[slice, ...] = ()

    def part(self) -> torch.Tensor:
        """Return the box, shaped as it is held; writing to it writes there."""
        if self.parameter is not None:
            return local(self.parameter.detach())[self.inside]
        buffer: torch.Tensor = getattr(self.owner.module, self.owner.attribute)
        return buffer.detach()


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A box of a weight in what an optimizer updates.

    `holding`: the weight.
    `offset`: where the box begins in the whole weight.
    `inside`: the box in what is updated: the rank's part of the weight, or, of flattened weights, a box of that part.
    `start`: where that box's elements begin in the flattened weights of a pool (ZeRO-1 and 2); -1 where the weight is updated
    itself.
    `sizes`: of the box whose elements stand there.
    """

    holding: HeldTensor
    offset: tuple[int, ...]
    inside: tuple[slice, ...]
    start: int = -1
    sizes: tuple[int, ...] = ()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the box of a tensor that is laid out as what the optimizer updates; writing to it writes there.

        `tensor`: what the optimizer updates, or its state of the same shape.
        """
        mine = local(tensor.detach())
        if self.start >= 0:
            mine = mine[self.start : self.start + math.prod(self.sizes)].view(self.sizes)
        return mine[self.inside]


def names_of(model: nn.Module) -> ModelNames:
    """Return the names of a whole model's tensors.

    `model`: neither cut nor wrapped.
    """
    known = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    stated = [*model.state_dict(keep_vars=True).items(), *model.named_parameters(remove_duplicate=False)]
    by_identity: dict[int, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    aliases: dict[str, str] = {}
    for name, tensor in stated:
        if id(tensor) not in known or name in shapes or name in aliases:
            continue
        if id(tensor) in by_identity:
            aliases[name] = by_identity[id(tensor)]
        else:
            by_identity[id(tensor)] = name
            shapes[name] = tuple(tensor.shape)
    return ModelNames(MappingProxyType(shapes), MappingProxyType(aliases), MappingProxyType(by_identity))


def owners_of(layer: nn.Module, names: ModelNames) -> tuple[NamedOwner, ...]:
    """Return where the model's tensors stand in one of its layers; called before the layer is split or sharded.

    `layer`: as `meshwright.runtime.model.cut.cut` returns it.
    """
    return tuple(
        NamedOwner(module, attribute, names.by_identity[id(tensor)])
        for module in layer.modules()
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None and id(tensor) in names.by_identity
    )


def holdings_of(
    places: Layout, rank: int, weights: Mapping[int, StageWeights], owners: Sequence[Sequence[NamedOwner]], names: ModelNames
) -> tuple[HeldTensor, ...]:
    """Return what a rank holds, once its stages are split and sharded, and before they run.

    Parameters
    ----------
    places : Layout
        The plan as ranks.
    rank : int
        This process.
    weights : mapping of int to StageWeights
        Of its stages.
    owners : sequence of sequence of NamedOwner
        Of every layer of the model.
    names : ModelNames
        Of the whole model.
    """
    first: dict[str, int] = {}
    for stage, part in enumerate(places.plan.stages):
        for owner in (owner for op in part.ops for owner in owners[op]):
            first.setdefault(owner.name, stage)
    orders = {owner: order for held in weights.values() for owner, order in held.orders.items()}
    found: dict[tuple[str, int], list[HeldTensor]] = {}
    for stage, held in sorted(weights.items()):
        seat = places.seat(rank, stage)
        spread = {id(part.experts): part for part in held.module.modules() if isinstance(part, ExpertParallel)}
        for owner in (owner for op in places.plan.stages[stage].ops for owner in owners[op]):
            tensor = getattr(owner.module, owner.attribute)
            weight = tensor if isinstance(tensor, nn.Parameter) else None
            offset = _offset(tensor)
            experts = spread.get(id(owner.module))
            if experts is not None and weight is not None:
                offset = (offset[0] + held.groups.expert_index * experts.n_held, *offset[1:])
            writes = stage == first[owner.name] and (weight is not None or (seat.data == 0 and seat.inner == 0))
            holding = HeldTensor(owner.name, names.shapes[owner.name], offset, weight, owner, writes)
            order = orders.get((owner.module, owner.attribute))
            found.setdefault((owner.name, id(tensor)), [holding] if order is None else _in_model_order(holding, order))
    return tuple(holding for boxes in found.values() for holding in boxes)


def _in_model_order(holding: HeldTensor, order: RankOrder) -> list[HeldTensor]:
    """Return what a rank holds of a weight that lies in another order than the model's as boxes of the model's."""
    axis, first = order.axis, holding.offset[order.axis]
    found: list[HeldTensor] = []
    last = first + holding.part().shape[axis]
    for place, length, start in order.runs():
        begin, end = max(place, first), min(place + length, last)
        if begin < end or (first == last and not found):  # of nothing one empty box
            offset = (*holding.offset[:axis], start + begin - place, *holding.offset[axis + 1 :])
            inside = (*(slice(None) for _ in range(axis)), slice(begin - first, max(begin, end) - first))
            found.append(replace(holding, offset=offset, inside=inside))
    return found


def strays(
    model: Sequence[NamedOwner], layers: Sequence[Sequence[NamedOwner]], names: ModelNames, rank: int
) -> tuple[HeldTensor, ...]:
    """Return the tensors of a model that none of its layers has, and that nothing trains: every rank holds them whole.

    `model`: of the whole model. `layers`: of every layer. `names`: of the whole model. `rank`: this process; the first writes.
    Raises `InputError` when one is on the meta device: nothing would make it.
    """
    held = {owner.name for layer in layers for owner in layer}
    alone = {owner.name: owner for owner in model if owner.name not in held}
    missing = next((name for name, owner in alone.items() if getattr(owner.module, owner.attribute).is_meta), "")
    if missing:
        raise InputError(f"'{missing}' is on the meta device, and no layer of the plan has it; build the model whole")
    return tuple(
        HeldTensor(name, shape, (0,) * len(shape), None, owner, rank == 0)
        for name, owner in alone.items() for shape in (names.shapes[name],)
    )  # fmt: skip


def _offset(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return where this rank's part of a tensor begins."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim()
    placed: tuple[int, ...] = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
    return tuple(placed)


def regions_of(weights: Iterable[StageWeights], holdings: Iterable[HeldTensor]) -> dict[nn.Parameter, list[Region]]:
    """Return the boxes of weights that everything this rank's optimizer updates stands for.

    `weights`: of its stages.
    `holdings`: what it holds.
    """
    of_weight: dict[nn.Parameter, list[HeldTensor]] = {}
    for holding in holdings:
        if holding.parameter is not None:
            of_weight.setdefault(holding.parameter, []).append(holding)
    found = {
        parameter: [Region(holding, holding.offset, holding.inside) for holding in held]
        for parameter, held in of_weight.items()
    }
    for pool in (pool for stage in weights for pool in stage.pools):
        if pool.flat is None:
            continue
        size, regions = pool.flat.numel(), []
        start = -pool.replicas.shard_index * size
        for parameter in pool.parameters:
            sizes = tuple(local(parameter.detach()).shape)
            begin, end = max(0, -start), min(size - start, math.prod(sizes))
            place = max(0, start)
            for corner, box in boxes(sizes, begin, end):
                for holding in of_weight[parameter]:
                    regions += _common(holding, corner, box, place)
                place += math.prod(box)
            start += math.prod(sizes)
        found[pool.flat] = regions
    return found


def _common(holding: HeldTensor, corner: Sequence[int], sizes: tuple[int, ...], start: int) -> list[Region]:
    """Return what a box of a rank's part of a weight and one that it holds have in common; nothing where that is nothing.

    `corner`, `sizes`: the box in the rank's part. `start`: where its elements begin in the flattened weights of a pool.
    """
    offset, inside = [], []
    for axis, (first, size) in enumerate(zip(corner, sizes, strict=True)):
        held = holding.inside[axis] if axis < len(holding.inside) else slice(None)
        low, high = held.start or 0, first + size if held.stop is None else held.stop
        begin, end = max(first, low), min(first + size, high)
        if begin >= end:
            return []
        offset.append(holding.offset[axis] + begin - low)
        inside.append(slice(begin - first, end - first))
    return [Region(holding, tuple(offset), tuple(inside), start, sizes)]


def boxes(sizes: Sequence[int], start: int, stop: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the boxes, offset and sizes of each, that some neighbouring elements of a tensor fill, one after the other.

    `sizes`: of the tensor, which is laid out row by row.
    `start`, `stop`: of the elements.
    """
    if start >= stop:
        return []
    if len(sizes) < 2:
        return [((start,), (stop - start,))] if sizes else [((), ())]
    row = math.prod(sizes[1:])
    if start // row == (stop - 1) // row and stop - start < row:  # a part of one row
        place = start // row
        inner = boxes(sizes[1:], start - place * row, stop - place * row)
        return [((place, *offset), (1, *box)) for offset, box in inner]
    first, last = -(-start // row), stop // row
    whole = [((first, *(0 for _ in sizes[1:])), (last - first, *sizes[1:]))] if first < last else []
    return [*boxes(sizes, start, min(first * row, stop)), *whole, *boxes(sizes, max(last * row, start), stop)]
