"""Orders in which stages take devices, and what reductions and transfers cost at each position of an order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright import sim
from meshwright.base.identity import distinct
from meshwright.core.cluster import Cluster
from meshwright.planners.dapple.machines import (
    COLLECTIVE_BYTES_PER_SECOND,
    NVLINK_BYTES_PER_SECOND,
    all_reduce_seconds,
    send_seconds_per_byte,
)
from meshwright.sim import transfers

__all__ = ["OrderTables", "free_reductions", "orders", "send_lines", "tables"]


MOST_SCATTERED = 256
"""Devices up to which scatter-first is tried: beyond, a stage is far wider than a machine and covers whole ones anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderTables:
    """Costs by position of an order and number of replicas; see `meshwright._kernels.dapple.pipeline_suffix.Places`."""

    reduce_class: NDArray[np.int64]
    reduce_lines: NDArray[np.float64]
    send_class: NDArray[np.int64]
    send_lines: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    gate: NDArray[np.bool_]


def orders(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return the orders in which stages take devices, without repeats.

    Fresh-first and append-first placement are machine after machine; scatter-first takes from each machine in turn. Where
    machines differ in size, larger first and smaller first are further orders, so that a wide stage can find a machine of its
    own.
    """
    node = cluster.node_of_device
    machines = [tuple(int(device) for device in np.flatnonzero(node == name)) for name in distinct(node)]
    ids = range(len(machines))
    ways = [list(ids), sorted(ids, key=lambda i: (-len(machines[i]), i)), sorted(ids, key=lambda i: (len(machines[i]), i))]
    found = [tuple(device for i in way for device in machines[i]) for way in ways]
    if len(node) <= MOST_SCATTERED:
        turns = range(max(map(len, machines)))
        found += [tuple(machine[turn] for turn in turns for machine in machines if turn < len(machine))]
    return tuple(dict.fromkeys(found))


def tables(
    cluster: Cluster, order: tuple[int, ...], n_units: NDArray[np.int64], unit: int, *, published_links: bool,
    memory_ratio: float = 1.0,
) -> OrderTables:  # fmt: skip
    """Return what reductions and transfers cost at each position of an order.

    `order`: devices in the order stages take them.
    `n_units`, shape (n_columns,), int64: replicas of a stage, in units.
    `unit`: devices of a unit; positions count units.
    `published_links`: whether all-reduces take the published constants' time.
    `memory_ratio`: share of a device's memory that may be filled.
    Returns: groups whose devices lie on machines in the same pattern share a class: the first one met is asked. The plans
    found are judged on their own devices afterwards.
    """
    n, n_columns = len(order) // unit, len(n_units)
    node = cluster.node_of_device[list(order)]
    memory = np.array([sim.free_bytes((cluster.device(device),), memory_ratio) for device in order])
    reduce_class = np.full((n + 1, n_columns), -1, dtype=np.int64)
    memory_bytes = np.zeros((n + 1, n_columns))
    send_class = np.zeros((n + 1, n_columns, n_columns), dtype=np.int64)
    lines: dict[tuple[int, ...], tuple[int, list[tuple[float, float]]]] = {}
    sends: dict[tuple[tuple[int, ...], int], tuple[int, tuple[float, float]]] = {}
    gate = np.zeros((n + 1, n_columns), dtype=bool)
    leaves = np.zeros(n + 1, dtype=bool)
    inner = np.arange(1, n) * unit
    leaves[1:n] = node[inner] != node[inner - 1]
    changes = np.concatenate(([0], np.cumsum(node[1:] != node[:-1])))
    period = _period(node, unit)
    for i, width in enumerate(int(width) for width in n_units):
        smallest = np.lib.stride_tricks.sliding_window_view(memory, width * unit).min(axis=1)[::unit]
        memory_bytes[: len(smallest), i] = smallest
        begins = np.arange(n - width + 1)
        one_machine = changes[begins * unit] == changes[(begins + width) * unit - 1]
        gate[begins, i] = leaves[begins] & leaves[begins + width] & one_machine
        for p in range(n - width + 1):
            if period and p >= period:
                reduce_class[p, i] = reduce_class[p - period, i]
                continue
            group = slice(p * unit, (p + width) * unit)
            key = _pattern(node[group])
            if key not in lines:
                lines[key] = (len(lines), _reduce_lines(cluster, order[group], published_links=published_links))
            reduce_class[p, i] = lines[key][0]
    for i, before in enumerate(int(width) for width in n_units):
        for j, after in enumerate(int(width) for width in n_units):
            for p in range(before, n - after + 1):
                start = p - before
                if period and start >= period:
                    send_class[p, i, j] = send_class[p - period, i, j]
                    continue
                here, there = slice(start * unit, p * unit), slice(p * unit, (p + after) * unit)
                pair = (_pattern(node[here.start : there.stop]), before)
                if pair not in sends:
                    line, _ = send_lines(cluster, order[here], order[there], published_links=published_links)
                    sends[pair] = (len(sends), line)
                send_class[p, i, j] = sends[pair][0]
    padded = np.full((len(lines), max(len(found) for _, found in lines.values()), 2), np.inf)
    for row, found in lines.values():
        padded[row, : len(found)] = found
    first_lines = np.array([line for _, line in sends.values()]).reshape(-1, 2)
    return OrderTables(reduce_class, padded, send_class, first_lines, memory_bytes, gate)


def _period(nodes: NDArray[np.int64], unit: int) -> int:
    """Return after how many units an order that goes through equal machines looks the same; 0 where there is no such number."""
    starts = np.flatnonzero(np.concatenate(([True], nodes[1:] != nodes[:-1])))
    lengths = np.diff(np.concatenate((starts, [len(nodes)])))
    plain = len(starts) == len(distinct(nodes)) and np.all(lengths == lengths[0])
    turn = len(distinct(nodes))
    if not plain and turn < len(nodes) and np.array_equal(nodes[turn:], nodes[:-turn]):
        return math.lcm(turn, unit) // unit  # one device of each machine in turn
    return math.lcm(int(lengths[0]), unit) // unit if plain else 0


def _pattern(nodes: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the lengths of the runs of devices on one machine, with negative sign where a machine comes back."""
    starts = np.flatnonzero(np.concatenate(([True], nodes[1:] != nodes[:-1])))
    lengths = np.diff(np.concatenate((starts, [len(nodes)])))
    if len(starts) == len(distinct(nodes)):
        return tuple(int(length) for length in lengths)
    _, names = np.unique(nodes, return_inverse=True)
    return tuple(-1 - int(name) for name in names)


def _reduce_lines(cluster: Cluster, devices: tuple[int, ...], *, published_links: bool) -> list[tuple[float, float]]:
    """Return latency and seconds per byte of the algorithms for an all-reduce over devices."""
    if len(devices) == 1:
        return [(0.0, 0.0)]
    if published_links:
        return [(0.0, all_reduce_seconds(cluster, devices, 1.0))]
    from meshwright.network import Network

    lines = Network.of(cluster).axis([list(devices)]).lines("all_reduce")
    return [(line.latency_seconds, line.seconds_per_byte) for line in lines]


def send_lines(
    cluster: Cluster, sources: tuple[int, ...], targets: tuple[int, ...], *, published_links: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return latency and seconds per byte of a whole micro-batch from one stage's devices to the next one's, and back."""
    if published_links:
        line = (0.0, send_seconds_per_byte(cluster, sources, targets))
        return line, line
    from meshwright.network import routes

    source, target, share = transfers.pairs(sources, targets)
    lines = []
    for ends in ((source, target), (target, source)):
        load, latency_seconds = routes.load(cluster, *ends, share / len(sources))
        slowest = float((load / cluster.links.bytes_per_second).max(initial=0.0))
        lines.append((cluster.launch_seconds + float(latency_seconds.max(initial=0.0)), slowest))
    return lines[0], lines[1]


def free_reductions(cluster: Cluster, n_replicas: NDArray[np.int64], *, published_links: bool) -> NDArray[np.float64]:
    """Return a line below the time of an all-reduce over so many devices wherever they lie; shape (n_columns, 1, 2).

    With the published constants: inside one machine where one is large enough. On links: every device's gradients have to leave
    it once, over the widest device's links.
    """
    lines = np.zeros((len(n_replicas), 1, 2))
    largest = int(np.unique(cluster.node_of_device, return_counts=True)[1].max())
    rate = np.bincount(cluster.links.source, cluster.links.bytes_per_second, cluster.n_devices)[: cluster.n_devices].max()
    for i, width in enumerate(n_replicas):
        if width == 1:
            continue
        if not published_links:
            lines[i, 0, 1] = 1.0 / rate
            continue
        share = 2.0 * (width - 1) / width
        inside = share / NVLINK_BYTES_PER_SECOND / (width // 2)
        lines[i, 0, 1] = min(inside, share / COLLECTIVE_BYTES_PER_SECOND)
        if width > largest:
            lines[i, 0, 1] = share / COLLECTIVE_BYTES_PER_SECOND
    return lines
