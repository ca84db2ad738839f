"""Shortest paths towards one node and even multipath sharing of traffic on them, over nodes that forward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part
from meshwright._kernels.heap import pop, push

__all__ = ["FAR", "ForwardingNodes", "distances", "spread"]

FAR = np.int64(2**62)


class ForwardingNodes(NamedTuple):
    """Nodes that forward, and the links between them.

    ``in_first``, ``in_link`` and ``out_first``, ``out_link`` (int64) list the links into and out of each node as ranges;
    ``source``, ``target``, ``cost`` (int64, at least 1) and ``latency`` (float64) have one entry per link;
    ``even`` (bool, one entry) says whether all costs are equal, so that a queue does instead of a heap.
    """

    in_first: np.ndarray
    in_link: np.ndarray
    out_first: np.ndarray
    out_link: np.ndarray
    source: np.ndarray
    target: np.ndarray
    cost: np.ndarray
    latency: np.ndarray
    even: np.ndarray


class Workspace(NamedTuple):
    """What one search needs: distances, nodes in the order settled, and a heap."""

    best: np.ndarray
    order: np.ndarray
    heap_cost: np.ndarray
    heap_node: np.ndarray


@part
def _dead_end(net, other, node):
    """Return whether all links into a node come from the one it was found from: no way to the target leads through it."""
    for k in range(net.in_first[other], net.in_first[other + 1]):
        if net.source[net.in_link[k]] != node:
            return False
    return True


@part
def _settle_evenly(net, target, wanted, n_wanted, work):
    """Do what `_settle` does where all links cost the same: breadth first."""
    work.best[target] = 0
    work.heap_node[0] = target
    n_seen = 1
    n_settled = 0
    left = n_wanted
    while n_settled < n_seen:
        node = work.heap_node[n_settled]
        work.order[n_settled] = node
        n_settled += 1
        if wanted[node]:
            left -= 1
            if left == 0:
                break
        for k in range(net.in_first[node], net.in_first[node + 1]):
            link = net.in_link[k]
            other = net.source[link]
            if work.best[other] == FAR and (wanted[other] or not _dead_end(net, other, node)):
                work.best[other] = work.best[node] + net.cost[link]
                work.heap_node[n_seen] = other
                n_seen += 1
    return n_settled, n_seen


@part
def _settle(net, target, wanted, n_wanted, work):
    """Settle nodes in order of their distance to `target` until the wanted ones are; return how many were, and what is left.

    Dead ends that are not wanted are left alone: they are on no way, and a hub of thousands of them stays quick.
    Nodes pushed but not settled keep a tentative distance that is at least that of the last one settled; as costs are at least
    1 they can never look like the next hop of a settled node.
    """
    if net.even[0]:
        return _settle_evenly(net, target, wanted, n_wanted, work)
    work.best[target] = 0
    n_heap = push(work.heap_cost, work.heap_node, 0, np.int64(0), target)
    n_settled = 0
    left = n_wanted
    while n_heap > 0:
        cost = work.heap_cost[0]
        node = work.heap_node[0]
        n_heap = pop(work.heap_cost, work.heap_node, n_heap)
        if cost != work.best[node]:
            continue
        work.order[n_settled] = node
        n_settled += 1
        if wanted[node]:
            left -= 1
            if left == 0:
                break
        for k in range(net.in_first[node], net.in_first[node + 1]):
            link = net.in_link[k]
            other = net.source[link]
            through = cost + net.cost[link]
            if through < work.best[other] and (wanted[other] or not _dead_end(net, other, node)):
                work.best[other] = through
                n_heap = push(work.heap_cost, work.heap_node, n_heap, through, other)
    return n_settled, n_heap


@part
def _forget(n_settled, n_heap, work):
    """Set every distance that was touched back to FAR."""
    for i in range(n_settled):
        work.best[work.order[i]] = FAR
    for i in range(n_heap):
        work.best[work.heap_node[i]] = FAR


@part(allocates=True)
def _workspace(n_nodes, n_links):
    """Return the arrays that a search needs, with every distance FAR."""
    return Workspace(
        np.full(n_nodes, FAR, dtype=np.int64),
        np.empty(n_nodes, dtype=np.int64),
        np.empty(n_nodes + n_links + 1, dtype=np.int64),
        np.empty(n_nodes + n_links + 1, dtype=np.int64),
    )


@part
def _ways(net, best, node, links):
    """Write the links of a node that lie on shortest paths to the target into `links`; return how many there are."""
    n_ways = 0
    for k in range(net.out_first[node], net.out_first[node + 1]):
        link = net.out_link[k]
        after = net.target[link]
        if best[after] != FAR and best[after] + net.cost[link] == best[node]:
            links[n_ways] = link
            n_ways += 1
    return n_ways


@part
def _most_out(net):
    """Return the largest number of links out of a node."""
    most = 0
    for node in range(len(net.out_first) - 1):
        most = max(most, net.out_first[node + 1] - net.out_first[node])
    return most


@kernel(allocates=True)
def distances(net, target, pair_first, pair_source):
    """Return the distance of every pair, in the unit of ``net.cost``; FAR where there is no path.

    Parameters
    ----------
    net : ForwardingNodes
        The nodes that forward and the links between them.
    target : ndarray, shape (n_targets,), int64
        Distinct targets.
    pair_first : ndarray, shape (n_targets + 1,), int64
        Pairs of each target, as ranges of `pair_source`.
    pair_source : ndarray, shape (n_pairs,), int64
        Source of each pair.
    """
    n_nodes = len(net.in_first) - 1
    work = _workspace(n_nodes, len(net.source))
    wanted = np.zeros(n_nodes, dtype=np.bool_)
    found = np.empty(len(pair_source), dtype=np.int64)
    for t in range(len(target)):
        n_wanted = 0
        for p in range(pair_first[t], pair_first[t + 1]):
            if not wanted[pair_source[p]]:
                wanted[pair_source[p]] = True
                n_wanted += 1
        n_settled, n_heap = _settle(net, target[t], wanted, n_wanted, work)
        for p in range(pair_first[t], pair_first[t + 1]):
            found[p] = work.best[pair_source[p]]
        for p in range(pair_first[t], pair_first[t + 1]):
            wanted[pair_source[p]] = False
        _forget(n_settled, n_heap, work)
    return found


@kernel(allocates=True)
def spread(net, target, pair_first, pair_source, pair_amount):
    """Return the load of every link and the latency of every pair when each pair sends its amount on shortest paths.

    At every node the traffic towards a target is split evenly over the links that lie on shortest paths; the latency of a pair
    is the largest over its paths.

    Parameters
    ----------
    net : ForwardingNodes
        The nodes that forward and the links between them.
    target : ndarray, shape (n_targets,), int64
        Distinct targets.
    pair_first : ndarray, shape (n_targets + 1,), int64
        Pairs of each target, as ranges of the next two.
    pair_source : ndarray, shape (n_pairs,), int64
        Source of each pair; it must reach the target.
    pair_amount : ndarray, shape (n_pairs,), float64
        What each pair sends.
    """
    n_nodes = len(net.in_first) - 1
    work = _workspace(n_nodes, len(net.source))
    best = work.best
    wanted = np.zeros(n_nodes, dtype=np.bool_)
    ways = np.empty(_most_out(net), dtype=np.int64)
    amount = np.zeros(n_nodes, dtype=np.float64)
    latency = np.zeros(n_nodes, dtype=np.float64)
    load = np.zeros(len(net.source), dtype=np.float64)
    pair_latency = np.zeros(len(pair_source), dtype=np.float64)
    for t in range(len(target)):
        n_wanted = 0
        for p in range(pair_first[t], pair_first[t + 1]):
            amount[pair_source[p]] += pair_amount[p]
            if not wanted[pair_source[p]]:
                wanted[pair_source[p]] = True
                n_wanted += 1
        n_settled, n_heap = _settle(net, target[t], wanted, n_wanted, work)
        latency[target[t]] = 0.0
        for i in range(1, n_settled):  # nearest first: the next hops of a node are settled before it
            node = work.order[i]
            slowest = 0.0
            for k in range(_ways(net, best, node, ways)):
                slowest = max(slowest, net.latency[ways[k]] + latency[net.target[ways[k]]])
            latency[node] = slowest
        for i in range(n_settled - 1, 0, -1):  # farthest first: everything a node forwards has arrived at it
            node = work.order[i]
            if amount[node] == 0.0:
                continue
            n_ways = _ways(net, best, node, ways)
            for k in range(n_ways):
                load[ways[k]] += amount[node] / n_ways
                amount[net.target[ways[k]]] += amount[node] / n_ways
        for p in range(pair_first[t], pair_first[t + 1]):
            pair_latency[p] = latency[pair_source[p]]
            wanted[pair_source[p]] = False
        for i in range(n_settled):
            amount[work.order[i]] = 0.0
        _forget(n_settled, n_heap, work)
    return load, pair_latency
