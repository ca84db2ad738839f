"""Loops of the proof of a mapping: all partial mappings below a limit, stage by stage, told by what later stages can see of
them.

Ours: a dynamic program over the stages in a fixed order, one `StagePlacement` after the other. A partial mapping
(`PartialMappings`) is told apart by the devices it uses and by where the stages lie that still have neighbours to come; of two
alike, one that costs no more in any slot is kept. If no partial mapping is left, no mapping costs less than the limit. The
cost is Parmesan's (see `cost`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.arrays import copy, copy_rows
from meshwright._kernels.compiling import inlined, kernel, part

__all__ = ["PartialMappings", "StagePlacement", "expand", "ring_table"]


class PartialMappings(NamedTuple):
    """Partial mappings of the same stages; a slot is a replica of a stage that still has neighbours to be placed.

    Parameters
    ----------
    used : ndarray, shape (n,), int64
        Devices taken, one bit each.
    devices : ndarray, shape (n, n_slots), int8
        Device of each slot; open stages in turn, replicas fastest.
    cost : ndarray, shape (n, n_slots), float64
        Cost of each slot as far as it is known, in seconds.
    parent : ndarray, shape (n,), int64
        The partial mapping of the layer before.
    placed, order : ndarray, shape (n, n_replicas), int8
        Devices of the stage placed last, and which replica of the parent each replica is.
    """

    used: NDArray[np.int64]
    devices: NDArray[np.int8]
    cost: NDArray[np.float64]
    parent: NDArray[np.int64]
    placed: NDArray[np.int8]
    order: NDArray[np.int8]


class StagePlacement(NamedTuple):
    """Placing one stage.

    Parameters
    ----------
    own : ndarray, shape (3,), float64
        Seconds of the stage's compute, bytes over each link of its ring, bytes it will exchange with stages placed later.
    volume : ndarray, shape (n_open,), float64
        Bytes that it exchanges with each open stage.
    rest : ndarray, shape (n_open,), float64
        Bytes that each open stage exchanges with stages placed later.
    keep : ndarray, shape (n_kept,), int64
        Open stages afterwards: positions among the open stages, the new one last.
    below : ndarray, shape (n_devices,), int64
        Interchangeable devices with a lower id, one bit each.
    least : ndarray, shape (n_devices,), float64
        Seconds per byte of the fastest link of each device.
    widest : ndarray, shape (n_devices, n_devices), float64
        Slowest link on the best path between two devices.
    rings : ndarray, shape (2**n_devices,), float64
        See `ring_table`.
    """

    own: NDArray[np.float64]
    volume: NDArray[np.float64]
    rest: NDArray[np.float64]
    keep: NDArray[np.int64]
    below: NDArray[np.int64]
    least: NDArray[np.float64]
    widest: NDArray[np.float64]
    rings: NDArray[np.float64]


@kernel(allocates=True)
def ring_table(seconds_per_byte, size):
    """Return the slowest link of the best ring through each set of `size` devices; infinity for sets of other sizes.

    Parameters
    ----------
    seconds_per_byte : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte; zero on the diagonal.
    size : int
        Devices of a ring.

    Returns
    -------
    ndarray, shape (2**n_devices,), float64
        By the set's bits.
    """
    n = len(seconds_per_byte)
    path = np.full((1 << n, n), np.inf)  # slowest link of the best path through a set, from its lowest device to another
    table = np.full(1 << n, np.inf)
    count = np.zeros(1 << n, np.int8)
    for d in range(n):
        path[1 << d, d] = 0.0
    for members in range(1, 1 << n):
        count[members] = count[members >> 1] + (members & 1)
        if count[members] > size:
            continue
        low = 0
        while not members >> low & 1:
            low += 1
        for last in range(low, n):
            here = path[members, last]
            if here == np.inf:
                continue
            if count[members] == size:
                table[members] = min(table[members], max(here, seconds_per_byte[last, low]))
                continue
            for d in range(low + 1, n):
                if not members >> d & 1:
                    more = members | 1 << d
                    path[more, d] = min(path[more, d], max(here, seconds_per_byte[last, d]))
    return table


@part
def _code(used, devices):
    """Return a hash of what a partial mapping is told by."""
    code = np.uint64(used) * np.uint64(0x9E3779B97F4A7C15)
    for k in range(len(devices)):
        code = (code ^ np.uint64(devices[k] + 1)) * np.uint64(0x100000001B3)
        code ^= code >> np.uint64(29)
    return np.int64(code >> np.uint64(2))


@part
def _insert(layer, head, after, n, entry):
    """Keep a partial mapping unless one told alike costs no more anywhere; return how many are kept."""
    used, devices, cost, parent, placed, order = entry
    place = _code(used, devices) & (len(head) - 1)
    i = head[place]
    while i >= 0:
        if layer.used[i] == used:
            same = True
            for k in range(len(devices)):
                if layer.devices[i, k] != devices[k]:
                    same = False
                    break
            if same:
                no_more = True
                no_less = True
                for k in range(len(cost)):
                    if layer.cost[i, k] > cost[k]:
                        no_more = False
                    if layer.cost[i, k] < cost[k]:
                        no_less = False
                if no_more:
                    return n
                if no_less:
                    break
        i = after[i]
    if i < 0:
        i = n
        n += 1
        after[i] = head[place]
        head[place] = i
    layer.used[i] = used
    copy(layer.devices[i], devices, len(devices))
    copy(layer.cost[i], cost, len(cost))
    layer.parent[i] = parent
    copy(layer.placed[i], placed, len(placed))
    copy(layer.order[i], order, len(order))
    return n


@part(allocates=True)
def _empty(n, width, n_replicas):
    """Return room for `n` partial mappings."""
    return PartialMappings(
        np.empty(n, np.int64),
        np.empty((n, width), np.int8),
        np.empty((n, width), np.float64),
        np.empty(n, np.int64),
        np.empty((n, n_replicas), np.int8),
        np.empty((n, n_replicas), np.int8),
    )


@part(allocates=True)
def _first(layer, n):
    """Return the first `n` partial mappings of a layer."""
    return PartialMappings(
        layer.used[:n].copy(),
        layer.devices[:n].copy(),
        layer.cost[:n].copy(),
        layer.parent[:n].copy(),
        layer.placed[:n].copy(),
        layer.order[:n].copy(),
    )


@part(allocates=True)
def _roomier(layer, n, size):
    """Return `n` partial mappings with room for more, and where to find them: first of each hash, next with the same hash."""
    made = _empty(size, layer.devices.shape[1], layer.placed.shape[1])
    head = np.full(size, -1, np.int64)
    after = np.empty(size, np.int64)
    copy_rows(made.devices, layer.devices, n)
    copy_rows(made.cost, layer.cost, n)
    copy_rows(made.placed, layer.placed, n)
    copy_rows(made.order, layer.order, n)
    for i in range(n):
        made.used[i] = layer.used[i]
        made.parent[i] = layer.parent[i]
        place = _code(layer.used[i], layer.devices[i]) & (size - 1)
        after[i] = head[place]
        head[place] = i
    return made, head, after


@inlined
def _next_device(seconds_per_byte, step, cost, limit, used, d, r, picked, devices, own, slots):
    """Return the first device from d on that replica r may take, or their number; write what the slots then cost.

    Parameters
    ----------
    slow, step, limit
        As for `expand`.
    cost : ndarray, shape (n_slots,), float64
        Of the slots of the partial mapping before.
    used : int
        Devices taken, one bit each.
    picked, devices, own, slots : ndarray
        Devices of the replicas before, devices and costs of the open stages, and of the new one; those of r are written.
    """
    n_replicas = len(picked)
    while d < len(seconds_per_byte):
        # of interchangeable devices the one with the lowest id comes first
        if not used >> d & 1 and step.below[d] & ~used == 0:
            ring = step.least[d] if n_replicas > 1 else 0.0
            for k in range(r):
                ring = max(ring, step.widest[picked[k], d])
            own[r] = step.own[0]
            fits = True
            for o in range(len(step.volume)):
                moved = step.volume[o] * seconds_per_byte[devices[o, r], d]
                own[r] += moved
                slots[o, r] = cost[o * n_replicas + r] + moved
                if slots[o, r] + step.rest[o] * step.least[devices[o, r]] > limit:
                    fits = False
            # what is not placed yet is at best on the fastest link, the ring on the best path
            if fits and own[r] + step.own[2] * step.least[d] + step.own[1] * ring <= limit:
                return d
        d += 1
    return d


@inlined
def _within(seconds_per_byte, step, limit, used, devices, slots):
    """Return whether all open slots stay below the limit when the rest goes to the nearest device that is free."""
    n_open, n_replicas = len(step.volume), devices.shape[1]
    for o in step.keep:
        rest = step.own[2] if o == n_open else step.rest[o]
        for k in range(n_replicas):
            nearest = np.inf
            for e in range(len(seconds_per_byte)):
                if not used >> e & 1:
                    nearest = min(nearest, seconds_per_byte[devices[o, k], e])
            if slots[o, k] + rest * nearest > limit:
                return False
    for k in range(n_replicas):
        if slots[n_open, k] + step.own[2] * step.least[devices[n_open, k]] > limit:
            return False
    return True


@inlined
def _in_order(order, devices):
    """Sort replicas by their device, by insertion: they are alike, and so the same mapping is kept once."""
    for k in range(1, len(order)):
        j = k
        while j > 0 and devices[order[j - 1]] > devices[order[j]]:
            order[j - 1], order[j] = order[j], order[j - 1]
            j -= 1


@kernel(allocates=True)
def expand(seconds_per_byte, layer, step, limit, most_entries, most_nodes):
    """Return the layer after one more stage, and how many devices were tried.

    Parameters
    ----------
    seconds_per_byte : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte.
    layer : PartialMappings
        Partial mappings before.
    step : StagePlacement
        The stage to be placed.
    limit : float
        A slot that costs more is refused.
    most_entries, most_nodes : int
        Beyond, the search is given up: the number returned is negative.
    """
    n_devices, n_replicas = len(seconds_per_byte), layer.placed.shape[1]
    n_open, n_kept = len(step.volume), len(step.keep)
    width = n_kept * n_replicas
    made, head, after = _roomier(_empty(0, width, n_replicas), 0, 1 << 12)
    picked = np.zeros(n_replicas, np.int64)
    own = np.zeros(n_replicas)
    slots = np.zeros((n_open + 1, n_replicas))
    devices = np.zeros((n_open + 1, n_replicas), np.int64)
    new_devices, new_cost = np.zeros(width, np.int8), np.zeros(width)
    order, new_placed = np.zeros(n_replicas, np.int8), np.zeros(n_replicas, np.int8)
    n = n_nodes = 0
    for i in range(len(layer.used)):
        used = layer.used[i]
        for o in range(n_open):
            for r in range(n_replicas):
                devices[o, r] = layer.devices[i, o * n_replicas + r]
        # depth first over the replicas; `picked[r]` is the device of replica r, -1 before the first
        r = 0
        picked[0] = -1
        while r >= 0:
            if picked[r] >= 0:
                used ^= 1 << picked[r]
            begin = picked[r] + 1
            if n_open == 0 and r > 0 and begin <= picked[r - 1]:
                begin = picked[r - 1] + 1  # replicas are alike as long as nothing tells them apart
            d = _next_device(seconds_per_byte, step, layer.cost[i], limit, used, begin, r, picked, devices, own, slots)
            n_nodes += min(d + 1, n_devices) - begin
            if n_nodes > most_nodes:
                return _first(made, 0), -1
            if d >= n_devices:
                r -= 1
                continue
            picked[r] = d
            used |= 1 << d
            if r + 1 < n_replicas:
                r += 1
                picked[r] = -1
                continue
            ring = step.own[1] * step.rings[used ^ layer.used[i]] if step.own[1] > 0.0 else 0.0
            for k in range(n_replicas):
                devices[n_open, k] = picked[k]
                slots[n_open, k] = own[k] + ring
                order[k] = k
            if not _within(seconds_per_byte, step, limit, used, devices, slots):
                continue
            if n_kept > 0:
                _in_order(order, devices[step.keep[0]])
            for k in range(n_replicas):
                new_placed[k] = picked[order[k]]
                for p in range(n_kept):
                    new_devices[p * n_replicas + k] = devices[step.keep[p], order[k]]
                    new_cost[p * n_replicas + k] = slots[step.keep[p], order[k]]
            if n == len(made.used):
                if 2 * n > most_entries:
                    return _first(made, 0), -1
                made, head, after = _roomier(made, n, 2 * n)
            n = _insert(made, head, after, n, (used, new_devices, new_cost, i, new_placed, order))
    return _first(made, n), n_nodes
