"""The step as FlexNet's task graph (FlatBuffers, schema in ``planners/topoopt/data/taskgraph.fbs``),
which packet simulators read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.base import files
from meshwright.base.errors import MissingExtraError
from meshwright.planners.topoopt.design import Design

__all__ = ["content", "write"]

FORWARD, BARRIER, NOMINAL, ALL_REDUCE = 0, 4, 5, 6
GPU, NOMINAL_DEVICE = 0, 14


def write(design: Design, path: str) -> None:
    """Write the task graph of the best plan.

    Raises `MissingExtraError` when the ``flatbuffers`` package is absent.
    """
    files.write(path, content(design))


def content(design: Design) -> bytes:
    """Return the task graph of the best plan as bytes.

    Returns: a buffer with root table ``TaskGraph``.
    Raises `MissingExtraError` when the ``flatbuffers`` package is absent.

    Notes
    -----
    An all-reduce is one task where its rings are the same jumps from every member with equal shares, which the file can say;
    otherwise it is a barrier followed by one transfer for every flow, which takes as long. The schema has one list of links:
    where circuits of an optical switch change during the step, the file shows those that stay (the answer's notes say so too),
    and that all-reduces of one server take turns inside it is not said.
    """
    try:
        import flatbuffers
    except ImportError:
        raise MissingExtraError("writing a task graph", "flatbuffers") from None
    return _Writer(design, flatbuffers.Builder(1 << 20)).finish()


class _Writer:
    """Builds the buffer bottom up."""

    def __init__(self, design: Design, builder: Any) -> None:
        self.builder, self.design = builder, design
        self.found = design.entry.found
        self.fabric = self.found.fabric
        self.split, self.tasks, _ = design.step.play(self.found.placement, self.fabric)
        self.n = self.fabric.n_servers
        self.pairs: dict[tuple[int, int], int] = {}
        self.ends = list(zip(self.fabric.source.tolist(), self.fabric.target.tolist(), strict=True))

    def table(self, fields: Sequence[tuple[str, Any]]) -> int:
        """Add a table of fields (kind, value) in slot order."""
        builder = self.builder
        builder.StartObject(len(fields))
        for slot, (kind, value) in enumerate(fields):
            if kind == "offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
        return int(builder.EndObject())

    def offsets(self, items: Sequence[int]) -> int:
        """Add a vector of tables."""
        self.builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.builder.PrependUOffsetTRelative(item)
        return int(self.builder.EndVector())

    def numbers(self, kind: str, size: int, items: Sequence[int]) -> int:
        """Add a vector of numbers."""
        self.builder.StartVector(size, len(items), size)
        for item in reversed(items):
            getattr(self.builder, f"Prepend{kind}")(int(item))
        return int(self.builder.EndVector())

    def device_of_pair(self, a: int, b: int) -> int:
        """Return the number of the device that stands for sending from `a` to `b`."""
        return self.pairs.setdefault((a, b), self.n + len(self.pairs))

    def task(self, kind: int, identity: int, device: int, seconds: float, n_bytes: int, following: Sequence[int]) -> int:
        """Add a task."""
        after = self.numbers("Uint64", 8, following)
        return self.table(
            [
                ("Int16", kind),
                ("Uint64", identity),
                ("Uint64", device),
                ("Float32", seconds * 1e3),
                ("Uint64", int(n_bytes)),
                ("offset", after),
            ]
        )

    def _tasks(self) -> tuple[list[int], list[tuple[int, tuple[tuple[int, ...], ...]]]]:
        """Return all tasks, and the rings they need."""
        tasks, split = self.tasks, self.split
        n_tasks, n_edges = len(tasks.n_before), len(tasks.edge_bytes)
        edge_bytes, target = tasks.edge_bytes.tolist(), tasks.edge_target.tolist()
        owner = [server for servers in self.found.placement.servers for server in servers]
        op_of = [i for i, servers in enumerate(self.found.placement.servers) for _ in servers]
        made, reduces, rings = [], *self._reduces(n_tasks + n_edges)
        order, first = tasks.edge_order.tolist(), tasks.edge_first.tolist()
        for task in range(n_tasks):
            part, op = task >> 1, op_of[task >> 1]
            following = [n_tasks + e if edge_bytes[e] else target[e] for e in order[first[task] : first[task + 1]]]
            if task & 1:
                following += reduces[op]
            for e in order[first[task] : first[task + 1]]:
                if edge_bytes[e]:
                    device = self.device_of_pair(owner[part], owner[target[e] >> 1])
                    made.append(self.task(NOMINAL, n_tasks + e, device, 0.0, edge_bytes[e], [target[e]]))
            made.append(self.task(FORWARD + (task & 1), task, owner[part], float(split.seconds[task & 1, op]), 0, following))
        return made + self.extra, rings

    def _reduces(self, number: int) -> tuple[list[list[int]], list[tuple[int, tuple[tuple[int, ...], ...]]]]:
        """Add the all-reduces; return which wait for the backward tasks of each operator, and the rings of each group size."""
        tasks, members_of = self.tasks, list(self.fabric.groups)
        rings: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.extra: list[int] = []
        waiting: list[list[int]] = [[] for _ in self.found.placement.servers]
        for i in range(len(waiting)):
            for r in range(int(tasks.reduce_first[i]), int(tasks.reduce_first[i + 1])):
                members, n_bytes = members_of[int(tasks.reduce_group[r])], int(tasks.reduce_bytes[r])
                inside = self.design.step.inner_seconds(n_bytes)
                jumps = self._jumps(members)
                waiting[i].append(number)
                if jumps and rings.setdefault(len(members), jumps) == jumps:
                    self.extra.append(self.task(ALL_REDUCE, number, members[0], inside, n_bytes, members))
                    number += 1
                    continue
                flows = [(links, share) for links, share in self.fabric.flows(members) if links]
                self.extra.append(self.task(BARRIER, number, members[0], inside, 0, range(number + 1, number + 1 + len(flows))))
                number += 1
                for links, share in flows:
                    amount = 2.0 * (len(members) - 1) / len(members) * n_bytes * share
                    device = self.device_of_pair(self.ends[links[0]][0], self.ends[links[-1]][1])
                    self.extra.append(self.task(NOMINAL, number, device, 0.0, -int(-amount // 1), []))
                    number += 1
        return waiting, sorted(rings.items())

    def _jumps(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the jumps of the rings of a group if they are the same from every member and share equally;
        empty otherwise.
        """
        flows = self.fabric.flows(members)
        per_member = len(flows) // len(members)
        if per_member * len(members) != len(flows) or len({round(share, 9) for _, share in flows}) > 1:
            return ()
        seen = set()
        for k in range(len(members)):
            own = flows[k * per_member : (k + 1) * per_member]
            seen.add(tuple(tuple((self.ends[x][1] - self.ends[x][0]) % self.n for x in links) for links, _ in own))
        switched = any(max(self.ends[x]) >= self.n for links, _ in flows for x in links)
        return () if len(seen) > 1 or switched else seen.pop()

    def _routes(self) -> list[int]:
        """Add the routes of all pairs that send."""
        made = []
        for a, b in self.pairs:
            ways = self.fabric.ways(a, b)
            paths = []
            for links, share in zip(ways, self.fabric.way_shares(a, b), strict=True):
                nodes = [a, *(self.ends[x][1] for x in links)]
                paths.append(self.table([("offset", self.numbers("Uint32", 4, nodes)), ("Float32", share)]))
            made.append(self.table([("Uint32", a), ("Uint32", b), ("offset", self.offsets(paths))]))
        return made

    def finish(self) -> bytes:
        """Return the buffer."""
        space, fabric = self.design.step.space, self.fabric
        tasks, rings = self._tasks()
        per_ms = 1e-3
        connections = [
            self.table([("Uint32", max(a, b)), ("Uint32", min(a, b)), ("Uint32", int(count))])
            for (a, b), count in zip(self.ends, fabric.count.tolist(), strict=True)
            if a > b
        ]
        operators = []
        for i, operation in enumerate(space.workload.operations):
            name = self.builder.CreateString(operation.name)
            operators.append(self.table([("Uint64", i), ("Uint64", 0), ("offset", name)]))
        speed = int(fabric.bytes_per_second * per_ms)
        devices = [
            self.table([("Int16", GPU), ("Uint64", i), ("Uint64", i), ("Uint64", i), ("Uint64", 0)]) for i in range(self.n)
        ]
        for (a, b), number in self.pairs.items():
            code = a * fabric.n_nodes + b
            devices.append(
                self.table([("Int16", NOMINAL_DEVICE), ("Uint64", number), ("Uint64", a), ("Uint64", code), ("Uint64", speed)])
            )
        made_rings = []
        for size, paths in rings:
            jumps = [self.table([("offset", self.numbers("Int32", 4, path))]) for path in paths]
            made_rings.append(self.table([("Uint64", size), ("offset", self.offsets(jumps))]))
        vectors = [self.offsets(items) for items in (connections, operators, tasks, devices, self._routes(), made_rings)]
        servers = space.servers
        root = self.table(
            [
                ("Uint32", servers.n_gpus),
                ("Uint32", self.n),
                ("Uint32", fabric.n_nodes - self.n),
                ("Float32", servers.gpu_bytes_per_second * per_ms),
                ("Float32", servers.gpu.memory_bytes_per_second * per_ms),
                ("Float32", fabric.bytes_per_second * per_ms),
                *(("offset", vector) for vector in vectors),
            ]
        )
        self.builder.Finish(root)
        return bytes(self.builder.Output())
