"""Process groups and device meshes of a plan: every rank makes all of them, in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import InputError
from meshwright.runtime.layout import Layout
from meshwright.strategy import Strategy

__all__ = ["StageGroups", "stage_groups"]


@dataclass(frozen=True, slots=True)
class StageGroups:
    """Axes of a stage's mesh, as this rank sees them; None where an axis has one rank.

    Parameters
    ----------
    data, context, tensor : process group or None
        All replicas; all ranks of the context axis; all ranks of the tensor axis.
    shard, replicate : process group or None
        The data axis in two: ranks that shard weights among them, and ranks that hold the same shard.
    n_shards, shard_index : int
        Length of the first of these, and this rank's place on it.
    context_index : int
        This rank's place on the context axis.
    shard_mesh, context_mesh, tensor_mesh : DeviceMesh or None
        The same as meshes, for FSDP2 and DTensor.
    """

    data: Any = None
    context: Any = None
    tensor: Any = None
    shard: Any = None
    replicate: Any = None
    n_shards: int = 1
    shard_index: int = 0
    context_index: int = 0
    shard_mesh: Any = None
    context_mesh: Any = None
    tensor_mesh: Any = None


def stage_groups(layout: Layout, rank: int, device_type: str) -> dict[int, StageGroups]:
    """Return the groups of every stage of a rank; virtual stages of one rank share theirs.

    Parameters
    ----------
    layout : Layout
        The plan as ranks.
    rank : int
        This process.
    device_type : str
        ``cpu`` or ``cuda``.
    """
    made: dict[tuple[object, ...], StageGroups | None] = {}
    found = {}
    for stage, ranks in enumerate(layout.ranks_of_stage):
        strategy = layout.plan.stages[stage].strategy
        n_shards = (strategy.shard_degree or strategy.data) if strategy.shard else 1
        key = (ranks, strategy.context, strategy.tensor, n_shards)
        if key not in made:
            made[key] = _make(ranks, strategy, n_shards, rank, device_type)
        groups = made[key]
        if groups is not None:
            found[stage] = groups
    return found


def _make(ranks: tuple[int, ...], strategy: Strategy, n_shards: int, rank: int, device_type: str) -> StageGroups | None:
    """Make the groups of one mesh; None for ranks outside it, which take part in the making all the same."""
    data, context, tensor = strategy.data, strategy.context, strategy.tensor
    grid = _ascending(torch.tensor(ranks).reshape(data // n_shards, n_shards, context * tensor))
    lengths = {"replicate": data // n_shards, "shard": n_shards, "context": context, "tensor": tensor}
    axes = {name: length for name, length in lengths.items() if length > 1}  # a group costs threads, even of one rank
    mesh = DeviceMesh(device_type, grid.reshape(tuple(axes.values())), mesh_dim_names=tuple(axes)) if axes else None
    both = "replicate" in axes and "shard" in axes
    data_groups = [(column, dist.new_group(column)) for column in grid.reshape(data, -1).T.tolist() if both]
    if rank not in ranks:
        return None
    if mesh is None:
        return StageGroups()
    group = {name: mesh.get_group(name) for name in axes}
    own_data = next((members for column, members in data_groups if rank in column), None)
    return StageGroups(
        data=own_data if both else group.get("shard", group.get("replicate")),
        context=group.get("context"),
        tensor=group.get("tensor"),
        shard=group.get("shard"),
        replicate=group.get("replicate"),
        n_shards=n_shards,
        shard_index=mesh.get_local_rank("shard") if "shard" in axes else 0,
        context_index=mesh.get_local_rank("context") if "context" in axes else 0,
        shard_mesh=mesh["replicate", "shard"] if both else mesh["shard"] if "shard" in axes else None,
        context_mesh=mesh["context"] if "context" in axes else None,
        tensor_mesh=mesh["tensor"] if "tensor" in axes else None,
    )


def _ascending(grid: torch.Tensor) -> torch.Tensor:
    """Return the mesh with the ranks of every shard and tensor group in ascending order.

    Process groups number their members so, and meshes must agree with them on who holds which part of a weight. The groups stay the
    same; who sends which rows to whom does not depend on it.
    """
    grid = grid.sort(dim=2).values
    order = grid[:, :, 0].argsort(dim=1)
    grid = grid.gather(1, order.unsqueeze(2).expand_as(grid))
    if bool((grid.diff(dim=1) < 0).any()):
        raise InputError(
            f"ranks {grid.flatten().tolist()}: the tensor groups of a stage interleave, so that no order suits all of its data "
            "groups; give the ranks of a tensor group neighbouring devices"
        )
    return grid
