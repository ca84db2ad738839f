"""One training step of a task graph file, event by event.

Compute tasks of a device run one after another as they become ready. A transfer starts when the task before it ends, over
one of the shortest paths, and shares every link of it max-min fairly with the others under way, as congestion control does
in the long run (DCTCP in the packet simulator of TopoOpt, Wang et al., NSDI 2023, section 5.1). What it sends is larger by
the header of every packet, and what it brought is there when the last byte has passed the links' latencies. An all-reduce
of g servers first adds up inside its servers (its own milliseconds), then runs as a ring of 2 (g - 1) rounds, in each of
which every server sends 1/g of the tensor to the next; a round starts when all of the one before has arrived. Tensors of
less than a packet for each server take one. A barrier takes its milliseconds and keeps no device busy.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.timeline import PlayedGraph
from meshwright.planners.topoopt.task_graphs.graph import MILLISECOND, FlexNetTask, TaskGraph
from meshwright.planners.topoopt.task_graphs.paths import Paths, fair_rates

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HEADER_BYTES", "PACKET_BYTES", "play"]

PACKET_BYTES = 9000
"""Jumbo frames, as TopoOpt's packet simulator sends."""

HEADER_BYTES = 64
"""Of each packet; the same simulator."""

_LEAST_BYTES = 1e-3
"""A transfer with less left is over: amounts are sums of products, exact to far less than a byte."""

_READY, _ENDED, _ARRIVED, _ROUND = range(4)


class _Event(NamedTuple):
    """What happens next; events of one moment are taken in the order in which they were made."""

    seconds: float
    number: int
    what: int
    task: FlexNetTask
    round: int


class _Transfers:
    """Those under way: task and round of each, its links, bytes left and rate."""

    def __init__(self) -> None:
        self.of: list[tuple[FlexNetTask, int]] = []
        self.paths: list[list[int]] = []
        self.left: NDArray[np.float64] = np.zeros(0)
        self.rates: NDArray[np.float64] = np.zeros(0)
        self.joining: list[float] = []

    def add(self, task: FlexNetTask, round_: int, path: list[int], n_bytes: float) -> None:
        """Add one; it has a rate after `share`."""
        self.of.append((task, round_))
        self.paths.append(path)
        self.joining.append(n_bytes)

    def share(self, bytes_per_second: NDArray[np.float64]) -> None:
        """Share links among those under way, new ones too."""
        if self.joining:
            self.left, self.joining = np.concatenate([self.left, self.joining]), []
        self.rates = fair_rates(self.paths, bytes_per_second) if self.paths else np.zeros(0)

    def over(self) -> list[tuple[FlexNetTask, int, list[int]]]:
        """Take out those that have sent all, and return them."""
        done = self.left <= _LEAST_BYTES
        if not done.any():
            return []
        found = [(*self.of[i], self.paths[i]) for i in np.flatnonzero(done)]
        kept = np.flatnonzero(~done)
        self.of, self.paths = [self.of[i] for i in kept], [self.paths[i] for i in kept]
        self.left, self.rates = self.left[kept], self.rates[kept]
        return found


class _Step:
    """A step while it is played."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, seed: int, *, has_rings: bool) -> None:
        self.n_servers = graph.n_servers
        self.rings = dict(graph.rings) if has_rings else {}
        self.n_nodes = graph.n_servers + graph.n_switches
        self.paths, self.dice = Paths(cluster), np.random.default_rng(seed)
        self.tasks = {task.identity: task for task in graph.tasks}
        self.property_of = {device[1]: device[3] for device in graph.devices}
        self.before = Counter(after for task in graph.tasks if task.kind != "all_reduce" for after in task.following)
        self.free_seconds: dict[int, float] = {}
        self.busy_seconds: Counter[int] = Counter()
        self.missing: dict[int, int] = {}
        self.events: list[_Event] = []
        self.n_events = 0
        self.now = self.last = 0.0
        self.under_way = _Transfers()
        self.link_bytes = np.zeros(len(cluster.links))
        self.is_changed = False

    def run(self) -> None:
        """Play it to the end."""
        for task in self.tasks.values():
            if self.before[task.identity] == 0:
                self.push(0.0, _READY, task)
        transfers = self.under_way
        while self.events or transfers.of:
            if self.is_changed:
                transfers.share(self.paths.bytes_per_second)
                self.is_changed = False
            left = float((transfers.left / transfers.rates).min()) if transfers.of else math.inf
            then = min(self.now + left, self.events[0].seconds if self.events else math.inf)
            transfers.left = transfers.left - transfers.rates * (then - self.now)
            self.now = then
            for task, round_, path in transfers.over():
                self.is_changed = True
                self.push(then + float(self.paths.latency_seconds[path].sum()), _ARRIVED, task, round_)
            while self.events and self.events[0].seconds <= self.now:
                self.happen(heapq.heappop(self.events))

    def push(self, seconds: float, what: int, task: FlexNetTask, round_: int = 0) -> None:
        """Note what happens later."""
        heapq.heappush(self.events, _Event(seconds, self.n_events, what, task, round_))
        self.n_events += 1

    def happen(self, event: _Event) -> None:
        """Let an event happen."""
        task = event.task
        if event.what == _READY:
            self.start(task)
        elif event.what == _ROUND:
            self.ring_round(task, event.round)
        elif event.what == _ARRIVED and task.kind == "all_reduce":
            self.missing[task.identity] -= 1
            if self.missing[task.identity] == 0:
                self.ring_round(task, event.round + 1)
        else:
            self.end(task)

    def start(self, task: FlexNetTask) -> None:
        """Start a task whose predecessors are over."""
        seconds = task.milliseconds[0] * MILLISECOND
        if task.kind == "nominal_comm":
            source, target = divmod(self.property_of[task.device], self.n_nodes)
            self.send(task, 0, [source, target], float(task.transfer_bytes))
        elif task.kind == "all_reduce":
            self.push(self.now + seconds, _ROUND, task)
        elif task.kind == "barrier":
            self.push(self.now + seconds, _ENDED, task)
        else:
            begin = max(self.now, self.free_seconds.get(task.device, 0.0))
            self.free_seconds[task.device] = begin + seconds
            self.busy_seconds[task.device] += seconds  # type: ignore[assignment]
            self.push(begin + seconds, _ENDED, task)

    def send(self, task: FlexNetTask, round_: int, stops: list[int], n_bytes: float) -> None:
        """Start a transfer from the first node to the last by way of those between; one that moves nothing has arrived."""
        path = [link for a, b in pairwise(stops) for link in self.paths.path(a, b, self.dice)] if n_bytes > 0.0 else []
        if not path:
            self.push(self.now, _ARRIVED, task, round_)
            return
        sent = n_bytes * (PACKET_BYTES / (PACKET_BYTES - HEADER_BYTES))
        self.link_bytes[path] += sent
        self.under_way.add(task, round_, path, sent)
        self.is_changed = True

    def ring_round(self, task: FlexNetTask, round_: int) -> None:
        """Start a round of an all-reduce, or end it after the last."""
        servers, n_bytes = task.following, float(task.transfer_bytes)
        g = len(servers)
        n_rounds = 2 * (g - 1)
        amount = n_bytes / max(g, 1)
        if n_rounds > 0 and n_bytes < PACKET_BYTES * g:
            n_rounds, amount = 1, amount * n_rounds
        if g < 2 or round_ >= n_rounds:
            self.end(task)
            return
        rings = self.rings.get(g)
        if rings is None:
            self.missing[task.identity] = g
            for source, target in zip(servers, servers[1:] + servers[:1], strict=True):
                self.send(task, round_, [source, target], amount)
            return
        self.missing[task.identity] = g * len(rings)
        for jumps in rings:
            for source in servers:
                stops = [(source + jump) % self.n_servers for jump in accumulate(jumps, initial=0)]
                self.send(task, round_, stops, amount / len(rings))

    def end(self, task: FlexNetTask) -> None:
        """End a task: those that wait for nothing else are ready."""
        self.last = max(self.last, self.now)
        if task.kind == "all_reduce":
            return
        for after in task.following:
            self.before[after] -= 1
            if self.before[after] == 0:
                self.push(self.now, _READY, self.tasks[after])


def play(graph: TaskGraph, cluster: Cluster, seed: int = 0, *, has_rings: bool = False) -> PlayedGraph:
    """Play one training step of a task graph; its server i is device i of the cluster.

    Parameters
    ----------
    graph : TaskGraph
        The tasks.
    cluster : Cluster
        The network; what its devices can compute is not used, since tasks say how long they take.
    seed : int
        Of the draw among the shortest paths of each transfer.
    has_rings : bool
        Whether the cluster is the network for which the file names rings: then an all-reduce of as many servers goes round in
        all of them at once, an equal part in each.

    Returns
    -------
    PlayedGraph
        When it was over, and who was busy how long.

    Raises
    ------
    InputError
        When the cluster has fewer devices than the graph has servers, a task is of a kind that this step does not know, a
        transfer names no two servers, or some tasks wait for each other.

    References
    ----------
    .. [1] W. Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for Distributed Training Jobs",
       NSDI 2023, section 5.1 (packet-level simulation).
    """
    _check(graph, cluster)
    step = _Step(graph, cluster, seed, has_rings=has_rings)
    step.run()
    stuck = sum(1 for task in graph.tasks if step.before[task.identity] > 0)
    if stuck:
        raise InputError(f"{stuck} tasks of the task graph wait for each other, so that none of them can start")
    busy = step.link_bytes / cluster.links.bytes_per_second
    links = cluster.links
    names = cluster.n_devices
    order = sorted(np.flatnonzero(busy > 0.0).tolist(), key=lambda link: (-busy[link], link))

    def name(node: int) -> str:
        return f"device {node}" if node < names else f"switch {node - names}"

    return PlayedGraph(
        step_seconds=step.last,
        compute_seconds=max(step.busy_seconds.values(), default=0.0),
        n_tasks=len(graph.tasks),
        transfer_bytes=float(sum(task.transfer_bytes for task in graph.tasks if task.kind == "nominal_comm")),
        all_reduce_bytes=float(
            sum(task.transfer_bytes for task in graph.tasks if task.kind == "all_reduce" and len(task.following) > 1)
        ),
        link_busy_ratio=tuple(
            (f"{name(int(links.source[link]))} -> {name(int(links.target[link]))}", float(busy[link] / step.last))
            for link in order
        ),
        notes=_notes(graph, has_rings=has_rings),
    )  # fmt: skip


def _check(graph: TaskGraph, cluster: Cluster) -> None:
    """Refuse what cannot be played."""
    if cluster.n_devices < graph.n_servers:
        raise InputError(
            f"cluster {cluster.name} has {cluster.n_devices} devices, the task graph {graph.n_servers} servers; name a cluster "
            "with a device for each"
        )
    devices = {device[1]: device for device in graph.devices}
    n_nodes = graph.n_servers + graph.n_switches
    for task in graph.tasks:
        if task.kind in ("comm", "update"):
            raise InputError(
                f"task {task.identity} is of kind {task.kind}, which is not played; use a file of FlexNet's network simulators"
            )
        if task.milliseconds[0] < 0.0 or not math.isfinite(task.milliseconds[0]):
            raise InputError(f"task {task.identity} takes {task.milliseconds[0]} ms; must be 0 or more")
        if task.kind == "nominal_comm":
            ends = divmod(devices[task.device][3], n_nodes) if task.device in devices else (n_nodes, n_nodes)
            if max(ends) >= graph.n_servers:
                raise InputError(f"transfer {task.identity} does not say which two servers it joins")


def _notes(graph: TaskGraph, *, has_rings: bool) -> tuple[str, ...]:
    """Return what the file says and this step does not use."""
    notes = ["a server of the task graph is one device of the cluster; what the tasks take is the file's own"]
    if graph.rings and not has_rings:
        n_sets = len(graph.rings)
        notes.append(f"{n_sets} sets of rings in the file are not used: all-reduces go round in the order of the servers")
    return tuple(notes)
