"""Copies of a stage graph onto devices: least largest cost of compute, transfers and gradient ring, with a bound or a proof."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.mapping import cost as kernel
from meshwright._kernels.mapping import search
from meshwright.core.cluster import Cluster
from meshwright.solvers.mapping import proof as mapping_proof
from meshwright.solvers.mapping.bounds import lower_bound
from meshwright.solvers.mapping.problem import Mapping, StageGraph

__all__ = ["consecutive", "evaluate", "map_stages", "pair_seconds", "point_to_point", "usual_moves"]

_LONGEST_TOUR = 1024  # devices of a ring that is bettered; beyond, a walk to the nearest must do
_PHASES = ((1.0, 3), (0.3, 6))  # heat of an annealing, and the power that it sums: 2 to the 3rd, 2 to the 6th


def pair_seconds(cluster: Cluster) -> NDArray[np.float64]:
    """Return the seconds per byte between all devices, the slower direction of each pair; shape (n, n), float64, read-only.

    The route is one with the fewest links and among these the widest; its narrowest link counts. Where devices pass on traffic
    (tori, meshes), the time is multiplied by the number of links, which others cannot use meanwhile. Apart from that links are
    not shared here: the simulator sees sharing.
    """
    links, n_nodes = cluster.links, cluster.n_devices + cluster.n_switches
    order = np.argsort(links.source, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(links.source, minlength=n_nodes))]).astype(np.int64)
    rate = kernel.pair_rates(first, links.target[order], links.bytes_per_second[order], cluster.n_devices, cluster.forwards)
    with np.errstate(divide="ignore"):
        seconds_per_byte: NDArray[np.float64] = 1.0 / np.minimum(rate, rate.T)
    np.fill_diagonal(seconds_per_byte, 0.0)
    seconds_per_byte.setflags(write=False)
    return seconds_per_byte


def consecutive(graph: StageGraph, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return devices with the replicas of a stage on consecutive devices of an order; shape (n_stages, n_replicas)."""
    n = graph.n_stages * graph.n_replicas
    return np.asarray(order[:n], dtype=np.int64).reshape(graph.n_stages, graph.n_replicas)


def point_to_point(graph: StageGraph, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return devices with the stages of a replica on consecutive devices of an order; shape (n_stages, n_replicas)."""
    n = graph.n_stages * graph.n_replicas
    return np.ascontiguousarray(np.asarray(order[:n], dtype=np.int64).reshape(graph.n_replicas, graph.n_stages).T)


def evaluate(
    graph: StageGraph, seconds_per_byte: NDArray[np.float64], devices: NDArray[np.int64], *, fixed_rings: bool = False
) -> Mapping:
    """Return a mapping with the cost of its worst device; ring orders are improved unless they are to stay 0, 1, 2, ..."""
    packed = graph.arrays(seconds_per_byte)
    rings = np.tile(np.arange(graph.n_replicas, dtype=np.int64), (graph.n_stages, 1))
    if not fixed_rings and graph.n_replicas > 3:
        rings = np.stack([_ring(seconds_per_byte, row) for row in devices])
    place = np.ascontiguousarray(devices).ravel()
    return Mapping(devices, rings, float(kernel.all_costs(packed, place, rings).max()))


def _ring(seconds_per_byte: NDArray[np.float64], devices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a good ring order: the best of up to nine devices,
    else the better of the given and the nearest-neighbour order, bettered.
    """
    n = len(devices)
    if n <= 9:
        order: NDArray[np.int64] = search.best_ring(seconds_per_byte, np.ascontiguousarray(devices))
        return order
    table = seconds_per_byte[np.ix_(devices, devices)]
    begun = (np.arange(n, dtype=np.int64), _walk(table, 0))
    if n <= _LONGEST_TOUR:
        begun = (*begun, *(search.shorter_ring(table, order) for order in begun))
    return min(begun, key=lambda order: float(table[order, np.roll(order, -1)].max()))


def _walk(seconds_per_byte: NDArray[np.float64], start: int) -> NDArray[np.int64]:
    """Return devices in the order of a walk to the nearest one not yet visited; ties by id: a snake on grids."""
    n = len(seconds_per_byte)
    order = np.zeros(n, dtype=np.int64)
    open_ = np.ones(n, dtype=bool)
    here = start
    for k in range(n):
        order[k] = here
        open_[here] = False
        if k < n - 1:
            here = int(np.argmin(np.where(open_, seconds_per_byte[here], np.inf)))
    return order


def _path(seconds_per_byte: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return a short path through all: a bettered ring, cut where it is slowest."""
    ring: NDArray[np.int64] = search.shorter_ring(seconds_per_byte, _walk(seconds_per_byte, 0))
    return np.roll(ring, -int(np.argmax(seconds_per_byte[np.roll(ring, 1), ring])))


def _starts(graph: StageGraph, seconds_per_byte: NDArray[np.float64], seed: int) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield structured starting mappings, then random ones."""
    n = len(seconds_per_byte)
    walk = _walk(seconds_per_byte, 0)
    middle = _walk(seconds_per_byte, int(np.argmin(seconds_per_byte.sum(axis=1))))
    fast = np.argsort(np.sort(seconds_per_byte, axis=1)[:, : min(4, n)].sum(axis=1), kind="stable")
    orders = [("numbering", np.arange(n)), ("walk", walk), ("central walk", middle), ("fastest first", fast)]
    if n <= _LONGEST_TOUR:
        orders.append(("tour", search.shorter_ring(seconds_per_byte, walk)))
    for name, order in orders:
        rows = consecutive(graph, order)
        yield f"consecutive, {name}", rows
        if 2 < graph.n_stages <= _LONGEST_TOUR and graph.n_replicas > 1:
            apart = np.array([[seconds_per_byte[one, other].max() for other in rows] for one in rows])
            yield f"rows in a walk, {name}", rows[_path(apart)]
        straight = point_to_point(graph, order)
        yield f"point to point, {name}", straight
        folded = straight.copy()
        folded[:, 1::2] = folded[::-1, 1::2]
        yield f"point to point and back, {name}", folded
    yield "tiles", _tiles(graph, seconds_per_byte, walk)
    random = np.random.default_rng(seed)
    for k in range(2):
        yield f"random {k}", consecutive(graph, random.permutation(n))


def _tiles(graph: StageGraph, seconds_per_byte: NDArray[np.float64], walk: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return blocks of near devices, one for each replica of the whole graph, laid out alike where the blocks are alike.

    Blocks are grown around the first free device of a walk; within a block the stages follow the nearest-neighbour walk.
    """
    n_stages, n_replicas = graph.n_stages, graph.n_replicas
    open_ = np.ones(len(seconds_per_byte), dtype=bool)
    devices = np.zeros((n_stages, n_replicas), dtype=np.int64)
    for r in range(n_replicas):
        start = int(walk[np.argmax(open_[walk])])
        block = [start]
        open_[start] = False
        reach = seconds_per_byte[start].copy()
        while len(block) < n_stages:
            nearest = int(np.argmin(np.where(open_, reach, np.inf)))
            block.append(nearest)
            open_[nearest] = False
            reach = np.maximum(reach, seconds_per_byte[nearest])  # compact: near to all of the block
        members = np.array(sorted(block))
        devices[:, r] = members[_walk(seconds_per_byte[np.ix_(members, members)], 0)]
    return devices


def usual_moves(n_stages: int, n_replicas: int) -> int:
    """Return how many moves of annealing suit a number of stages and replicas: a few seconds of them,
    as tried on the paper's topologies.
    """
    return int(min(12_000_000, 60_000 * n_stages * n_replicas) / max(1.0, n_replicas / 16))


def map_stages(
    graph: StageGraph,
    seconds_per_byte: NDArray[np.float64],
    *,
    seed: int = 0,
    n_moves: int = 0,
    prove: bool = True,
    n_nodes: int = 500_000_000,
) -> Mapping:
    """Return a mapping of all replicas of all stages with a small largest cost, and how far from the least it can be.

    Parameters
    ----------
    graph : StageGraph
        What to map.
    seconds_per_byte : ndarray, shape (n_devices, n_devices), float64
        Seconds per byte between devices, see `pair_seconds`.
    seed : int
        Of the random moves.
    n_moves : int
        Moves of annealing over all starts; 0 for a number that suits the size.
    prove : bool
        Whether to try a proof where there are at most 16 devices: see `meshwright.solvers.mapping.proof`.
    n_nodes : int
        Most devices that one search of the proof tries.

    Returns
    -------
    Mapping
        With bound, and proof where the bound is met or all mappings were looked at.

    Notes
    -----
    Structured starts are ranked by their cost, the best are annealed on the sum of eighth powers and, less hot, of 64th powers:
    a move that makes the largest cost a little smaller and several others as large is worth it only there. What was seen with
    the least largest cost is kept. The published mapper (Parmesan, IEEE TCAD 2024, section V) searches depth first with either
    the transfers or the ring in its cost; here both are, and ring orders are chosen.
    """
    packed = graph.arrays(seconds_per_byte)
    n_slots = graph.n_stages * graph.n_replicas
    bound = lower_bound(graph, seconds_per_byte)
    begun = sorted(
        (
            (evaluate(graph, seconds_per_byte, devices), name, k)
            for k, (name, devices) in enumerate(_starts(graph, seconds_per_byte, seed))
        ),
        key=lambda entry: (entry[0].seconds, entry[2]),
    )
    best, best_name = begun[0][0], begun[0][1]
    near = np.argsort(seconds_per_byte + np.diag(np.full(len(seconds_per_byte), np.inf)), axis=1, kind="stable")[
        :, : min(12, max(len(seconds_per_byte) - 1, 1))
    ]
    near = np.ascontiguousarray(near)
    moves = n_moves or usual_moves(graph.n_stages, graph.n_replicas)
    unlike = [k == 0 or entry[0].seconds > begun[k - 1][0].seconds * (1 + 1e-9) for k, entry in enumerate(begun)]
    begun = list(itertools.compress(begun, unlike))
    chosen = begun[:3] if n_slots > 2 and len(seconds_per_byte) > 1 else []
    for rank, (start, name, _) in enumerate(chosen):
        if best.seconds <= bound * (1 + 1e-12):
            break
        for temperature, n_squarings in _PHASES:
            random = np.random.default_rng([seed, rank, int(temperature * 100)])
            place, rings, seconds = kernel.anneal(
                packed,
                start.devices.ravel().copy(),
                start.rings.copy(),
                near,
                moves // (len(_PHASES) * len(chosen)),
                temperature,
                n_squarings,
                random,
            )
            if seconds < best.seconds:
                best, best_name = Mapping(place.reshape(graph.n_stages, -1), rings, float(seconds)), name
    exact = best.seconds <= bound * (1 + 1e-12)
    if prove and not exact and len(seconds_per_byte) <= mapping_proof.LARGEST:
        proof = mapping_proof.prove(packed, best.devices, best.seconds, bound, n_nodes=n_nodes)
        bound, exact = max(bound, proof.bound_seconds), proof.exact
        if proof.seconds < best.seconds:
            rings = np.stack([search.best_ring(seconds_per_byte, np.ascontiguousarray(row)) for row in proof.devices])
            best, best_name = Mapping(proof.devices, rings, proof.seconds), "proof"
    checked = float(kernel.all_costs(packed, np.ascontiguousarray(best.devices).ravel(), best.rings).max())
    return Mapping(best.devices, best.rings, checked, checked if exact else min(bound, checked), exact, best_name)
