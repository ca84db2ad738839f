"""Loops of the stage mapper: the best ring through few devices, and the published depth-first search."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.arrays import largest
from meshwright._kernels.compiling import kernel, part
from meshwright._kernels.mapping.cost import all_costs

__all__ = ["best_ring", "branch", "shorter_ring"]


@kernel(allocates=True)
def best_ring(seconds_per_byte, devices):
    """Return the order of at most nine devices whose slowest ring link is fastest: a dynamic program over subsets."""
    n = len(devices)
    order = np.arange(n)
    if n < 4:
        return order
    full = 1 << (n - 1)
    value = np.full((full, n - 1), np.inf)
    origin = np.zeros((full, n - 1), np.int64)
    for k in range(n - 1):
        value[1 << k, k] = seconds_per_byte[devices[n - 1], devices[k]]
    for mask in range(1, full):
        for k in range(n - 1):
            if value[mask, k] == np.inf:
                continue
            for j in range(n - 1):
                if mask >> j & 1:
                    continue
                after = max(value[mask, k], seconds_per_byte[devices[k], devices[j]])
                if after < value[mask | 1 << j, j]:
                    value[mask | 1 << j, j] = after
                    origin[mask | 1 << j, j] = k
    last = 0
    best = np.inf
    for k in range(n - 1):
        closed = max(value[full - 1, k], seconds_per_byte[devices[k], devices[n - 1]])
        if closed < best:
            best = closed
            last = k
    mask = full - 1
    order[n - 1] = n - 1
    for position in range(n - 2, -1, -1):
        order[position] = last
        before = origin[mask, last]
        mask ^= 1 << last
        last = before
    return order


@kernel(allocates=True)
def shorter_ring(seconds_per_byte, order):
    """Return a ring order bettered by reversing segments and by moving up to three neighbours elsewhere, as long as the sum
    falls.

    The sum is that of the sixteenth powers of the links, so that the slowest links count most.

    Parameters
    ----------
    seconds_per_byte : ndarray, shape (n, n), float64
        Seconds per byte between the devices of the ring.
    order : ndarray, shape (n,), int64
        The order to begin with.
    """
    n = len(order)
    order = order.copy()
    weight = np.zeros((n, n))
    top = 0.0
    for i in range(n):
        top = max(top, seconds_per_byte[order[i], order[i - 1]])
    if n < 4 or top == 0.0:
        return order
    for i in range(n):
        for j in range(n):
            x = seconds_per_byte[i, j] / top
            for _ in range(4):
                x = min(x * x, 1e30)
            weight[i, j] = x
    spare = order.copy()
    improved = True
    n_passes = 0
    while improved and n_passes < 50:
        improved = False
        n_passes += 1
        for i in range(n - 1):
            for j in range(i + 1, min(n, i + n - 2)):  # order[i : j + 1] backwards
                before, a, b, after = order[i - 1], order[i], order[j], order[(j + 1) % n]
                old, new = weight[before, a] + weight[b, after], weight[before, b] + weight[a, after]
                if old - new > 1e-9 * old:
                    for k in range((j - i + 1) // 2):
                        order[i + k], order[j - k] = order[j - k], order[i + k]
                    improved = True
        for size in range(1, min(4, n - 2)):
            for start in range(n):  # the `size` from here on go between two others
                first, last = order[start], order[(start + size - 1) % n]
                before, after = order[start - 1], order[(start + size) % n]
                gain = weight[before, first] + weight[last, after] - weight[before, after]
                for k in range(size, n - 1):
                    a, b = order[(start + k) % n], order[(start + k + 1) % n]
                    straight, turned = weight[a, first] + weight[last, b], weight[a, last] + weight[first, b]
                    loss = min(straight, turned) - weight[a, b]
                    if gain - loss > 1e-9 * max(gain, loss):
                        for x in range(n):
                            spare[x] = order[(start + x) % n]
                        for x in range(k + 1 - size):
                            order[x] = spare[x + size]
                        for x in range(size):
                            order[k + 1 - size + x] = spare[x] if straight <= turned else spare[size - 1 - x]
                        for x in range(k + 1, n):
                            order[x] = spare[x]
                        improved = True
                        break
    return order


@part
def _known_seconds(m, place, slot, n_replicas):
    """Cost of a placed slot as far as its neighbours are placed: a lower bound."""
    s = slot // n_replicas
    r = slot - s * n_replicas
    total = m.compute[s]
    for e in range(m.first[s], m.first[s + 1]):
        other = place[m.stage[e] * n_replicas + r]
        if other >= 0:
            total += m.volume[e] * m.seconds_per_byte[place[slot], other]
    return total


@kernel(allocates=True)
def branch(m, order, n_replicas, most_nodes, limit):
    """Return the first mapping below a limit that a depth-first search meets; rings run in the order of the replicas.

    Parameters
    ----------
    m : MapArrays
        The problem.
    order : ndarray, shape (n_slots,), int64
        Slots in the order in which they are placed.
    n_replicas : int
        Copies of the stage graph.
    most_nodes : int
        Placements to try.
    limit : float
        Only mappings whose largest cost is below count.

    Returns
    -------
    place : ndarray, shape (n_slots,), int64
        The mapping.
    value : float
        Its largest cost; inf for none.
    n_nodes : int
        Placements tried; more than the most allowed means that the search was cut off.
    """
    n_slots = len(order)
    n_devices = m.seconds_per_byte.shape[0]
    place = np.full(n_slots, -1, np.int64)
    used = np.zeros(n_devices, np.bool_)
    rings = np.zeros((n_slots // n_replicas, n_replicas), np.int64)
    for s in range(rings.shape[0]):
        for replica in range(n_replicas):
            rings[s, replica] = replica
    pointer = np.zeros(n_slots + 1, np.int64)
    depth = 0
    n_nodes = 0
    while depth >= 0:
        slot = order[depth]
        s = slot // n_replicas
        r = slot - s * n_replicas
        if place[slot] >= 0:
            used[place[slot]] = False
            place[slot] = -1
        advanced = False
        # devices in the order of their ids, as published; every device tried counts as a node
        while pointer[depth] < n_devices:
            device = pointer[depth]
            pointer[depth] += 1
            if used[device]:
                continue
            n_nodes += 1
            if n_nodes > most_nodes:
                return place, np.inf, n_nodes
            place[slot] = device
            slowest = 0.0
            for k in range(n_replicas):
                here, there = place[s * n_replicas + k], place[s * n_replicas + (k + 1) % n_replicas]
                if here >= 0 and there >= 0 and n_replicas > 1:
                    slowest = max(slowest, m.seconds_per_byte[here, there])
            bound = _known_seconds(m, place, slot, n_replicas) + m.ring[s] * slowest
            for k in range(n_replicas):
                if place[s * n_replicas + k] >= 0:
                    bound = max(bound, _known_seconds(m, place, s * n_replicas + k, n_replicas) + m.ring[s] * slowest)
            for e in range(m.first[s], m.first[s + 1]):
                other = m.stage[e] * n_replicas + r
                if place[other] >= 0:  # its transfers have just become certain
                    bound = max(bound, _known_seconds(m, place, other, n_replicas))
            if bound < limit and depth + 1 == n_slots:
                value = largest(all_costs(m, place, rings))
                if value < limit:
                    return place, value, n_nodes
                bound = np.inf
            if bound >= limit:
                place[slot] = -1
                continue
            used[device] = True
            advanced = True
            break
        if advanced:
            depth += 1
            pointer[depth] = 0
        else:
            depth -= 1
    return place, np.inf, n_nodes
