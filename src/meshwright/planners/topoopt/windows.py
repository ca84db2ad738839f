"""Circuits of an optical switch chosen anew during a step: for each window those that suit what is then under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.core.problem import Stop
from meshwright.planners.topoopt import finder
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, PlacementTraffic, Step

if TYPE_CHECKING:
    from meshwright._kernels.topoopt.fair_steps import Windows
    from meshwright._kernels.topoopt.flow_simulation import Played
    from meshwright._kernels.topoopt.step_tasks import RoutedLinks, Tasks

__all__ = ["NEVER", "Changing", "again", "choose", "play"]

NEVER = Stop()
"""A search goes on until its budget is used up."""

N_WINDOWS = (2, 3, 4, 6, 8)
"""Into so many windows of equal length a step is cut."""
N_TURNS = 2
"""How often circuits are chosen again for the step as it went with the last ones."""
MOST_SERVERS = 64
"""In larger networks circuits stay: choosing them for every window would take longer than the search."""


@dataclass(frozen=True, slots=True, eq=False)
class Changing:
    """A step whose circuits change.

    Parameters
    ----------
    seconds : float
        Of a step, flows sharing links max-min fairly.
    staying_seconds : float
        Of the same plan with circuits that stay, in the same model of traffic.
    from_seconds : tuple of float
        When each window begins; its circuits are dark first.
    fabrics : tuple of Fabric
        Circuits of each window.
    dark_seconds : float
        How long they are dark at the beginning of each.
    """

    seconds: float
    staying_seconds: float
    from_seconds: tuple[float, ...]
    fabrics: tuple[Fabric, ...]
    dark_seconds: float


def play(step: Step, plan: Placement, fabrics: Sequence[Fabric], windows: Windows) -> tuple[Tasks, Played]:
    """Play a step in which circuits change; what is under way goes on over the routes and rings of the new ones.

    `fabrics`: circuits of each window, one route a pair. Rings of all groups of the plan are made where there are none yet.
    `windows`: when each begins, and for how long it is dark.

    Notes
    -----
    Circuits of the first window are dark at the start of the step too: those of the last were there before.
    """
    from meshwright._kernels.topoopt import fair_steps

    for fabric in fabrics:
        split, tasks = step.tasks(plan, fabric)
    network = _one_after_another([fabric.network() for fabric in fabrics])
    return tasks, fair_steps.play(tasks, split, network, windows, step.inside(), np.inf)


def again(step: Step, plan: Placement, changing: Changing) -> tuple[Tasks, Played]:
    """Play the step of an answer whose circuits change."""
    from meshwright._kernels.topoopt.fair_steps import Windows

    return play(step, plan, changing.fabrics, Windows(np.array(changing.from_seconds), changing.dark_seconds))


def _one_after_another(networks: Sequence[RoutedLinks]) -> RoutedLinks:
    """Return the links, routes and rings of all windows as one network, those of the first window first."""
    n_links = np.cumsum([0, *(len(network.seconds_per_byte) for network in networks)])[:-1]

    def firsts(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(row) for row in rows]))]).astype(np.int64)

    return networks[0]._replace(
        seconds_per_byte=np.concatenate([network.seconds_per_byte for network in networks]),
        latency_seconds=np.concatenate([network.latency_seconds for network in networks]),
        pair_first=firsts([network.pair_first for network in networks]),
        pair_link=np.concatenate([network.pair_link + shift for network, shift in zip(networks, n_links, strict=True)]),
        flow_first=firsts([network.flow_first for network in networks]),
        route_first=firsts([network.route_first for network in networks]),
        route_link=np.concatenate([network.route_link + shift for network, shift in zip(networks, n_links, strict=True)]),
        share_ratio=np.concatenate([network.share_ratio for network in networks]),
        group_size=np.concatenate([network.group_size for network in networks]),
        group_member=np.concatenate([network.group_member for network in networks]),
    )


def choose(
    step: Step, plan: Placement, staying: Fabric, degree: int, dark_seconds: float, drawn: Sequence[tuple[int, ...]],
    stop: Stop = NEVER,
) -> Changing | None:  # fmt: skip
    """Return the plan's step with circuits chosen anew in every window; None where that is no faster than circuits that stay.

    `staying`: the circuits found for the whole step.
    `degree`: interfaces of a server.
    `dark_seconds`: how long circuits are dark when they change.
    `drawn`: rings through all servers for `finder.fabrics`.
    `stop`: when to choose no more; the first windows are chosen in any case.

    Notes
    -----
    Steps repeat, so what a window will carry is known from the step before: circuits are chosen for the bytes that were under
    way in it, the step is played with them, and chosen again. The released simulator knows only what is unfinished at a change.
    """
    from meshwright._kernels.topoopt.fair_steps import Windows

    if staying.n_servers > MOST_SERVERS or staying.paths is not None:
        return None
    whole = step.traffic(plan)
    fitted = staying.refitted(whole.pair_bytes, whole.group_bytes)
    tasks, first = play(step, plan, [fitted], Windows(np.zeros(1), 0.0))
    stays = min(first.seconds, step.seconds(plan, staying, traffic="fair"))
    best: Changing | None = None
    for n_windows in N_WINDOWS:
        played = first
        if n_windows * dark_seconds >= stays:
            break
        for _ in range(N_TURNS):
            moments = np.arange(n_windows) * (played.seconds / n_windows)
            fabrics = [
                _best(_during(whole, plan, tasks, played, low, high), staying, degree, drawn)
                for low, high in zip(moments, [*moments[1:], np.inf], strict=True)
            ]
            _, played = play(step, plan, fabrics, Windows(moments, dark_seconds))
            if played.seconds < (best.seconds if best else stays * (1 - 1e-9)):
                best = Changing(played.seconds, stays, tuple(moments.tolist()), tuple(fabrics), dark_seconds)
            if stop.is_asked():
                return best
    return best


def _during(
    whole: PlacementTraffic, plan: Placement, tasks: Tasks, played: Played, low: float, high: float
) -> PlacementTraffic:
    """Return which part of the traffic was under way in a window; every group keeps a byte, so that it has rings."""

    def part(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
        length = np.maximum(end - start, 1e-12)
        return np.clip((np.minimum(end, high) - np.maximum(start, low)) / length, 0.0, 1.0)

    owner = np.concatenate([np.asarray(servers, dtype=np.int64) for servers in plan.servers])
    pair = np.zeros_like(whole.pair_bytes)
    sent = tasks.edge_bytes * part(played.edge_start, played.edge_end)
    np.add.at(pair, (owner[tasks.edge_source >> 1], owner[tasks.edge_target >> 1]), sent)
    # the networks of all windows number groups in the order of the plan's traffic
    amount = np.ones(len(whole.group_bytes))
    np.add.at(amount, tasks.reduce_group, tasks.reduce_bytes * part(played.reduce_start, played.reduce_end))
    return PlacementTraffic(
        pair, tuple((members, n) for (members, _), n in zip(whole.group_bytes, amount.tolist(), strict=True))
    )


def _best(traffic: PlacementTraffic, staying: Fabric, degree: int, drawn: Sequence[tuple[int, ...]]) -> Fabric:
    """Return the circuits whose busiest link carries a traffic soonest, one route a pair."""
    size = (staying.n_servers, degree, staying.bytes_per_second, staying.latency_seconds)
    made = [staying.refitted(traffic.pair_bytes, traffic.group_bytes)]
    made += [fabric for fabric in finder.fabrics(traffic, *size, drawn) if fabric.pair_ways.max() == 1]
    return min(made, key=lambda fabric: _busiest_seconds(fabric, traffic))


def _busiest_seconds(fabric: Fabric, traffic: PlacementTraffic) -> float:
    """Return how long the busiest link carries a traffic."""
    carried = np.bincount(
        fabric.pair_link, np.repeat(traffic.pair_bytes.ravel(), np.diff(fabric.pair_first)), len(fabric.source)
    )
    for members, n_bytes in traffic.group_bytes:
        amount = 2.0 * (len(members) - 1) / len(members) * n_bytes
        for links, share in fabric.flows(members):
            np.add.at(carried, list(links), amount * share)
    return float((carried * fabric.seconds_per_byte).max())
