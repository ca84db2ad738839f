"""Chakra execution traces of a co-designed step, one file per server: compute, sends and receives, all-reduces."""

from __future__ import annotations

from meshwright.base import chakra_nodes, files
from meshwright.planners.topoopt.design import Design

__all__ = ["traces", "write"]


def write(design: Design, path: str) -> None:
    """Write ``PATH.0.et``, ``PATH.1.et``, ...: the traces of all servers, and ``PATH.groups.json``, the groups of collectives.

    `path` is the beginning of the names.
    """
    groups = chakra_nodes.Groups()
    for server, content in enumerate(traces(design, groups)):
        files.write(f"{path}.{server}.et", content)
    files.write(f"{path}.groups.json", groups.text())


def traces(design: Design, groups: chakra_nodes.Groups) -> list[bytes]:
    """Return the trace of every server: length-delimited protocol buffers, first the metadata, then the nodes.

    `groups`: gets the groups of collectives.
    Returns: one for each server.

    References
    ----------
    .. [1] Chakra, ``schema/protobuf/et_def.proto``, MLCommons.

    Notes
    -----
    Durations are whole microseconds. Traces know no links: circuits that change are not in them.
    """
    found = design.entry.found
    _, tasks, _ = design.step.play(found.placement, found.fabric)
    n = found.fabric.n_servers
    owner = [server for servers in found.placement.servers for server in servers]
    op_of = [i for i, servers in enumerate(found.placement.servers) for _ in servers]
    chosen = design.step.chosen(found.placement)
    operations = design.workload.operations
    out: list[list[bytes]] = [[chakra_nodes.beginning()] for _ in range(n)]
    n_tasks, n_edges = len(tasks.n_before), len(tasks.edge_bytes)
    source, target, moved = tasks.edge_source.tolist(), tasks.edge_target.tolist(), tasks.edge_bytes.tolist()
    before: list[list[int]] = [[] for _ in range(n_tasks)]
    for e in range(n_edges):
        before[target[e]].append(n_tasks + 2 * e + 1 if moved[e] else source[e])
        if moved[e]:
            a, b = owner[source[e] >> 1], owner[target[e] >> 1]
            ids, sizes = (n_tasks + 2 * e, n_tasks + 2 * e + 1), ((a, b), moved[e], e)
            out[a].append(chakra_nodes.message(ids[0], f"send.{e}", [source[e]], *sizes, sent=True))
            out[b].append(chakra_nodes.message(ids[1], f"receive.{e}", [], *sizes, sent=False))
    for task in range(n_tasks):
        op = op_of[task >> 1]
        seconds = chosen[op].backward_seconds if task & 1 else chosen[op].forward_seconds
        name = f"{operations[op].name}.{'backward' if task & 1 else 'forward'}.{task >> 1}"
        out[owner[task >> 1]].append(chakra_nodes.compute(task, name, before[task], round(seconds * 1e6)))
    members_of = list(found.fabric.groups)
    for op in range(len(operations)):
        for r in range(int(tasks.reduce_first[op]), int(tasks.reduce_first[op + 1])):
            members = members_of[int(tasks.reduce_group[r])]
            for server in members:
                own = [2 * p + 1 for p in range(int(tasks.part_first[op]), int(tasks.part_first[op + 1])) if owner[p] == server]
                identity, n_bytes = n_tasks + 2 * n_edges + r, int(tasks.reduce_bytes[r])
                out[server].append(chakra_nodes.collective(
                    identity, f"all_reduce.{r}", own, "all_reduce", n_bytes, groups.number(members)
                ))  # fmt: skip
    return [b"".join(parts) for parts in out]
