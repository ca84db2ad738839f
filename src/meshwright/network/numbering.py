"""One numbering for all numberings of a cluster's devices, so that a search answers the same whichever it is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster, Links
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Objective

__all__ = ["Pairs", "as_asked", "canonical_order", "links_alike", "numbered_alike", "unlike_links"]

Pairs = Callable[[Cluster], NDArray[np.float64]]
"""Seconds per byte between all devices of a cluster: by what else they are told apart."""

_MOST_DEVICES = 256  # beyond, refining takes longer than it is worth, and the numbering stays


def numbered_alike(
    problem: Problem,
    search: Callable[[Problem], Answer],
    pairs: Pairs,
    seconds: Callable[[Problem, Plan], float] | None = None,
) -> Answer:
    """Return what a search answers, asked in a numbering of the devices that does not depend on the one they have.

    Parameters
    ----------
    problem : Problem
        Where all devices are alike, it is asked as it is: published topologies are numbered as their papers do.
    search : callable
        Answers a problem.
    pairs : callable
        What devices see of each other.
    seconds : callable or None
        The objective of a plan of a problem: routes of equal length may be chosen otherwise under another numbering; None where
        it does not depend on them.
    """
    cluster, order = problem.cluster, _order(problem, pairs)
    if cluster is None or order is None:
        return search(problem)
    answer = search(replace(problem, cluster=_renumbered(cluster, order)))
    asked = None if answer.problem is None else replace(answer.problem, cluster=cluster)
    if answer.plan is None:
        return replace(answer, problem=asked)

    def back(plan: Plan) -> Plan:
        stages = tuple(replace(stage, devices=tuple(int(order[d]) for d in stage.devices)) for stage in plan.stages)
        return replace(plan, stages=stages)

    def valued(plan: Plan, objective: Objective) -> Objective:
        return objective if seconds is None else replace(objective, value=seconds(asked or problem, plan))

    assert answer.objective is not None
    plan = back(answer.plan)
    others = tuple(
        replace(other, plan=back(other.plan), objective=valued(back(other.plan), other.objective))
        for other in answer.alternatives
    )
    extra: dict[str, Any] = dict(answer.extra)
    if "mappings" in extra:
        extra["mappings"] = [one | {"devices": order[np.array(one["devices"])].tolist()} for one in extra["mappings"]]
    objective = valued(plan, answer.objective)
    return replace(answer, plan=plan, objective=objective, alternatives=others, problem=asked, extra=extra)


def as_asked(problem: Problem, pairs: Pairs) -> Problem:
    """Return the problem in the numbering in which `numbered_alike` asks it: figures of it may be those of its first device."""
    cluster, order = problem.cluster, _order(problem, pairs)
    return problem if cluster is None or order is None else replace(problem, cluster=_renumbered(cluster, order))


def links_alike(cluster: Cluster, pairs: Pairs) -> bool:
    """Return whether it makes no difference which devices are meant: all of one kind, and of the pairs inside nodes all alike,
    of those between nodes too.
    """
    seconds_per_byte, node = pairs(cluster), cluster.node_of_device
    same, others = node[:, np.newaxis] == node, ~np.eye(cluster.n_devices, dtype=bool)
    inside, between = seconds_per_byte[same & others], seconds_per_byte[~same]
    return cluster.homogeneous and bool((inside == inside[:1]).all() and (between == between[:1]).all())


def unlike_links(cluster: Cluster, pairs: Pairs) -> tuple[str, ...]:
    """Return a note where devices are alike, keep their numbers, and are told apart by their links."""
    if not cluster.homogeneous or cluster.n_devices > _MOST_DEVICES or links_alike(cluster, pairs):
        return ()
    same = cluster.node_of_device[:, np.newaxis] == cluster.node_of_device
    if not _refined(np.zeros(cluster.n_devices, dtype=np.int64), pairs(cluster), same).any():
        return ()
    return (
        "devices are alike but their links are not: the search begins with the numbering of the devices, and another numbering "
        "may lead to another plan",
    )


def _order(problem: Problem, pairs: Pairs) -> NDArray[np.int64] | None:
    """Return the order in which devices are numbered anew; None where they keep their numbers."""
    cluster = problem.cluster
    if cluster is None or cluster.homogeneous or cluster.n_devices > _MOST_DEVICES:
        return None
    return canonical_order(cluster, pairs)


def canonical_order(cluster: Cluster, pairs: Pairs) -> NDArray[np.int64]:
    """Return devices by kind and by what they see of the others: the same order of the same devices for every numbering.

    Notes
    -----
    Colour refinement: devices start with the colour of their kind and get, until nothing changes, a new one by the colours,
    links and nodes of the others. Where colours are left that several devices share, the first of them gets one of its own;
    devices that are told apart by no refinement are taken to be interchangeable.
    """
    seconds_per_byte, node = pairs(cluster), cluster.node_of_device
    same = node[:, np.newaxis] == node
    figures = [repr(astuple(replace(kind, name="", source=""))) for kind in cluster.kinds]
    colour = _ranked([figures[int(kind)] for kind in cluster.kind_of_device])
    while True:
        colour = _refined(colour, seconds_per_byte, same)
        counts = np.bincount(colour)
        if counts.max() == 1:
            return np.argsort(colour)
        first = int(np.flatnonzero(counts[colour] > 1)[np.argmin(colour[counts[colour] > 1])])
        colour = colour * 2 + 1
        colour[first] -= 1


def _refined(colour: NDArray[np.int64], seconds_per_byte: NDArray[np.float64], same: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return colours split by the colours of the others until that splits no more."""
    n = len(colour)
    while True:
        seen = [
            (int(colour[i]), tuple(sorted(zip(colour.tolist(), seconds_per_byte[i].tolist(), same[i].tolist(), strict=True))))
            for i in range(n)
        ]
        finer = _ranked(seen)
        if finer.max() == len(np.unique(colour)) - 1:
            return finer
        colour = finer


def _ranked(keys: list[Any]) -> NDArray[np.int64]:
    """Return the rank of each key among the different ones."""
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], dtype=np.int64)


def _renumbered(cluster: Cluster, order: NDArray[np.int64]) -> Cluster:
    """Return the cluster with its devices in an order, switches and links in one that follows from it."""
    n, links = cluster.n_devices, cluster.links
    place = np.empty(n + cluster.n_switches, dtype=np.int64)
    place[order] = np.arange(n)
    near: list[set[int]] = [set() for _ in place]
    for u, v in zip(links.source.tolist(), links.target.tolist(), strict=True):
        near[u].add(v)
        near[v].add(u)
    hops = np.stack([_hops(near, int(device)) for device in order])
    switches = sorted(range(n, len(place)), key=lambda switch: (hops[:, switch].tolist(), switch))
    place[switches] = np.arange(n, len(place))
    source, target = place[links.source], place[links.target]
    by_end = np.lexsort((links.latency_seconds, links.bytes_per_second, target, source))
    groups = np.stack([np.unique(level[order], return_inverse=True)[1] for level in cluster.groups])
    return replace(
        cluster,
        kind_of_device=cluster.kind_of_device[order],
        links=Links(source[by_end], target[by_end], links.bytes_per_second[by_end], links.latency_seconds[by_end]),
        groups=np.stack([_first_seen(level) for level in groups]),
        periods=(),
    )


def _hops(near: list[set[int]], start: int) -> NDArray[np.int64]:
    """Return the links between a node and every other."""
    found = np.full(len(near), len(near), dtype=np.int64)
    found[start] = 0
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for there in near[here]:
            if found[there] == len(near):
                found[there] = found[here] + 1
                waiting.append(there)
    return found


def _first_seen(level: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return groups numbered in the order in which they appear."""
    number: dict[int, int] = {}
    return np.array([number.setdefault(int(group), len(number)) for group in level], dtype=np.int64)
