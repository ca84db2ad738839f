"""Which links of a cluster the members of groups can use at all: those that no shortest way between two members leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.network import routes
from meshwright.network.wired import Wired

__all__ = ["Reach", "Reached", "inner_links", "reach"]

Ints = NDArray[np.int64]

NEVER = 1 << 60
"""Picoseconds that no way takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """How the switches of a cluster hang together: its connected parts, and in these the switches at their rims.

    A switch is at the rim if it has one neighbour among switches: a way passes through it only if it begins or ends there.

    Parameters
    ----------
    rim_first, rim_link : ndarray, int64
        Links between each switch at the rim and its neighbour, both ways, as ranges by core node.
    inner_first, inner_link : ndarray, int64
        Links of each connected part between switches that are not at the rim, as ranges by the smallest core node of the part.
    """

    rim_first: Ints
    rim_link: Ints
    inner_first: Ints
    inner_link: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """What rows of a table of groups reach, as pairs of a row and a link, or of a row and a part all of whose inner links it
    may use; a pair may stand there twice.

    Parameters
    ----------
    row, link : ndarray, shape (n_ends,), int64
        Links of the members: to switches, from switches and to each other.
    core_row, core_link : ndarray, shape (n_core,), int64
        Links between switches.
    part_row, part : ndarray, shape (n_parts,), int64
        Parts whose inner links may be used; such as have some.
    """

    row: Ints
    link: Ints
    core_row: Ints
    core_link: Ints
    part_row: Ints
    part: Ints


@lru_cache(maxsize=routes.REMEMBERED_CLUSTERS)
def _reach_of(cluster: Wired) -> Reach:
    """Return how the switches of a cluster hang together; remembered by the identity of the cluster, which never changes."""
    tables = routes.tables(cluster)
    source, target, n = tables.net.source, tables.net.target, len(tables.part)
    ends = np.unique(np.concatenate((source * n + target, target * n + source)))
    at_rim = np.bincount(ends // n, minlength=n) == 1
    position = np.concatenate((np.flatnonzero(at_rim[source]), np.flatnonzero(at_rim[target])))
    rim_first, order = routes.ranges(np.concatenate((source[at_rim[source]], target[at_rim[target]])), n)
    inner = np.flatnonzero(~at_rim[source] & ~at_rim[target])
    inner_first, by_part = routes.ranges(tables.part[source[inner]], n)
    return Reach(rim_first, tables.link_of_core[position[order]], inner_first, tables.link_of_core[inner[by_part]])


def reach(cluster: Wired, groups: Ints) -> Reached:
    """Return the links that shortest ways between the members of each group can use, and perhaps some more.

    Parameters
    ----------
    cluster : Cluster
        Its devices do not forward.
    groups : ndarray, shape (n_groups, size), int64
        Devices. Where devices have links to each other, no two groups share a device.

    Returns
    -------
    Reached
        Pairs of a row of `groups` and a link.

    Notes
    -----
    A way between two members leads over a link between them, or up to a switch, through one connected part of the switches, and
    down. What is left out is on no shortest way, since

    * a part that only one member has links to carries nothing between members;
    * where all members are on one switch, none of their ways costs more than the dearest link up and the dearest link down, so
      that a part whose cheapest links cost more together is never on a shortest way;
    * a way through a part in which the members are all on one switch uses no link between switches;
    * a way passes through a switch at the rim only if it begins or ends there (`Reach`), as costs are positive.

    Switches that reduce see every switch that members share, dear or cheap.
    """
    tables, rim = routes.tables(cluster), _reach_of(cluster)
    member, link, up = _plugs(tables, groups)
    node = tables.core_of_node[np.where(up, cluster.links.target[link], cluster.links.source[link])]
    row, n_core = member // groups.shape[1], len(tables.part)
    place = row * n_core + tables.part[node]
    order = np.argsort(place, kind="stable")
    member, link, up, node, row, place = (column[order] for column in (member, link, up, node, row, place))
    first = np.flatnonzero(np.diff(place, prepend=-1))
    kept, several = _kept(groups, (member, up, node, tables.cost[link]), first, np.diff(place, prepend=-1) != 0)
    if cluster.reduces_in_switch:
        kept = np.maximum.reduceat(groups.ravel()[member], first) != np.minimum.reduceat(groups.ravel()[member], first)
    counts = np.diff(np.append(first, len(place)))
    used = np.repeat(kept, counts)
    over = np.flatnonzero(np.repeat(kept & several, counts))
    terminal = np.unique(row[over] * n_core + node[over])
    core_row, core_at = _spread(rim.rim_first, terminal // n_core, terminal % n_core)
    crossed = first[kept & several]
    part_row, part = row[crossed], tables.part[node[crossed]]
    inside = rim.inner_first[part + 1] > rim.inner_first[part]
    straight_row, straight = _straight(cluster, tables, groups)
    return Reached(
        np.concatenate((row[used], straight_row)), np.concatenate((link[used], straight)),
        core_row, rim.rim_link[core_at], part_row[inside], part[inside],
    )  # fmt: skip


def inner_links(cluster: Wired, owner: Ints, part: Ints) -> tuple[Ints, Ints]:
    """Return owner and link of every link inside the rims of some connected parts, which have some.

    `owner`, `part`, shape (n_pairs,), int64: who may use the links of which part; equal pairs count once.
    """
    rim = _reach_of(cluster)
    n = len(rim.inner_first)
    pair = np.unique(owner * n + part)
    found, at = _spread(rim.inner_first, pair // n, pair % n)
    return found, rim.inner_link[at]


def _plugs(tables: routes.Tables, groups: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Return the place in the table, the link and whether it leads up, of every link between a member and a switch: those that
    lead up first, each part by place.
    """
    device, place = groups.ravel(), np.arange(groups.size)
    out_member, out_at = _spread(tables.out_first, place, device)
    in_member, in_at = _spread(tables.in_first, place, device)
    up = np.zeros(len(out_at) + len(in_at), dtype=bool)
    up[: len(out_at)] = True
    return np.concatenate((out_member, in_member)), np.concatenate((tables.out_link[out_at], tables.in_link[in_at])), up


def _spread(first: Ints, owner: Ints, key: Ints) -> tuple[Ints, Ints]:
    """Return the owner and the position of everything in the ranges of some keys."""
    begin = first[key]
    count = first[key + 1] - begin
    if len(count) and (count == count[0]).all():
        n = int(count[0])
        return np.repeat(owner, n), (begin[:, None] + np.arange(n)).ravel()
    before = np.cumsum(count) - count
    return np.repeat(owner, count), np.arange(int(count.sum())) - np.repeat(before - begin, count)


def _kept(
    groups: Ints, columns: tuple[Ints, NDArray[np.bool_], Ints, Ints], first: Ints, begins: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return of every row and part whether a shortest way can lead through it, and whether members are on several switches.

    `columns`: place in the table, whether it leads up, switch and cost of every link, by row and part, those up first.
    `first`: where the links of each row and part begin.
    """
    member, up, node, cost = columns
    device, size = groups.ravel()[member], groups.shape[1]
    several = np.maximum.reduceat(node, first) != np.minimum.reduceat(node, first)
    shared = np.maximum.reduceat(device, first) != np.minimum.reduceat(device, first)
    new = begins | (np.diff(member, prepend=-1) != 0) | (np.diff(up, prepend=False))
    n_up, n_down = np.add.reduceat((new & up).astype(np.int64), first), np.add.reduceat((new & ~up).astype(np.int64), first)
    cheapest = sum(np.minimum.reduceat(np.where(way, cost, NEVER), first) for way in (up, ~up))
    dearest = sum(np.maximum.reduceat(np.where(way, cost, 0), first) for way in (up, ~up))
    limit = np.full(len(groups), 2 * NEVER)
    row = member[first] // size
    common = np.flatnonzero(~several & (n_up == size) & (n_down == size))
    np.minimum.at(limit, row[common], dearest[common])
    return shared & (cheapest < NEVER) & (cheapest <= limit[row]), several


def _straight(cluster: Wired, tables: routes.Tables, groups: Ints) -> tuple[Ints, Ints]:
    """Return row and link of every link from one member to another."""
    if not len(tables.direct_link):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    row_of = np.full(cluster.n_devices, -1)
    row_of[groups] = np.arange(len(groups))[:, None]
    ends = cluster.links.source[tables.direct_link], cluster.links.target[tables.direct_link]
    inside = (row_of[ends[0]] >= 0) & (row_of[ends[0]] == row_of[ends[1]])
    return row_of[ends[0]][inside], tables.direct_link[inside]
