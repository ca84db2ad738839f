"""Routes over nodes that forward and are joined as trees: the only way of a pair, whatever else hangs on its nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel
from meshwright._kernels.network.paths import FAR

__all__ = ["ForwardingTree", "distances", "rooted", "spread"]


class ForwardingTree(NamedTuple):
    """Trees of nodes, each with a root: for every node the one above it (itself for a root), how far below the root it is, and
    its links up to the one above and down from it.
    """

    above: np.ndarray
    depth: np.ndarray
    up_link: np.ndarray
    down_link: np.ndarray


@kernel
def rooted(net):
    """Return the trees that nodes are joined as, and whether they are: each two neighbours by one link each way, no circle.

    Parameters
    ----------
    net : ForwardingNodes
        The nodes that forward and the links between them.
    """
    n_nodes = len(net.in_first) - 1
    above = np.full(n_nodes, -1, dtype=np.int64)
    depth = np.zeros(n_nodes, dtype=np.int64)
    up_link = np.full(n_nodes, -1, dtype=np.int64)
    down_link = np.full(n_nodes, -1, dtype=np.int64)
    seen = np.empty(n_nodes, dtype=np.int64)
    trees = ForwardingTree(above, depth, up_link, down_link)
    for root in range(n_nodes):
        if above[root] >= 0:
            continue
        above[root] = root
        seen[0] = root
        n_seen = 1
        i = 0
        while i < n_seen:
            node = seen[i]
            i += 1
            for k in range(net.out_first[node], net.out_first[node + 1]):
                link = net.out_link[k]
                other = net.target[link]
                if above[node] == other and node != root:
                    if up_link[node] >= 0:
                        return trees, False
                    up_link[node] = link
                elif above[other] >= 0:
                    return trees, False
                else:
                    above[other] = node
                    depth[other] = depth[node] + 1
                    down_link[other] = link
                    seen[n_seen] = other
                    n_seen += 1
            if node != root and up_link[node] < 0:
                return trees, False
    return trees, True


@kernel
def distances(trees, cost, source, target):
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
    for p in range(len(source)):
        a = source[p]
        b = target[p]
        while a != b:
            if trees.depth[a] == 0 and trees.depth[b] == 0:
                found[p] = FAR
                break
            if trees.depth[a] >= trees.depth[b]:
                found[p] += cost[trees.up_link[a]]
                a = trees.above[a]
            else:
                found[p] += cost[trees.down_link[b]]
                b = trees.above[b]
    return found


@kernel
def spread(trees, latency, source, target, amount):
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
    load = np.zeros(len(latency), dtype=np.float64)
    pair_latency = np.zeros(len(source), dtype=np.float64)
    way = np.empty(len(trees.above), dtype=np.int64)
    for p in range(len(source)):
        a = source[p]
        b = target[p]
        n_up = 0
        slow = 0.0
        while a != b:
            if trees.depth[a] >= trees.depth[b]:
                way[n_up] = trees.up_link[a]
                n_up += 1
                a = trees.above[a]
            else:  # from the end of the way on, as the latency of a node is that of the one before it and its link's
                slow = latency[trees.down_link[b]] + slow
                load[trees.down_link[b]] += amount[p]
                b = trees.above[b]
        for i in range(n_up - 1, -1, -1):
            slow = latency[way[i]] + slow
            load[way[i]] += amount[p]
        pair_latency[p] = slow
    return load, pair_latency
