"""The weights of a stage: how replicas add up gradients, and which part of weights,
gradients and optimizer state each holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.runtime.parallel.experts import ExpertParallel
from meshwright.runtime.parallel.tensor_parallel import Owner
from meshwright.runtime.parallel.tensor_row import TensorRow
from meshwright.runtime.ranks.meshes import Replicas, StageGroups

__all__ = ["StageWeights", "Tie", "local", "optimizer_of", "shard_fully"]

_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor

_BUCKET_ELEMENTS = 8_000_000
"""Gradients and weights are exchanged in pieces of this size, so that no copy of all of them is held."""

_BUCKETS_UNDER_WAY = 2
"""Of gradients that replicas add up: one is sent while the next is put together."""


@dataclass(frozen=True, slots=True)
class Tie:
    """A weight that several stages hold.

    `parameter`: this rank's copy.
    `group`: all ranks that hold it; None where this rank alone does.
    `counts`: whether this rank's gradient counts: of the ranks of tensor and context axes, which hold the same, the first one's
    does.
    """

    parameter: nn.Parameter
    group: Any
    counts: bool


def shard_fully(
    module: nn.Module, layers: Iterable[nn.Module], groups: StageGroups, ignored: set[nn.Parameter], *, alone: bool
) -> None:
    """Shard the weights of a stage over its data axis, layer by layer (FSDP2; HSDP where the shard degree is smaller).

    `module`: the stage, changed in place.
    `layers`: its layers; each is gathered as a whole.
    `ignored`: weights that stay whole, because another stage holds them too.
    `alone`: whether the plan has no other stage: then the backward pass of the last layer follows its forward pass at once, and
    it stays gathered in between.
    """
    layers = list(layers)
    users = Counter(weight for layer in layers for weight in set(layer.parameters()))
    for experts in _spread_experts(module):  # held by fewer ranks than the rest
        if groups.copies.shard_mesh is None:
            ignored = ignored | set(experts.parameters())
        else:
            fully_shard(experts, mesh=groups.copies.shard_mesh, ignored_params=ignored)
    for layer in layers:
        if all(
            users[weight] == 1 for weight in layer.parameters()
        ):  # else the stage gathers its weights, once for all who share them
            kept = alone and layer is layers[-1]
            fully_shard(layer, mesh=groups.data.shard_mesh, ignored_params=ignored, reshard_after_forward=not kept)
    fully_shard(module, mesh=groups.data.shard_mesh, ignored_params=ignored)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class _Pool:
    """Weights that the same ranks hold: how these add up gradients, and which part of the optimizer state each has.

    `parameters`: the weights.
    `shard`: as `meshwright.core.strategy.Strategy.shard`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], shard: int, replicas: Replicas) -> None:
        self.parameters, self.replicas = list(parameters), replicas
        self.shard = shard if replicas.shard is not None else 0
        self.works: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = []
        self.flat: nn.Parameter | None = None
        if self.shard in (1, 2) and self.parameters:
            size = self._padded() // self.replicas.n_shards
            start = self.replicas.shard_index * size
            own = TensorRow([local(parameter.detach()) for parameter in self.parameters]).between(start, start + size)
            self.flat = nn.Parameter(torch.cat(own))

    def _padded(self) -> int:
        """Return the number of elements of all weights, rounded up to equal parts."""
        total = sum(local(parameter).numel() for parameter in self.parameters)
        return -(-total // self.replicas.n_shards) * self.replicas.n_shards

    def _pieces(self) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
        """Yield a slice of every rank's part that is exchanged at once, and where it lies in the whole, rank by rank."""
        assert self.flat is not None
        size = self.flat.numel()
        step = max(1, _BUCKET_ELEMENTS // self.replicas.n_shards)
        for start in range(0, size, step):
            stop = min(size, start + step)
            yield slice(start, stop), [(rank * size + start, rank * size + stop) for rank in range(self.replicas.n_shards)]

    def scatter(self) -> None:
        """Add the gradients held now to this rank's part, a piece of all parts at a time, and drop them."""
        if self.flat is None:
            return
        gradients = TensorRow([_gradient(parameter) for parameter in self.parameters])
        is_first = self.flat.grad is None
        if self.flat.grad is None:
            self.flat.grad = torch.empty_like(self.flat)
        for place, ranges in self._pieces():
            own = self.flat.grad[place]
            part = own if is_first else torch.empty_like(own)
            _reduce_scatter(
                part, torch.cat([value for ends in ranges for value in gradients.between(*ends)]), group=self.replicas.shard
            )
            if not is_first:
                own += part
        for parameter in self.parameters:
            parameter.grad = None

    def start_reduction(self) -> None:
        """Begin to add up gradients over the ranks."""
        if self.flat is not None:
            if self.shard == 1:
                self.scatter()
            if self.replicas.replicate is not None:
                assert self.flat.grad is not None
                work = dist.all_reduce(self.flat.grad, group=self.replicas.replicate, async_op=True)
                self.works.append((work, self.flat.grad, []))
            return
        if self.shard == 3 or self.replicas.everyone is None:
            return
        for bucket in _buckets([_gradient(parameter) for parameter in self.parameters]):
            if len(self.works) == _BUCKETS_UNDER_WAY:
                self._finish(*self.works.pop(0))
            flat = _flatten(bucket)
            self.works.append((dist.all_reduce(flat, group=self.replicas.everyone, async_op=True), flat, bucket))

    def finish_reduction(self) -> None:
        """Wait for the sums."""
        for told in self.works:
            self._finish(*told)
        self.works.clear()
        if self.shard == 3:  # FSDP averages over the replicas, but losses are weighted by rows already
            for parameter in self.parameters:
                if parameter.grad is not None:
                    local(parameter.grad).mul_(self.replicas.n_ranks)

    @staticmethod
    def _finish(work: Any, flat: torch.Tensor, bucket: list[torch.Tensor]) -> None:
        work.wait()
        if bucket:
            _spread(flat, bucket)

    def held(self, n_ranks: int, n_parts: int) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield this rank's part of each gradient, and one over the number of ranks that hold the same.

        `n_ranks`: of the stage.
        `n_parts`: in how many parts an axis that DTensor does not know has split the weights (experts).
        """
        if self.flat is None:
            for parameter in self.parameters:
                yield _gradient(parameter), n_parts * _n_parts(parameter) / n_ranks
            return
        assert self.flat.grad is not None
        size, start = self.flat.numel(), -self.replicas.shard_index * self.flat.numel()
        for parameter in self.parameters:
            stop = start + local(parameter).numel()
            piece = self.flat.grad[min(max(start, 0), size) : min(max(stop, 0), size)]
            yield piece, n_parts * self.replicas.n_shards * _n_parts(parameter) / n_ranks
            start = stop

    def after_update(self) -> None:
        """Hand the updated part of the weights to the other ranks (ZeRO-1 and 2), a piece of all parts at a time."""
        if self.flat is None:
            return
        weights = TensorRow([local(parameter.detach()) for parameter in self.parameters])
        for place, ranges in self._pieces():
            own = self.flat.detach()[place]
            whole = own.new_empty(own.numel() * len(ranges))
            _all_gather(whole, own, group=self.replicas.shard)
            for values, (start, stop) in zip(whole.chunk(len(ranges)), ranges, strict=True):
                weights.fill(start, stop, values)


class StageWeights:
    """Weights of one stage on one rank.

    `shard`: what the data axis shards, as `meshwright.core.strategy.Strategy.shard`.
    `groups`: axes of its mesh.
    `partial` (mapping of str to sequence of (torch.nn.Module, str)): weights whose gradients the ranks of an axis, ``tensor``
    or ``context``, hold in parts.
    `tied`: weights that other stages hold too.
    `ties`: those of them that this stage answers for on this rank.
    """

    def __init__(
        self,
        module: nn.Module,
        shard: int,
        groups: StageGroups,
        partial: Mapping[str, Sequence[Owner]],
        tied: set[nn.Parameter],
        ties: Sequence[Tie],
    ) -> None:
        self.module, self.shard, self.groups = module, shard, groups
        self.partial, self.ties, self.tied = partial, list(ties), tied
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._sharded = tuple(part for part in module.modules() if isinstance(part, FSDPModule))
        self._group_of: Mapping[nn.Parameter, int] = {}
        self.regroup({})

    def regroup(self, group_of: Mapping[nn.Parameter, int]) -> None:
        """Hold weights of unlike groups apart, so that an optimizer can treat them otherwise; asked before it has any state.

        `group_of`: number of each weight's group; 0 where there is none.
        """
        self._group_of = group_of
        experts = _spread_experts(self.module)
        divided = {parameter for part in experts for parameter in part.parameters()}
        n_parts = max((part.degree for part in experts), default=1)
        pools: list[_Pool] = []
        told: list[tuple[int, int]] = []
        for group in range(max(group_of.values(), default=0) + 1):
            own = [p for p in self.parameters if p not in self.tied and group_of.get(p, 0) == group]
            for is_divided, replicas, n in ((False, self.groups.data, 1), (True, self.groups.copies, n_parts)):
                members = [parameter for parameter in own if (parameter in divided) == is_divided]
                for kind in dict.fromkeys(parameter.dtype for parameter in members):  # a flat vector is of one type
                    pools.append(_Pool([parameter for parameter in members if parameter.dtype == kind], self.shard, replicas))
                    told.append((group, n))
        self.pools, self._told = tuple(pools), tuple(told)

    def grouped(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Yield what the optimizer updates, each with the number of its group."""
        for pool, (group, _) in zip(self.pools, self._told, strict=True):
            yield from ((group, parameter) for parameter in (pool.parameters if pool.flat is None else [pool.flat]))
        yield from ((self._group_of.get(tie.parameter, 0), tie.parameter) for tie in self.ties)

    def parts(self) -> list[nn.Parameter]:
        """Return the parts of flattened weights that this rank updates for others too."""
        return [pool.flat for pool in self.pools if pool.flat is not None]

    def optimized(self) -> list[nn.Parameter]:
        """Return what the optimizer updates: the weights, or this rank's part of them."""
        return [parameter for _, parameter in self.grouped()]

    def held(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield this rank's part of each gradient, once reduced, and one over the number of ranks that hold the same.

        The squares times these, added up over all ranks, are the square of the norm of the whole gradient.
        """
        others = [1 if group is None else dist.get_world_size(group) for group in (self.groups.context, self.groups.tensor)]
        n_ranks = self.groups.data.n_ranks * others[0] * others[1]
        for pool, (_, n_parts) in zip(self.pools, self._told, strict=True):
            yield from pool.held(n_ranks, n_parts)
        for tie in self.ties:
            n_holders = 1 if tie.group is None else dist.get_world_size(tie.group)
            yield _gradient(tie.parameter), _n_parts(tie.parameter) / n_holders

    def zero(self) -> None:
        """Forget all gradients."""
        for parameter in (*self.parameters, *self.parts()):
            parameter.grad = None

    def before_backward(self, *, is_last: bool) -> None:
        """Tell fully sharded layers whether this backward pass is the step's last."""
        for part in self._sharded:
            part.set_is_last_backward(is_last)
            part.set_requires_all_reduce(is_last, recurse=False)

    def reshard(self) -> None:
        """Free what fully sharded layers gathered: it would be used instead of weights that change now."""
        for part in self._sharded:
            part.reshard()

    def after_backward(self) -> None:
        """Scatter the gradients of one micro-batch where they are sharded (ZeRO-2)."""
        if self.shard == 2:
            self._sum_parts(tied=False)
            for pool in self.pools:
                pool.scatter()

    def _sum_parts(self, *, tied: bool) -> None:
        """Add up gradients that the ranks of tensor and context axes hold in parts,
        of weights that other stages hold too or not.
        """
        for axis, owners in self.partial.items():
            weights = dict.fromkeys(getattr(module, name) for module, name in owners)
            held = [local(weight.grad) for weight in weights if weight.grad is not None and (weight in self.tied) == tied]
            if held:
                flat = _flatten(held)
                dist.all_reduce(flat, group=getattr(self.groups, axis))
                _spread(flat, held)

    def start_reduction(self) -> None:
        """Begin to add up gradients over the replicas; called after the last backward pass of the stage."""
        self._sum_parts(tied=True)
        if self.shard != 2:
            self._sum_parts(tied=False)
        for pool in self.pools:
            pool.start_reduction()

    def finish_reduction(self) -> None:
        """Wait for the sums, and add up weights that several stages hold."""
        for pool in self.pools:
            pool.finish_reduction()
        for tie in self.ties:
            gradient = _gradient(tie.parameter)
            if not tie.counts:
                gradient.zero_()
            if tie.group is not None:
                dist.all_reduce(gradient, group=tie.group)

    def after_update(self) -> None:
        """Hand updated parts of the weights to the other replicas (ZeRO-1 and 2)."""
        for pool in self.pools:
            pool.after_update()


def _spread_experts(module: nn.Module) -> list[ExpertParallel]:
    return [part for part in module.modules() if isinstance(part, ExpertParallel)]


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of a gradient; zeros where nothing depended on the weight."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
        gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        parameter.grad = gradient
    return local(gradient)


def _n_parts(parameter: nn.Parameter) -> int:
    """Return in how many parts the axes of its mesh split a weight; no weight is a partial sum."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return math.prod(mesh.size(axis) for axis, placement in enumerate(placements) if not placement.is_replicate())


def _flatten(tensors: Sequence[torch.Tensor], n_elements: int = 0) -> torch.Tensor:
    """Return tensors one after the other, with zeros up to `n_elements`."""
    parts = [tensor.reshape(-1) for tensor in tensors]
    missing = n_elements - sum(part.numel() for part in parts)
    if missing > 0:
        parts.append(parts[0].new_zeros(missing))
    return torch.cat(parts)


def _spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy what `_flatten` put together back."""
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


def _buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return tensors in groups of one type and bounded size."""
    buckets: list[list[torch.Tensor]] = []
    size = 0
    for tensor in tensors:
        if not buckets or size + tensor.numel() > _BUCKET_ELEMENTS or buckets[-1][0].dtype != tensor.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel()
    return buckets


def optimizer_of(
    weights: Sequence[StageWeights], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """Return one optimizer for everything that this rank updates, weights held by several of its stages once."""
    unique = {id(parameter): parameter for stage in weights for parameter in stage.optimized()}
    return make(list(unique.values()) or [nn.Parameter(torch.zeros(1))])  # optimizers refuse to have nothing, as stages may
