"""Loops of the stage mapper: cost of a mapping, annealing by swaps, and branch and bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["MapArrays", "all_costs", "anneal", "branch", "pair_rates"]


class MapArrays(NamedTuple):
    """Copies of a stage graph to be mapped; slot ``s * n_replicas + r`` is replica r of stage s.

    Parameters
    ----------
    compute : ndarray, shape (n_stages,), float64
        Time of each stage apart from communication, in seconds.
    first, stage, volume : ndarray
        Neighbours of each stage in compressed rows, and the bytes exchanged with each.
    ring : ndarray, shape (n_stages,), float64
        Bytes over each link of the ring that reduces a stage's gradients.
    slow : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte between devices, symmetric, zero on the diagonal.
    """

    compute: NDArray[np.float64]
    first: NDArray[np.int64]
    stage: NDArray[np.int64]
    volume: NDArray[np.float64]
    ring: NDArray[np.float64]
    slow: NDArray[np.float64]


@njit(cache=True)
def pair_rates(first, target, rate, n_devices, forwards):
    """Return the bandwidth between all devices: over routes with the fewest links, the widest; 0 where there is none.

    Where devices pass on traffic, a route of h links counts 1/h of its width: it uses up that many links that others need.

    Parameters
    ----------
    first, target, rate : ndarray
        Links out of each node in compressed rows: end and bytes per second.
    n_devices : int
        Nodes from here on are switches.
    forwards : bool
        Whether devices pass on traffic.
    """
    n = len(first) - 1
    result = np.zeros((n_devices, n_devices))
    width = np.zeros(n)
    hops = np.zeros(n, np.int64)
    queue = np.zeros(n, np.int64)
    for source in range(n_devices):
        hops[:] = -1
        width[:] = 0.0
        hops[source] = 0
        width[source] = np.inf
        queue[0] = source
        n_queue = 1
        i = 0
        while i < n_queue:
            u = queue[i]
            i += 1
            if u != source and u < n_devices and not forwards:
                continue
            for e in range(first[u], first[u + 1]):
                v = target[e]
                if hops[v] < 0:
                    hops[v] = hops[u] + 1
                    queue[n_queue] = v
                    n_queue += 1
                if hops[v] == hops[u] + 1:
                    width[v] = max(width[v], min(width[u], rate[e]))
        for v in range(n_devices):
            if v != source:
                result[source, v] = width[v] / max(hops[v], 1) if forwards else width[v]
    return result


@njit(cache=True)
def _ring_seconds(m, place, rings, s, n_replicas):
    """Seconds of the ring of stage s: the slowest link of its order."""
    if n_replicas < 2 or m.ring[s] == 0.0:
        return 0.0
    slowest = 0.0
    before = place[s * n_replicas + rings[s, n_replicas - 1]]
    for k in range(n_replicas):
        device = place[s * n_replicas + rings[s, k]]
        slowest = max(slowest, m.slow[before, device])
        before = device
    return m.ring[s] * slowest


@njit(cache=True)
def _own_seconds(m, place, slot, n_replicas):
    """Compute and transfers of one slot, without the ring."""
    s = slot // n_replicas
    r = slot - s * n_replicas
    total = m.compute[s]
    device = place[slot]
    for e in range(m.first[s], m.first[s + 1]):
        total += m.volume[e] * m.slow[device, place[m.stage[e] * n_replicas + r]]
    return total


@njit(cache=True)
def all_costs(m, place, rings):
    """Return the cost of every slot, in seconds; place is (n_slots,), rings is (n_stages, n_replicas)."""
    n_stages, n_replicas = rings.shape
    cost = np.zeros(n_stages * n_replicas)
    for s in range(n_stages):
        ring = _ring_seconds(m, place, rings, s, n_replicas)
        for r in range(n_replicas):
            slot = s * n_replicas + r
            cost[slot] = _own_seconds(m, place, slot, n_replicas) + ring
    return cost


@njit(cache=True)
def _power(x):
    """The eighth power: the sum of these over all slots is a smooth stand-in for the largest."""
    x = x * x
    x = x * x
    return x * x


@njit(cache=True)
def anneal(m, place, rings, near, n_moves, heat, random):
    """Improve a mapping by swaps of devices and reversals of ring segments; return the best seen and its largest cost.

    Parameters
    ----------
    m : MapArrays
        The problem.
    place, rings : ndarray
        Start: device of each slot, and order of the replicas of each stage.
    near : ndarray, shape (n_devices, k), int64
        Nearest devices of each device.
    n_moves : int
        Moves to try.
    heat : float
        Starting temperature, in units of the largest slot's share; falls to a hundredth.
    random : numpy.random.Generator
        Source of chance.
    """
    n_stages, n_replicas = rings.shape
    n_slots = n_stages * n_replicas
    n_devices = m.slow.shape[0]
    place = place.copy()
    rings = rings.copy()
    slot_of = np.full(n_devices, -1, np.int64)
    for slot in range(n_slots):
        slot_of[place[slot]] = slot
    own = np.zeros(n_slots)
    ring = np.zeros(n_stages)
    for s in range(n_stages):
        ring[s] = _ring_seconds(m, place, rings, s, n_replicas)
    for slot in range(n_slots):
        own[slot] = _own_seconds(m, place, slot, n_replicas)
    top = 0.0
    for slot in range(n_slots):
        top = max(top, own[slot] + ring[slot // n_replicas])
    best, best_place, best_rings = top, place.copy(), rings.copy()
    reference = top
    touched = np.zeros(n_slots, np.int64)
    stamp = np.zeros(n_slots, np.int64)
    fresh = np.zeros(n_slots)
    new_ring = np.zeros(n_stages)
    for move in range(n_moves):
        temperature = heat * 0.01 ** (move / n_moves)
        slot = random.integers(0, n_slots)
        for _ in range(3):  # a slot that costs much is more likely worth moving
            other = random.integers(0, n_slots)
            if own[other] + ring[other // n_replicas] > own[slot] + ring[slot // n_replicas]:
                slot = other
        s = slot // n_replicas
        reverse = n_replicas > 3 and m.ring[s] > 0.0 and random.random() < 0.3
        x = y = 0
        other = -1
        old_device = place[slot]
        new_device = old_device
        if reverse:
            x = random.integers(0, n_replicas - 1)
            y = random.integers(x + 1, n_replicas)
            p, q = x, y
            while p < q:
                rings[s, p], rings[s, q] = rings[s, q], rings[s, p]
                p += 1
                q -= 1
        else:
            if random.random() < 0.8:
                n_links = m.first[s + 1] - m.first[s]
                pick = random.integers(0, n_links + 2)
                if pick < n_links:
                    anchor = place[m.stage[m.first[s] + pick] * n_replicas + slot - s * n_replicas]
                else:
                    anchor = place[s * n_replicas + rings[s, random.integers(0, n_replicas)]]
                new_device = near[anchor, random.integers(0, near.shape[1])]
            else:
                new_device = random.integers(0, n_devices)
            if new_device == old_device:
                continue
            other = slot_of[new_device]
            place[slot] = new_device
            if other >= 0:
                place[other] = old_device
        # what changes: the moved slots, their neighbours, and the whole stage where a ring changed
        n_touched = 0
        change = 0.0
        for which in range(2):
            moved = slot if which == 0 else other
            if moved < 0:
                continue
            t = moved // n_replicas
            r = moved - t * n_replicas
            for e in range(m.first[t] - 1, m.first[t + 1]):
                neighbour = moved if e < m.first[t] else m.stage[e] * n_replicas + r
                if stamp[neighbour] != move + 1:
                    stamp[neighbour] = move + 1
                    touched[n_touched] = neighbour
                    n_touched += 1
                    fresh[neighbour] = _own_seconds(m, place, neighbour, n_replicas)
            new_ring[t] = _ring_seconds(m, place, rings, t, n_replicas)
            if new_ring[t] != ring[t]:
                for k in range(n_replicas):
                    neighbour = t * n_replicas + k
                    if stamp[neighbour] != move + 1:
                        stamp[neighbour] = move + 1
                        touched[n_touched] = neighbour
                        n_touched += 1
                        fresh[neighbour] = _own_seconds(m, place, neighbour, n_replicas)
        t_other = other // n_replicas if other >= 0 else s
        highest_before = 0.0
        highest_after = 0.0
        for k in range(n_touched):
            changed = touched[k]
            t = changed // n_replicas
            before = own[changed] + ring[t]
            after = fresh[changed] + (new_ring[t] if t == s or t == t_other else ring[t])
            change += _power(after / reference) - _power(before / reference)
            highest_before = max(highest_before, before)
            highest_after = max(highest_after, after)
        if change <= 0.0 or random.random() < np.exp(-change / temperature):
            for k in range(n_touched):
                own[touched[k]] = fresh[touched[k]]
            ring[s] = new_ring[s]
            if other >= 0:
                ring[t_other] = new_ring[t_other]
                slot_of[old_device] = other
            elif not reverse:
                slot_of[old_device] = -1
            if not reverse:
                slot_of[new_device] = slot
            if highest_after >= top:
                top = highest_after
            elif highest_before >= top:
                top = 0.0
                for k in range(n_slots):
                    top = max(top, own[k] + ring[k // n_replicas])
                if top < best:
                    best = top
                    best_place[:] = place
                    best_rings[:] = rings
                    reference = top
        else:
            if reverse:
                p, q = x, y
                while p < q:
                    rings[s, p], rings[s, q] = rings[s, q], rings[s, p]
                    p += 1
                    q -= 1
            else:
                place[slot] = old_device
                if other >= 0:
                    place[other] = new_device
    return best_place, best_rings, best


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
                        ring = _ring_seconds(m, place, rings, s, n_replicas)
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
                    t_ring = _ring_seconds(m, place, rings, t, n_replicas)
                    for k in range(n_replicas):
                        cost = max(cost, _own_seconds(m, place, t * n_replicas + k, n_replicas) + t_ring)
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
