"""One training step of a placed workload: its task graph, its traffic, its time on a network, the memory it needs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.topoopt.choices import OperatorSplit, SplitSpace
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.workloads.workload import DATA

if TYPE_CHECKING:
    from meshwright._kernels.topoopt.flow_simulation import Played
    from meshwright._kernels.topoopt.step_tasks import Inside, Split, Tasks, WorkloadArrays

__all__ = ["MOST_SEGMENTS", "SEGMENT_BYTES", "TRAFFIC", "Placement", "PlacementTraffic", "Step", "data_parallel"]

TRAFFIC = ("queues", "segments", "fair", "closed")
"""How the time of traffic is found: links serve segments as they arrive, or, as published, as they set out; links are shared
max-min fairly; sums without overlap."""

SEGMENT_BYTES = 1 << 20
"""Segments of the published simulator."""

MOST_SEGMENTS = 1 << 21
"""Links serve so many segments in a step, about a second of ours; a step with more is played in segments two, four, ... times
as large."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which choice every operator takes, and the servers of its parts in order.

    Parameters
    ----------
    choice : tuple of int
        Position among the operator's choices.
    servers : tuple of tuple of int
        One for each part.
    last : tuple of int
        Operators that read only data and whose backward parts wait for those of the others that read only data on their server.
    """

    choice: tuple[int, ...]
    servers: tuple[tuple[int, ...], ...]
    last: tuple[int, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether no two parts of an operator are on one server."""
        return all(len(set(servers)) == len(servers) for servers in self.servers)

    def with_op(self, i: int, choice: int, servers: tuple[int, ...]) -> Placement:
        """Return the placement with one operator changed."""
        return replace(
            self,
            choice=(*self.choice[:i], choice, *self.choice[i + 1 :]),
            servers=(*self.servers[:i], servers, *self.servers[i + 1 :]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTraffic:
    """What a placement sends in one step.

    Parameters
    ----------
    pair_bytes : ndarray, shape (n_servers, n_servers), float64
        Point to point, from row to column.
    group_bytes : tuple of (tuple of int, float)
        Tensor bytes all-reduced by each group of servers, largest total first.
    """

    pair_bytes: NDArray[np.float64]
    group_bytes: tuple[tuple[tuple[int, ...], float], ...]

    def by_group_size(self) -> dict[int, float]:
        """Return the all-reduce bytes of each group size as the released TopologyFinder weights them: ``(2 g - 1) / g``."""
        found: dict[int, float] = {}
        for members, n_bytes in self.group_bytes:
            size = len(members)
            found[size] = found.get(size, 0.0) + n_bytes * (2 * size - 1) / size
        return found


def data_parallel(space: SplitSpace, n_servers: int = 0) -> Placement:
    """Return the start of the search: every operator split along samples as far as it goes, tables dealt out in turn.

    `n_servers`: only the first so many servers; 0 for all.
    """
    n = n_servers or space.servers.n_servers
    choice: list[int] = []
    servers: list[tuple[int, ...]] = []
    n_tables = 0
    for i, operation in enumerate(space.workload.operations):
        if operation.kind == "embedding":
            choice.append(0)
            servers.append((n_tables % n,))
            n_tables += 1
            continue
        options = [(c.samples, -k) for k, c in enumerate(space.choices[i]) if c.columns == c.rows == 1]
        samples, k = max([option for option in options if option[0] <= n] or [min(options)])
        stride = (n if samples <= n else space.servers.n_servers) // samples
        choice.append(-k)
        servers.append(tuple(range(0, stride * samples, stride)))
    return Placement(tuple(choice), tuple(servers))


class Step:
    """The question that is asked again and again: how long is a step of this placement on that network?

    Parameters
    ----------
    space : SplitSpace
        The workload's choices.
    segment_bytes : int
        Links serve transfers in segments of this size, or in larger ones where there are more than `most_segments`.
    traffic : str
        How the time of traffic is found, of `TRAFFIC`.
    most_segments : int
        Segments served by links in a step at most, whole transfers aside.

    Attributes
    ----------
    given : Placement or None
        The only placement there is; None where they are searched.
    ends_at_seconds : float
        When, by `time.perf_counter`, nobody waits any more for what is asked in a hurry.
    """

    given: Placement | None = None
    ends_at_seconds: float = math.inf

    def __init__(
        self, space: SplitSpace, segment_bytes: int = SEGMENT_BYTES, traffic: str = "queues",
        most_segments: int = MOST_SEGMENTS,
    ) -> None:  # fmt: skip
        from meshwright._kernels.topoopt.step_tasks import WorkloadArrays

        operations, batch = space.workload.operations, space.workload.global_batch
        self.space, self.segment_bytes, self.model_of_traffic = space, segment_bytes, traffic
        self.most_segments = most_segments
        self._pace_seconds = 0.0
        size = space.workload.element_bytes
        inputs = [[p for p in operation.inputs if p != DATA] for operation in operations]
        weights = [[size * w for w in operation.weights] for operation in operations]
        self.model: WorkloadArrays = WorkloadArrays(
            np.full(len(operations), batch, dtype=np.int64),
            _first(inputs),
            np.array([p for row in inputs for p in row], dtype=np.int64),
            np.array([size * operation.n_elements for operation in operations], dtype=np.int64),
            _first(weights),
            np.array([w for row in weights for w in row], dtype=np.int64),
        )

    def chosen(self, placement: Placement) -> list[OperatorSplit]:
        """Return the choice of every operator."""
        return [options[k] for options, k in zip(self.space.choices, placement.choice, strict=True)]

    def groups(self, i: int, choice: OperatorSplit, servers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return who all-reduces the weights of operator `i`, one group for each part of the weights;
        empty where nobody does.
        """
        inner = choice.columns * choice.rows
        if choice.samples == 1 or not self.space.workload.operations[i].weights:
            return []
        return [tuple(sorted(servers[c::inner])) for c in range(inner)]

    def split(self, placement: Placement, fabric: Fabric | None) -> Split:
        """Return a placement as arrays; groups are numbered by the network, or left out without one."""
        from meshwright._kernels.topoopt.step_tasks import Split

        chosen = self.chosen(placement)
        most = max(len(servers) for servers in placement.servers)
        inner = max(choice.columns * choice.rows for choice in chosen)
        server = np.zeros((len(chosen), most), dtype=np.int64)
        group = np.full((len(chosen), inner), -1, dtype=np.int64)
        for i, (choice, servers) in enumerate(zip(chosen, placement.servers, strict=True)):
            server[i, : len(servers)] = servers
            if fabric is not None:
                for c, members in enumerate(self.groups(i, choice, servers)):
                    group[i, c] = fabric.group(members)
        degrees = np.array([(choice.samples, choice.columns, choice.rows) for choice in chosen], dtype=np.int64).T.copy()
        seconds = np.array([(choice.forward_seconds, choice.backward_seconds) for choice in chosen]).T.copy()
        last = np.zeros(len(chosen), dtype=np.bool_)
        last[list(placement.last)] = True
        return Split(degrees[0], degrees[1], degrees[2], server, group, seconds, last)

    def tasks(self, placement: Placement, fabric: Fabric) -> tuple[Split, Tasks]:
        """Return the task graph of a placement on a network."""
        from meshwright._kernels.topoopt import step_tasks

        split = self.split(placement, fabric)
        return split, step_tasks.tasks(self.model, split, fabric.pair_ways, fabric.pair_share, self.segment_bytes)

    def play(self, placement: Placement, fabric: Fabric) -> tuple[Split, Tasks, Played]:
        """Return everything that happens in a step; a closed form knows no moments, so segments are played for it."""
        split, tasks = self.tasks(placement, fabric)
        return split, tasks, self._played(split, tasks, fabric, np.inf, self.model_of_traffic)

    def segment_bytes_of(self, bytes_on_links: float) -> int:
        """Return the size of the segments in which so many bytes, counted on every link that they take, are served."""
        size = self.segment_bytes
        while bytes_on_links > size * self.most_segments:
            size *= 2
        return size

    def _played(
        self, split: Split, tasks: Tasks, fabric: Fabric, limit_seconds: float, traffic: str, bytes_on_links: float = -1.0
    ) -> Played:
        from meshwright._kernels.topoopt import fair_steps, flow_simulation, step_tasks

        network = fabric.network()
        if traffic == "fair":
            stay = fair_steps.Windows(np.zeros(1), 0.0)
            played: Played = fair_steps.play(tasks, split, network, stay, self.inside(), limit_seconds)
        else:
            if bytes_on_links < 0.0:
                *_, bytes_on_links = step_tasks.loads(tasks, split, network)
            size = self.segment_bytes_of(bytes_on_links)
            played = flow_simulation.play(tasks, split, network, size, traffic == "queues", self.inside(), limit_seconds)
        return played

    def seconds(
        self, placement: Placement, fabric: Fabric, limit_seconds: float = float("inf"), traffic: str = "", *,
        hurry: bool = False,
    ) -> float:  # fmt: skip
        """Return the time of a step; infinite where a proven bound of it, or the simulation, passes the limit.

        `limit_seconds`: longer steps are of no interest.
        `traffic`: another way to find the time of traffic than the step's own.
        `hurry`: a step that could not be played before `ends_at_seconds`, as the last one went, counts as infinitely long.
        Returns: seconds.

        Notes
        -----
        The closed form adds up, without any overlap, the compute of the busiest server, the busiest link's transfers, the
        busiest link's all-reduces, what devices of a server add up among themselves, and the latency of the longest routes that
        carry something.
        """
        from meshwright._kernels.topoopt import step_tasks

        split, tasks = self.tasks(placement, fabric)
        traffic = traffic or self.model_of_traffic
        compute, sent, reduced, both, on_links = step_tasks.loads(tasks, split, fabric.network())
        if max(compute, both) > limit_seconds:
            return float("inf")
        if traffic == "closed":
            used = _routes_used(placement, tasks, fabric)
            n_links = fabric.longest_route(used) + fabric.longest_flow(set(tasks.reduce_group.tolist()))
            inner = self._inner_seconds(tasks, fabric)
            return float(compute + sent + reduced + inner + n_links * fabric.latency_seconds)
        n_served = on_links / self.segment_bytes_of(on_links) + np.count_nonzero(tasks.edge_bytes) * (1.0 + fabric.mean_hops())
        started = time.perf_counter()
        if hurry and started + n_served * self._pace_seconds > self.ends_at_seconds:
            return math.inf
        found = float(self._played(split, tasks, fabric, limit_seconds, traffic, on_links).seconds)
        if math.isfinite(found):
            self._pace_seconds = (time.perf_counter() - started) / max(n_served, 1.0)
        return found

    def _inner_seconds(self, tasks: Tasks, fabric: Fabric) -> float:
        """Return how long the devices of a server add up gradients among themselves, a mean over servers."""
        if not len(tasks.reduce_group):
            return 0.0
        members = fabric.network().group_size[tasks.reduce_group] / self.space.servers.n_servers
        seconds: float = sum(
            part * self.inner_seconds(n_bytes)
            for part, n_bytes in zip(members.tolist(), tasks.reduce_bytes.tolist(), strict=True)
        )
        return seconds

    def served_in(self, placement: Placement, fabric: Fabric) -> int:
        """Return the size in bytes of the segments in which a placement's step is played on a network."""
        from meshwright._kernels.topoopt import step_tasks

        split, tasks = self.tasks(placement, fabric)
        return self.segment_bytes_of(step_tasks.loads(tasks, split, fabric.network())[-1])

    def busy_seconds(self, placement: Placement, fabric: Fabric) -> float:
        """Return a proven lower bound of a placement's step on a network: the busiest server or link."""
        from meshwright._kernels.topoopt import step_tasks

        split, tasks = self.tasks(placement, fabric)
        compute, _, _, both, _ = step_tasks.loads(tasks, split, fabric.network())
        return float(max(compute, both))

    def inside(self) -> Inside:
        """Return the network between the devices of a server for the kernels."""
        from meshwright._kernels.topoopt.step_tasks import Inside

        servers = self.space.servers
        return Inside(servers.n_gpus, 1.0 / servers.gpu_bytes_per_second, servers.gpu_latency_seconds, servers.gpus_contend)

    def inner_seconds(self, n_bytes: int) -> float:
        """Return how long the devices of a server add up a tensor among themselves if they do nothing else."""
        return self.space.servers.inner_seconds(n_bytes)

    def memory_bytes(self, placement: Placement) -> NDArray[np.float64]:
        """Return what each server holds; shape (n_servers,)."""
        held = np.zeros(self.space.servers.n_servers)
        for choice, servers in zip(self.chosen(placement), placement.servers, strict=True):
            for server in servers:
                held[server] += choice.memory_bytes
        return held

    def compute_seconds(self, placement: Placement) -> float:
        """Return the compute of the busiest server: a proven lower bound on any network."""
        busy = np.zeros(self.space.servers.n_servers)
        for choice, servers in zip(self.chosen(placement), placement.servers, strict=True):
            busy[list(servers)] += choice.forward_seconds + choice.backward_seconds
        return float(busy.max())

    def traffic(self, placement: Placement) -> PlacementTraffic:
        """Return what a placement sends in one step, whatever the network."""
        from meshwright._kernels.topoopt import step_tasks

        split = self.split(placement, None)
        n = self.space.servers.n_servers
        tasks = step_tasks.tasks(self.model, split, np.ones(n * n, dtype=np.int64), np.full(n * n, -1.0), self.segment_bytes)
        owner = np.concatenate([np.asarray(servers, dtype=np.int64) for servers in placement.servers])
        pair = np.zeros((n, n))
        np.add.at(pair, (owner[tasks.edge_source >> 1], owner[tasks.edge_target >> 1]), tasks.edge_bytes.astype(np.float64))
        reduced: dict[tuple[int, ...], float] = {}
        for i, (choice, servers) in enumerate(zip(self.chosen(placement), placement.servers, strict=True)):
            groups = self.groups(i, choice, servers)
            total = float(self.space.workload.element_bytes * sum(self.space.workload.operations[i].weights)) / max(
                len(groups), 1
            )
            for members in groups:
                reduced[members] = reduced.get(members, 0.0) + total
        ordered = sorted(reduced.items(), key=lambda entry: (-entry[1] * len(entry[0]), entry[0]))
        return PlacementTraffic(pair, tuple(ordered))


def _routes_used(placement: Placement, tasks: Tasks, fabric: Fabric) -> NDArray[np.int64]:
    """Return the places of the routes over which a placement sends something."""
    owner = np.concatenate([np.asarray(servers, dtype=np.int64) for servers in placement.servers])
    sends = tasks.edge_bytes > 0
    ends = [owner[end[sends] >> 1] for end in (tasks.edge_source, tasks.edge_target)]
    places: NDArray[np.int64] = (ends[0] * fabric.n_servers + ends[1]) * fabric.most_ways + tasks.edge_way[sends]
    return places


def _first(rows: list[list[int]]) -> NDArray[np.int64]:
    """Return where each row begins when all are put in a line."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
