"""Loops of the stage mapper: the best ring through few devices, and depth-first search of all mappings."""

from __future__ import annotations

import numpy as np
from numba import njit

from meshwright._kernels.mapping import own_seconds, ring_seconds

__all__ = ["best_ring", "branch"]


@njit(cache=True)
def best_ring(slow, devices):
    """Return the order of at most nine devices whose slowest ring link is fastest: a dynamic program over subsets."""
    n = len(devices)
    order = np.arange(n)
    if n < 4:
        return order
    full = 1 << (n - 1)
    value = np.full((full, n - 1), np.inf)
    origin = np.zeros((full, n - 1), np.int64)
    for k in range(n - 1):
        value[1 << k, k] = slow[devices[n - 1], devices[k]]
    for mask in range(1, full):
        for k in range(n - 1):
            if value[mask, k] == np.inf:
                continue
            for j in range(n - 1):
                if mask >> j & 1:
                    continue
                after = max(value[mask, k], slow[devices[k], devices[j]])
                if after < value[mask | 1 << j, j]:
                    value[mask | 1 << j, j] = after
                    origin[mask | 1 << j, j] = k
    last = 0
    best = np.inf
    for k in range(n - 1):
        closed = max(value[full - 1, k], slow[devices[k], devices[n - 1]])
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


@njit(cache=True)
def _lowest(m, place, rings, slot, least, n_replicas):
    """Lower bound of a placed slot: transfers to placed neighbours, least possible ones to the others."""
    s = slot // n_replicas
    r = slot - s * n_replicas
    device = place[slot]
    total = m.compute[s]
    for e in range(m.first[s], m.first[s + 1]):
        other = place[m.stage[e] * n_replicas + r]
        total += m.volume[e] * (m.slow[device, other] if other >= 0 else least[device])
    return total


@njit(cache=True)
def branch(m, order, twins, least, widest, options, limit):
    """Search all mappings below a limit, depth first.

    Parameters
    ----------
    m : MapArrays
        The problem.
    order : ndarray, shape (n_slots,), int64
        Slots in the order in which they are placed.
    twins : ndarray, shape (n_devices,), int64
        Class of interchangeable devices of each device; all different where symmetry is not to be used.
    least : ndarray, shape (n_devices,), float64
        Fastest link of each device, seconds per byte; zeros for bounds from placed neighbours only.
    widest : ndarray, shape (n_devices, n_devices), float64
        Slowest link on the best path between two devices: no ring through both avoids it; zeros where not to be used.
    options : ndarray, shape (4,), int64
        Replicas; whether ring orders are chosen (at most 9 replicas); whether to stop at the first mapping; most nodes.
    limit : float
        Only mappings whose largest cost is below count.

    Returns
    -------
    place, rings, value : the best mapping found (value inf for none)
    n_nodes : int
        Nodes visited; more than the most allowed means that the search was cut off.
    """
    n_replicas, free_rings, first_only, most_nodes = options[0], options[1], options[2], options[3]
    n_slots = len(order)
    n_stages = n_slots // n_replicas
    n_devices = m.slow.shape[0]
    place = np.full(n_slots, -1, np.int64)
    used = np.zeros(n_devices, np.bool_)
    rings = np.zeros((n_stages, n_replicas), np.int64)
    for s in range(n_stages):
        for r in range(n_replicas):
            rings[s, r] = r
    best_place, best_rings, best = place.copy(), rings.copy(), np.inf
    pointer = np.zeros(n_slots + 1, np.int64)
    floor = np.zeros(n_slots + 1)  # largest bound of the slots placed so far
    n_classes = twins.max() + 1
    tried = np.zeros((n_slots + 1, n_classes), np.bool_)
    devices = np.zeros(n_replicas, np.int64)
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
        while pointer[depth] < n_devices:
            device = pointer[depth]
            pointer[depth] += 1
            if used[device] or tried[depth, twins[device]]:
                continue
            tried[depth, twins[device]] = True
            if free_rings and s == 0 and r > 0 and place[r - 1] >= 0 and twins[device] < twins[place[r - 1]]:
                continue  # replicas are alike: only one order of them
            n_nodes += 1
            if n_nodes > most_nodes:
                return best_place, best_rings, best, n_nodes
            place[slot] = device
            ring = 0.0
            if n_replicas > 1 and m.ring[s] > 0.0:
                complete = True
                for k in range(n_replicas):
                    devices[k] = place[s * n_replicas + k]
                    if devices[k] < 0:
                        complete = False
                if free_rings:
                    if complete:
                        found = best_ring(m.slow, devices)
                        for k in range(n_replicas):
                            rings[s, k] = found[k]
                        ring = ring_seconds(m, place, rings, s, n_replicas)
                    else:
                        slowest = least[device]
                        for k in range(n_replicas):
                            if devices[k] >= 0:
                                slowest = max(slowest, widest[device, devices[k]])
                        ring = m.ring[s] * slowest
                else:
                    slowest = 0.0
                    for k in range(n_replicas):
                        here, there = devices[k], devices[(k + 1) % n_replicas]
                        if here >= 0 and there >= 0:
                            slowest = max(slowest, m.slow[here, there])
                    ring = m.ring[s] * slowest
            bound = max(floor[depth], _lowest(m, place, rings, slot, least, n_replicas) + ring)
            if ring > 0.0:
                for k in range(n_replicas):
                    if place[s * n_replicas + k] >= 0:
                        bound = max(bound, _lowest(m, place, rings, s * n_replicas + k, least, n_replicas) + ring)
            for e in range(m.first[s], m.first[s + 1]):
                other = m.stage[e] * n_replicas + r
                if place[other] >= 0:
                    # its ring is part of an earlier floor or not known yet; its transfers have just become certain
                    bound = max(bound, _lowest(m, place, rings, other, least, n_replicas))
            if bound >= min(limit, best):
                place[slot] = -1
                continue
            used[device] = True
            floor[depth + 1] = bound
            if depth + 1 == n_slots:
                cost = 0.0
                for t in range(n_stages):
                    t_ring = ring_seconds(m, place, rings, t, n_replicas)
                    for k in range(n_replicas):
                        cost = max(cost, own_seconds(m, place, t * n_replicas + k, n_replicas) + t_ring)
                if cost < min(limit, best):
                    best = cost
                    best_place[:] = place
                    best_rings[:] = rings
                    if first_only:
                        return best_place, best_rings, best, n_nodes
                used[device] = False
                place[slot] = -1
                continue
            advanced = True
            break
        if advanced:
            depth += 1
            pointer[depth] = 0
            tried[depth, :] = False
        else:
            depth -= 1
    return best_place, best_rings, best, n_nodes
