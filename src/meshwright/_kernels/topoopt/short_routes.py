"""Shortest routes between servers that keep the load of links even."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import kernel

__all__ = ["distances", "routes"]


@kernel(allocates=True)
def distances(first, target, n_servers, forwards):
    """Return hops from every server to every node, -1 where there is no way; shape (n_servers, n_nodes).

    Links of node v are ``target[first[v] : first[v + 1]]``. Servers pass on the traffic of others only if they forward.
    """
    n_nodes = len(first) - 1
    found = np.full((n_servers, n_nodes), -1, np.int64)
    queue = np.empty(n_nodes, np.int64)
    for s in range(n_servers):
        found[s, s] = 0
        queue[0] = s
        head, tail = 0, 1
        while head < tail:
            v = queue[head]
            head += 1
            if v != s and v < n_servers and not forwards:
                continue
            for x in range(first[v], first[v + 1]):
                w = target[x]
                if found[s, w] < 0:
                    found[s, w] = found[s, v] + 1
                    queue[tail] = w
                    tail += 1
    return found


@kernel(allocates=True)
def routes(first, target, seconds_per_byte, hops, order, demand_bytes, load_seconds, links, forwards):
    """Draw one shortest route for every pair, pairs taken in `order`, each the one whose busiest link is least busy.

    Parameters
    ----------
    first, target : ndarray, int64
        Links by source node.
    seconds_per_byte : ndarray, shape (n_links,), float64
        Of each link.
    hops : ndarray, shape (n_servers, n_nodes), int64
        From `distances` on the reversed links: hops from a node to each server.
    order : ndarray, shape (n_pairs,), int64
        Pairs ``source * n_servers + target`` to be routed.
    demand_bytes : ndarray, shape (n_pairs,), float64
        Of each pair of `order`.
    load_seconds : ndarray, shape (n_links,), float64
        What links carry already; changed.
    links : ndarray, shape (n_pairs, most), int64
        Links of each route, in the order of `order`, -1 after the last; changed. Those that are there already are taken out of
        the load first, and the route is drawn again with all others in place.
    forwards : bool
        Whether servers pass on traffic.
    """
    n_servers, n_nodes = hops.shape
    worst = np.empty(n_nodes)
    total = np.empty(n_nodes)
    best = np.empty(n_nodes, np.int64)
    layer = np.empty(n_nodes, np.int64)
    seen = np.zeros(n_nodes, np.int64)
    mark = 0
    for at in range(len(order)):
        a, b = order[at] // n_servers, order[at] % n_servers
        amount = demand_bytes[at]
        for x in links[at]:
            if x >= 0:
                load_seconds[x] -= amount * seconds_per_byte[x]
        # nodes on shortest ways from a to b, then the least busy way back from b
        mark += 1
        layer[0] = a
        seen[a] = mark
        head, tail = 0, 1
        while head < tail:
            v = layer[head]
            head += 1
            for x in range(first[v], first[v + 1]):
                w = target[x]
                through = forwards or w >= n_servers or w == b
                if through and hops[b, w] >= 0 and hops[b, w] == hops[b, v] - 1 and seen[w] != mark:
                    seen[w] = mark
                    layer[tail] = w
                    tail += 1
        worst[b], total[b] = 0.0, 0.0
        for k in range(tail - 1, -1, -1):
            v = layer[k]
            if v == b:
                continue
            worst[v], total[v], best[v] = np.inf, np.inf, -1
            for x in range(first[v], first[v + 1]):
                w = target[x]
                if seen[w] == mark and hops[b, w] == hops[b, v] - 1:
                    busy = max(worst[w], load_seconds[x] + amount * seconds_per_byte[x])
                    summed = total[w] + load_seconds[x]
                    if busy < worst[v] or (busy == worst[v] and summed < total[v]):
                        worst[v], total[v], best[v] = busy, summed, x
        v, k = a, 0
        while v != b:
            x = best[v]
            links[at, k] = x
            load_seconds[x] += amount * seconds_per_byte[x]
            v, k = target[x], k + 1


@kernel(allocates=True)
def widen(first, source, target, hops, order, links, n_ways, n_longer, forwards):
    """Return more routes for every pair, each the shortest over links its pair does not use yet; links taken least come first.

    Parameters
    ----------
    first, target, hops, order, forwards
        As for `routes`.
    source : ndarray, shape (n_links,), int64
        Where each link begins.
    links : ndarray, shape (n_pairs, most), int64
        From `routes`.
    n_ways : int
        Routes of a pair at most.
    n_longer : int
        How many links more than the first route another may have.

    Returns
    -------
    ways : ndarray, shape (n_pairs, n_ways, most + n_longer), int32
        Links of each route, in the order of `order`; -1 after the last.
    n_found : ndarray, shape (n_pairs,), int64
        Routes of each pair.
    """
    n_servers, n_nodes = hops.shape
    n_links = len(target)
    ways = np.full((len(order), n_ways, links.shape[1] + n_longer), -1, np.int32)
    n_found = np.ones(len(order), np.int64)
    taken = np.zeros(n_links, np.int64)
    used, seen, came = np.full(n_links, -1, np.int64), np.zeros(n_nodes, np.int64), np.empty(n_nodes, np.int64)
    layer, keys = np.empty(n_nodes, np.int64), np.empty(n_links, np.int64)
    mark = 0
    for at in range(len(order)):
        for k in range(links.shape[1]):
            ways[at, 0, k] = links[at, k]
            if links[at, k] >= 0:
                taken[links[at, k]] += 1
    for at in range(len(order)):
        a, b = order[at] // n_servers, order[at] % n_servers
        longest = hops[b, a] + n_longer
        for x in links[at]:
            if x >= 0:
                used[x] = at
        while n_found[at] < n_ways:
            mark += 1
            layer[0], n_layer, depth = a, 1, 0
            seen[a] = mark
            while n_layer > 0 and seen[b] != mark and depth < longest:
                depth += 1
                n_keys = 0
                for k in range(n_layer):
                    for x in range(first[layer[k]], first[layer[k] + 1]):
                        w = target[x]
                        through = forwards or w >= n_servers or w == b
                        # a node too far from b is on no route that is short enough
                        if through and used[x] != at and seen[w] != mark and 0 <= hops[b, w] <= longest - depth:
                            keys[n_keys] = taken[x] * n_links + x
                            n_keys += 1
                n_layer = 0
                keys[:n_keys].sort()
                for k in range(n_keys):
                    x = keys[k] % n_links
                    w = target[x]
                    if seen[w] != mark:
                        seen[w], came[w], layer[n_layer] = mark, x, w
                        n_layer += 1
            if seen[b] != mark:
                break
            v = b
            for k in range(depth - 1, -1, -1):
                x = came[v]
                ways[at, n_found[at], k] = x
                used[x] = at
                taken[x] += 1
                v = source[x]
            n_found[at] += 1
    return ways, n_found
