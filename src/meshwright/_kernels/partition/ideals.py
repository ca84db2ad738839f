"""Loops over ideals (down-sets) of a graph: closures, the ideals of a window, and the nets that ideals cut."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.arrays import copy
from meshwright._kernels.compiling import kernel, part

__all__ = ["closures", "cut_lists", "enumerate_window"]


@kernel(allocates=True)
def closures(first, neighbour, weight, descending):
    """Return for each unit the weight of everything reachable through `neighbour`, the unit included.

    Units must be numbered so that neighbours come before (``descending=False``) or after (``True``).
    """
    n = len(weight)
    n_words = (n + 63) // 64
    reach = np.zeros((n, n_words), np.uint64)
    total = np.zeros(n)
    for step in range(n):
        v = n - 1 - step if descending else step
        for k in range(first[v], first[v + 1]):
            for word in range(n_words):
                reach[v, word] |= reach[neighbour[k], word]
        reach[v, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
        for word in range(n_words):
            bits = reach[v, word]
            if bits:
                for shift in range(min(64, n - word * 64)):
                    if (bits >> np.uint64(shift)) & np.uint64(1):
                        total[v] += weight[word * 64 + shift]
    return total


@part
def _inside(bits, offset, n_words, v):
    """Whether unit v is in the ideal."""
    word = (v >> 6) - offset
    if word < 0:
        return True
    if word >= n_words:
        return False
    return (bits[word] >> np.uint64(v & 63)) & np.uint64(1) == np.uint64(1)


@part
def _hash(bits, n_words):
    value = np.uint64(1469598103934665603)
    for word in range(n_words):
        value ^= bits[word]
        value ^= value << np.uint64(13)  # xorshift: products would overflow loudly without the compiler
        value ^= value >> np.uint64(7)
        value ^= value << np.uint64(17)
    return value


@kernel(allocates=True)
def enumerate_window(a, active, start_bits, offset, low, high, capacity):
    """Return all ideals whose compute lies in [low, high]: bits, compute, and whether the capacity was enough.

    Walks over ideals by adding or removing one unit at a time within ``[low, high]`` widened by the largest active unit around
    the middle: from any ideal to any other there is a path of additions (below the middle) and removals (above it) that stays
    there, so the walk reaches all of them.
    """
    n_words = len(start_bits)
    bits = np.zeros((capacity, n_words), np.uint64)
    compute = np.zeros(capacity)
    n_slots = 1
    while n_slots < 2 * capacity:
        n_slots *= 2
    table = np.full(n_slots, -1, np.int32)
    mask = np.uint64(n_slots - 1)
    bits[0] = start_bits
    total = 0.0
    for v in range(len(a.compute)):
        if _inside(start_bits, offset, n_words, v):
            total += a.compute[v]
    compute[0] = total
    table[np.int64(_hash(start_bits, n_words) & mask)] = 0
    n = 1
    i = 0
    largest = 0.0
    for k in range(len(active)):
        largest = max(largest, a.compute[active[k]])
    middle = 0.5 * (low + high)
    slack = 1e-9 * (abs(high) + largest)
    wide_low = min(low, middle - largest) - slack
    wide_high = max(high, middle + largest) + slack
    candidate = np.zeros(n_words, np.uint64)
    complete = True
    while i < n and complete:
        for k in range(len(active)):
            v = active[k]
            present = _inside(bits[i], offset, n_words, v)
            value = compute[i] - a.compute[v] if present else compute[i] + a.compute[v]
            if value < wide_low or value > wide_high:
                continue
            allowed = True
            if present:
                for e in range(a.succ_first[v], a.succ_first[v + 1]):
                    if _inside(bits[i], offset, n_words, a.succ[e]):
                        allowed = False
                        break
            else:
                for e in range(a.pred_first[v], a.pred_first[v + 1]):
                    if not _inside(bits[i], offset, n_words, a.pred[e]):
                        allowed = False
                        break
            if not allowed:
                continue
            for word in range(n_words):
                candidate[word] = bits[i, word]
            candidate[(v >> 6) - offset] ^= np.uint64(1) << np.uint64(v & 63)
            slot = _hash(candidate, n_words) & mask
            known = False
            while table[np.int64(slot)] >= 0:
                other = table[np.int64(slot)]
                same = True
                for word in range(n_words):
                    if bits[other, word] != candidate[word]:
                        same = False
                        break
                if same:
                    known = True
                    break
                slot = (slot + np.uint64(1)) & mask
            if known:
                continue
            if n == capacity:
                complete = False
                break
            for word in range(n_words):
                bits[n, word] = candidate[word]
            compute[n] = value
            table[np.int64(slot)] = n
            n += 1
        i += 1
    return bits[:n], compute[:n], complete


@kernel(allocates=True)
def cut_lists(a, bits, offset, nets, n_always_in):
    """Return compute, host time, memory, unsupported units, cut cost and size of each ideal, and the nets it cuts.

    Parameters
    ----------
    a : Arrays
        The problem.
    bits, offset : ndarray
        Ideals of one window, and its first word.
    nets : ndarray, shape (n_candidates,), int64
        Nets that some ideal of the window may cut, ascending.
    n_always_in : int
        Units before the first word: members of every ideal.
    """
    n, n_words = bits.shape
    sums = np.zeros((n, 6))
    base = np.zeros(4)
    for v in range(n_always_in):
        base[0] += a.compute[v]
        base[1] += a.host[v]
        base[2] += a.memory[v]
        base[3] += 1.0 - a.supported[v]
    first = np.zeros(n + 1, np.int64)
    size = 1024
    net_of = np.zeros(size, np.int64)
    inside_of = np.zeros(size, np.int64)
    m = 0
    last = min(len(a.compute), (offset + n_words) * 64)
    for i in range(n):
        for c in range(4):
            sums[i, c] = base[c]
        sums[i, 5] = n_always_in
        for v in range(n_always_in, last):
            if _inside(bits[i], offset, n_words, v):
                sums[i, 0] += a.compute[v]
                sums[i, 1] += a.host[v]
                sums[i, 2] += a.memory[v]
                sums[i, 3] += 1.0 - a.supported[v]
                sums[i, 5] += 1.0
        for k in range(len(nets)):
            net = nets[k]
            inside = 0
            for e in range(a.net_first[net], a.net_first[net + 1]):
                if _inside(bits[i], offset, n_words, a.net_pins[e]):
                    inside += 1
            if inside == 0 or inside == a.net_first[net + 1] - a.net_first[net]:
                continue
            if m == size:
                grown = np.zeros(2 * size, np.int64)
                copy(grown, net_of, size)
                net_of = grown
                grown = np.zeros(2 * size, np.int64)
                copy(grown, inside_of, size)
                inside_of = grown
                size *= 2
            net_of[m] = net
            inside_of[m] = inside
            sums[i, 4] += a.net_cost[net]
            m += 1
        first[i + 1] = m
    return sums, first, net_of[:m], inside_of[:m]
