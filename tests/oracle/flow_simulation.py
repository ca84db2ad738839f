"""The flow simulation in plain Python, one object per task: slow, and close to the wording of the published semantics."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step
from meshwright.planners.topoopt.workloads.workload import DATA

SEGMENT = 1 << 20


@dataclass(eq=False)
class Item:
    kind: str
    server: int = 0
    seconds: float = 0.0
    n_left: int = 0
    links: tuple[int, ...] = ()
    then: list[Item] = field(default_factory=list)
    n_before: int = 0
    ready: float = 0.0
    end: float = 0.0
    flows: list[Item] = field(default_factory=list)
    servers: tuple[int, ...] = ()


def _overlap(n: int, a: int, i: int, b: int, j: int) -> int:
    """Return the samples in part i of a and in part j of b."""
    return max(min((i + 1) * n // a, (j + 1) * n // b) - max(i * n // a, j * n // b), 0)


def step_seconds(
    step: Step, placement: Placement, fabric: Fabric, play: Callable[[list[Item], Fabric], float] | None = None
) -> float:
    """Return the time of a step; `play` is another way to play its tasks."""
    space = step.space
    operations, batch = space.workload.operations, space.workload.global_batch
    chosen = step.chosen(placement)
    forward: list[list[Item]] = []
    backward: list[list[Item]] = []
    order: list[Item] = []
    for choice, servers in zip(chosen, placement.servers, strict=True):
        forward.append([])
        backward.append([])
        for server in servers:
            ahead, back = Item("compute", server, choice.forward_seconds), Item("compute", server, choice.backward_seconds)
            _before(ahead, back)
            forward[-1].append(ahead)
            backward[-1].append(back)
            order += [ahead, back]
    for i, operation in enumerate(operations):
        for j in operation.inputs:
            if j == DATA:
                continue
            for p, a in enumerate(placement.servers[i]):
                for q, b in enumerate(placement.servers[j]):
                    mine, theirs = chosen[i], chosen[j]
                    n_inner, their_inner = mine.columns * mine.rows, theirs.columns * theirs.rows
                    samples = _overlap(batch, mine.samples, p // n_inner, theirs.samples, q // their_inner)
                    if not samples:
                        continue
                    n_bytes = samples * 4 * operations[j].n_elements // theirs.columns
                    _send(forward[j][q], forward[i][p], n_bytes, fabric, b, a)
                    _send(backward[i][p], backward[j][q], n_bytes, fabric, a, b)
    for i in placement.last:
        others = [j for j, operation in enumerate(operations) if set(operation.inputs) <= {DATA} and j not in placement.last]
        for part in backward[i]:
            for other in (other for j in others for other in backward[j] if other.server == part.server):
                _before(other, part)
    gpus, inside = space.servers.n_gpus, space.servers.gpu_bytes_per_second
    for i, (choice, servers) in enumerate(zip(chosen, placement.servers, strict=True)):
        for weight in operations[i].weights:
            for members in step.groups(i, choice, servers):
                size = 4 * weight // (choice.columns * choice.rows)
                wait = space.servers.gpu_latency_seconds + math.floor(2 * size / gpus) / inside if gpus > 1 else 0.0
                turns = members if space.servers.gpus_contend and gpus > 1 else ()
                reduce = Item("reduce", seconds=wait, servers=tuple(turns))
                g = len(members)
                for links, share in fabric.flows(members):
                    reduce.flows.append(Item("flow", links=links, n_left=math.ceil(2.0 * (g - 1) / g * size * share)))
                for part in backward[i]:
                    _before(part, reduce)
    play = play or (_queued if step.model_of_traffic == "queues" else _play)
    return play([item for item in order if item.n_before == 0], fabric)


def _before(first: Item, second: Item) -> None:
    first.then.append(second)
    second.n_before += 1


def _send(first: Item, second: Item, n_bytes: int, fabric: Fabric, a: int, b: int) -> None:
    if a == b:
        _before(first, second)
        return
    ways = fabric.ways(a, b)[: max(n_bytes // SEGMENT, 1)]
    for k, links in enumerate(ways):
        part = n_bytes * (k + 1) // len(ways) - n_bytes * k // len(ways)
        transfer = Item("flow", links=links, n_left=part)
        _before(first, transfer)
        _before(transfer, second)


def added_up(reduce: Item, now: float, inside_free: dict[int, float]) -> float:
    """Return when the devices of all servers of an all-reduce are done with it among themselves,
    in turns where it names servers.
    """
    for server in reduce.servers:
        inside_free[server] = max(now, inside_free.get(server, 0.0)) + reduce.seconds
    return max((inside_free[server] for server in reduce.servers), default=now + reduce.seconds)


def _play(first: list[Item], fabric: Fabric) -> float:
    queue: list[tuple[float, int, Item]] = []
    counter = iter(range(10**9))
    server_free: dict[int, float] = {}
    link_free: dict[int, float] = {}
    inside_free: dict[int, float] = {}

    def push(item: Item, time: float) -> None:
        heapq.heappush(queue, (time, next(counter), item))

    for item in first:
        push(item, 0.0)
    last = 0.0
    while queue:
        now, _, item = heapq.heappop(queue)
        if item.kind == "reduce":
            begin = added_up(item, now, inside_free)
            for flow in item.flows:
                push(flow, begin)
            continue
        if item.kind == "compute":
            item.end = max(now, server_free.get(item.server, 0.0)) + item.seconds
            server_free[item.server] = item.end
        else:
            size = min(SEGMENT, item.n_left)
            head = now
            for hop, link in enumerate(item.links):
                begin = max(link_free.get(link, 0.0), head)
                head = begin + fabric.latency_seconds
                link_free[link] = head + size * float(fabric.seconds_per_byte[link])
                item.end = max(item.end, link_free[link])
                if hop == 0:
                    again = link_free[link]
            item.n_left -= size
            if item.n_left > 0:
                push(item, again)
                continue
        last = max(last, item.end)
        for other in sorted(item.then, key=lambda entry: entry.kind == "reduce"):
            other.ready = max(other.ready, item.end)
            other.n_before -= 1
            if other.n_before == 0:
                push(other, other.ready)
    return last


def _queued(first: list[Item], fabric: Fabric) -> float:
    """Play tasks where every link has a queue: a segment joins it when its first byte arrives."""
    queue: list[tuple[float, int, Callable[[float], None]]] = []
    counter = iter(range(10**9))
    free: dict[object, float] = {}
    inside_free: dict[int, float] = {}
    ends = [0.0]

    def at(time: float, call: Callable[[float], None]) -> None:
        heapq.heappush(queue, (time, next(counter), call))

    def done(item: Item) -> None:
        ends.append(item.end)
        for other in sorted(item.then, key=lambda entry: entry.kind == "reduce"):
            other.ready = max(other.ready, item.end)
            other.n_before -= 1
            if other.n_before == 0:
                at(other.ready, begin(other))

    def begin(item: Item) -> Callable[[float], None]:
        def compute(now: float) -> None:
            item.end = free[-1 - item.server] = max(now, free.get(-1 - item.server, 0.0)) + item.seconds
            done(item)

        def reduce(now: float) -> None:
            start = added_up(item, now, inside_free)
            for flow in item.flows:
                at(start, begin(flow))

        whole = item.n_left
        arrived = [0]

        def set_out(now: float) -> None:
            size = min(SEGMENT, item.n_left)
            item.n_left -= size
            hop(size, 0, 0.0)(now)

        def hop(size: int, k: int, over: float) -> Callable[[float], None]:
            def joins(now: float) -> None:
                link = item.links[k]
                start = max(now, free.get(link, 0.0))
                free[link] = start + size * float(fabric.seconds_per_byte[link])
                last_byte = max(over, free[link]) + fabric.latency_seconds
                if k == 0 and item.n_left > 0:
                    at(free[link], set_out)
                if k + 1 < len(item.links):
                    at(start + fabric.latency_seconds, hop(size, k + 1, last_byte))
                    return
                item.end = max(item.end, last_byte)
                arrived[0] += size
                if arrived[0] == whole:
                    done(item)

            return joins

        return {"compute": compute, "reduce": reduce}.get(item.kind, set_out)

    for item in first:
        at(0.0, begin(item))
    while queue:
        now, _, call = heapq.heappop(queue)
        call(now)
    return max(ends)


def shortest(n: int, links: dict[tuple[int, int], Any]) -> list[list[int]]:
    """Return hops between all nodes by relaxing every link again and again."""
    far = 10**6
    hops = [[0 if a == b else far for b in range(n)] for a in range(n)]
    for _ in range(n):
        for a, b in links:
            for start in range(n):
                hops[start][b] = min(hops[start][b], hops[start][a] + 1)
    return hops
