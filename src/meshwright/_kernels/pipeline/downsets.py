"""Kernels: enumerate the successor-closed sets of a directed acyclic graph, and which contains which."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.arrays import copy, copy_rows
from meshwright._kernels.compiling import kernel, part

__all__ = ["enumerate_downsets"]

ONE = np.uint64(1)


@part
def _slot(table, words, row, n_words):
    """Return the position in the hash table where the set `words[row]` is, or would be put."""
    # 32-bit halves times 31-bit factors: no step overflows, so that it runs the same uncompiled.
    half = np.uint64(0xFFFFFFFF)
    mixed = np.uint64(0)
    for w in range(n_words):
        for piece in (words[row, w] & half, words[row, w] >> np.uint64(32)):
            mixed = ((mixed ^ piece) * np.uint64(0x5BD1E995)) & half
            mixed ^= mixed >> np.uint64(15)
    mask = np.uint64(len(table) - 1)
    at = mixed & mask
    while True:
        other = table[at]
        if other < 0:
            return at
        same = True
        for w in range(n_words):
            if words[other, w] != words[row, w]:
                same = False
                break
        if same:
            return at
        at = (at + ONE) & mask


@kernel(allocates=True)
def enumerate_downsets(n_nodes, out_first, out_node, in_first, in_node, limit):
    """Enumerate the sets closed under successors, by size, then by the order they are found in.

    Parameters
    ----------
    n_nodes : int
        Number of nodes.
    out_first, out_node : ndarray, shapes (n_nodes + 1,) and (n_edges,), int64
        Heads of the edges out of each node.
    in_first, in_node : ndarray, shapes (n_nodes + 1,) and (n_edges,), int64
        Tails of the edges into each node.
    limit : int
        Most sets to enumerate.

    Returns
    -------
    n_sets : int
        Number of sets, or -1 when there are more than `limit`.
    words : ndarray, shape (n_sets, n_words), uint64
        Members of each set as bits.
    link_from, link_to : ndarray, shape (n_links,), int32
        Every pair of sets that differ by one node: the smaller, the larger.
    """
    n_words = (n_nodes + 63) // 64
    capacity = min(1024, limit + 1)
    words = np.zeros((capacity + 1, n_words), np.uint64)
    ready = np.zeros((capacity + 1, n_words), np.uint64)
    table = np.full(4096, -1, np.int64)
    link_from = np.empty(4096, np.int32)
    link_to = np.empty(4096, np.int32)
    n_links = 0
    for v in range(n_nodes):
        if out_first[v] == out_first[v + 1]:
            ready[0, v >> 6] |= ONE << np.uint64(v & 63)
    n_sets = 1
    table[_slot(table, words, 0, n_words)] = 0
    at = 0
    while at < n_sets:
        for w in range(n_words):
            left = ready[at, w]
            while left != 0:
                bit = left & (~left + ONE)
                left ^= bit
                low = bit - ONE
                v = w * 64
                while low != 0:
                    low &= low - ONE
                    v += 1
                if n_sets == capacity:
                    if capacity >= limit + 1:
                        return -1, words[:1], link_from[:0], link_to[:0]
                    capacity = min(2 * capacity, limit + 1)
                    larger = np.zeros((capacity + 1, n_words), np.uint64)
                    copy_rows(larger, words, n_sets)
                    words = larger
                    larger_ready = np.zeros((capacity + 1, n_words), np.uint64)
                    copy_rows(larger_ready, ready, n_sets)
                    ready = larger_ready
                    table = np.full(2 * len(table), -1, np.int64)
                    for row in range(n_sets):
                        table[_slot(table, words, row, n_words)] = row
                copy(words[n_sets], words[at], n_words)
                words[n_sets, w] |= bit
                place = _slot(table, words, n_sets, n_words)
                found = table[place]
                if found < 0:
                    found = n_sets
                    table[place] = found
                    copy(ready[found], ready[at], n_words)
                    ready[found, w] ^= bit
                    for e in range(in_first[v], in_first[v + 1]):
                        u = in_node[e]
                        closed = True
                        for f in range(out_first[u], out_first[u + 1]):
                            x = out_node[f]
                            if not (words[found, x >> 6] >> np.uint64(x & 63)) & ONE:
                                closed = False
                                break
                        if closed:
                            ready[found, u >> 6] |= ONE << np.uint64(u & 63)
                    n_sets += 1
                if n_links == len(link_from):
                    longer = np.empty(2 * n_links, np.int32)
                    copy(longer, link_from, n_links)
                    link_from = longer
                    longer = np.empty(2 * n_links, np.int32)
                    copy(longer, link_to, n_links)
                    link_to = longer
                link_from[n_links] = at
                link_to[n_links] = found
                n_links += 1
        at += 1
    if n_sets > limit:
        return -1, words[:1], link_from[:0], link_to[:0]
    return n_sets, words[:n_sets].copy(), link_from[:n_links].copy(), link_to[:n_links].copy()
