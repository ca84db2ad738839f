"""Max-min fair rates of flows on shared links, all found anew.

Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): the rates of all flows rise together until a link is
full, its flows stay at that level, and the others rise on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import part
from meshwright._kernels.heap import pop, push

__all__ = ["Filling", "fill"]


class Filling(NamedTuple):
    """Workspace of one filling; links are counted by how many open flows cross them.

    Attributes
    ----------
    n_open, at, left : ndarray, shape (n_links,)
        Open flows of a link, where its flows begin in `flow`, and the bandwidth that is not given away.
    used, heap_link : ndarray, int64
        Links that carry something; links in the heap.
    heap_level : ndarray, float64
        The rate at which each of those is full.
    flow : ndarray, shape (as many as all routes have links,), int64
        Flows of each link in turn.
    """

    n_open: np.ndarray
    at: np.ndarray
    left: np.ndarray
    used: np.ndarray
    heap_link: np.ndarray
    heap_level: np.ndarray
    flow: np.ndarray


@part
def fill(active, links, low, high, seconds_per_byte, rate, work):
    """Give the active flows their max-min fair rates (bytes per second); ``work.n_open`` is zero on entry and exit."""
    n_used = 0
    for f in active:
        rate[f] = -1.0
        for x in range(low[f], high[f]):
            link = links[x]
            if work.n_open[link] == 0:
                work.used[n_used] = link
                n_used += 1
            work.n_open[link] += 1
    place, n_heap = 0, 0
    for k in range(n_used):
        link = work.used[k]
        work.at[link] = place
        place += work.n_open[link]
        work.left[link] = 1.0 / seconds_per_byte[link]
        n_heap = push(work.heap_level, work.heap_link, n_heap, work.left[link] / work.n_open[link], link)
        work.n_open[link] = 0
    for f in active:
        for x in range(low[f], high[f]):
            link = links[x]
            work.flow[work.at[link] + work.n_open[link]] = f
            work.n_open[link] += 1
    # a link's level only rises while flows stop elsewhere: it is looked at again when its old level has come
    level = 0.0
    while n_heap > 0:
        before, link = work.heap_level[0], work.heap_link[0]
        n_heap = pop(work.heap_level, work.heap_link, n_heap)
        if work.n_open[link] == 0:
            continue
        full = max(level, work.left[link] / work.n_open[link])
        if full > before * (1.0 + 1e-12):
            n_heap = push(work.heap_level, work.heap_link, n_heap, full, link)
            continue
        level = full
        j = work.at[link]
        while work.n_open[link] > 0:
            f = work.flow[j]
            j += 1
            if rate[f] >= 0.0:
                continue
            rate[f] = level
            for x in range(low[f], high[f]):
                work.n_open[links[x]] -= 1
                work.left[links[x]] -= level
