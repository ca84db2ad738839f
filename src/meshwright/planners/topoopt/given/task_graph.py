"""A task graph file as the one plan there is: its parts, transfers and all-reduces, played on any network of ``codesign``."""

from __future__ import annotations

import graphlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.planners.topoopt import bounds
from meshwright.planners.topoopt.choices import OperatorSplit, Servers, SplitSpace
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import SEGMENT_BYTES, Placement, PlacementTraffic, Step
from meshwright.planners.topoopt.task_graphs.graph import MILLISECOND, FlexNetTask, TaskGraph
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload

if TYPE_CHECKING:
    from meshwright._kernels.topoopt.flow_simulation import Played
    from meshwright._kernels.topoopt.step_tasks import Inside, Split, Tasks

__all__ = ["GivenStep"]

BYTES_OF_A_WEIGHT = 4
"""FlexNet counts every weight as fp32."""

LIKE_RATIO = 1e-3
"""All-reduces add up inside their servers at one speed: files hold milliseconds in single precision."""


class _Part(NamedTuple):
    """A forward task and its backward task on one server, in the order of the file."""

    server: int
    forward: FlexNetTask
    backward: FlexNetTask


class _Edge(NamedTuple):
    """What one task of a part tells another: parts by number, which of their tasks (0 forward, 1 backward), bytes to move."""

    source: tuple[int, int]
    target: tuple[int, int]
    n_bytes: int


class GivenStep(Step):
    """The step of a task graph file: one placement, whatever the network.

    Parameters
    ----------
    graph : TaskGraph
        The file.
    name : str
        Of the file, for messages.
    gpu : Device
        What a server is taken for where a kind of device is asked for; times are the file's own.
    traffic : str
        How the time of traffic is found, of `meshwright.planners.topoopt.step.TRAFFIC`.

    Attributes
    ----------
    given : Placement
        The plan of the file.

    Raises
    ------
    InputError
        When the file holds what no plan of ``codesign`` has: tasks of other kinds, transfers that join several tasks,
        all-reduces that not all parts of an operator wait for, or that add up inside servers at unlike speeds.

    Notes
    -----
    Operators are runs of parts, in the order of the file, with the same all-reduces and times and no server twice: what the
    file says of a step does not depend on where such a run is cut. Shapes, memory and the samples of a step are not in it.
    """

    given: Placement

    def __init__(self, graph: TaskGraph, name: str, gpu: Device, traffic: str) -> None:
        parts, edges = _parts(graph, name)
        reduces = _reduces(graph, parts, name)
        runs = _in_order(_runs(parts, reduces), edges, name)
        operations = _operations(graph, runs, edges, reduces)
        n_parts = [len(run) for run in runs]
        choices = tuple(
            (OperatorSplit(len(run), 1, 1, *_seconds(parts[run[0]]), 0.0, measured=True),) for run in runs
        )  # fmt: skip
        servers = Servers(graph.n_servers, 1, gpu, 1.0)
        super().__init__(SplitSpace(Workload(name, 0, operations, BYTES_OF_A_WEIGHT), servers, choices), SEGMENT_BYTES, traffic)
        self.given = Placement((0,) * len(runs), tuple(tuple(parts[i].server for i in run) for run in runs))
        number = {part: at for at, part in enumerate(part for run in runs for part in run)}
        self._part_first = np.concatenate([[0], np.cumsum(n_parts)]).astype(np.int64)
        self._edges = sorted(
            (2 * number[edge.source[0]] + edge.source[1], 2 * number[edge.target[0]] + edge.target[1], edge.n_bytes, at)
            for at, edge in enumerate(edges)
        )
        self._server = [parts[i].server for run in runs for i in run]
        self._reduced = [[task for task in reduces[run[0]] if len(set(task.following)) > 1] for run in runs]
        self._seconds_per_byte = _inner_rate(self._reduced, name)
        self._alone = [
            (at, task.milliseconds[0] * MILLISECOND)
            for at, run in enumerate(runs)
            for task in reduces[run[0]]
            if len(set(task.following)) <= 1
        ]

    def tasks(self, placement: Placement, fabric: Fabric) -> tuple[Split, Tasks]:
        """Return the tasks of the file on a network: transfers over the routes of their pairs."""
        from meshwright._kernels.topoopt.step_tasks import Tasks

        split = self.split(placement, fabric)
        rows = [row for edge in self._edges for row in self._ways(edge, fabric)]
        source, target, n_bytes, way = np.array(rows, dtype=np.int64).reshape(-1, 4).T.copy()
        n_tasks = 2 * int(self._part_first[-1])
        first = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n_tasks))]).astype(np.int64)
        groups = [fabric.group(tuple(sorted(set(task.following)))) for row in self._reduced for task in row]
        made = Tasks(
            self._part_first, first, np.arange(len(rows), dtype=np.int64), source, target, n_bytes, way,
            np.bincount(target, minlength=n_tasks).astype(np.int64),
            np.concatenate([[0], np.cumsum([len(row) for row in self._reduced])]).astype(np.int64),
            np.array(groups, dtype=np.int64),
            np.array([task.transfer_bytes for row in self._reduced for task in row], dtype=np.int64),
        )  # fmt: skip
        return split, made

    def _ways(self, edge: tuple[int, int, int, int], fabric: Fabric) -> list[tuple[int, int, int, int]]:
        """Return source, target, bytes and way of every piece of a transfer: a segment or more goes over all routes of its
        pair, in their shares; a smaller one over as many as it has segments.
        """
        source, target, moved, _ = edge
        a, b = self._server[source >> 1], self._server[target >> 1]
        if a == b or moved == 0:
            return [(source, target, 0, 0)]
        most = fabric.most_ways
        pair = a * fabric.n_servers + b
        n_ways = max(min(int(fabric.pair_ways[pair]), moved // self.segment_bytes), 1)
        even = n_ways < fabric.pair_ways[pair] or fabric.pair_share[pair * most] < 0.0
        ends = [0]
        for way in range(n_ways):
            share = (way + 1) / n_ways if even else float(fabric.pair_share[pair * most + way])
            ends.append(moved * (way + 1) // n_ways if even else int(np.rint(moved * share)))
        return [(source, target, ends[way + 1] - ends[way], way) for way in range(n_ways)]

    def _played(
        self, split: Split, tasks: Tasks, fabric: Fabric, limit_seconds: float, traffic: str, bytes_on_links: float = -1.0
    ) -> Played:
        """Play the step; what one server adds up inside itself after its last gradient may end it."""
        played = super()._played(split, tasks, fabric, limit_seconds, traffic, bytes_on_links)
        ends = [float(played.end[2 * int(self._part_first[at]) + 1]) + seconds for at, seconds in self._alone]
        return played._replace(seconds=max([float(played.seconds), *ends]))

    def inside(self) -> Inside:
        """Return what all-reduces take inside servers: the milliseconds of the file, each on its own."""
        from meshwright._kernels.topoopt.step_tasks import Inside

        return Inside(2, self._seconds_per_byte, 0.0, False)

    def inner_seconds(self, n_bytes: int) -> float:
        """Return how long servers add up a tensor inside themselves."""
        return n_bytes * self._seconds_per_byte

    def traffic(self, placement: Placement) -> PlacementTraffic:
        """Return what the file sends in one step, whatever the network."""
        n = self.space.servers.n_servers
        pair = np.zeros((n, n))
        for source, target, moved, _ in self._edges:
            a, b = self._server[source >> 1], self._server[target >> 1]
            if a != b:
                pair[a, b] += moved
        reduced: dict[tuple[int, ...], float] = defaultdict(float)
        for row in self._reduced:
            for task in row:
                reduced[tuple(sorted(set(task.following)))] += task.transfer_bytes
        ordered = sorted(reduced.items(), key=lambda entry: (-entry[1] * len(entry[0]), entry[0]))
        return PlacementTraffic(pair, tuple(ordered))

    def bound_seconds(self, injection_bytes_per_second: float) -> float:
        """Return a time that the file's plan does not beat on any network whose servers send at most so much.

        `injection_bytes_per_second`: all interfaces of one server together.

        Notes
        -----
        Lemma. A server computes one task at a time. A task starts when all that it waits for have ended, and transfers take no
        less than nothing. What a server sends and receives in all leaves and enters by its interfaces, all-reduces of g servers
        with ``2 (g - 1) / g`` of their bytes each way. A step is no shorter than any of the three; a closed form adds up the
        first and, apart for transfers and all-reduces, the third, and what servers add up inside.
        """
        compute = self.compute_seconds(self.given)
        whole = self.traffic(self.given)
        if self.model_of_traffic != "closed":
            least = max(compute, self._path_seconds(), bounds.cut_seconds(whole, injection_bytes_per_second))
            return least * (1 - bounds.ROUNDING)
        sent = bounds.cut_seconds(PlacementTraffic(whole.pair_bytes, ()), injection_bytes_per_second)
        reduced = bounds.cut_seconds(
            PlacementTraffic(np.zeros_like(whole.pair_bytes), whole.group_bytes), injection_bytes_per_second
        )
        inner = sum(
            len(set(task.following)) / self.space.servers.n_servers * self.inner_seconds(task.transfer_bytes)
            for row in self._reduced
            for task in row
        )
        return (compute + sent + reduced + inner) * (1 - bounds.ROUNDING)

    def _path_seconds(self) -> float:
        """Return how long the tasks of the longest chain compute, one after the other."""
        n_tasks = 2 * int(self._part_first[-1])
        both = [(options[0].forward_seconds, options[0].backward_seconds) for options in self.space.choices]
        seconds = np.repeat(np.array(both), np.diff(self._part_first), axis=0).ravel()
        before: dict[int, list[int]] = {task: [] for task in range(n_tasks)}
        for source, target, _, _ in self._edges:
            before[target].append(source)
        end = np.zeros(n_tasks)
        for task in graphlib.TopologicalSorter(before).static_order():
            end[task] = seconds[task] + max((end[other] for other in before[task]), default=0.0)
        return float(end.max())


def _parts(graph: TaskGraph, name: str) -> tuple[list[_Part], list[_Edge]]:
    """Return the parts of a file, in its order, and what their tasks tell each other."""
    by_identity = {task.identity: task for task in graph.tasks}
    node_of = {device[1]: device[2] for device in graph.devices}
    before = _before(graph)
    parts: list[_Part] = []
    at: dict[int, tuple[int, int]] = {}
    for task in graph.tasks:
        if task.kind not in ("forward", "backward", "nominal_comm", "all_reduce"):
            raise InputError(f"{name}: task {task.identity} is of kind {task.kind}, which codesign does not place on a network")
        if task.kind != "forward":
            continue
        backward = [by_identity[other] for other in task.following if by_identity[other].kind == "backward"]
        server = node_of.get(task.device, task.device)
        elsewhere = any(node_of.get(other.device, other.device) != server for other in backward)
        if len(backward) != 1 or elsewhere or server >= graph.n_servers:
            raise InputError(
                f"{name}: forward task {task.identity} on server {server} is followed by {len(backward)} backward tasks; must "
                f"be one, on the same server of the {graph.n_servers}"
            )
        at[task.identity], at[backward[0].identity] = (len(parts), 0), (len(parts), 1)
        parts.append(_Part(server, task, backward[0]))
    n_backward = sum(task.kind == "backward" for task in graph.tasks)
    if n_backward != len(parts):
        raise InputError(f"{name}: {n_backward} backward tasks, {len(parts)} forward ones; must be as many")
    edges = []
    for task in graph.tasks:
        for other in task.following if task.kind in ("forward", "backward") else ():
            after = by_identity[other]
            if after.kind == "nominal_comm":
                if len(before[other]) != 1 or len(after.following) != 1 or after.following[0] not in at:
                    raise InputError(f"{name}: transfer {other} must lead from one task that computes to another")
                edges.append(_Edge(at[task.identity], at[after.following[0]], after.transfer_bytes))
            elif after.kind != "all_reduce":
                edges.append(_Edge(at[task.identity], at[other], 0))
    return parts, edges


def _before(graph: TaskGraph) -> dict[int, list[int]]:
    """Return the tasks that every task waits for."""
    before: dict[int, list[int]] = defaultdict(list)
    for task in graph.tasks:
        if task.kind != "all_reduce":
            for other in task.following:
                before[other].append(task.identity)
    return before


def _reduces(graph: TaskGraph, parts: Sequence[_Part], name: str) -> list[tuple[FlexNetTask, ...]]:
    """Return the all-reduces that wait for the gradients of every part."""
    by_identity = {task.identity: task for task in graph.tasks}
    of = [
        tuple(by_identity[other] for other in part.backward.following if by_identity[other].kind == "all_reduce")
        for part in parts
    ]
    servers: dict[int, list[int]] = defaultdict(list)
    for part, tasks in zip(parts, of, strict=True):
        for task in tasks:
            servers[task.identity].append(part.server)
    for task in graph.tasks:
        if task.kind == "all_reduce" and sorted(servers[task.identity]) != sorted(task.following):
            raise InputError(
                f"{name}: all-reduce {task.identity} joins servers {sorted(task.following)} and waits for gradients on "
                f"{sorted(servers[task.identity])}; must be the same"
            )
    return of


def _runs(parts: Sequence[_Part], reduces: Sequence[tuple[FlexNetTask, ...]]) -> list[list[int]]:
    """Return the parts of every operator: a run in the order of the file, all with the same all-reduces and times."""
    runs: list[list[int]] = []
    of_group: dict[tuple[int, ...], list[int]] = {}
    for i, part in enumerate(parts):
        group = tuple(task.identity for task in reduces[i])
        if group:
            if group not in of_group:
                of_group[group] = []
                runs.append(of_group[group])
            of_group[group].append(i)
            continue
        last = runs[-1] if runs and not reduces[runs[-1][0]] else []
        alike = last and _seconds(parts[last[0]]) == _seconds(part)
        if alike and part.server not in {parts[j].server for j in last}:
            last.append(i)
        else:
            runs.append([i])
    return runs


def _in_order(runs: list[list[int]], edges: Sequence[_Edge], name: str) -> list[list[int]]:
    """Return operators with all that they read before them, in the order of the file where that is one already."""
    owner = {part: i for i, run in enumerate(runs) for part in run}
    before: dict[int, set[int]] = {i: set() for i in range(len(runs))}
    for edge in edges:
        a, b = owner[edge.source[0]], owner[edge.target[0]]
        if a != b and edge.source[1] == edge.target[1] == 0:
            before[b].add(a)
    if all(max(ahead, default=-1) < i for i, ahead in before.items()):
        return runs
    try:
        return [runs[i] for i in graphlib.TopologicalSorter(before).static_order()]
    except graphlib.CycleError:
        raise InputError(f"{name}: parts of one operator wait for parts of another that waits for it") from None


def _operations(
    graph: TaskGraph, runs: Sequence[Sequence[int]], edges: Sequence[_Edge], reduces: Sequence[tuple[FlexNetTask, ...]]
) -> tuple[Operation, ...]:
    """Return an operator for every run, named as in the file where it names as many."""
    owner = {part: i for i, run in enumerate(runs) for part in run}
    inputs: list[set[int]] = [set() for _ in runs]
    for edge in edges:
        a, b = owner[edge.source[0]], owner[edge.target[0]]
        if a != b and edge.source[1] == edge.target[1] == 0:
            inputs[b].add(a)
    named = graph.operators if len(set(graph.operators)) == len(runs) else tuple(f"operator_{i}" for i in range(len(runs)))
    return tuple(
        Operation(
            named[i], "layer", re.sub(r"_\d+$", "", named[i]), tuple(sorted(inputs[i])) or (DATA,), (1,),
            tuple(task.transfer_bytes // BYTES_OF_A_WEIGHT for task in reduces[run[0]]),
        )
        for i, run in enumerate(runs)
    )  # fmt: skip


def _seconds(part: _Part) -> tuple[float, float]:
    """Return how long the tasks of a part compute."""
    return part.forward.milliseconds[0] * MILLISECOND, part.backward.milliseconds[0] * MILLISECOND


def _inner_rate(reduced: Sequence[Sequence[FlexNetTask]], name: str) -> float:
    """Return the seconds a byte that all-reduces take inside their servers."""
    tasks = [task for row in reduced for task in row if task.transfer_bytes > 0]
    rates = [task.milliseconds[0] * MILLISECOND / task.transfer_bytes for task in tasks]
    if rates and max(rates) - min(rates) > LIKE_RATIO * max(rates):
        raise InputError(
            f"{name}: all-reduces add up inside servers at {min(rates):.3g} to {max(rates):.3g} s a byte; must be one speed"
        )
    return float(np.median(rates)) if rates else 0.0
