"""The axes of a stage's device mesh as the network sees them, and the seconds of their collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster
from meshwright.core.strategy import Strategy
from meshwright.network import REMEMBERED_CLUSTERS, Axis, Network

__all__ = ["Axis", "Mesh", "bucket_seconds", "mesh"]

BUCKET_BYTES = 160e6
"""Gradients are reduced in buckets of at least this size, over layers: 40 million fp32 gradients (Megatron-LM's default)."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes of a stage; None where a group has one rank.

    Parameters
    ----------
    tensor, context, expert : Axis or None
        Axes inside a micro-batch.
    shard, replicate : Axis or None
        Ranks over which dense weights are sharded (all data and context ranks, or `Strategy.shard_degree` of the data ranks),
        and those that hold the same shard.
    expert_data : Axis or None
        Ranks that hold the same experts.
    n_shards, n_expert_shards : int
        Over how many ranks dense and expert state can be sharded.
    n_expert_targets : int
        Nodes that an expert group spans, or its ranks where it stays inside one.
    context_heads, context_ring : Axis or None
        Neighbours of the context axis that split heads, and its ranks of like heads; None where it is split in one way.
    """

    tensor: Axis | None
    context: Axis | None
    expert: Axis | None
    shard: Axis | None
    replicate: Axis | None
    expert_data: Axis | None
    n_shards: int
    n_expert_shards: int
    n_expert_targets: int = 1
    context_heads: Axis | None = None
    context_ring: Axis | None = None

    def axis(self, name: str) -> Axis | None:
        """Return the axis that a transfer inside a layer names."""
        axis: Axis | None = getattr(self, name)
        return axis


def mesh(
    cluster: Cluster, devices: Sequence[int], strategy: Strategy, *, inside_only: bool = False, head_ranks: int = 1
) -> Mesh:
    """Return the axes of a stage's mesh: ``data x context x tensor``, tensor fastest.

    `devices`: ids in mesh order; a `range` is recognised again at no cost.
    `inside_only`: whether only the communication inside a micro-batch is wanted, of as few replicas as hold a whole group,
    as if the others kept silent: never more than what all of them together take, and much quicker to find on large
    clusters.
    `head_ranks`: over how many neighbours of the context axis heads are split.
    Returns: each axis with all of its groups at once; remembered, so that strategies that share an axis share its routes.
    """
    data, context, tensor = strategy.data, strategy.context, strategy.tensor
    devices = _as_range(devices)
    ranks = data * context
    expert = strategy.expert
    n_shards = (strategy.shard_degree or data) * context if strategy.shard else ranks
    n_expert_shards = max(1, ranks // expert)
    expert_degrees = (expert, tensor)
    if strategy.folded:
        n_expert_shards, expert_degrees = strategy.n_devices // expert, (expert, 1)

    if inside_only and not strategy.folded:
        n_ranks = context * expert // math.gcd(context, expert)
        devices = devices[: (n_ranks if ranks % n_ranks == 0 else ranks) * tensor]

    axes = _axes(cluster)

    def axis(kind: str, degrees: tuple[int, ...]) -> Axis:
        return axes.axis(kind, degrees, devices)

    both = 1 < head_ranks < context
    return Mesh(
        tensor=axis("tensor", (tensor,)) if tensor > 1 else None,
        context=axis("consecutive", (context, tensor)) if context > 1 else None,
        expert=axis("consecutive", expert_degrees) if expert > 1 else None,
        shard=axis("consecutive", (n_shards, tensor)) if n_shards > 1 and not inside_only else None,
        replicate=axis("strided", (n_shards, tensor)) if ranks > n_shards and not inside_only else None,
        expert_data=axis("strided", expert_degrees) if n_expert_shards > 1 and not inside_only else None,
        n_shards=n_shards,
        n_expert_shards=n_expert_shards,
        n_expert_targets=_targets(cluster, _groups("consecutive", expert_degrees, devices)) if expert > 1 else 1,
        context_heads=axis("consecutive", (head_ranks, tensor)) if both else None,
        context_ring=axis("consecutive", (context // head_ranks, head_ranks * tensor)) if both else None,
    )


class _Axes:
    """The axes of the meshes of one cluster, found again without laying out their groups."""

    def __init__(self, cluster: Cluster) -> None:
        self._network = Network.of(cluster)
        self._found: dict[tuple[str, tuple[int, ...], Sequence[int]], Axis] = {}

    def axis(self, kind: str, degrees: tuple[int, ...], devices: Sequence[int]) -> Axis:
        """Return one axis of the mesh of some devices: a `range`, or a tuple."""
        key = (kind, degrees, devices)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._network.axis(_groups(kind, degrees, devices))
        return found


@lru_cache(maxsize=REMEMBERED_CLUSTERS)
def _axes(cluster: Cluster) -> _Axes:
    """Return the axes of a cluster, told apart by identity: it never changes, so they cannot be stale."""
    return _Axes(cluster)


def _targets(cluster: Cluster, groups: NDArray[np.int64]) -> int:
    """Return over how many nodes a group spreads (the most), or how many ranks it has where that is one."""
    nodes = np.sort(cluster.node_of_device[groups], axis=1)
    n_nodes = int((np.diff(nodes, axis=1) != 0).sum(axis=1).max()) + 1
    return n_nodes if n_nodes > 1 else groups.shape[1]


def _as_range(devices: Sequence[int]) -> Sequence[int]:
    """Return neighbouring ids as a `range` (hashed at once), any others as a tuple."""
    if isinstance(devices, range):
        return devices
    first, n_devices = int(devices[0]), len(devices)
    if int(devices[-1]) - first == n_devices - 1 and list(devices) == list(range(first, first + n_devices)):
        return range(first, first + n_devices)
    return tuple(devices)


def _groups(kind: str, degrees: tuple[int, ...], devices: Sequence[int]) -> NDArray[np.int64]:
    """Return the groups of one axis as an array of shape (n_groups, size)."""
    ids = np.asarray(devices, dtype=np.int64)
    if kind == "tensor":
        return ids.reshape(-1, degrees[0])
    size, tensor = degrees
    grid = ids.reshape(-1, size, tensor)  # blocks of `size` consecutive ranks of the data and context axes
    if kind == "strided":
        return grid.transpose(1, 2, 0).reshape(size * tensor, -1)
    return grid.transpose(0, 2, 1).reshape(-1, size)


def bucket_seconds(axis: Axis | None, kind: str, n_bytes: float) -> float:
    """Return the seconds of reducing or gathering `n_bytes` as part of buckets that span layers (latency paid per bucket)."""
    if axis is None or n_bytes <= 0.0:
        return 0.0
    bucket_bytes = max(n_bytes, BUCKET_BYTES)
    return axis.seconds(kind, bucket_bytes) * (n_bytes / bucket_bytes)
