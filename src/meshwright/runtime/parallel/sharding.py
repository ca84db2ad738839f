"""The weights of a stage: which replicas, and ranks of other axes, add up which gradients, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.runtime.parallel.experts import ExpertParallel
from meshwright.runtime.parallel.pools import WeightPool, flatten, gradient_of, local, n_parts_of, spread
from meshwright.runtime.parallel.products import Owner, RankOrder
from meshwright.runtime.ranks.meshes import StageGroups

__all__ = ["StageWeights", "Tie", "optimizer_of", "shard_fully"]


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


class StageWeights:
    """Weights of one stage on one rank.

    `shard`: what the data axis shards, as `meshwright.core.strategy.Strategy.shard`.
    `groups`: axes of its mesh.
    `partial` (mapping of str to sequence of (torch.nn.Module, str)): weights whose gradients the ranks of an axis, ``tensor``
    or ``context``, hold in parts.
    `tied`: weights that other stages hold too.
    `ties`: those of them that this stage answers for on this rank.
    `orders`: how weights lie that do not lie as in the model.
    """

    def __init__(
        self,
        module: nn.Module,
        shard: int,
        groups: StageGroups,
        partial: Mapping[str, Sequence[Owner]],
        tied: set[nn.Parameter],
        ties: Sequence[Tie],
        orders: Mapping[Owner, RankOrder] = MappingProxyType({}),
    ) -> None:
        self.module, self.shard, self.groups, self.orders = module, shard, groups, orders
        self.partial, self.ties, self.tied = partial, list(ties), tied
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._sharded = tuple(part for part in module.modules() if isinstance(part, FSDPModule))
        self._group_of: Mapping[nn.Parameter, int] = {}
        self._late = frozenset(getattr(owner, name) for owners in partial.values() for owner, name in owners)
        self._completes = False
        self.regroup({})
        for weight in self._pool_of:
            weight.register_post_accumulate_grad_hook(self._arrived)

    def regroup(self, group_of: Mapping[nn.Parameter, int]) -> None:
        """Hold weights of unlike groups apart, so that an optimizer can treat them otherwise; asked before it has any state.

        `group_of`: number of each weight's group; 0 where there is none.
        """
        self._group_of = group_of
        experts = _spread_experts(self.module)
        divided = {parameter for part in experts for parameter in part.parameters()}
        n_parts = max((part.degree for part in experts), default=1)
        pools: list[WeightPool] = []
        told: list[tuple[int, int]] = []
        for group in range(max(group_of.values(), default=0) + 1):
            own = [p for p in self.parameters if p not in self.tied and group_of.get(p, 0) == group]
            for is_divided, replicas, n in ((False, self.groups.data, 1), (True, self.groups.copies, n_parts)):
                members = [parameter for parameter in own if (parameter in divided) == is_divided]
                for kind in dict.fromkeys(parameter.dtype for parameter in members):  # a flat vector is of one type
                    same = [parameter for parameter in members if parameter.dtype == kind]
                    pools.append(WeightPool(same, self.shard, replicas, self._late))
                    told.append((group, n))
        self.pools, self._told = tuple(pools), tuple(told)
        self._pool_of = {weight: pool for pool in pools for weight in pool.bucket_of}

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
            yield gradient_of(tie.parameter), n_parts_of(tie.parameter) / n_holders

    def zero(self) -> None:
        """Forget all gradients, and await new ones."""
        for pool in self.pools:
            pool.begin()
        for parameter in (*self.parameters, *self.parts()):
            parameter.grad = None

    def before_backward(self, *, is_last: bool, completes: bool = False) -> None:
        """Tell fully sharded layers whether this backward pass is the step's last.

        `completes`: whether it completes the gradients of all weights: their sums over replicas then begin as they come.
        """
        self._completes = completes
        for part in self._sharded:
            part.set_is_last_backward(is_last)
            part.set_requires_all_reduce(is_last, recurse=False)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a weight or buffer put together from all ranks that have a part of it, as it lies in the model; of experts
        that are divided, this rank's. Called in all of these ranks at once.
        """
        given: Any = tensor.detach()
        value: torch.Tensor = given.full_tensor() if isinstance(given, DTensor) else given
        order = next((order for (module, name), order in self.orders.items() if getattr(module, name) is tensor), None)
        return value if order is None else order.restored(value)

    def reshard(self) -> None:
        """Free what fully sharded layers gathered: it would be used instead of weights that change now."""
        for part in self._sharded:
            part.reshard()

    def _arrived(self, weight: torch.Tensor) -> None:
        """Note the gradient of a weight of which there are replicas."""
        if self._completes:
            self.complete([weight])

    def complete(self, weights: Iterable[torch.Tensor]) -> None:
        """Begin to add up gradients that are complete; those of weights that no replica has are passed over."""
        for weight in weights:
            pool = self._pool_of.get(weight)  # type: ignore[call-overload]
            if pool is not None:
                pool.arrived(weight)

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
                flat = flatten(held)
                dist.all_reduce(flat, group=getattr(self.groups, axis))
                spread(flat, held)

    def start_reduction(self) -> None:
        """Begin to add up what is left over the replicas; called after the last backward pass of the stage."""
        self._completes = False
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
            gradient = gradient_of(tie.parameter)
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


def optimizer_of(
    weights: Sequence[StageWeights], make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """Return one optimizer for everything that this rank updates, weights held by several of its stages once."""
    unique = {id(parameter): parameter for stage in weights for parameter in stage.optimized()}
    return make(list(unique.values()) or [nn.Parameter(torch.zeros(1))])  # optimizers refuse to have nothing, as stages may
