"""A task graph file read by the generic access of the flatbuffers package and played:
it shares nothing with our reader or kernels.
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from flatbuffers import encode, number_types, packer
from flatbuffers.table import Table
from flow_simulation import Item, _before, _play

FORWARD, BACKWARD, BARRIER, NOMINAL, ALL_REDUCE = 0, 1, 4, 5, 6


class Record:
    """A table of a buffer, its fields by slot."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def get(self, slot: int, kind: str) -> Any:
        """Return a scalar, 0 where it is absent."""
        at = self.table.Offset(4 + 2 * slot)
        return self.table.Get(getattr(number_types, f"{kind}Flags"), at + self.table.Pos) if at else 0

    def numbers(self, slot: int, kind: str) -> list[int]:
        """Return a vector of scalars."""
        at = self.table.Offset(4 + 2 * slot)
        flags = getattr(number_types, f"{kind}Flags")
        begin = self.table.Vector(at) if at else 0
        return [self.table.Get(flags, begin + i * flags.bytewidth) for i in range(self.table.VectorLen(at) if at else 0)]

    def records(self, slot: int) -> list[Record]:
        """Return a vector of tables."""
        at = self.table.Offset(4 + 2 * slot)
        begin = self.table.Vector(at) if at else 0
        count = self.table.VectorLen(at) if at else 0
        return [Record(Table(self.table.Bytes, self.table.Indirect(begin + 4 * i))) for i in range(count)]


def seconds(content: bytes, latency_seconds: float) -> float:
    """Return the time of the step that a file describes, every pair on its first route;
    the file does not know the latency of links.
    """
    buffer = bytearray(content)
    root = Record(Table(buffer, encode.Get(packer.uoffset, buffer, 0)))
    n = root.get(1, "Uint32")
    rate = 1e3 * root.get(5, "Float32")
    count: dict[tuple[int, int], int] = {}
    for row in root.records(6):
        a, b, lines = (row.get(slot, "Uint32") for slot in range(3))
        count[a, b] = count[b, a] = lines
    link = {pair: i for i, pair in enumerate(count)}
    fabric: Any = SimpleNamespace(
        seconds_per_byte=np.array([1.0 / (rate * lines) for lines in count.values()]), latency_seconds=latency_seconds
    )

    def over(nodes: list[int]) -> tuple[int, ...]:
        return tuple(link[pair] for pair in pairwise(nodes))

    route = {
        (row.get(0, "Uint32"), row.get(1, "Uint32")): over(row.records(2)[0].numbers(0, "Uint32")) for row in root.records(10)
    }
    node, pair = {}, {}
    for row in root.records(9):
        nodes = n + root.get(2, "Uint32")
        node[row.get(1, "Uint64")] = row.get(2, "Uint64")
        pair[row.get(1, "Uint64")] = divmod(row.get(3, "Uint64"), nodes)
    rings = {row.get(0, "Uint64"): [jump.numbers(0, "Int32") for jump in row.records(1)] for row in root.records(11)}
    items: dict[int, Item] = {}
    following: dict[int, list[int]] = {}
    for row in root.records(8):
        kind, identity, device = row.get(0, "Int16"), row.get(1, "Uint64"), row.get(2, "Uint64")
        moved, runs = row.get(4, "Uint64"), 1e-3 * row.get(3, "Float32")
        following[identity] = row.numbers(5, "Uint64")
        if kind in (FORWARD, BACKWARD):
            items[identity] = Item("compute", node[device], runs)
        elif kind == NOMINAL:
            items[identity] = Item("flow", links=route[pair[device]], n_left=moved)
        elif kind == BARRIER:
            items[identity] = Item("reduce", seconds=runs)
        else:
            assert kind == ALL_REDUCE
            members = following.pop(identity)
            items[identity] = reduce = Item("reduce", seconds=runs)
            size, ways = len(members), rings[len(members)]
            for member in members:
                for jumps in ways:
                    nodes = [(member + part) % n for part in np.cumsum([0, *jumps]).tolist()]
                    amount = math.ceil(2 * (size - 1) / size * moved / len(ways))
                    reduce.flows.append(Item("flow", links=over(nodes), n_left=amount))
    for identity, others in following.items():
        if items[identity].kind == "reduce":
            items[identity].flows = [items[other] for other in others]
            for other in others:
                items[other].n_before = 1
        else:
            for other in others:
                _before(items[identity], items[other])
    return _play([items[identity] for identity in sorted(items) if items[identity].n_before == 0], fabric)
