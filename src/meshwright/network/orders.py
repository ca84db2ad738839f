"""In which order a collective visits the members of its groups: node by node, and one ring or tree per rail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.network.wired import Wired

__all__ = ["GroupLayout", "double_binary_tree", "grid", "layout", "rings"]


@dataclass(frozen=True, slots=True, eq=False)
class GroupLayout:
    """Groups with their members brought together, node by node where they share nodes.

    `groups`, shape (n_groups, n_nodes * n_local), int64: devices; members of one node (or line, or pod: the level they share)
    are neighbours.
    `n_nodes`, `n_local`: every group has `n_local` members in each of `n_nodes` nodes; ``n_local`` is 1 where the groups are
    not so regular.
    """

    groups: NDArray[np.int64]
    n_nodes: int
    n_local: int


def layout(cluster: Wired, groups: NDArray[np.int64], *, n_levels: int = 0) -> GroupLayout:
    """Return the groups ordered by the innermost level of the cluster's grouping on which members are together.

    `cluster`: says what is together: a node, a line of a torus, the devices of one edge switch, a pod.
    `groups`, shape (n_groups, size), int64: devices.
    `n_levels`: how many levels of the grouping to look at, innermost first; 0 for all.
    Returns: the same groups, reordered; unchanged where no members are together on any level.
    """
    size = groups.shape[1]
    for i, level in enumerate(cluster.groups[: n_levels or None]):
        order = np.argsort(level[groups], axis=1, kind="stable")
        for outer in cluster.groups[i + 1 :]:  # the outermost level decides first: stable sorts, innermost first
            coarse = np.take_along_axis(outer[groups], order, axis=1)
            order = np.take_along_axis(order, np.argsort(coarse, axis=1, kind="stable"), axis=1)
        node = np.take_along_axis(level[groups], order, axis=1)
        n_together = (node[:, 1:] == node[:, :-1]).sum(axis=1)
        if not n_together.any():
            continue
        together = np.take_along_axis(groups, order, axis=1)
        n_nodes = size - int(n_together[0])
        if size % n_nodes == 0 and (n_together == size - n_nodes).all():
            blocks = node.reshape(len(groups), n_nodes, size // n_nodes)
            if (blocks == blocks[:, :, :1]).all():
                return GroupLayout(together, n_nodes, size // n_nodes)
        return GroupLayout(together, size, 1)
    return GroupLayout(groups, size, 1)


def grid(cluster: Wired, shape: GroupLayout) -> NDArray[np.int64] | None:
    """Return groups as grids: members that are together in the last dimension, lines together in the one before, ...

    Returns shape (n_groups, ..., size of dimension), int64, or None: at least two dimensions beside the groups; None where
    the groups are no such grid.
    """
    if shape.n_nodes == 1 or shape.n_local == 1:
        return None
    blocks = shape.groups.reshape(-1, shape.n_nodes, shape.n_local)
    across = layout(cluster, np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(-1, shape.n_nodes))
    if across.n_nodes == 1 or across.n_local == 1:
        return blocks
    table = across.groups.reshape(len(blocks), shape.n_local, across.n_nodes, across.n_local)
    return np.moveaxis(table, 1, -1)


def rings(layout: GroupLayout) -> NDArray[np.int64]:
    """Return one ring per member of a node, so that every network adapter is used; shape (n_rings, n_groups, size).

    Ring r starts at member r of the first node; every other node is walked backwards, so that it is entered on the rail on
    which the node before was left.
    """
    n_nodes, n_local = layout.n_nodes, layout.n_local
    if n_nodes == 1 or n_local == 1:
        return layout.groups[None]
    blocks = layout.groups.reshape(-1, n_nodes, n_local)
    forward = (np.arange(n_local)[:, None] + np.arange(n_local)) % n_local  # ring r: r, r + 1, ..., r - 1
    backward = forward[:, ::-1]
    walk = np.where((np.arange(n_nodes) % 2 == 0)[None, :, None], forward[:, None, :], backward[:, None, :])
    return np.stack([blocks[:, np.arange(n_nodes)[:, None], walk[r]].reshape(len(blocks), -1) for r in range(n_local)])


def double_binary_tree(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return two binary trees over 0..size-1 in which no member is an inner node of both.

    `size`: number of members, at least 2.

    Returns `child`, `parent`, shape (2, size - 1), int64: edges of the two trees; `depth`: largest number of edges from a root
    to a leaf.

    References
    ----------
    .. [1] Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
    """
    rank = np.arange(1, size + 1)
    low = rank & -rank
    up = (rank ^ low) | (low << 1)
    up[(1 << (size.bit_length() - 1)) - 1] = 0  # the root
    while (up > size).any():  # the parent does not exist: its parent takes the place
        low = up & -up
        up = np.where(up > size, (up ^ low) | (low << 1), up)
    child = rank[up > 0] - 1
    parent = up[up > 0] - 1
    depth = np.zeros(size, dtype=np.int64)
    for _ in range(2 * size.bit_length()):
        depth[child] = depth[parent] + 1
    # inner nodes of the first tree have odd numbers; shifted by one they are leaves of the second
    return np.stack([child, (child + 1) % size]), np.stack([parent, (parent + 1) % size]), int(depth.max())
