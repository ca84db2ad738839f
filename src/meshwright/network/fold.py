"""Groups that look alike on a cluster are worked out once (`fold`): one of every class, on the links that it can use."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import distinct
from meshwright.core.cluster import Cluster, Links
from meshwright.network import routes
from meshwright.network.reach import ReachedLinks, in_order, inner_links, reach
from meshwright.network.wired import ClusterPart, Wired

__all__ = ["Fold", "fold"]

SMALL = 256
"""Groups on clusters of fewer links are all worked out: that takes no longer than to look for classes."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """One set of groups of every class, on a part of the cluster that has what they can use.

    Parameters
    ----------
    part : Wired
        The links that they can use, and the devices and switches at the ends of these; the cluster itself where nothing folds.
    groups : ndarray, shape (n_kept, size), int64
        The kept groups, in the numbers of `part`.
    rows : ndarray, shape (n_kept,), int64
        Which rows of the table they are, rising.
    links : ndarray, shape (n_used,), int64
        Links of the cluster that any of the groups can use, rising.
    copy_of : ndarray, shape (n_used,), int64
        The link of `part` that carries what each of them carries.
    key : bytes
        Equal where `part` and `groups` are.
    """

    part: Wired
    groups: Ints
    rows: Ints
    links: Ints
    copy_of: Ints
    key: bytes

    def sized(self) -> tuple[Fold, int]:
        """Return the same with how many links it names, for a memo."""
        return self, len(self.links)

    def spread(self, load: Floats) -> tuple[Ints, Floats]:
        """Return the links of the cluster that carry something, rising, and what each carries; both read-only.

        `load`, shape (links of `part`,), float64: what those carry.
        """
        amount = load[self.copy_of]
        used = np.flatnonzero(amount > 0.0)
        found = self.links[used], amount[used]
        for array in found:
            array.setflags(write=False)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Sets:
    """Sets of groups that share no link with each other, numbered from 0.

    Parameters
    ----------
    of_row : ndarray, shape (n_groups,), int64
        The set of each group.
    of_link, link : ndarray, shape (n_used,), int64
        What each set can use: by set, then rising.
    of_node, node : ndarray, shape (n_ends,), int64
        Devices and switches of each set: by set, then rising.
    """

    of_row: Ints
    of_link: Ints
    link: Ints
    of_node: Ints
    node: Ints


def fold(cluster: Cluster, groups: Ints, share: Floats | None = None) -> Fold:
    """Return one set of groups of every class, on the part of the cluster that it can use.

    Parameters
    ----------
    cluster : Cluster
        Where the groups are.
    groups : ndarray, shape (n_groups, size), int64
        Devices; all groups communicate at once.
    share : ndarray, shape (n_groups,), float64, or None
        What each group has to send, where that differs.

    Returns
    -------
    Fold
        What is to be worked out, and which links carry the same.

    Notes
    -----
    *Lemma.* Whatever `collectives.ways` and `routes.load` say of all groups on the cluster they say, to the last digit, of the
    kept groups on `part`: the same algorithms with the same latency and seconds per byte, and every link of the cluster carries
    what its copy carries.

    *Proof.* (1) They look at the members of groups, at links on shortest ways between these, and at nothing else; `reach`
    leaves out none of these links. Numbers are handed out in the old order, and sums are taken in the order of numbers.
    (2) Groups fall into sets that share no link (`_labels`), so that a link carries what one set puts on it, and each set may
    be looked at alone. (3) Two sets are of one class if they are equal number by number once each has numbers of its own, in
    the old order, for devices, switches and links: the same groups of the same devices, which are together on the same levels,
    the same ends, bandwidth and latency of every link, the same shares. The same work on equal numbers has equal results.
    (4) A time is the largest over groups and links, step by step, and a condition (a regular layout, links between all
    members) holds for all groups or not at all; one set of every class decides these as all of them do.

    Where devices forward, groups share devices that are joined to each other, or the cluster is small, all of it is kept.
    """
    groups = np.ascontiguousarray(groups, dtype=np.int64)
    if cluster.forwards or len(cluster.links) < SMALL:
        return _nothing_folded(cluster, groups, share)
    apart = int(np.bincount(groups.ravel(), minlength=1).max()) < 2
    if not apart and len(routes.tables(cluster).direct_link):
        return _nothing_folded(cluster, groups, share)
    reached = reach(cluster, groups)
    sets = _sets(cluster, groups, reached, _labels(groups, reached, len(cluster.links), apart=apart))
    return _folded(cluster, groups, share, sets, _examples(sets, _content(cluster, groups, sets, share)))


def _nothing_folded(cluster: Cluster, groups: Ints, share: Floats | None) -> Fold:
    """Return all groups on the whole cluster."""
    every = np.arange(len(cluster.links))
    return Fold(cluster, groups, np.arange(len(groups)), every, every, _key((groups, share)))


def _key(arrays: tuple[NDArray[np.int64] | NDArray[np.float64] | None, ...]) -> bytes:
    """Return a digest of arrays: shapes and content."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(b"-" if array is None else repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return found.digest()


def _labels(groups: Ints, reached: ReachedLinks, n_links: int, *, apart: bool) -> Ints:
    """Return for every group the first one that it shares links with, or that shares links with such a one, and so on.

    `apart`: whether no device is in two groups; links between devices and switches are shared only where it is not.
    """
    row = [reached.core_row, reached.part_row]
    token = [reached.core_link, n_links + reached.part]
    if not apart:
        row.append(reached.row)
        token.append(reached.link)
    rows, tokens = np.concatenate(row), np.concatenate(token)
    names = distinct(tokens)
    index = np.searchsorted(names, tokens)
    label = np.arange(len(groups))
    while True:
        least = np.full(len(names), len(groups))
        np.minimum.at(least, index, label[rows])
        smaller = label.copy()
        np.minimum.at(smaller, rows, least[index])
        smaller = smaller[smaller]
        if np.array_equal(smaller, label):
            return label
        label = smaller


def _sets(cluster: Cluster, groups: Ints, reached: ReachedLinks, label: Ints) -> _Sets:
    """Return the sets of groups with their links and nodes."""
    n_links, n_nodes = len(cluster.links), cluster.n_devices + cluster.n_switches
    of_row = (np.cumsum(label == np.arange(len(label))) - 1)[label]  # the first of a set is its own label
    owner, inner = inner_links(cluster, of_row[reached.part_row], reached.part)
    key = distinct(
        np.concatenate((
            of_row[reached.row] * n_links + reached.link, of_row[reached.core_row] * n_links + reached.core_link,
            owner * n_links + inner,
        ))
    )  # fmt: skip
    of_link, link = np.divmod(key, n_links)
    ends = np.concatenate((cluster.links.source[link], cluster.links.target[link]))
    switches = np.flatnonzero(ends >= cluster.n_devices)
    nodes = distinct(
        np.concatenate((
            np.repeat(of_row, groups.shape[1]) * n_nodes + groups.ravel(),
            np.concatenate((of_link, of_link))[switches] * n_nodes + ends[switches],
        ))
    )  # fmt: skip
    of_node, node = np.divmod(nodes, n_nodes)
    return _Sets(of_row, of_link, link, of_node, node)


def _content(cluster: Cluster, groups: Ints, sets: _Sets, share: Floats | None) -> list[tuple[Ints, Ints]]:
    """Return what makes sets alike, as columns of whole numbers with the set of every entry: all sizes and content in numbers
    of each set's own.
    """
    links, n_nodes = cluster.links, cluster.n_devices + cluster.n_switches
    n_sets = int(sets.of_row.max()) + 1
    key, first = sets.of_node * n_nodes + sets.node, np.searchsorted(sets.of_node, np.arange(n_sets))
    where = np.empty(n_nodes, dtype=np.int64)
    where[sets.node] = np.arange(len(sets.node))  # of nodes in several sets, the place in one of them
    by_set = in_order(sets.of_row)
    of_member = np.repeat(sets.of_row[by_set], groups.shape[1])

    def own(of: Ints, node: Ints) -> Ints:
        place = where[node]
        other = np.flatnonzero(sets.of_node[place] != of)
        place[other] = np.searchsorted(key, of[other] * n_nodes + node[other])
        return np.asarray(place - first[of])

    devices = np.flatnonzero(sets.node < cluster.n_devices)
    of_device, device = sets.of_node[devices], sets.node[devices]
    columns = [
        (of_member, own(of_member, groups[by_set].ravel())),
        (sets.of_link, own(sets.of_link, links.source[sets.link])),
        (sets.of_link, own(sets.of_link, links.target[sets.link])),
        (sets.of_link, links.bytes_per_second[sets.link].view(np.int64)),
        (sets.of_link, links.latency_seconds[sets.link].view(np.int64)),
        (sets.of_node, (sets.node < cluster.n_devices).astype(np.int64)),
        *((of_device, _ranks(of_device, level[device])) for level in cluster.groups),
    ]
    if share is not None:
        columns.append((sets.of_row[by_set], np.ascontiguousarray(share, dtype=np.float64)[by_set].view(np.int64)))
    return columns


def _ranks(of: Ints, value: Ints) -> Ints:
    """Return the how-manieth of the different values of its set each value is; `of` rises."""
    value = value - value.min()
    n = int(value.max()) + 1
    if n > 1 << 30:
        value, n = np.unique(value, return_inverse=True)[1], len(value)
    order = in_order(of * n + value)
    new = np.diff((of * n + value)[order], prepend=-1) != 0
    rank = np.empty(len(of), dtype=np.int64)
    rank[order] = np.cumsum(new)
    return rank - rank[order][np.searchsorted(of, of)]


def _examples(sets: _Sets, columns: list[tuple[Ints, Ints]]) -> Ints:
    """Return for every set the first one that is equal to it, itself where none is."""
    n_sets = int(sets.of_row.max()) + 1
    counts = np.stack([np.bincount(of, minlength=n_sets) for of, _ in columns], axis=1)
    found = np.arange(n_sets)
    sizes, of_size = (counts[:1], np.zeros(n_sets, dtype=np.int64))
    if (counts != counts[0]).any():
        sizes, of_size = np.unique(counts, axis=0, return_inverse=True)
    for size in range(len(sizes)):
        alike = np.flatnonzero(of_size.ravel() == size)
        chosen = of_size.ravel() == size
        table = np.concatenate([value[chosen[of]].reshape(len(alike), -1) for of, value in columns], axis=1)
        if (table == table[0]).all():
            found[alike] = alike[0]
            continue
        _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        found[alike] = alike[first[which.ravel()]]
    return found


def _folded(cluster: Cluster, groups: Ints, share: Floats | None, sets: _Sets, example: Ints) -> Fold:
    """Return the groups and links of the first set of every class, and of which of these links every link is a copy."""
    n_sets, n = len(example), cluster.n_devices
    kept = example == np.arange(n_sets)
    rows = np.flatnonzero(kept[sets.of_row])
    links = np.sort(sets.link[kept[sets.of_link]])
    nodes = distinct(sets.node[kept[sets.of_node]])
    n_devices = int(np.searchsorted(nodes, n))
    table = np.searchsorted(nodes, groups[rows])
    wires = cluster.links
    columns = (
        np.searchsorted(nodes, wires.source[links]), np.searchsorted(nodes, wires.target[links]),
        wires.bytes_per_second[links], wires.latency_seconds[links],
    )  # fmt: skip
    levels = np.stack([np.unique(level[nodes[:n_devices]], return_inverse=True)[1] for level in cluster.groups])
    part = ClusterPart(
        n_devices, len(nodes) - n_devices, Links(*columns), levels, cluster.reduces_in_switch, cluster.algorithms,
        bool(routes.tables(cluster).net.even[0]),
    )  # fmt: skip
    first = np.searchsorted(sets.of_link, np.arange(n_sets))
    of_example = first[example][sets.of_link] + np.arange(len(sets.link)) - first[sets.of_link]
    place = np.full(len(wires), -1)
    place[links] = np.arange(len(links))
    place[sets.link] = place[sets.link[of_example]]
    used = np.flatnonzero(place >= 0)
    key = _key((np.array([n_devices]), table, *columns, levels, None if share is None else share[rows]))
    return Fold(part, table, rows, used, place[used], key)
