"""Chakra execution traces of a co-designed step, one file per server: compute, sends and receives, all-reduces."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base import files
from meshwright.planners.topoopt.design import Design

__all__ = ["traces", "write"]

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE = 0
VERSION = "0.0.4"


def write(design: Design, path: str) -> None:
    """Write ``PATH.0.et``, ``PATH.1.et``, ...: the traces of all servers.

    `path` is the beginning of the names.
    """
    for server, content in enumerate(traces(design)):
        files.write(f"{path}.{server}.et", content)


def traces(design: Design) -> list[bytes]:
    """Return the trace of every server: length-delimited protocol buffers, first the metadata, then the nodes.

    Returns: one for each server.

    References
    ----------
    .. [1] Chakra, ``schema/protobuf/et_def.proto``, MLCommons.

    Notes
    -----
    Durations are whole microseconds. A collective names its servers in the attribute ``pg_name``, joined by dashes; compute
    tasks carry ``num_ops`` 0, so that a simulator takes the duration. Traces know no links: circuits that change are not in
    them.
    """
    found = design.entry.found
    _, tasks, _ = design.step.play(found.placement, found.fabric)
    n = found.fabric.n_servers
    owner = [server for servers in found.placement.servers for server in servers]
    op_of = [i for i, servers in enumerate(found.placement.servers) for _ in servers]
    chosen = design.step.chosen(found.placement)
    operations = design.workload.operations
    out: list[list[bytes]] = [[_framed(_text(1, VERSION))] for _ in range(n)]
    n_tasks, n_edges = len(tasks.n_before), len(tasks.edge_bytes)
    source, target, moved = tasks.edge_source.tolist(), tasks.edge_target.tolist(), tasks.edge_bytes.tolist()
    before: list[list[int]] = [[] for _ in range(n_tasks)]
    for e in range(n_edges):
        before[target[e]].append(n_tasks + 2 * e + 1 if moved[e] else source[e])
        if moved[e]:
            a, b = owner[source[e] >> 1], owner[target[e] >> 1]
            fields = [
                ("comm_size", 9, moved[e]),
                ("comm_src", 7, a),
                ("comm_dst", 7, b),
                ("comm_tag", 7, e),
                ("is_cpu_op", 27, 0),
            ]
            out[a].append(_node(n_tasks + 2 * e, f"send.{e}", SEND, [source[e]], 0, fields))
            out[b].append(_node(n_tasks + 2 * e + 1, f"receive.{e}", RECEIVE, [], 0, fields))
    for task in range(n_tasks):
        op = op_of[task >> 1]
        seconds = chosen[op].backward_seconds if task & 1 else chosen[op].forward_seconds
        name = f"{operations[op].name}.{'backward' if task & 1 else 'forward'}.{task >> 1}"
        fields = [("is_cpu_op", 27, 0), ("num_ops", 9, 0), ("tensor_size", 13, 0)]
        out[owner[task >> 1]].append(_node(task, name, COMPUTE, before[task], round(seconds * 1e6), fields))
    members_of = list(found.fabric.groups)
    for op in range(len(operations)):
        for r in range(int(tasks.reduce_first[op]), int(tasks.reduce_first[op + 1])):
            members = members_of[int(tasks.reduce_group[r])]
            for server in members:
                own = [2 * p + 1 for p in range(int(tasks.part_first[op]), int(tasks.part_first[op + 1])) if owner[p] == server]
                fields = [("comm_type", 9, ALL_REDUCE), ("comm_size", 9, int(tasks.reduce_bytes[r])), ("is_cpu_op", 27, 0)]
                group = "-".join(map(str, members))
                out[server].append(_node(n_tasks + 2 * n_edges + r, f"all_reduce.{r}", COLLECTIVE, own, 0, fields, group))
    return [b"".join(parts) for parts in out]


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


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _attributes(fields: list[tuple[str, int, int]], group: str) -> Iterator[bytes]:
    for name, slot, value in fields:
        yield _text(10, _text(1, name) + _number(slot, value))
    if group:
        yield _text(10, _text(1, "pg_name") + _text(29, group))


def _node(
    identity: int, name: str, kind: int, before: list[int], micros: int, fields: list[tuple[str, int, int]], group: str = ""
) -> bytes:
    """Return one node with its length in front."""
    body = _number(1, identity) + _text(2, name) + _number(3, kind)
    if before:
        body += _text(5, b"".join(_varint(other) for other in before))
    if micros:
        body += _number(7, micros)
    return _framed(body + b"".join(_attributes(fields, group)))
