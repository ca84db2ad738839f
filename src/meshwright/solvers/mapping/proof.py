"""Proof of a stage mapping: all partial mappings below a cost, stage by stage,
kept only as far as later stages can see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.mapping import frontier as kernel

if TYPE_CHECKING:
    from meshwright._kernels.mapping.cost import MapArrays

__all__ = ["LARGEST", "Proof", "prove"]

LARGEST = 16  # devices; sets of them are bits of a table
_ENTRIES = 1 << 22  # partial mappings of one stage
_STRICT = 1e-12  # relative; sums of times in different orders differ by less
_CLOSE = 0.02  # relative; a bound this near to the cost is left as it is until everything below the cost is looked at
_GIVEN_UP = 3  # whole searches that may be given up


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """What was found.

    Parameters
    ----------
    devices : ndarray, shape (n_stages, n_replicas), int64
        The best mapping.
    seconds : float
        Its largest cost, every ring in its best order.
    bound_seconds : float
        No mapping costs less.
    exact : bool
        Whether it is proven to be the least (to a relative 1e-12).
    """

    devices: NDArray[np.int64]
    seconds: float
    bound_seconds: float
    exact: bool


def prove(
    packed: MapArrays, devices: NDArray[np.int64], seconds: float, bound_seconds: float, *, n_nodes: int = 500_000_000
) -> Proof:
    """Better a mapping until none costs less; where that takes too long, raise the bound.

    `packed`: the stage graph and the seconds per byte between at most 16 devices.
    `devices`, shape (n_stages, n_replicas), int64: a mapping.
    `seconds`: its largest cost.
    `bound_seconds`: a bound known so far.
    `n_nodes`: most devices to try in one search of all mappings below a limit.

    Notes
    -----
    Two partial mappings of the same stages that take the same devices, and whose stages with neighbours yet to come stand on
    the same devices, can be continued alike: of these, only those are kept that no other beats in every open cost. The devices
    of a finished stage no longer matter, nor their order. This is a dynamic program over sets of devices along the stage graph,
    as wide as the graph is, instead of a tree over all placements.
    """
    asked = _asked(packed, devices.shape[1])
    top = seconds  # the least limit whose search was given up, or the cost itself
    n_given_up = 0
    while n_given_up < _GIVEN_UP:
        close = bound_seconds >= top * (1 - _CLOSE)
        if close and top < seconds:
            break
        limit = seconds * (1 - _STRICT) if close else 0.5 * (bound_seconds + top)
        found, finished = _search(packed, asked, devices.shape[1], limit, n_nodes)
        if found is not None:
            devices, seconds = found, _cost(packed, found, asked.rings)
            top = min(top, seconds)
        elif not finished:
            top, n_given_up = limit, n_given_up + 1
        elif close:
            return Proof(devices, seconds, seconds, True)
        else:
            bound_seconds = limit
    return Proof(devices, seconds, bound_seconds, False)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What all searches share: the order of stages, bytes between them, and the kernels' tables of devices."""

    order: tuple[int, ...]
    volume: NDArray[np.float64]
    below: NDArray[np.int64]
    least: NDArray[np.float64]
    widest: NDArray[np.float64]
    rings: NDArray[np.float64]
    symmetries: NDArray[np.int64]


def _asked(packed: MapArrays, n_replicas: int) -> _Asked:
    """Prepare the searches."""
    n_devices, n_stages = len(packed.seconds_per_byte), len(packed.compute)
    label = _twins(packed.seconds_per_byte)
    below = np.array([sum(1 << e for e in range(d) if label[e] == label[d]) for d in range(n_devices)], dtype=np.int64)
    least = np.where(np.eye(n_devices, dtype=bool), np.inf, packed.seconds_per_byte).min(axis=1, initial=np.inf)
    least[~np.isfinite(least)] = 0.0
    volume = np.zeros((n_stages, n_stages))
    for s in range(n_stages):
        for e in range(packed.first[s], packed.first[s + 1]):
            volume[s, packed.stage[e]] += packed.volume[e]
    widest = packed.seconds_per_byte.copy()
    for k in range(n_devices):
        widest = np.minimum(widest, np.maximum(widest[:, k : k + 1], widest[k : k + 1, :]))
    return _Asked(
        tuple(_order(packed)),
        volume,
        below,
        least,
        widest,
        kernel.ring_table(packed.seconds_per_byte, n_replicas),
        _symmetries(packed.seconds_per_byte),
    )


def _cost(packed: MapArrays, devices: NDArray[np.int64], rings: NDArray[np.float64]) -> float:
    """Return the largest cost of a mapping, every ring in its best order."""
    worst = 0.0
    for s, row in enumerate(devices):
        ring = float(packed.ring[s] * rings[int((1 << row).sum())]) if packed.ring[s] > 0.0 else 0.0
        ends = range(packed.first[s], packed.first[s + 1])
        moved = sum(packed.volume[e] * packed.seconds_per_byte[row, devices[packed.stage[e]]] for e in ends)
        worst = max(worst, float(np.max(packed.compute[s] + moved)) + ring)
    return worst


def _order(packed: MapArrays) -> list[int]:
    """Return the stages in an order that leaves few of them open: the best over all first stages, greedily."""
    n = len(packed.compute)
    near = [{int(t) for t in packed.stage[packed.first[s] : packed.first[s + 1]]} for s in range(n)]
    best: tuple[int, int, list[int]] | None = None
    for start in range(n):
        order, placed, widths = [start], {start}, []
        while True:
            widths.append(sum(1 for s in placed if near[s] - placed))
            if len(order) == n:
                break
            left = [s for s in range(n) if s not in placed]
            after = {s: sum(1 for t in placed | {s} if near[t] - placed - {s}) for s in left}
            chosen = min(left, key=lambda s: (after[s], -len(near[s] & placed), s))
            order.append(chosen)
            placed.add(chosen)
        key = (max(widths), sum(widths), order)
        best = key if best is None else min(best, key)
    assert best is not None
    return best[2]


def _search(
    packed: MapArrays, asked: _Asked, n_replicas: int, limit: float, n_nodes: int
) -> tuple[NDArray[np.int64] | None, bool]:
    """Return a mapping whose largest cost is at most `limit`, or None; and whether that is certain."""
    volume, start = asked.volume, np.zeros((1, n_replicas), dtype=np.int8)
    ids = np.zeros(1, dtype=np.int64)
    layer = kernel.PartialMappings(ids, np.zeros((1, 0), dtype=np.int8), np.zeros((1, 0)), ids, start, start)
    layers: list[kernel.PartialMappings] = []
    open_: list[int] = []
    for turn, stage in enumerate(asked.order):
        later = list(asked.order[turn + 1 :])
        among = [*open_, stage]
        keep = np.array([k for k, s in enumerate(among) if volume[s, later].any()], dtype=np.int64)
        own = np.array([packed.compute[stage], packed.ring[stage], volume[stage, later].sum()])
        rest = volume[np.ix_(open_, later)].sum(axis=1)
        step = kernel.StagePlacement(
            own, volume[stage, open_], rest, keep, asked.below, asked.least, asked.widest, asked.rings
        )  # fmt: skip
        if turn == 0:
            step = step._replace(below=np.zeros_like(asked.below))  # orbits below say more than interchangeable devices
        layer, visited = kernel.expand(packed.seconds_per_byte, layer, step, limit, _ENTRIES, n_nodes)
        if visited < 0:
            return None, False
        n_nodes -= visited
        if not len(layer.used):
            return None, True
        if turn == 0:
            layer = _one_of_each_orbit(layer, asked.symmetries)
        layers.append(layer)
        open_ = [among[k] for k in keep]
    return _devices(layers, asked.order, n_replicas), True


def _devices(layers: list[kernel.PartialMappings], order: tuple[int, ...], n_replicas: int) -> NDArray[np.int64]:
    """Return the mapping that the first entry of the last layer stands for."""
    devices = np.zeros((len(order), n_replicas), dtype=np.int64)
    entry, replica = 0, np.arange(n_replicas)
    for layer, stage in zip(reversed(layers), reversed(order), strict=True):
        devices[stage] = layer.placed[entry][replica]
        replica = layer.order[entry][replica].astype(np.int64)
        entry = int(layer.parent[entry])
    return devices


def _twins(seconds_per_byte: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return classes of devices that can be exchanged for each other without any change; shape (n_devices,), int64."""
    n = len(seconds_per_byte)
    label = np.full(n, -1, dtype=np.int64)
    n_classes = 0
    for d in range(n):
        for other in range(d):
            if label[other] == label[d]:
                continue
            keep = np.ones(n, dtype=bool)
            keep[[d, other]] = False
            if np.array_equal(seconds_per_byte[d, keep], seconds_per_byte[other, keep]):
                label[d] = label[other]
                break
        if label[d] < 0:
            label[d] = n_classes
            n_classes += 1
    return label


def _symmetries(seconds_per_byte: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return permutations of the devices that leave every link as it is; shape (n, n_devices), int64.

    For each device d and each e after it, one that keeps the devices before d and puts e in its place: together they generate
    all symmetries.
    """
    n = len(seconds_per_byte)
    found: list[list[int]] = []

    def extend(image: list[int]) -> list[int] | None:
        d = len(image)
        if d == n:
            return image
        for e in range(n):
            if e not in image and np.array_equal(seconds_per_byte[d, :d], seconds_per_byte[e, image]):
                whole = extend([*image, e])
                if whole is not None:
                    return whole
        return None

    shape = np.sort(seconds_per_byte, axis=1)
    for d in range(n):
        for e in range(d + 1, n):
            if np.array_equal(shape[d], shape[e]) and np.array_equal(seconds_per_byte[d, :d], seconds_per_byte[e, :d]):
                one = extend([*range(d), e])
                if one is not None:
                    found.append(one)
    return np.array(found, dtype=np.int64).reshape(-1, n)


def _one_of_each_orbit(layer: kernel.PartialMappings, symmetries: NDArray[np.int64]) -> kernel.PartialMappings:
    """Return the placements of the first stage of which none is another after a symmetry of the cluster."""
    placed = layer.placed.astype(np.int64)
    number = {int(used): i for i, used in enumerate((1 << placed).sum(axis=1))}
    leader = np.arange(len(placed))
    changed = True
    while changed:
        changed = False
        for symmetry in symmetries:
            for i, used in enumerate((1 << symmetry[placed]).sum(axis=1)):
                j = number[int(used)]
                least = min(leader[i], leader[j])
                if leader[i] != least or leader[j] != least:
                    leader[i] = leader[j] = least
                    changed = True
    first = np.flatnonzero(leader == np.arange(len(placed)))
    return kernel.PartialMappings(
        layer.used[first], layer.devices[first], layer.cost[first], layer.parent[first], layer.placed[first], layer.order[first]
    )
