"""What all Chakra traces share: nodes as protocol buffers, collectives that name their group by a number, the file of groups.

References
----------
.. [1] Chakra, ``schema/protobuf/et_def.proto``, MLCommons.
.. [2] ASTRA-sim 2.0, ``astra-sim/workload/Workload.cc``: ``pg_name`` is the number of a group in the file of
   ``--comm-group-configuration``, an object of lists of devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

__all__ = [
    "COLLECTIVE", "COLLECTIVES", "COMPUTE", "RECEIVE", "SEND", "VERSION", "Groups", "beginning", "collective", "compute",
    "message",
]  # fmt: skip

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Kinds of nodes."""

COLLECTIVES = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter")
"""Kinds of collectives; the code is the position."""

VERSION = "0.0.4"


class Groups:
    """The groups that collectives name, each with its number, in the order in which they were met."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, ...], int] = {}

    def number(self, members: Sequence[int]) -> int:
        """Return the number of a group."""
        return self._number.setdefault(tuple(members), len(self._number))

    def text(self) -> str:
        """Return the file of groups."""
        return json.dumps({str(number): list(members) for members, number in self._number.items()}) + "\n"


def beginning() -> bytes:
    """Return what a trace begins with: the metadata."""
    return _framed(_text(1, VERSION))


def compute(identity: int, name: str, before: Sequence[int], micros: int) -> bytes:
    """Return a node that computes for so many microseconds; ``num_ops`` is 0, so that a simulator takes the duration."""
    fields = [("is_cpu_op", 27, 0), ("num_ops", 9, 0), ("tensor_size", 13, 0)]
    return _node(identity, name, COMPUTE, before, micros, fields)


def message(
    identity: int, name: str, before: Sequence[int], ends: tuple[int, int], n_bytes: int, tag: int, *, sent: bool
) -> bytes:
    """Return a node that sends or receives; `ends`: source and target."""
    fields = [("comm_size", 9, n_bytes), ("comm_src", 7, ends[0]), ("comm_dst", 7, ends[1]), ("comm_tag", 7, tag)]
    return _node(identity, name, SEND if sent else RECEIVE, before, 0, [*fields, ("is_cpu_op", 27, 0)])


def collective(identity: int, name: str, before: Sequence[int], kind: str, n_bytes: int, group: int) -> bytes:
    """Return a node that is a collective; `n_bytes`: what each member puts in."""
    fields = [("comm_type", 9, COLLECTIVES.index(kind)), ("comm_size", 9, n_bytes), ("is_cpu_op", 27, 0)]
    return _node(identity, name, COLLECTIVE, before, 0, fields, str(group))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _framed(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _attributes(fields: list[tuple[str, int, int]], group: str) -> Iterator[bytes]:
    for name, slot, value in fields:
        yield _text(10, _text(1, name) + _number(slot, value))
    if group:
        yield _text(10, _text(1, "pg_name") + _text(29, group))


def _node(
    identity: int, name: str, kind: int, before: Sequence[int], micros: int, fields: list[tuple[str, int, int]], group: str = ""
) -> bytes:
    """Return one node with its length in front."""
    body = _number(1, identity) + _text(2, name) + _number(3, kind)
    if before:
        body += _text(5, b"".join(_varint(other) for other in before))
    if micros:
        body += _number(7, micros)
    return _framed(body + b"".join(_attributes(fields, group)))
