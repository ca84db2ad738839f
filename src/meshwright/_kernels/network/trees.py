"""Routes over nodes that forward and are joined as trees: the only way of a pair, whatever else hangs on its nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel
from meshwright._kernels.network.paths import FAR, ForwardingNodes

__all__ = ["ForwardingTree", "distances", "rooted", "spread"]


class ForwardingTree(NamedTuple):
    """Trees of nodes, each with a root: for every node the one above it (itself for a root), how far below the root it is, and
    its links up to the one above and down from it.
    """

    above: np.ndarray
    depth: np.ndarray
    up_link: np.ndarray
    down_link: np.ndarray


def rooted(net: ForwardingNodes) -> tuple[ForwardingTree, bool]:
    """Return the trees that nodes are joined as, and whether they are: each two neighbours by one link each way, no circle.

    Parameters
    ----------
    net : ForwardingNodes
        The nodes that forward and the links between them.
    """
    above, up_link, down_link = np.full((3, len(net.in_first) - 1), -1)
    depth, seen = np.zeros((2, len(net.in_first) - 1), np.int64)
    trees = ForwardingTree(above, depth, up_link, down_link)
    return trees, bool(_root(net.out_first, net.out_link, net.target, trees, seen))


@kernel
def _root(out_first, out_link, target, trees, seen):
    """Fill the trees, and return whether nodes are joined as such; `seen`: room for every node."""
    above, depth, up_link, down_link = trees.above, trees.depth, trees.up_link, trees.down_link
    for root in range(len(above)):
        if above[root] >= 0:
            continue
        above[root] = root
        seen[0] = root
        n_seen = 1
        i = 0
        while i < n_seen:
            node = seen[i]
            i += 1
            for k in range(out_first[node], out_first[node + 1]):
                link = out_link[k]
                other = target[link]
                if above[node] == other and node != root:
                    if up_link[node] >= 0:
                        return False
                    up_link[node] = link
                elif above[other] >= 0:
                    return False
                else:
                    above[other] = node
                    depth[other] = depth[node] + 1
                    down_link[other] = link
                    seen[n_seen] = other
                    n_seen += 1
            if node != root and up_link[node] < 0:
                return False
    return True


def distances(trees: ForwardingTree, cost: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the distance of every pair of nodes; FAR for those of two trees.

    Parameters
    ----------
    trees : ForwardingTree
        The nodes.
    cost : ndarray, shape (n_links,), int64
        Of the links between them.
    source, target : ndarray, shape (n_pairs,), int64
        Nodes.
    """
    found = np.zeros(len(source), dtype=np.int64)
    _add_up(trees, cost, source, target, found)
    return found


@kernel
def _add_up(trees, cost, source, target, found):
    """Fill `found` with the distances."""
    above, depth, up_link, down_link = trees.above, trees.depth, trees.up_link, trees.down_link
    for p in range(len(source)):
        a, b, far = source[p], target[p], 0
        while a != b:
            below, beside = depth[a], depth[b]
            if below == 0 and beside == 0:
                far = FAR
                break
            if below >= beside:
                far += cost[up_link[a]]
                a = above[a]
            else:
                far += cost[down_link[b]]
                b = above[b]
        found[p] = far


def spread(
    trees: ForwardingTree, latency: np.ndarray, source: np.ndarray, target: np.ndarray, amount: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the load of every link and the latency of every pair when each pair of one tree sends its amount.

    Parameters
    ----------
    trees : ForwardingTree
        The nodes.
    latency : ndarray, shape (n_links,), float64
        Of the links between them.
    source, target : ndarray, shape (n_pairs,), int64
        Nodes.
    amount : ndarray, shape (n_pairs,), float64
        What each pair sends.
    """
    load, pair_latency = np.zeros(len(latency)), np.zeros(len(source))
    _load(trees, latency, source, target, amount, np.empty(len(trees.above), dtype=np.int64), load, pair_latency)
    return load, pair_latency


@kernel
def _load(trees, latency, source, target, amount, way, load, pair_latency):
    """Fill `load` and `pair_latency`; `way`: room for every node."""
    above, depth, up_link, down_link = trees.above, trees.depth, trees.up_link, trees.down_link
    for p in range(len(source)):
        a, b, own = source[p], target[p], amount[p]
        n_up = 0
        slow = 0.0
        while a != b:
            if depth[a] >= depth[b]:
                way[n_up] = up_link[a]
                n_up += 1
                a = above[a]
            else:  # from the end of the way on, as the latency of a node is that of the one before it and its link's
                link = down_link[b]
                slow = latency[link] + slow
                load[link] += own
                b = above[b]
        for i in range(n_up - 1, -1, -1):
            link = way[i]
            slow = latency[link] + slow
            load[link] += own
        pair_latency[p] = slow
