"""Topologies to compare with, by name: fat tree, the same oversubscribed, one switch, full mesh, random, expander,
torus, rails; and the best of several for a plan that stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.core.problem import Stop
from meshwright.planners.topoopt import finder
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step
from meshwright.planners.topoopt.windows import Changing

__all__ = ["NAMES", "Built", "PlanOnNetwork", "build", "networks_only", "spread", "until"]

NAMES = (
    "topoopt",
    "fat-tree",
    "oversubscribed",
    "switch",
    "full-mesh",
    "random",
    "expander",
    "torus",
    "rail-optimised",
    "optical",
)
"""Topologies; ``topoopt`` and ``optical`` are found together with the plan."""

OVERSUBSCRIPTION_RATIO = 2.0
"""Bandwidth of the servers below an edge switch over that of its links upwards in the topology ``oversubscribed``."""


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A topology and the parts to count.

    Parameters
    ----------
    fabric : Fabric
        The network.
    n_links : int
        Wires between servers.
    n_switch_ports : int
        Ports of electrical switches.
    degree : int
        Interfaces of a server.
    port_bytes_per_second : float
        Speed of one interface.
    """

    fabric: Fabric
    n_links: int
    n_switch_ports: int
    degree: int
    port_bytes_per_second: float


def build(name: str, n: int, degree: int, bytes_per_second: float, latency_seconds: float, seed: int) -> Built:
    """Return a fixed topology.

    `name`: one of `NAMES` but the first and the last.
    `n`, `degree`: servers and interfaces of each.
    `bytes_per_second`, `latency_seconds`: of one link. Fat trees and switch have one interface as fast as all `degree`
    links together.
    Raises `InputError` when the numbers do not fit the topology.
    """
    count: dict[tuple[int, int], float] = {}
    if name in ("fat-tree", "oversubscribed"):
        above_ratio = 1.0 / OVERSUBSCRIPTION_RATIO if name == "oversubscribed" else 1.0
        return _fat_tree(name, n, degree * bytes_per_second, latency_seconds, above_ratio)
    if name == "switch":
        fast = degree * bytes_per_second
        _star(count, range(n), n)
        return Built(Fabric(name, n, count, fast, latency_seconds, forwards=False), 0, n, 1, fast)
    if name == "rail-optimised":
        for rail in range(degree):
            _star(count, range(n), n + rail)
        return Built(
            Fabric(name, n, count, bytes_per_second, latency_seconds, forwards=False), 0, n * degree, degree, bytes_per_second
        )
    if name == "full-mesh":
        pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
        return _direct(name, n, n - 1, pairs, bytes_per_second, latency_seconds)
    if name == "random":
        made = clusters.cluster(f"random-regular:{n},degree={degree},seed={seed}")
        pairs = [(a, b) for a, b in zip(made.links.source.tolist(), made.links.target.tolist(), strict=True) if a < b]
        return _direct(name, n, degree, pairs, bytes_per_second, latency_seconds)
    if name == "torus":
        return _direct(name, n, degree, _torus(n, degree), bytes_per_second, latency_seconds)
    orders = finder.random_cycles(n, max(degree // 2, 1), np.random.default_rng(seed))
    pairs = sorted({(min(p), max(p)) for order in orders for p in zip(order, order[1:] + order[:1], strict=True)})
    return _direct(name, n, degree, pairs, bytes_per_second, latency_seconds)


def _star(count: dict[tuple[int, int], float], ends: range, switch: int) -> None:
    for i in ends:
        count[i, switch] = count[switch, i] = 1.0


def _direct(
    name: str, n: int, degree: int, pairs: list[tuple[int, int]], bytes_per_second: float, latency_seconds: float
) -> Built:
    """Return a topology of wires between servers, which pass on traffic."""
    count: dict[tuple[int, int], float] = {}
    for a, b in pairs:
        for pair in ((a, b), (b, a)):
            count[pair] = count.get(pair, 0.0) + 1.0
    return Built(Fabric(name, n, count, bytes_per_second, latency_seconds), len(pairs), 0, degree, bytes_per_second)


def _fat_tree(name: str, n: int, bytes_per_second: float, latency_seconds: float, above_ratio: float) -> Built:
    """Return a k-ary fat tree; links between switches are so much of a server's only link."""
    made = clusters.cluster(f"fat-tree:{n}")
    ends = zip(made.links.source.tolist(), made.links.target.tolist(), strict=True)
    count = {(a, b): above_ratio if min(a, b) >= n else 1.0 for a, b in ends}
    ports = math.ceil(sum(width * ((a >= n) + (b >= n)) for (a, b), width in count.items()) / 2)
    return Built(Fabric(name, n, count, bytes_per_second, latency_seconds, forwards=False), 0, ports, 1, bytes_per_second)


def _torus(n: int, degree: int) -> list[tuple[int, int]]:
    """Return the wires of the torus of as many dimensions as the degree allows whose sizes are most alike."""
    n_dims = min(degree // 2, 3)
    shapes: list[tuple[int, ...]] = [(a, n // a) for a in range(2, n) if n % a == 0 and n // a >= 2]
    if n_dims >= 3:
        shapes = [
            (a, b, n // a // b) for a, rest in shapes for b in range(2, rest + 1) if rest % b == 0 and rest // b >= 2
        ] or shapes
    shapes = [tuple(sorted(shape)) for shape in shapes] if n_dims >= 2 else []
    if not shapes:
        raise InputError(
            f"topology torus: {n} servers with {degree} interfaces form no torus; it needs a composite number and --degree 4"
        )
    shape = min(set(shapes), key=lambda sizes: (max(sizes) - min(sizes), sizes))
    made = clusters.cluster(f"torus:{'x'.join(map(str, shape))}")
    return sorted({(min(p), max(p)) for p in zip(made.links.source.tolist(), made.links.target.tolist(), strict=True)})


@dataclass(frozen=True, slots=True, eq=False)
class PlanOnNetwork:
    """A plan on its network.

    Parameters
    ----------
    placement : Placement
        The plan.
    fabric : Fabric
        The network.
    seconds : float
        Of a step.
    start_seconds : float
        Of the data-parallel plan the search began with, on the network found for it.
    n_proposals : int
        Plans simulated.
    changing : Changing or None
        The same plan's step where circuits change while it runs; None where they cannot, or it does not pay.
    """

    placement: Placement
    fabric: Fabric
    seconds: float
    start_seconds: float
    n_proposals: int
    changing: Changing | None = None


def until(stop: Stop, networks: Iterable[Fabric]) -> Iterator[Fabric]:
    """Yield networks until an end is asked for, the first in any case; one that is not asked for is not built."""
    for network in networks:
        yield network
        if stop.is_asked():
            return


def networks_only(
    step: Step, plan: Placement, candidates: Callable[[Placement], Iterable[Fabric]], stop: Stop
) -> PlanOnNetwork:
    """Return the fastest of the topologies worth trying for the only plan there is."""
    best, best_seconds, first_seconds = None, math.inf, math.inf
    for fabric in until(stop, candidates(plan)):
        seconds = step.seconds(plan, fabric, best_seconds, hurry=best is not None)
        if best is None or seconds < best_seconds:
            best, best_seconds = fabric, seconds
            first_seconds = min(first_seconds, seconds)
    assert best is not None
    best_seconds, best = spread(step, plan, best, best_seconds, stop)
    return PlanOnNetwork(plan, best, best_seconds, first_seconds, 1)


def spread(step: Step, plan: Placement, fabric: Fabric, seconds: float, stop: Stop) -> tuple[float, Fabric]:
    """Return a network with its rings drawn over all links and all shares chosen anew, where that is faster."""
    traffic = step.traffic(plan)
    for together in (True, False):
        if stop.is_asked():
            break
        spread = fabric.spread(traffic.pair_bytes, traffic.group_bytes, together=together)
        spread_seconds = step.seconds(plan, spread, seconds, hurry=True) if spread else math.inf
        if spread and spread_seconds < seconds:
            fabric, seconds = spread, spread_seconds
    return seconds, fabric
