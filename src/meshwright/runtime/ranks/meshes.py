"""Process groups and device meshes of a plan: every rank makes all of them, in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.base.errors import InputError
from meshwright.core.strategy import Strategy
from meshwright.runtime.ranks.layout import Layout

__all__ = ["Replicas", "StageGroups", "check", "stage_groups"]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ranks that hold the same weights, as one of them sees them; groups are None where they have one rank.

    `everyone`: all of them.
    `shard`, `replicate`: the same in two: ranks that shard weights among them, and ranks that hold the same shard.
    `n_ranks`, `n_shards`, `shard_index`: number of all, of those that shard, and this rank's place among these.
    `shard_mesh`: the same as a mesh, for FSDP2.
    """

    everyone: Any = None
    shard: Any = None
    replicate: Any = None
    n_ranks: int = 1
    n_shards: int = 1
    shard_index: int = 0
    shard_mesh: Any = None


@dataclass(frozen=True, slots=True)
class StageGroups:
    """Axes of a stage's mesh, as this rank sees them; None where an axis has one rank.

    `data`, `copies`: the data axis, whose ranks hold the same weights; ranks that hold the same experts.
    `context`, `tensor`, `expert`: all ranks of each axis.
    `context_index`, `expert_index`: this rank's place on the context axis, and among those that the experts are divided over.
    `context_mesh`, `tensor_mesh`: the same as meshes, for DTensor.
    """

    data: Replicas = Replicas()
    copies: Replicas = Replicas()
    context: Any = None
    tensor: Any = None
    expert: Any = None
    context_index: int = 0
    expert_index: int = 0
    context_mesh: Any = None
    tensor_mesh: Any = None


def check(layout: Layout) -> None:
    """Refuse stages whose devices stand in an order that no process groups can follow.

    Raises `InputError` when groups of one axis interleave.
    """
    for stage, ranks in enumerate(layout.ranks_of_stage):
        strategy = layout.plan.stages[stage].strategy
        _grid(ranks, strategy, _n_shards(strategy))
        _expert_grid(ranks, strategy)


def stage_groups(layout: Layout, rank: int, device_type: str) -> dict[int, StageGroups]:
    """Return the groups of every stage of a rank; virtual stages of one rank share theirs.

    `device_type`: ``cpu`` or ``cuda``.
    """
    made: dict[tuple[object, ...], StageGroups | None] = {}
    found = {}
    for stage, ranks in enumerate(layout.ranks_of_stage):
        strategy = layout.plan.stages[stage].strategy
        n_shards = _n_shards(strategy)
        key = (ranks, strategy.context, strategy.tensor, strategy.expert, strategy.sequence_parallel, n_shards)
        if key not in made:
            made[key] = _make(ranks, strategy, n_shards, rank, device_type)
        groups = made[key]
        if groups is not None:
            found[stage] = groups
    return found


def _n_shards(strategy: Strategy) -> int:
    return (strategy.shard_degree or strategy.data) if strategy.shard else 1


def _grid(ranks: tuple[int, ...], strategy: Strategy, n_shards: int) -> torch.Tensor:
    """Return the ranks of a stage by replicate, shard, and context and tensor axes together."""
    return _ascending(torch.tensor(ranks).reshape(strategy.data // n_shards, n_shards, strategy.context * strategy.tensor))


def _expert_grid(ranks: tuple[int, ...], strategy: Strategy) -> torch.Tensor:
    """Return the ranks of a stage in blocks that share no tokens, each of groups that hold all experts, by group and place in
    it.

    Ranks of a tensor axis have tokens of their own under sequence parallelism only; otherwise each works as if alone.
    """
    expert, tensor = strategy.expert, strategy.tensor
    if strategy.folded:
        return _ascending(torch.tensor(ranks).reshape(1, -1, expert))
    by_place = _ascending(torch.tensor(ranks).reshape(-1, expert, tensor).permute(2, 0, 1))
    return _ascending(by_place.reshape(1, -1, expert)) if strategy.sequence_parallel else by_place


def _make(ranks: tuple[int, ...], strategy: Strategy, n_shards: int, rank: int, device_type: str) -> StageGroups | None:
    """Make the groups of one mesh; None for ranks outside it, which take part in the making all the same."""
    data, context, tensor = strategy.data, strategy.context, strategy.tensor
    grid = _grid(ranks, strategy, n_shards)
    mesh = _mesh(device_type, grid.reshape(-1, n_shards, context, tensor), ("replicate", "shard", "context", "tensor"))
    both = 1 < n_shards < data
    data_groups = [(column, dist.new_group(column)) for column in grid.reshape(data, -1).T.tolist() if both]
    experts = _mesh(device_type, _expert_grid(ranks, strategy), ("apart", "copies", "expert")) if strategy.expert > 1 else None
    if rank not in ranks:
        return None
    everyone = next((members for column, members in data_groups if rank in column), None)
    copies = _group(experts, "copies")
    n_copies = 1 if copies is None else dist.get_world_size(copies)
    return StageGroups(
        data=Replicas(
            everyone=everyone if both else _group(mesh, "shard") or _group(mesh, "replicate"),
            shard=_group(mesh, "shard"),
            replicate=_group(mesh, "replicate"),
            n_ranks=data,
            n_shards=n_shards,
            shard_index=_index(mesh, "shard"),
            shard_mesh=mesh["replicate", "shard"] if both and mesh is not None else _axis(mesh, "shard"),
        ),
        copies=Replicas(
            everyone=copies,
            shard=copies,
            n_ranks=n_copies,
            n_shards=n_copies,
            shard_index=_index(experts, "copies"),
            shard_mesh=_axis(experts, "copies"),
        ),
        context=_group(mesh, "context"),
        tensor=_group(mesh, "tensor"),
        expert=_group(experts, "expert"),
        context_index=_index(mesh, "context"),
        expert_index=_index(experts, "expert"),
        context_mesh=_axis(mesh, "context"),
        tensor_mesh=_axis(mesh, "tensor"),
    )


def _mesh(device_type: str, grid: torch.Tensor, axes: tuple[str, ...]) -> DeviceMesh | None:
    """Return a mesh of the axes that have several ranks, since a group costs threads, even of one rank; None where none has."""
    lengths = {name: length for name, length in zip(axes, grid.shape, strict=True) if length > 1}
    return DeviceMesh(device_type, grid.reshape(tuple(lengths.values())), mesh_dim_names=tuple(lengths)) if lengths else None


def _axis(mesh: DeviceMesh | None, name: str) -> DeviceMesh | None:
    return None if mesh is None or name not in (mesh.mesh_dim_names or ()) else mesh[name]


def _group(mesh: DeviceMesh | None, name: str) -> Any:
    axis = _axis(mesh, name)
    return None if axis is None else axis.get_group()


def _index(mesh: DeviceMesh | None, name: str) -> int:
    axis = _axis(mesh, name)
    return 0 if axis is None else axis.get_local_rank()


def _ascending(grid: torch.Tensor) -> torch.Tensor:
    """Return the ranks, three axes of them, with those along each of the last two in ascending order.

    Process groups number their members so, and meshes must agree with them on who holds which part of a weight. The groups stay
    the same; who sends which rows to whom does not depend on it.
    """
    grid = grid.sort(dim=2).values
    order = grid[:, :, 0].argsort(dim=1)
    grid = grid.gather(1, order.unsqueeze(2).expand_as(grid))
    if bool((grid.diff(dim=1) < 0).any()):
        raise InputError(
            f"ranks {grid.flatten().tolist()}: the tensor or expert groups of a stage interleave, so that no order suits all "
            "groups of "
            "its other axes; give the ranks of such a group neighbouring devices"
        )
    return grid
