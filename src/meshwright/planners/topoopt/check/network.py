"""The network of an answer as its file has it: links, routes of every pair that sends, rings of every group."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.planners.topoopt.alternate import NetworkParts
from meshwright.planners.topoopt.fabric import Fabric, Flow
from meshwright.planners.topoopt.step import PlacementTraffic

__all__ = ["Refused", "as_built", "interfaces", "of_file"]

_ROUNDING = 1e-9


class Refused(Exception):
    """The answer does not hold, with the reason."""


def of_file(entry: Mapping[str, Any], wires: NetworkParts, name: str, traffic: PlacementTraffic, *, forwards: bool) -> Fabric:
    """Return the network of an answer, its routes and rings as the file says.

    Parameters
    ----------
    entry : mapping
        The answer as JSON.
    wires : NetworkParts
        Servers, and interfaces of each.
    name : str
        The topology.
    traffic : PlacementTraffic
        What the plan sends.
    forwards : bool
        Whether servers pass on traffic of others.

    Raises
    ------
    Refused
        When a route or a ring leaves the links, a pair or a group that sends has none, or shares do not sum up to one.
    InputError
        When a server cannot reach another.
    KeyError, TypeError, ValueError, IndexError
        When a field is missing or of the wrong kind.
    """
    plan = entry["plan"]
    count = {(int(a), int(b)): float(width) for a, b, width in plan["links"]}
    if any(width <= 0 or a == b or min(a, b) < 0 for (a, b), width in count.items()):
        raise Refused("plan.links: a link leads to its own end, or has no width")
    fabric = Fabric(
        name,
        wires.n_servers,
        count,
        float(plan["link_bytes_per_second"]),
        float(plan["link_latency_seconds"]),
        forwards=forwards,
    )
    _route(fabric, plan["routes"], traffic)
    _ring(fabric, plan["rings"], traffic)
    return fabric


def _links(fabric: Fabric, nodes: list[int], where: str) -> tuple[int, ...]:
    """Return the links along some nodes; those between must be switches where servers pass nothing on."""
    missing = [pair for pair in pairwise(nodes) if pair not in fabric.link_of]
    if missing or len(nodes) < 2:
        raise Refused(f"{where}: there is no link {' to '.join(map(str, missing[0])) if missing else nodes}")
    if not fabric.forwards and any(node < fabric.n_servers for node in nodes[1:-1]):
        raise Refused(f"{where}: leads through a server, which passes nothing on in this network")
    return tuple(fabric.link_of[pair] for pair in pairwise(nodes))


def _whole(shares: list[float], where: str) -> None:
    """Refuse shares that are no parts of a whole."""
    if any(share < 0 for share in shares) or not abs(sum(shares) - 1.0) <= _ROUNDING * max(len(shares), 1):
        raise Refused(f"{where}: shares sum up to {sum(shares):.12g}, not 1")


def _route(fabric: Fabric, rows: list[dict[str, Any]], traffic: PlacementTraffic) -> None:
    """Lay the routes of a file."""
    n = fabric.n_servers
    told: dict[int, tuple[list[tuple[int, ...]], list[float]]] = {}
    for i, row in enumerate(rows):
        where, a, b = f"plan.routes[{i}]", int(row["source"]), int(row["target"])
        ways = [[int(node) for node in way] for way in row["ways"]]
        if any(way[0] != a or way[-1] != b for way in ways) or not ways:
            raise Refused(f"{where}: a way does not lead from {a} to {b}")
        shares = [float(share) for share in row["share_ratios"]]
        _whole(shares, where)
        if len(shares) != len(ways):
            raise Refused(f"{where}: {len(shares)} shares for {len(ways)} ways")
        told[a * n + b] = ([_links(fabric, way, where) for way in ways], shares)
    lost = np.setdiff1d(np.flatnonzero(traffic.pair_bytes.ravel() > 0), np.array(sorted(told), dtype=np.int64))
    if len(lost):
        raise Refused(f"plan.routes: server {lost[0] // n} sends to {lost[0] % n}, and there is no route")
    most = max((len(ways) for ways, _ in told.values()), default=1)
    table: list[tuple[int, ...]] = [()] * (n * n * most)
    ends, n_ways = np.full(n * n * most, -1.0), np.ones(n * n, dtype=np.int64)
    for pair, (laid, shares) in told.items():
        table[pair * most : pair * most + len(laid)] = laid
        n_ways[pair] = len(laid)
        if any(share != 1.0 / len(laid) for share in shares):
            ends[pair * most : pair * most + len(laid)] = [*np.cumsum(shares)[:-1].tolist(), 1.0]
    first = np.concatenate([[0], np.cumsum([len(way) for way in table])]).astype(np.int64)
    fabric.lay(n_ways, first, np.array([link for way in table for link in way], dtype=np.int64), ends)


def _ring(fabric: Fabric, rows: list[dict[str, Any]], traffic: PlacementTraffic) -> None:
    """Lay the rings of a file: what every member sends goes to others of the group, each share once, until all have it."""
    groups = {tuple(int(member) for member in row["members"]): row for row in rows}
    if set(groups) != {members for members, _ in traffic.group_bytes}:
        raise Refused("plan.rings: are of other groups than those that the plan all-reduces over")
    for i, (members, row) in enumerate(groups.items()):
        where, flows = f"plan.rings[{i}]", list[Flow]()
        sent, got, beside = dict.fromkeys(members, 0.0), dict.fromkeys(members, 0.0), {member: set[int]() for member in members}
        for flow in row["flows"]:
            nodes, share = [int(node) for node in flow["nodes"]], float(flow["share_ratio"])
            if not {nodes[0], nodes[-1]} <= set(members) or share < 0:
                raise Refused(f"{where}: a flow does not lead from a member to a member")
            flows.append((_links(fabric, nodes, where), share))
            sent[nodes[0]], got[nodes[-1]] = sent[nodes[0]] + share, got[nodes[-1]] + share
            if share > 0:
                beside[nodes[0]].add(nodes[-1])
        for member in members if len(members) > 1 else ():
            _whole([sent[member]], f"{where}: what server {member} sends")
            _whole([got[member]], f"{where}: what server {member} is sent")
        seen, waiting = {members[0]}, [members[0]]
        while waiting:
            new = beside[waiting.pop()] - seen
            seen |= new
            waiting += new
        if len(seen) < len(members):
            raise Refused(f"{where}: server {min(set(members) - seen)} is on no ring with server {members[0]}")
        fabric.lay_rings(members, flows)


def interfaces(fabric: Fabric, degree: int) -> None:
    """Refuse a network in which a server has more cables than interfaces."""
    for ends in (fabric.source, fabric.target):
        used = np.bincount(ends, fabric.count, fabric.n_nodes)[: fabric.n_servers]
        if used.max() > degree * (1 + _ROUNDING):
            raise Refused(f"plan.links: server {int(used.argmax())} has {used.max():g} cables, and {degree} interfaces")


def as_built(fabric: Fabric, built: Fabric) -> None:
    """Refuse links that are not those of a named topology."""
    same = fabric.link_of == built.link_of and np.array_equal(fabric.count, built.count)
    if not same or fabric.latency_seconds != built.latency_seconds:
        raise Refused(f"plan.links: are not those of topology {built.name}")
