"""A reconfigurable optical switch: circuits that stay, that take turns, or that are chosen anew during a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.core.problem import Stop
from meshwright.planners.topoopt import alternate, finder, windows
from meshwright.planners.topoopt.alternate import NetworkParts, PlanOnNetwork
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step
from meshwright.planners.topoopt.windows import NEVER

__all__ = ["search", "taking_turns"]

DARK_RATIO = 0.1
"""How much of the time circuits that take turns are dark: the period is as long as makes it so."""

MOST_TURNS = 4


def taking_turns(
    orders: Sequence[Sequence[tuple[int, ...]]], wires: NetworkParts, reconfiguration_seconds: float, name: str = "optical"
) -> Fabric:
    """Return circuits that take turns, as links that are there all the time but slower and later.

    `orders`: for each turn, the rings that are connected.
    `reconfiguration_seconds`: how long circuits are dark at every change.
    Returns: every circuit has its share of the time, less what is dark, as bandwidth, and the mean wait for its turn as
    latency.

    Notes
    -----
    A steady rotation, as rotor switches do it. With period P, k turns and r seconds dark at each change a circuit carries
    ``(P / k - r) / P`` of its bandwidth, and a segment waits ``(P - P / k + r)² / (2 P)`` on average.
    """
    k = len(orders)
    period = k * reconfiguration_seconds / DARK_RATIO if k > 1 else 0.0
    lit = (period / k - reconfiguration_seconds) / period if k > 1 and period else 1.0 / k
    wait = (period - period / k + reconfiguration_seconds) ** 2 / (2 * period) if k > 1 and period else 0.0
    count: dict[tuple[int, int], float] = {}
    cycles = [tuple(order) for turn in orders for order in turn]
    for order in cycles:
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            for pair in ((a, b), (b, a)):
                count[pair] = count.get(pair, 0.0) + lit
    return Fabric(name, wires.n_servers, count, wires.bytes_per_second, wires.latency_seconds + wait, cycles=cycles)


def search(
    step: Step, wires: NetworkParts, rng: np.random.Generator, budget: int, *, placement: str, reconfiguration_seconds: float,
    stop: Stop = NEVER,
) -> PlanOnNetwork:  # fmt: skip
    """Return the best plan with circuits that stay, or take turns.

    `step`, `wires`, `rng`, `budget`, `placement`, `stop`: see `meshwright.planners.topoopt.alternate.improved`.
    `reconfiguration_seconds`: how long circuits are dark when they change.
    Returns: plan and circuits. Circuits that stay are those of ``topoopt``. ``changing`` says what the same plan gains
    where circuits are chosen anew during the step.
    """
    most = wires.degree // 2 if wires.n_servers > 2 else 0

    args = (wires.n_servers, wires.degree, wires.bytes_per_second, wires.latency_seconds)
    drawn = finder.random_cycles(wires.n_servers, wires.degree // 2, rng, stop.is_asked)

    def candidates(plan: Placement) -> Iterator[Fabric]:
        traffic = step.traffic(plan)
        for fabric in finder.fabrics(traffic, *args, drawn):
            fabric.name = "optical"
            yield fabric
        for turns in range(2, MOST_TURNS + 1):
            if most and turns * most <= (wires.n_servers - 1) // 2:
                rings = finder.random_cycles(wires.n_servers, turns * most, rng)
                fabric = taking_turns([rings[t * most : (t + 1) * most] for t in range(turns)], wires, reconfiguration_seconds)
                yield fabric.refitted(traffic.pair_bytes, traffic.group_bytes)

    found = alternate.alternate(step, candidates, rng, budget, placement, stop)
    changing = windows.choose(step, found.placement, found.fabric, wires.degree, reconfiguration_seconds, drawn, stop)
    return replace(found, changing=changing)
