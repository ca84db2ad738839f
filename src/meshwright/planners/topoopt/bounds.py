"""Proven lower bounds on the time of a step: over all plans and topologies, and of one plan over all topologies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster, Links
from meshwright.network import bounds as cuts
from meshwright.planners.topoopt.choices import OperatorSplit, SplitSpace
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import PlacementTraffic
from meshwright.planners.topoopt.workloads.workload import DATA

__all__ = ["collective_seconds", "cut_seconds", "step_seconds"]

MOST_PATHS = 60

MOST_SERVERS = 64
"""In larger networks the worst cut is not looked for: it takes as many maximum flows as there are servers."""

ROUNDING = 2e-9
"""What is taken off bounds, relative: flows that share links end when a billionth of them is left."""


def step_seconds(space: SplitSpace, injection_bytes_per_second: float, traffic: str = "queues", *, apart: bool = True) -> float:
    """Return a time that no plan beats on any network whose servers send at most so much.

    `injection_bytes_per_second`: all interfaces of one server together, of the fastest network in question.
    `traffic`: how the time of traffic is found, of `meshwright.planners.topoopt.step.TRAFFIC`.
    `apart`: whether no two parts of an operator are on one server.
    Returns: seconds.

    Notes
    -----
    Lemma. Whatever choice every operator takes, on whichever servers, a step is no shorter than each of these sums over
    operators:

    * work (every model of traffic): what all parts compute, divided by the servers; the busiest has no less than the mean.
    * bytes (all but ``closed``): g servers all-reduce W bytes as flows of 2 (g - 1) W bytes in all, each over a link out of
      a server; the servers together send no faster than n times the injection, and none of it before the gradients of a whole
      operator are there. These are of all samples: whatever operators without readers compute of all samples comes first, and
      with it the forward pass of all that leads to each of them, which takes the servers its work divided by their number.
    * paths (all but ``closed``): operators that read each other run one after the other, forward and then back.
    * tables (all but ``closed``): operators that are never split along samples are there as a whole before any part of one that
      reads them, and go back when all parts of that have. Where all of theirs reaches the only operator without readers
      through one operator, a path from there to the end lies between: the work of tables divided by the servers, forward and
      back, and the path, forward and back; or their work and the path forward, and then all bytes.
    * transfers (all but ``closed``, parts of an operator apart): a part finds on its server one part of each producer at most;
      the rest of what it reads comes over a link out of another server, and as much goes back as gradients, after the end of
      the path above.
    * ``closed`` knows no dependencies and adds up without overlap: the mean of what servers compute, or one part of any single
      operator, plus the bytes as above, plus what devices of a server add up, a mean over servers.

    A mean of the sums with weights that add up to 1 is no more than the largest of them, and is least where each operator for
    itself takes the choice with the least weighted term: any weights give a bound. Ours are the dual solution of the linear
    programme in which operators mix their choices; that its solver rounds does no harm. The order
    of tasks, waiting and memory are left out.
    """
    sums = _Sums(space, injection_bytes_per_second, traffic, apart=apart)
    best = max(sums.least(only) for only in np.eye(len(sums.rows)))
    for _ in range(MOST_PATHS):
        shares, weights, value = sums.mixed(best or 1.0)
        best = max(best, sums.least(weights))
        longer = [row for row in sums.paths(shares) if row @ shares > value * (1 + 1e-9)]
        if not longer:
            break
        sums.rows += longer
        sums.constants += [0.0] * len(longer)
    return best * (1 - ROUNDING)


class _Sums:
    """The sums of the lemma: a row of terms, one for each choice of each operator, and a constant."""

    def __init__(self, space: SplitSpace, injection_bytes_per_second: float, traffic: str, *, apart: bool = True) -> None:
        self.space, self.closed = space, traffic == "closed"
        self.first = np.concatenate([[0], np.cumsum([len(options) for options in space.choices])]).astype(np.int64)
        self.owner = np.repeat(np.arange(len(space.choices)), np.diff(self.first))
        flat = [(choice, i) for i, options in enumerate(space.choices) for choice in options]
        n = space.servers.n_servers
        self.busy = np.array([choice.forward_seconds + choice.backward_seconds for choice, _ in flat])
        work = self.busy * [choice.n_parts for choice, _ in flat] / n
        reduced = np.array([_reduced(space, choice, i) for choice, i in flat])
        sent = reduced[:, 0] / (n * injection_bytes_per_second)
        # what is added to the work of a server without overlap
        self.beside = sent + reduced[:, 1] / n if self.closed else np.zeros(len(flat))
        self.rows, self.constants = [work + self.beside], [0.0]
        self.sent, self.tables, self.neck = sent, np.zeros(len(flat), dtype=bool), DATA
        self.forward = np.array([choice.forward_seconds for choice, _ in flat])
        self.mean = np.array([choice.n_parts for choice, _ in flat]) / n
        if self.closed:
            return
        operations = space.workload.operations
        self.ends = sorted(set(range(len(operations))) - {p for operation in operations for p in operation.inputs})
        tables = {i for i, options in enumerate(space.choices) if all(choice.samples == 1 for choice in options)}
        self.neck = _neck(space, tables, self.ends)
        self.tables = np.isin(self.owner, sorted(tables))
        if sent.any():
            before = np.isin(self.owner, sorted(set.intersection(*(_leading_to(space, end) for end in self.ends))))
            backward = min(min(choice.backward_seconds for choice in space.choices[end]) for end in self.ends)
            self.rows += [sent, sent + self.forward * self.mean * before]
            self.constants += [_first_gradient_seconds(space), backward]
        moved = np.array([_moved(space, choice, i) for choice, i in flat]) / (n * injection_bytes_per_second)
        if apart and moved.any():
            self.rows.append(sent + 2.0 * moved)
            self.constants.append(0.0)
            self.sent = sent + moved

    def least(self, weights: NDArray[np.float64]) -> float:
        """Return the weighted mean of the sums where each operator takes the choice with the least weighted term."""
        terms = np.minimum.reduceat(weights @ np.array(self.rows), self.first[:-1])
        return float(terms.sum() + weights @ self.constants)

    def mixed(self, unit_seconds: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return the shares of choices for which the largest sum is least, its dual weights of the sums, and that sum."""
        from scipy import sparse
        from scipy.optimize import linprog

        n_all = len(self.busy)
        whole = sparse.csr_matrix((np.ones(n_all), (self.owner, np.arange(n_all))), shape=(len(self.first) - 1, n_all + 1))
        found = linprog(
            np.append(np.zeros(n_all), 1.0),
            A_ub=np.hstack([np.array(self.rows) / unit_seconds, -np.ones((len(self.rows), 1))]),
            b_ub=-np.array(self.constants) / unit_seconds,
            A_eq=whole,
            b_eq=np.ones(len(self.first) - 1),
            method="highs",
        )
        weights = np.maximum(-found.ineqlin.marginals, 0.0)
        if not weights.any():  # nothing takes any time: the bound is that no time is below zero
            weights = np.ones(len(weights))
        return found.x[:-1], weights / weights.sum(), float(found.fun) * unit_seconds

    def paths(self, shares: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return the terms of the longest path of operators, or of the longest operator where there are no dependencies, and of
        the longest after all tables, for these shares of choices.
        """
        seconds = np.bincount(self.owner, shares * self.busy).astype(np.float64)
        path = [int(np.argmax(seconds))] if self.closed else _longest(self.space, seconds)
        rows = [self.busy * np.isin(self.owner, path) + self.beside]
        if self.neck != DATA:
            between = np.isin(self.owner, _longest(self.space, seconds, self.neck, self.ends[0]))
            end = self.owner == self.ends[0]
            rows.append(self.busy * (self.mean * self.tables + between))
            rows.append(self.forward * (self.mean * self.tables + between) + (self.busy - self.forward) * end + self.sent)
        return rows


def _moved(space: SplitSpace, choice: OperatorSplit, i: int) -> float:
    """Return the bytes that other servers send at least to the parts of operator `i`, whichever choices its producers take."""
    total = 0.0
    for j in space.workload.operations[i].inputs:
        if j == DATA:
            continue
        n_bytes = float(space.workload.element_bytes * space.workload.operations[j].n_elements * space.workload.global_batch)
        parts, inner = choice.n_parts, choice.columns * choice.rows
        total += n_bytes * min(
            inner * other.rows - min(parts, other.n_parts) / max(choice.samples, other.samples) / other.columns
            for other in space.choices[j]
        )
    return total


def _leading_to(space: SplitSpace, end: int, without: int = DATA) -> set[int]:
    """Return the operators from which paths lead to one, itself included, that do not touch another."""
    found, rest = {end}, [end]
    while rest:
        for p in set(space.workload.operations[rest.pop()].inputs) - found - {DATA, without}:
            found.add(p)
            rest.append(p)
    return found


def _neck(space: SplitSpace, tables: set[int], ends: list[int]) -> int:
    """Return the first operator after the tables that all their paths to the only end touch; `DATA` where there is none."""
    if not tables or len(ends) != 1 or ends[0] in tables or not tables <= _leading_to(space, ends[0]):
        return DATA
    consumers = space.workload.consumers()
    at = max(tables)
    while at != ends[0]:
        at = min(consumers[at])
        if at not in tables and at != ends[0] and not tables & _leading_to(space, ends[0], at):
            break
    return at


def _reduced(space: SplitSpace, choice: OperatorSplit, i: int) -> tuple[float, float]:
    """Return the bytes that all-reduces of operator `i` send in all, and the seconds for which they keep devices of servers
    busy, summed over servers.
    """
    if choice.samples == 1:
        return 0.0, 0.0
    inner = choice.columns * choice.rows
    each = [space.workload.element_bytes * weights // inner for weights in space.workload.operations[i].weights]
    inside = sum(choice.n_parts * space.servers.inner_seconds(n_bytes) for n_bytes in each)
    return 2.0 * (choice.samples - 1) * inner * sum(each), inside


def _longest(space: SplitSpace, seconds: NDArray[np.float64], first: int = DATA, last: int = DATA) -> list[int]:
    """Return the longest path of operators, or the longest from the first to the last."""
    end = np.full(len(seconds), -np.inf if first != DATA else 0.0)
    before = np.full(len(seconds), DATA)
    for i, operation in enumerate(space.workload.operations):
        producers = [p for p in operation.inputs if p != DATA]
        if producers and i != first:
            before[i] = max(producers, key=lambda p: (end[p], -p))
        end[i] = seconds[i] + (end[before[i]] if before[i] != DATA else 0.0 if first in (DATA, i) else -np.inf)
    at = int(np.argmax(end)) if last == DATA else last
    path = []
    while at != DATA:
        path.append(at)
        at = int(before[at])
    return path


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
