"""Loops of the stage mapper: bandwidth between devices, cost of a mapping, annealing by swaps.

The cost of a slot is Parmesan's (Liu et al., IEEE TCAD 2024, section V): its compute, its transfers to the same replica of
neighbouring stages, and the ring that reduces its stage's gradients; a mapping costs what its most expensive slot costs. The
annealing is ours: Metropolis' rule on a sum of high powers of all slots' costs, since the largest alone does not change with
most moves. Names: ``place[slot]`` is a device, ``rings[s]`` the order of stage s's replicas on their ring, ``own[slot]``
compute and transfers, ``ring[s]`` seconds of the ring.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.arrays import copy, copy_rows
from meshwright._kernels.compiling import inlined, kernel, part

__all__ = ["MapArrays", "all_costs", "anneal", "pair_rates"]


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
    seconds_per_byte : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte between devices, symmetric, zero on the diagonal.
    """

    compute: NDArray[np.float64]
    first: NDArray[np.int64]
    stage: NDArray[np.int64]
    volume: NDArray[np.float64]
    ring: NDArray[np.float64]
    seconds_per_byte: NDArray[np.float64]


@kernel(allocates=True)
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


@part
def ring_seconds(m, place, rings, s, n_replicas):
    """Seconds of the ring of stage s: the slowest link of its order."""
    if n_replicas < 2 or m.ring[s] == 0.0:
        return 0.0
    slowest = 0.0
    before = place[s * n_replicas + rings[s, n_replicas - 1]]
    for k in range(n_replicas):
        device = place[s * n_replicas + rings[s, k]]
        slowest = max(slowest, m.seconds_per_byte[before, device])
        before = device
    return m.ring[s] * slowest


@part
def own_seconds(m, place, slot, n_replicas):
    """Compute and transfers of one slot, without the ring."""
    s = slot // n_replicas
    r = slot - s * n_replicas
    total = m.compute[s]
    device = place[slot]
    for e in range(m.first[s], m.first[s + 1]):
        total += m.volume[e] * m.seconds_per_byte[device, place[m.stage[e] * n_replicas + r]]
    return total


@kernel(allocates=True)
def all_costs(m, place, rings):
    """Return the cost of every slot, in seconds; place is (n_slots,), rings is (n_stages, n_replicas)."""
    n_stages, n_replicas = rings.shape
    cost = np.zeros(n_stages * n_replicas)
    for s in range(n_stages):
        ring = ring_seconds(m, place, rings, s, n_replicas)
        for r in range(n_replicas):
            slot = s * n_replicas + r
            cost[slot] = own_seconds(m, place, slot, n_replicas) + ring
    return cost


@part
def _power(x, n_squarings):
    """A high power: the sum of these over all slots is a smooth stand-in for the largest."""
    for _ in range(n_squarings):
        x = x * x
    return x


@inlined
def _reverse(rings, s, x, y):
    """Reverse the replicas x to y of a ring; twice is as before."""
    while x < y:
        rings[s, x], rings[s, y] = rings[s, y], rings[s, x]
        x += 1
        y -= 1


@inlined
def _mark(slots, stamp, slot, move, n_changed):
    """Note a slot whose cost a move changes, once a move; return how many there are so far."""
    if stamp[slot] != move:
        stamp[slot] = move
        slots[n_changed] = slot
        n_changed += 1
    return n_changed


@inlined
def _largest(own, ring, n_replicas):
    """Return the largest cost of all slots."""
    largest = 0.0
    for slot in range(len(own)):
        largest = max(largest, own[slot] + ring[slot // n_replicas])
    return largest


@kernel(allocates=True)
def anneal(m, place, rings, near, n_moves, start_temperature, n_squarings, random):
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
    start_temperature : float
        Starting temperature, in units of the largest slot's share; falls to a hundredth.
    n_squarings : int
        The sum of which powers of the slots' costs is annealed: 3 for the eighth.
    random : numpy.random.Generator
        Source of chance.
    """
    n_stages, n_replicas = rings.shape
    n_slots = n_stages * n_replicas
    place, rings = place.copy(), rings.copy()
    slot_of = np.full(m.seconds_per_byte.shape[0], -1, np.int64)
    own, ring = np.zeros(n_slots), np.zeros(n_stages)
    for s in range(n_stages):
        ring[s] = ring_seconds(m, place, rings, s, n_replicas)
    for slot in range(n_slots):
        slot_of[place[slot]] = slot
        own[slot] = own_seconds(m, place, slot, n_replicas)
    top = _largest(own, ring, n_replicas)
    best, best_place, best_rings = top, place.copy(), rings.copy()
    reference = top  # costs are taken relative to it, as their powers would overflow
    changed, stamp, new_own = np.zeros(n_slots, np.int64), np.zeros(n_slots, np.int64), np.zeros(n_slots)
    new_ring = np.zeros(n_stages)
    for move in range(n_moves):
        temperature = start_temperature * 0.01 ** (move / n_moves)
        slot = random.integers(0, n_slots)
        for _ in range(3):  # a slot that costs much is more likely worth moving
            other = random.integers(0, n_slots)
            if own[other] + ring[other // n_replicas] > own[slot] + ring[slot // n_replicas]:
                slot = other
        s = slot // n_replicas
        reverse = n_replicas > 3 and m.ring[s] > 0.0 and random.random() < 0.3
        x = y = 0
        other = -1
        old_device = new_device = place[slot]
        if reverse:
            x = random.integers(0, n_replicas - 1)
            y = random.integers(x + 1, n_replicas)
            _reverse(rings, s, x, y)
        else:
            if random.random() < 0.8:  # near a device that the slot talks to; else any, so that no mapping is out of reach
                n_links = m.first[s + 1] - m.first[s]
                pick = random.integers(0, n_links + 2)
                if pick < n_links:
                    anchor = place[m.stage[m.first[s] + pick] * n_replicas + slot - s * n_replicas]
                else:
                    anchor = place[s * n_replicas + rings[s, random.integers(0, n_replicas)]]
                new_device = near[anchor, random.integers(0, near.shape[1])]
            else:
                new_device = random.integers(0, len(slot_of))
            if new_device == old_device:
                continue
            other = slot_of[new_device]
            place[slot] = new_device
            if other >= 0:
                place[other] = old_device
        # what changes: the moved slots, their neighbours, and the whole stage where a ring changed
        n_changed = 0
        for which in range(2):
            moved = slot if which == 0 else other
            if moved < 0:
                continue
            t = moved // n_replicas
            r = moved - t * n_replicas
            for e in range(m.first[t] - 1, m.first[t + 1]):
                neighbour = moved if e < m.first[t] else m.stage[e] * n_replicas + r
                n_changed = _mark(changed, stamp, neighbour, move + 1, n_changed)
            new_ring[t] = ring_seconds(m, place, rings, t, n_replicas)
            if new_ring[t] != ring[t]:
                for k in range(n_replicas):
                    n_changed = _mark(changed, stamp, t * n_replicas + k, move + 1, n_changed)
        t_other = other // n_replicas if other >= 0 else s
        change, highest_before, highest_after = 0.0, 0.0, 0.0
        for k in range(n_changed):
            one = changed[k]
            new_own[one] = own_seconds(m, place, one, n_replicas)
            t = one // n_replicas
            before = own[one] + ring[t]
            after = new_own[one] + (new_ring[t] if t == s or t == t_other else ring[t])
            change += _power(after / reference, n_squarings) - _power(before / reference, n_squarings)
            highest_before = max(highest_before, before)
            highest_after = max(highest_after, after)
        if not (change <= 0.0 or random.random() < np.exp(-change / temperature)):  # Metropolis refuses: back to what was
            if reverse:
                _reverse(rings, s, x, y)
            else:
                place[slot] = old_device
                if other >= 0:
                    place[other] = new_device
            continue
        for k in range(n_changed):
            own[changed[k]] = new_own[changed[k]]
        ring[s] = new_ring[s]
        if other >= 0:
            ring[t_other] = new_ring[t_other]
        if not reverse:
            slot_of[old_device], slot_of[new_device] = other, slot
        if highest_after >= top:
            top = highest_after
        elif highest_before >= top:  # the most expensive slot became cheaper: only then all are looked at
            top = _largest(own, ring, n_replicas)
            if top < best:
                best = reference = top
                copy(best_place, place, len(place))
                copy_rows(best_rings, rings, len(rings))
    return best_place, best_rings, best
