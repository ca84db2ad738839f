"""Stages of pipelines as plain sets of nodes: what they take and hold by definition, for tests of kernels and solvers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

Plain = Callable[[str], ModuleType]
Set = frozenset[int]


def menu_of(plain: Plain, seed: int, *, alike: bool = True, n_choices: int = 2, **changes: Any) -> Any:
    """Return a random instance of four nodes; `alike` choices share weights and what their edges cost."""
    dice = np.random.default_rng(seed)
    n, degrees, replicas = 4, np.array([1, 2]), np.array([1, 2, 3])
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if dice.random() < 0.5] or [(0, 1)]
    sizes = [0 if t and dice.random() < 0.2 else int(dice.integers(1, n_choices + 1)) for _ in range(n) for t in range(2)]
    first = np.concatenate(([0], np.cumsum(sizes)))
    m = int(first[-1])
    group = np.repeat(np.arange(len(sizes)), sizes)
    sync = []
    for end in (1, 0):
        counts = np.array([sum(pair[end] == g // 2 for pair in pairs) for g in group], np.int64)
        row = dice.uniform(0.0, 2.0, (m, n))
        row = row[[list(group).index(g) for g in group]] if alike else row
        sync += [np.concatenate(([0], np.cumsum(counts))), np.concatenate([row[c, :k] for c, k in enumerate(counts)])]
    weight = dice.uniform(0.0, 5.0, m)
    weight = weight[[list(group).index(g) for g in group]] if alike else weight
    given = {
        "n_nodes": n, "edge_source": np.array([u for u, _ in pairs]), "edge_target": np.array([v for _, v in pairs]),
        "edge_seconds": dice.uniform(0.0, 2.0, len(pairs)), "degrees": degrees, "first": first,
        "seconds": dice.uniform(1.0, 5.0, m), "weight_bytes": weight,
        "per_microbatch_bytes": dice.uniform(0.0, 4.0, m), "fixed_bytes": dice.uniform(0.0, 6.0, m),
        "sync_in_first": sync[0], "sync_in_seconds": sync[1], "sync_out_first": sync[2], "sync_out_seconds": sync[3],
        "replicas": replicas, "share": 1.0 / replicas, "reduce_seconds": np.outer([0.02, 0.01], [0.0, 1.0, 1.5]),
        "n_devices": int(dice.integers(3, 6)), "n_replicas": int(dice.integers(2, 5)),
        "memory_bytes": float(dice.uniform(14, 40)),
        "reserve_bytes": np.array([0.5, 1.5]), "border_ratio": np.array([[1.0, 1.2, 1.5], [1.0, 1.4, 2.0]]),
    } | changes  # fmt: skip
    return plain("solvers.pipeline.menu").StageMenu(**given)


def prepared_of(plain: Plain, menu: Any, seconds: float = math.inf) -> Any:
    family = plain("solvers.pipeline.downsets").all_downsets(menu.n_nodes, menu.edge_source, menu.edge_target, 1000)
    return plain("solvers.pipeline.prepared").prepare(menu, family, seconds=seconds)


def sets_of(prepared: Any) -> list[Set]:
    return [frozenset(v for v in range(64) if int(row[0]) >> v & 1) for row in prepared.space.words]


def border(menu: Any, upper: Set, lower: Set, t: int) -> float:
    """Return what crosses the border of a stage at least: every edge, or every tensor once, at the cheapest choices."""
    stage, into, out_of = upper - lower, {}, {}
    rank_in, rank_out = [0] * menu.n_nodes, [0] * menu.n_nodes
    for e, (u, v) in enumerate(zip(menu.edge_source.tolist(), menu.edge_target.tolist(), strict=True)):
        seconds = float(menu.edge_seconds[e])
        entering = [menu.sync_in_seconds[menu.sync_in_first[c] + rank_in[v]] for c in menu.choices(v, t)]
        leaving = [menu.sync_out_seconds[menu.sync_out_first[c] + rank_out[u]] for c in menu.choices(u, t)]
        if v in stage and u not in stage:
            into.setdefault(u, []).append(seconds + min(entering, default=0.0))
        if u in stage and v not in stage:
            out_of.setdefault(u, []).append(seconds + min(leaving, default=0.0))
        rank_in[v] += 1
        rank_out[u] += 1
    join = max if menu.tensor_once else sum
    return sum(map(join, into.values())) + sum(map(join, out_of.values()))


def least(menu: Any, nodes: Set, t: int, value: np.ndarray) -> float:
    return sum(min(float(value[c]) for c in menu.choices(v, t)) for v in nodes)


def needs(menu: Any, nodes: Set) -> tuple[float, float, float, float]:
    """Return device-seconds, replica-seconds, device-bytes per micro-batch and fixed, each at the degree where it is least."""
    found = [0.0] * 4
    for v in nodes:
        fixed = menu.fixed_bytes - menu.weight_bytes * menu.sharded
        ways = [
            (d * least(menu, {v}, t, menu.seconds), least(menu, {v}, t, menu.seconds),
             d * least(menu, {v}, t, menu.per_microbatch_bytes), d * least(menu, {v}, t, fixed))
            for t, d in enumerate((1, 2)) if len(menu.choices(v, t))
        ]  # fmt: skip
        found = [a + min(b) for a, b in zip(found, zip(*ways, strict=True), strict=True)]
    return tuple(found)


def crossed(menu: Any, stage: Set, v: int, c: int) -> float:
    """Return the seconds of the edges of a node that cross the border of its stage, as a choice pays them."""
    seconds, n_in, n_out = 0.0, 0, 0
    for e, (u, x) in enumerate(zip(menu.edge_source.tolist(), menu.edge_target.tolist(), strict=True)):
        if x == v:
            seconds += (menu.edge_seconds[e] + menu.sync_in_seconds[menu.sync_in_first[c] + n_in]) * (u not in stage)
            n_in += 1
        if u == v:
            seconds += (menu.edge_seconds[e] + menu.sync_out_seconds[menu.sync_out_first[c] + n_out]) * (x not in stage)
            n_out += 1
    return seconds


def items(menu: Any, stage: Set, t: int, r: int, y: int) -> list[list[tuple[float, float, int]]]:
    """Return seconds, bytes and menu position of every choice of every node of a stage."""
    shard = (1.0 - 1.0 / menu.replicas[r]) * menu.sharded
    return [
        [
            ((crossed(menu, stage, v, c) * menu.border_ratio[t, r] + menu.seconds[c]) * menu.share[r]
             + menu.weight_bytes[c] * menu.reduce_seconds[t, r],
             menu.per_microbatch_bytes[c] * y + menu.fixed_bytes[c] - shard * menu.weight_bytes[c], c)
            for c in menu.choices(v, t)
        ]
        for v in sorted(stage)
    ]  # fmt: skip


def cheapest(found: list[list[tuple[float, float, int]]], limit: float) -> float:
    """Return the least seconds of all combinations that fit."""
    ways = (tuple(zip(*way, strict=True)) for way in itertools.product(*found))
    return min((sum(cost) for cost, memory, _ in ways if sum(memory) <= limit), default=math.inf)


def relaxed(found: list[list[tuple[float, float, int]]], limit: float) -> float:
    """Return the linear relaxation: the best price of a byte, which lies where two choices of a node cost the same."""
    prices = {0.0} | {
        (a[0] - b[0]) / (b[1] - a[1]) for item in found for a in item for b in item if a[1] < b[1] and a[0] > b[0]
    }
    return max(sum(min(cost + price * held for cost, held, _ in item) for item in found) - price * limit for price in prices)


def pipelines(menu: Any, sets: list[Set], threshold: float, every: Set) -> dict[Set, set[tuple[int, int, int]]]:
    """Return replicas, devices and stages of all pipelines of every set whose stages keep the threshold.

    Those are left out that leave the rest of the model too few devices, replicas or bytes.
    """
    ways: dict[Set, set[tuple[int, int, int]]] = {frozenset(): {(0, 0, 0)}}
    seconds: dict[object, float] = {}
    for upper in sets[1:]:
        ways[upper] = set()
        device_seconds, replica_seconds, a, b = needs(menu, every - upper)
        floor = 0.0 if upper == every else 1.0
        for lower in sets:
            if not lower < upper:
                continue
            for t, r in itertools.product((0, 1), range(3)):
                if not all(len(menu.choices(v, t)) for v in upper - lower):
                    continue
                for s0, k0, n in ways[lower]:
                    d = int(menu.replicas[r])
                    s, k, y = s0 + d, k0 + d * (t + 1), 1 + -(-s0 // d)
                    if k > menu.n_devices - max(device_seconds / threshold, floor) + 1e-6:
                        continue
                    if s > menu.n_replicas - max(replica_seconds / threshold, floor) + 1e-6:
                        continue
                    if (a * (s + 1) + b) / menu.memory_bytes > menu.n_devices - k + 1e-6:
                        continue
                    key = (upper, lower, t, r, y)
                    if key not in seconds:
                        limit = menu.memory_bytes - menu.reserve_bytes[t]
                        seconds[key] = cheapest(items(menu, upper - lower, t, r, y), limit)
                    if seconds[key] <= threshold:
                        ways[upper].add((s, k, n + 1))
    return ways


def undominated(ways: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {a for a in ways if not any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in ways)}
