"""Which links of a cluster the members of groups can use at all: those that no shortest way between two members leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import distinct
from meshwright.core.cluster import Cluster
from meshwright.network import routes

__all__ = ["Reach", "ReachedLinks", "in_order", "inner_links", "reach", "spread"]

Ints = NDArray[np.int64]

NEVER = 1 << 60
"""Picoseconds that no way takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """How devices hang on the switches of a cluster, and how these hang together.

    A switch is at the rim if it has one neighbour among switches: a way passes through it only if it begins or ends there.

    Parameters
    ----------
    plug_first : ndarray, shape (n_devices + 1,), int64
        Plugs of each device as a range: one for every switch that it has links to or from.
    switch : ndarray, shape (n_plugs,), int64
        Core node of each plug.
    cheapest, dearest : ndarray, shape (n_plugs,), int64
        The cheapest, and the dearest, link of a plug up (first) and down (second), in picoseconds; `NEVER`, and 0, for none.
    link_first, link : ndarray, int64
        Links of each plug, as ranges.
    rim_first, rim_link : ndarray, int64
        Links between each switch at the rim and its neighbour, both ways, as ranges by core node.
    inner_first, inner_link : ndarray, int64
        Links of each connected part between switches that are not at the rim, as ranges by the smallest core node of the part.
    """

    plug_first: Ints
    switch: Ints
    cheapest: tuple[Ints, Ints]
    dearest: tuple[Ints, Ints]
    link_first: Ints
    link: Ints
    rim_first: Ints
    rim_link: Ints
    inner_first: Ints
    inner_link: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ReachedLinks:
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
def _reach_of(cluster: Cluster) -> Reach:
    """Return how a cluster hangs together; remembered by the identity of the cluster, which never changes."""
    tables, links = routes.tables(cluster), cluster.links
    source, target, n = tables.net.source, tables.net.target, len(tables.part)
    ends = distinct(np.concatenate((source * n + target, target * n + source)))
    at_rim = np.bincount(ends // n, minlength=n) == 1
    position = np.concatenate((np.flatnonzero(at_rim[source]), np.flatnonzero(at_rim[target])))
    rim_first, order = routes.ranges(np.concatenate((source[at_rim[source]], target[at_rim[target]])), n)
    inner = np.flatnonzero(~at_rim[source] & ~at_rim[target])
    inner_first, by_part = routes.ranges(tables.part[source[inner]], n)
    link = np.concatenate((tables.out_link, tables.in_link))
    up = np.arange(len(link)) < len(tables.out_link)
    device = np.where(up, links.source[link], links.target[link])
    switch = tables.core_of_node[np.where(up, links.target[link], links.source[link])]
    plugs, plug = np.unique(device * n + switch, return_inverse=True)
    link_first, by_plug = routes.ranges(plug, len(plugs))
    cheapest, dearest = [], []
    for way in (up, ~up):
        least, most = np.full(len(plugs), NEVER), np.zeros(len(plugs), dtype=np.int64)
        np.minimum.at(least, plug[way], tables.cost[link[way]])
        np.maximum.at(most, plug[way], tables.cost[link[way]])
        cheapest.append(least)
        dearest.append(most)
    return Reach(
        np.searchsorted(plugs, np.arange(cluster.n_devices + 1) * n), plugs % n, (cheapest[0], cheapest[1]),
        (dearest[0], dearest[1]), link_first, link[by_plug], rim_first, tables.link_of_core[position[order]], inner_first,
        tables.link_of_core[inner[by_part]],
    )  # fmt: skip


def reach(cluster: Cluster, groups: Ints) -> ReachedLinks:
    """Return the links that shortest ways between the members of each group can use, and perhaps some more.

    Parameters
    ----------
    cluster : Cluster
        Its devices do not forward.
    groups : ndarray, shape (n_groups, size), int64
        Devices. Where devices have links to each other, no two groups share a device.

    Returns
    -------
    ReachedLinks
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
    n_core, size = len(tables.part), groups.shape[1]
    member, plug = spread(rim.plug_first, np.arange(groups.size), groups.ravel())
    place = member // size * n_core + tables.part[rim.switch[plug]]
    order = in_order(place)
    member, plug, place = member[order], plug[order], place[order]
    first = np.flatnonzero(np.diff(place, prepend=-1))
    row, node = place // n_core, rim.switch[plug]
    several = np.maximum.reduceat(node, first) != np.minimum.reduceat(node, first)
    device = groups.ravel()[member]
    kept = np.maximum.reduceat(device, first) != np.minimum.reduceat(device, first)
    if not cluster.reduces_in_switch:
        kept &= _near(rim, plug, first, row[first], ~several & (np.diff(np.append(first, len(place))) == size))
    counts = np.diff(np.append(first, len(place)))
    used = np.flatnonzero(np.repeat(kept, counts))
    link_row, at = spread(rim.link_first, row[used], plug[used])
    over = np.flatnonzero(np.repeat(kept & several, counts))
    terminal = distinct(row[over] * n_core + node[over])
    core_row, core_at = spread(rim.rim_first, terminal // n_core, terminal % n_core)
    crossed = first[kept & several]
    part_row, part = row[crossed], tables.part[node[crossed]]
    inside = rim.inner_first[part + 1] > rim.inner_first[part]
    straight_row, straight = _straight(cluster, tables, groups)
    return ReachedLinks(
        np.concatenate((link_row, straight_row)), np.concatenate((rim.link[at], straight)),
        core_row, rim.rim_link[core_at], part_row[inside], part[inside],
    )  # fmt: skip


def _near(rim: Reach, plug: Ints, first: Ints, row: Ints, common: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return of every row and part whether a shortest way can lead through it.

    `plug`: by row and part; `first`: where those of each begin; `row`: of each; `common`: whether it is one switch with a plug
    of every member.
    """
    least_up, least_down = (np.minimum.reduceat(way[plug], first) for way in rim.cheapest)
    most_up, most_down = (np.maximum.reduceat(way[plug], first) for way in rim.dearest)
    limit = np.full(int(row.max(initial=-1)) + 1, 2 * NEVER)
    for way in rim.cheapest:  # every member can go up and down
        common = common & (np.maximum.reduceat(way[plug], first) < NEVER)
    np.minimum.at(limit, row[common], (most_up + most_down)[common])
    return (least_up + least_down < NEVER) & (least_up + least_down <= limit[row])


def inner_links(cluster: Cluster, owner: Ints, part: Ints) -> tuple[Ints, Ints]:
    """Return owner and link of every link inside the rims of some connected parts, which have some.

    `owner`, `part`, shape (n_pairs,), int64: who may use the links of which part; equal pairs count once.
    """
    rim = _reach_of(cluster)
    n = len(rim.inner_first)
    pair = distinct(owner * n + part)
    found, at = spread(rim.inner_first, pair // n, pair % n)
    return found, rim.inner_link[at]


def spread(first: Ints, owner: Ints, key: Ints) -> tuple[Ints, Ints]:
    """Return the owner and the position of everything in the ranges of some keys.

    `first`, shape (n_keys + 1,), int64: where the range of each key begins.
    `owner`, `key`, shape (n_asked,), int64: whose key it is.
    """
    begin = first[key]
    count = first[key + 1] - begin
    if len(count) and (count == count[0]).all():
        n = int(count[0])
        return np.repeat(owner, n), (begin[:, None] + np.arange(n)).ravel()
    before = np.cumsum(count) - count
    return np.repeat(owner, count), np.arange(int(count.sum())) - np.repeat(before - begin, count)


def in_order(key: Ints) -> Ints:
    """Return the positions of keys, none below 0, in rising order, equal ones as they stand: a stable argsort, but quicker."""
    bits = len(key).bit_length()
    if (key[1:] >= key[:-1]).all():
        return np.arange(len(key))
    if int(key.max()) >> (62 - bits):
        return np.argsort(key, kind="stable")
    return np.asarray(np.sort((key << bits) | np.arange(len(key))) & ((1 << bits) - 1))


def _straight(cluster: Cluster, tables: routes.RoutingTables, groups: Ints) -> tuple[Ints, Ints]:
    """Return row and link of every link from one member to another."""
    if not len(tables.direct_link):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    row_of = np.full(cluster.n_devices, -1)
    row_of[groups] = np.arange(len(groups))[:, None]
    ends = cluster.links.source[tables.direct_link], cluster.links.target[tables.direct_link]
    inside = (row_of[ends[0]] >= 0) & (row_of[ends[0]] == row_of[ends[1]])
    return row_of[ends[0]][inside], tables.direct_link[inside]
