"""Loops that list the ideals (down-sets) of a graph that cut few nets: unit after unit is put in or out, below limits."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import kernel, part

__all__ = ["cheap_ideals", "reaches"]


@kernel(allocates=True)
def reaches(a):
    """Return as bits, for each unit: the units that must come after it (itself among them), the nets that have a pin among
    those, and the nets that it is a pin of.
    """
    n, n_nets = len(a.compute), len(a.net_cost)
    n_words, n_net_words = (n + 63) // 64, (n_nets + 63) // 64
    after = np.zeros((n, n_words), np.uint64)
    touched = np.zeros((n, n_net_words), np.uint64)
    own = np.zeros((n, n_net_words), np.uint64)
    for step in range(n):
        v = n - 1 - step
        after[v, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
        for e in range(a.unit_first[v], a.unit_first[v + 1]):
            net = a.unit_nets[e]
            own[v, net >> 6] |= np.uint64(1) << np.uint64(net & 63)
        for word in range(n_net_words):
            touched[v, word] |= own[v, word]
        for e in range(a.succ_first[v], a.succ_first[v + 1]):
            for word in range(n_words):
                after[v, word] |= after[a.succ[e], word]
            for word in range(n_net_words):
                touched[v, word] |= touched[a.succ[e], word]
    return after, touched, own


@part
def _weight(bits, word, weight):
    """Return the weights of the bits that are set in one word of a row."""
    total = 0.0
    for shift in range(min(64, len(weight) - 64 * word)):
        if (bits >> np.uint64(shift)) & np.uint64(1):
            total += weight[64 * word + shift]
    return total


@part
def _put_out(a, after, touched, net_cost, state, k, v):
    """Take unit v with all that must come after it out of ideal k."""
    _, outside, begun, ended, sums, unit = state
    for word in range(v >> 6, outside.shape[1]):
        new = after[v, word] & ~outside[k, word]
        if new:
            sums[k, 1] += _weight(new, word, a.compute)
            outside[k, word] |= new
    for word in range(ended.shape[1]):
        new = touched[v, word] & ~ended[k, word]
        if new & begun[k, word]:
            sums[k, 2] += _weight(new & begun[k, word], word, net_cost)
        ended[k, word] |= new
    unit[k] = v + 1


@part
def _put_in(a, own, net_cost, state, k, v):
    """Put unit v into ideal k, where all that must come before it is."""
    inside, _, begun, ended, sums, unit = state
    inside[k, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    sums[k, 0] += a.compute[v]
    for word in range(begun.shape[1]):
        new = own[v, word] & ~begun[k, word]
        if new & ended[k, word]:
            sums[k, 2] += _weight(new & ended[k, word], word, net_cost)
        begun[k, word] |= new
    unit[k] = v + 1


@part
def _copy(state, k, other):
    """Make ideal `other` what ideal k is."""
    inside, outside, begun, ended, sums, _ = state
    for word in range(inside.shape[1]):
        inside[other, word] = inside[k, word]
        outside[other, word] = outside[k, word]
    for word in range(begun.shape[1]):
        begun[other, word] = begun[k, word]
        ended[other, word] = ended[k, word]
    for column in range(3):
        sums[other, column] = sums[k, column]


@kernel(allocates=True)
def cheap_ideals(a, sides, bits_of, net_cost, window, shrinking, limits):
    """Return the ideals whose compute c and cost k of the nets they cut keep ``low + k <= c <= high - k`` and ``k <= most``.

    Unit after unit is put in, or out with all that must come after it. Compute in, compute out and the cost of nets with a pin
    on either side only grow on the way, so a branch ends where they break a limit.

    Parameters
    ----------
    a : Arrays
        The problem; its units are numbered topologically.
    sides : ndarray, shape (2, n), float64
        Compute of each unit with all that must come before it, and with all that must come after.
    bits_of : tuple of ndarray
        What `reaches` returns.
    net_cost : ndarray, shape (n_nets,), float64
        Cost of each net here.
    window : ndarray, shape (4,), float64
        low, high, most, and by how much sums may be wrong.
    shrinking : bool
        Whether each ideal found lowers `most` to just below its own cost: a search for the least.
    limits : ndarray, shape (2,), int64
        Most ideals to return, and most steps to take.

    Returns
    -------
    bits : ndarray, shape (n_found, n_words), uint64
        The ideals.
    most : float
        Where the search is complete, ideals of the window that are not returned cost more than this.
    n_taken : int
        Steps taken.
    complete : bool
        Whether both limits were enough.
    """
    after, touched, own = bits_of
    n, n_words, n_net_words = len(a.compute), after.shape[1], own.shape[1]
    low, high, most, slack = window[0], window[1], window[2], window[3]
    total = 0.0
    for v in range(n):
        total += a.compute[v]
    found = np.zeros((limits[0], n_words), np.uint64)
    sums = np.zeros((n + 2, 3))  # compute in, compute out, cost of the nets cut
    unit = np.zeros(n + 2, np.int64)
    inside, outside = np.zeros((n + 2, n_words), np.uint64), np.zeros((n + 2, n_words), np.uint64)
    # nets with a pin in, and those with a pin out
    begun, ended = np.zeros((n + 2, n_net_words), np.uint64), np.zeros((n + 2, n_net_words), np.uint64)
    state = (inside, outside, begun, ended, sums, unit)
    m, top, n_taken = 0, 0, 0
    while top >= 0:
        if n_taken == limits[1]:
            return found[:m], most, n_taken, False
        n_taken += 1
        v, cut = unit[top], sums[top, 2]
        least, largest = low + cut - slack, high - cut + slack
        if total - sums[top, 1] < least or sums[top, 0] > largest or cut > most:
            top -= 1
            continue
        while v < n and (outside[top, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
            v += 1
        if v == n:
            if m == limits[0]:
                return found[:m], most, n_taken, False
            for word in range(n_words):
                found[m, word] = inside[top, word]
            m += 1
            top -= 1
            if shrinking:
                most = cut - slack
            continue
        may_be_in, may_be_out = sides[0, v] <= largest, total - sides[1, v] >= least
        if may_be_in and may_be_out:
            _copy(state, top, top + 1)
            _put_in(a, own, net_cost, state, top + 1, v)
            _put_out(a, after, touched, net_cost, state, top, v)
            top += 1
        elif may_be_in:
            _put_in(a, own, net_cost, state, top, v)
        elif may_be_out:
            _put_out(a, after, touched, net_cost, state, top, v)
        else:
            top -= 1
    return found[:m], most, n_taken, True
