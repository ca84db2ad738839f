"""Which links several lanes may fill together, as arrays for the event loop, and what links carry over a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.events.max_min import Flows
from meshwright.base.identity import distinct, locked
from meshwright.sim.traffic import NO_RANKS, PARTS, Traffic
from meshwright.sim.transfers import Transfers

__all__ = ["carried_bytes", "flows", "lanes"]

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))
"""Odd multipliers that spread bits (those of splitmix64: Steele, Lea and Flood, OOPSLA 2014)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Every flow on every link it uses."""

    flow: NDArray[np.int64]
    link: NDArray[np.int64]
    share: NDArray[np.float64]  # of the link's bandwidth, while the flow is alone

    def of(self, kept: NDArray[Any]) -> _Entries:
        """Return some of the entries."""
        return _Entries(self.flow[kept], self.link[kept], self.share[kept])


def lanes(sends: Transfers, rank_of_stage: NDArray[np.int64], paired_ranks: NDArray[np.int64] = NO_RANKS) -> NDArray[np.int64]:
    """Return what carries each flow, one at a time; shape (n_parts * n_stages + 4 * n_sorts,), int64, -1 for none.

    Channels come first, then a lane of every rank for blocking collectives, for those beside compute, for the end of the step.
    `paired_ranks`, shape (n_sorts,), int64: the rank of every sort of pair.
    """
    rank = np.asarray(rank_of_stage, dtype=np.int64)
    n_ranks, first = int(rank.max()) + 1, int(sends.channel.max()) + 1
    of_parts = [sends.channel[0], sends.channel[1]]
    of_parts += [first + (part // 2) * n_ranks + rank for part in range(len(PARTS))]
    of_pairs = first + paired_ranks[:, None] + n_ranks * np.array([0, 1, 0, 1])
    return np.concatenate((*of_parts, of_pairs.ravel()))


def flows(sends: Transfers, traffic: Traffic | None, rank_of_stage: NDArray[np.int64]) -> Flows | None:
    """Return the links that several lanes may fill together; None where each has its links to itself.

    `rank_of_stage`, shape (n_stages,), int64: which rank runs each stage.
    Returns: links that have room for all their lanes at full speed are left out: they never slow anything down. Of links
    that carry the same shares of the same flows, one is kept: replicas behave alike, so that thousands of links are a few.
    """
    if sends.link_bytes_per_second is None:
        return None
    n_stages = sends.channel.shape[1]
    lane = lanes(sends, rank_of_stage, NO_RANKS if traffic is None else traffic.paired_ranks)
    seconds, latency = np.zeros((2, len(lane)))
    seconds[: 2 * n_stages], latency[: 2 * n_stages] = sends.seconds.ravel(), sends.latency_seconds.ravel()
    if traffic is not None:
        seconds[2 * n_stages :] = np.concatenate((traffic.seconds.ravel(), traffic.paired_seconds))
    entries = _entries(sends, traffic, seconds - latency)
    entries = _one_of_a_kind(_tight(entries, lane), len(seconds))
    if not len(entries.flow):
        return None
    # A flow's unit is its share of the link that it fills most: on a full link, whoever needs less than its part leaves the
    # rest.
    ceiling = np.zeros(len(seconds))
    np.maximum.at(ceiling, entries.flow, entries.share)
    entries = entries.of(np.lexsort((entries.link, entries.flow)))
    n_links = int(entries.link.max()) + 1
    arrays = (
        seconds, latency, np.where(ceiling > 0.0, ceiling, 1.0), np.searchsorted(entries.flow, np.arange(len(seconds) + 1)),
        entries.link, entries.flow, entries.share / ceiling[entries.flow],
        np.concatenate(([0], np.cumsum(np.bincount(entries.link, minlength=n_links)))), lane,
    )  # fmt: skip
    return Flows(*(locked(array) for array in arrays))


def carried_bytes(sends: Transfers, traffic: Traffic | None, n_microbatches: int) -> NDArray[np.float64]:
    """Return the bytes that every link carries in one step; shape (n_links,), float64, empty where links are not known."""
    if sends.link_bytes_per_second is None:
        return np.empty(0)
    total = np.zeros(len(sends.link_bytes_per_second))
    for links, n_bytes in zip(sends.links, sends.busy_bytes, strict=True):
        total[links] += n_microbatches * n_bytes
    if traffic is not None:
        n_stages = sends.channel.shape[1]
        for flow, (links, n_bytes) in enumerate(zip(traffic.links, traffic.bytes, strict=True)):  # pairs carry no more
            total[links] += n_bytes * (1 if PARTS[flow // n_stages] in ("reduce", "gather") else n_microbatches)
    total.setflags(write=False)
    return total


def _entries(sends: Transfers, traffic: Traffic | None, carry_seconds: NDArray[np.float64]) -> _Entries:
    """Return every flow on one link of every class (`_examples`), with the share of the link that it takes while alone."""
    assert sends.link_bytes_per_second is not None
    own = [(own, n_bytes) for own, n_bytes in zip(sends.links, sends.busy_bytes, strict=True)]
    if traffic is not None:
        own += zip(traffic.links + traffic.paired_links, traffic.bytes + traffic.paired_bytes, strict=True)
    carrying = [flow for flow in np.flatnonzero(carry_seconds > 0.0).tolist() if flow < len(own) and len(own[flow][0])]
    few = _examples([own[flow] for flow in carrying], sends.link_bytes_per_second)
    flow = np.repeat(np.array(carrying, dtype=np.int64), [len(links) for links, _ in few])
    link = np.concatenate([links for links, _ in few]) if few else np.empty(0, dtype=np.int64)
    amount = np.concatenate([n_bytes for _, n_bytes in few]) if few else np.empty(0)
    share = amount / sends.link_bytes_per_second[link] / carry_seconds[flow]
    # A cost model may say less time than the links need for the bytes it names (layers split better): nothing exceeds a link.
    most = np.ones(len(carry_seconds))
    np.maximum.at(most, flow, share)
    return _Entries(flow, link, share / most[flow])


def _examples(
    loads: list[tuple[NDArray[np.int64], NDArray[np.float64]]], bytes_per_second: NDArray[np.float64]
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return what loads put on one link of every class, the first one: links of one bandwidth, on which every load puts the
    same, to the last bit.

    `loads`: links, rising, and bytes on them; loads that are the same arrays are looked at once.
    `bytes_per_second`, shape (n_links,), float64: of every link.

    Notes
    -----
    Flows that share one link of a class share all of it alike: whatever is worked out from bandwidth and loads of links one by
    one, and of the fullest of them, comes out the same from one link of every class. Classes are told apart by 64 bits mixed
    from the bandwidth and from every load in turn; that two of a million links get the same bits by chance has odds of one in
    ten million.
    """
    code = bytes_per_second.view(np.uint64) * _MIX[0]
    different = {(id(links), id(n_bytes)): (links, n_bytes) for links, n_bytes in loads}
    used = np.zeros(len(code), dtype=bool)
    for number, (links, n_bytes) in enumerate(different.values(), start=1):
        mixed = (code[links] ^ (n_bytes.view(np.uint64) * _MIX[1] + np.uint64(number))) * _MIX[0]
        code[links] = mixed ^ (mixed >> np.uint64(29))
        used[links[n_bytes > 0.0]] = True
    where = np.flatnonzero(used)
    kept = np.zeros(len(code), dtype=bool)
    classes = distinct(code[where])
    first = np.empty(len(classes), dtype=np.int64)
    first[np.searchsorted(classes, code[where])[::-1]] = where[::-1]  # the last to be written is the first
    kept[first] = True
    few = {}
    for key, (links, n_bytes) in different.items():
        mine = np.flatnonzero(kept[links] & (n_bytes > 0.0))
        few[key] = links[mine], n_bytes[mine]
    return [few[id(links), id(n_bytes)] for links, n_bytes in loads]


def _tight(entries: _Entries, lane: NDArray[np.int64]) -> _Entries:
    """Return the entries of links that are full when every lane on them carries its most demanding flow at full speed."""
    if not len(entries.flow):
        return entries
    n_lanes = int(lane.max()) + 1
    key = entries.link * n_lanes + lane[entries.flow]
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    asked = np.maximum.reduceat(entries.share[order], first)
    link = key[order][first] // n_lanes
    n_links = int(entries.link.max()) + 1
    tight = (np.bincount(link, asked, n_links) > 1.0 + 1e-9) & (np.bincount(link, minlength=n_links) > 1)
    return entries.of(np.flatnonzero(tight[entries.link]))


def _one_of_a_kind(entries: _Entries, n_flows: int) -> _Entries:
    """Return the entries of one link of each kind, links numbered from 0: those that carry the same are of one kind.

    Two random sums of what a link carries tell kinds apart. Shares add up in any order: what differs by rounding only is the
    same.
    """
    if not len(entries.flow):
        return entries
    random = np.random.default_rng(0).uniform(1.0, 2.0, (2, n_flows))
    links, number = np.unique(entries.link, return_inverse=True)
    sums = [np.bincount(number, entries.share * weight[entries.flow], len(links)) for weight in random]
    keys = np.column_stack([_rounded(column) for column in sums])
    _, example, kind = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    kept = np.zeros(len(links), dtype=bool)
    kept[example] = True
    mine = np.flatnonzero(kept[number])
    return _Entries(entries.flow[mine], kind.ravel()[number[mine]], entries.share[mine])


def _rounded(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return values to ten digits; equal ones, of which there are many, are rounded once."""
    different, which = np.unique(values, return_inverse=True)
    return np.array([float(f"{value:.9e}") for value in different])[which]
