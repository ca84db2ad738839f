"""Proven lower bounds on the time of a step: over all plans and topologies, and of one plan over all topologies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster, Links
from meshwright.network import bounds as cuts
from meshwright.planners.topoopt.choices import SplitSpace
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import PlacementTraffic
from meshwright.planners.topoopt.workloads.workload import DATA

__all__ = ["collective_seconds", "cut_seconds", "step_seconds"]

MOST_PATHS = 60

MOST_SERVERS = 64
"""In larger networks the worst cut is not looked for: it takes as many maximum flows as there are servers."""


def step_seconds(space: SplitSpace, injection_bytes_per_second: float) -> float:
    """Return a time that no plan on any topology with these interfaces beats.

    `injection_bytes_per_second`: all interfaces of one server together.
    Returns: seconds.

    Notes
    -----
    A linear relaxation: each operator mixes its choices; a step is at least the work of all servers evenly spread, at least
    every path of operators forward and back (paths are added while one is violated), and at least the first moment at which a
    gradient can exist plus the all-reduced bytes over all interfaces. Transfers between operators, order of tasks and waiting
    are left out.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    first = np.concatenate([[0], np.cumsum([len(options) for options in space.choices])]).astype(np.int64)
    flat = [choice for options in space.choices for choice in options]
    n_all, n = len(flat), space.servers.n_servers
    owner = np.repeat(np.arange(len(space.choices)), np.diff(first))
    busy = np.array([choice.forward_seconds + choice.backward_seconds for choice in flat])
    weights = np.array(
        [space.workload.element_bytes * sum(operation.weights) for operation in space.workload.operations], dtype=np.float64
    )
    reduced = np.array([2.0 * (choice.samples - 1) for choice in flat]) * weights[owner]
    rows = [busy * [choice.n_parts for choice in flat] / n, reduced / (n * injection_bytes_per_second)]
    right = [0.0, -_first_gradient_seconds(space) if reduced.any() else 0.0]
    whole = sparse.csr_matrix((np.ones(n_all), (owner, np.arange(n_all))), shape=(len(space.choices), n_all + 1))
    value = 0.0
    for _ in range(MOST_PATHS):
        limit = np.hstack([np.array(rows), -np.ones((len(rows), 1))])
        found = linprog(
            np.append(np.zeros(n_all), 1.0),
            A_ub=limit,
            b_ub=right,
            A_eq=whole,
            b_eq=np.ones(len(space.choices)),
            method="highs",
        )
        value = float(found.fun)
        path, longest = _longest(space, np.bincount(owner, found.x[:-1] * busy).astype(np.float64))
        if longest <= value * (1 + 1e-9):
            break
        on_path = np.zeros(len(space.choices))
        on_path[path] = 1.0
        rows.append(busy * on_path[owner])
        right.append(0.0)
    return value


def _longest(space: SplitSpace, seconds: NDArray[np.float64]) -> tuple[list[int], float]:
    """Return the longest path of operators and its length."""
    end = np.zeros(len(seconds))
    before = np.full(len(seconds), DATA)
    for i, operation in enumerate(space.workload.operations):
        producers = [p for p in operation.inputs if p != DATA]
        if producers:
            before[i] = max(producers, key=lambda p: (end[p], -p))
        end[i] = seconds[i] + (end[before[i]] if before[i] != DATA else 0.0)
    at = int(np.argmax(end))
    longest = float(end[at])
    path = []
    while at != DATA:
        path.append(at)
        at = int(before[at])
    return path, longest


def _first_gradient_seconds(space: SplitSpace) -> float:
    """Return the first moment at which any weight gradient can be complete."""
    forward = np.array([min(choice.forward_seconds for choice in options) for options in space.choices])
    backward = np.array([min(choice.backward_seconds for choice in options) for options in space.choices])
    end = np.zeros(len(forward))
    consumed = set()
    for i, operation in enumerate(space.workload.operations):
        producers = [p for p in operation.inputs if p != DATA]
        consumed |= set(producers)
        end[i] = forward[i] + max((end[p] for p in producers), default=0.0)
    return float(min(end[i] + backward[i] for i in range(len(forward)) if i not in consumed))


def cut_seconds(traffic: PlacementTraffic, injection_bytes_per_second: float) -> float:
    """Return how long the busiest server's interfaces need for what a plan sends and receives, on any topology.

    `injection_bytes_per_second`: all interfaces of one server together.
    """
    out, into = traffic.pair_bytes.sum(axis=1), traffic.pair_bytes.sum(axis=0)
    for members, n_bytes in traffic.group_bytes:
        amount = 2.0 * (len(members) - 1) / len(members) * n_bytes
        out[list(members)] += amount
        into[list(members)] += amount
    return float(max(out.max(), into.max()) / injection_bytes_per_second)


def collective_seconds(space: SplitSpace, traffic: PlacementTraffic, fabric: Fabric) -> float:
    """Return how long the plan's all-reduces need on a network at least, whatever rings or trees they use.

    Returns: seconds; 0 above `MOST_SERVERS` servers, where it is not looked for.

    References
    ----------
    .. [1] Zhao et al., "ForestColl", arXiv 2402.06787: the worst cut bounds every reduce-scatter and every all-gather.

    Notes
    -----
    An all-reduce is a reduce-scatter and an all-gather of the same bytes, the one after the other. Groups are looked at one by
    one: the bound is that of the slowest.
    """
    if fabric.n_servers > MOST_SERVERS or not traffic.group_bytes:
        return 0.0
    n = fabric.n_servers
    links = Links(
        fabric.source,
        fabric.target,
        fabric.count * fabric.bytes_per_second,
        np.full(len(fabric.source), fabric.latency_seconds),
    )
    cluster = Cluster(
        name=fabric.name, kinds=(space.servers.gpu,), kind_of_device=np.zeros(n, dtype=np.int64),
        n_switches=fabric.n_nodes - n, links=links, groups=np.arange(n)[None], source="", forwards=fabric.forwards,
    )  # fmt: skip
    both_ways = all(
        (b, a) in fabric.link_of and fabric.count[fabric.link_of[b, a]] == fabric.count[i]
        for (a, b), i in fabric.link_of.items()
    )
    worst = 0.0
    for members, n_bytes in traffic.group_bytes:
        gather = cuts.all_gather(cluster, members)
        scatter = gather if both_ways else cuts.reduce_scatter(cluster, members)
        worst = max(worst, n_bytes * (gather + scatter))
    return worst
