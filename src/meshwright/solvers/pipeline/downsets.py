"""Successor-closed sets of a graph (the suffixes of every pipeline over it), all of them or those along given orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.pipeline import downsets as kernel

__all__ = ["all_downsets", "bits", "groups", "members", "suffixes"]

Family = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32]]


def groups(keys: NDArray[np.int64], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each group of equal keys begins, and the positions sorted by key.

    `keys`, shape (n_entries,), int64: keys in 0..n-1.
    `n`: number of groups.

    Returns
    -------
    first : ndarray, shape (n + 1,), int64
        First entry of each group.
    order : ndarray, shape (n_entries,), int64
        Positions, sorted by key, in their own order where keys are equal.
    """
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=n), out=first[1:])
    return first, np.argsort(keys, kind="stable").astype(np.int64)


def all_downsets(n_nodes: int, source: NDArray[np.int64], target: NDArray[np.int64], limit: int) -> Family | None:
    """Return every successor-closed set, or None when there are more than `limit`.

    `source`, `target`, shape (n_edges,), int64: ends of the edges of an acyclic graph.
    `limit`: most sets.

    Returns
    -------
    words : ndarray, shape (n_sets, n_words), uint64
        Members as bits, by size: the empty set first, all nodes last.
    link_first, link : ndarray, shapes (n_sets + 1,) and (n_links,), int64 and int32
        For each set, the sets with one node less.

    References
    ----------
    Tarnawski et al., "Piper" (NeurIPS 2021), section 4: the dynamic program goes over downsets.
    """
    out_first, by_source = groups(source, n_nodes)
    in_first, by_target = groups(target, n_nodes)
    n_sets, words, low, high = kernel.enumerate_downsets(
        n_nodes, out_first, target[by_source], in_first, source[by_target], limit
    )
    if n_sets < 0:
        return None
    first, order = groups(high.astype(np.int64), n_sets)
    return words, first, low[order]


def suffixes(n_nodes: int, orders: Iterable[Sequence[int]], cuts: Iterable[Iterable[int]]) -> Family:
    """Return the suffixes of topological orders that begin at given positions, as `all_downsets` does.

    `orders`: topological orders.
    `cuts`: for each order, the positions where a suffix may begin; 0 and the end are added.
    Returns: as of `all_downsets`; links lead to the next shorter suffix of the same order.
    """
    found: dict[bytes, int] = {}
    rows: list[NDArray[np.uint8]] = []
    pairs: set[tuple[int, int]] = set()
    n_words = (n_nodes + 63) // 64
    for order, place in zip(orders, cuts, strict=True):
        present = np.zeros(n_words * 64, np.uint8)
        end = n_nodes
        previous = -1
        for cut in sorted({0, n_nodes, *place}, reverse=True):
            present[list(order[cut:end])] = 1
            end = cut
            packed = np.packbits(present, bitorder="little")
            row = found.setdefault(packed.tobytes(), len(rows))
            if row == len(rows):
                rows.append(packed)
            if previous >= 0:
                pairs.add((row, previous))
            previous = row
    words = np.stack(rows).view(np.uint64)
    sizes = members(words, n_nodes).sum(axis=1)
    by_size = np.argsort(sizes, kind="stable")
    rank = np.empty(len(rows), np.int64)
    rank[by_size] = np.arange(len(rows))
    links = np.array(sorted((rank[high], rank[low]) for high, low in pairs), np.int64).reshape(-1, 2)
    first, order_ = groups(links[:, 0], len(rows))
    return np.ascontiguousarray(words[by_size]), first, links[order_, 1].astype(np.int32)


def members(words: NDArray[np.uint64], n_nodes: int) -> NDArray[np.uint8]:
    """Return the bits of sets as a matrix; shape (n_sets, n_nodes), uint8."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")[:, :n_nodes]


def bits(words: NDArray[np.uint64], upper: int, lower: int, n_nodes: int) -> tuple[int, ...]:
    """Return the nodes in one set and not in the other, ascending."""
    inside = members((words[upper] & ~words[lower])[None, :], n_nodes)[0]
    return tuple(int(v) for v in np.flatnonzero(inside))
