"""Max-min fair rates of flows that share links, and the times at which such flows end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from meshwright._kernels.heap import pop, push

__all__ = ["finish", "rates"]


class Work(NamedTuple):
    """Workspace of one filling: which flows each link carries, and per link what is left, how many flows and shares."""

    flow_first: np.ndarray
    flow: np.ndarray
    left: np.ndarray
    weight: np.ndarray
    n_open: np.ndarray
    used: np.ndarray
    heap_level: np.ndarray
    heap_link: np.ndarray


@njit(cache=True)
def _workspace(route_first, route_links, n_links):
    """Return the workspace, with the flows of each link."""
    n_flows = len(route_first) - 1
    flow_first = np.zeros(n_links + 1, dtype=np.int64)
    for k in range(len(route_links)):
        flow_first[route_links[k] + 1] += 1
    for link in range(n_links):
        flow_first[link + 1] += flow_first[link]
    free = flow_first.copy()
    flow = np.empty(len(route_links), dtype=np.int64)
    for f in range(n_flows):
        for k in range(route_first[f], route_first[f + 1]):
            flow[free[route_links[k]]] = f
            free[route_links[k]] += 1
    return Work(
        flow_first, flow, np.zeros(n_links), np.zeros(n_links), np.zeros(n_links, dtype=np.int64),
        np.empty(n_links, dtype=np.int64), np.empty(n_links + 1), np.empty(n_links + 1, dtype=np.int64),
    )  # fmt: skip


@njit(cache=True)
def _fill(route_first, route_links, route_shares, capacity, active, rate, work):
    """Fill the rates of the active flows progressively; ``work.n_open`` is zero on entry and exit.

    All rates rise together. A link is full at the level at which what its stopped flows leave is shared by the others; that
    level only rises when a flow stops elsewhere, so links wait in a heap and are looked at again when their turn has come.
    """
    n_used = 0
    for f in range(len(route_first) - 1):
        if not active[f]:
            continue
        rate[f] = np.inf if route_first[f] == route_first[f + 1] else -1.0
        for k in range(route_first[f], route_first[f + 1]):
            link = route_links[k]
            if work.n_open[link] == 0:
                work.used[n_used] = link
                n_used += 1
                work.left[link] = capacity[link]
                work.weight[link] = 0.0
            work.n_open[link] += 1
            work.weight[link] += route_shares[k]
    n_heap = 0
    for i in range(n_used):
        link = work.used[i]
        n_heap = push(work.heap_level, work.heap_link, n_heap, work.left[link] / work.weight[link], link)
    level = 0.0
    while n_heap > 0:
        before = work.heap_level[0]
        link = work.heap_link[0]
        n_heap = pop(work.heap_level, work.heap_link, n_heap)
        if work.n_open[link] == 0:
            continue
        full = max(level, work.left[link] / work.weight[link])
        if full > before * (1.0 + 1e-12):
            n_heap = push(work.heap_level, work.heap_link, n_heap, full, link)
            continue
        level = full
        for j in range(work.flow_first[link], work.flow_first[link + 1]):
            f = work.flow[j]
            if not active[f] or rate[f] >= 0.0:
                continue
            rate[f] = level
            for k in range(route_first[f], route_first[f + 1]):
                other = route_links[k]
                work.n_open[other] -= 1
                work.weight[other] -= route_shares[k]
                work.left[other] -= level * route_shares[k]


@njit(cache=True)
def rates(route_first, route_links, route_shares, capacity):
    """Return the max-min fair rate of every flow; infinite for flows without links.

    Parameters
    ----------
    route_first : ndarray, shape (n_flows + 1,), int64
        Links of each flow, as ranges of the next two.
    route_links : ndarray, int64
        Links; each at most once per flow.
    route_shares : ndarray, float64
        Which part of the flow goes over the link, > 0.
    capacity : ndarray, shape (n_links,), float64
        Bandwidth of each link, > 0.
    """
    rate = np.zeros(len(route_first) - 1, dtype=np.float64)
    active = np.ones(len(rate), dtype=np.bool_)
    work = _workspace(route_first, route_links, len(capacity))
    _fill(route_first, route_links, route_shares, capacity, active, rate, work)
    return rate


@njit(cache=True)
def finish(route_first, route_links, route_shares, capacity, start_seconds, n_bytes):
    """Return when each flow ends if all share the links fairly from their start on.

    Parameters
    ----------
    route_first, route_links, route_shares, capacity : ndarray
        As for `rates`.
    start_seconds : ndarray, shape (n_flows,), float64
        When each flow starts.
    n_bytes : ndarray, shape (n_flows,), float64
        How much each flow carries.
    """
    n_flows = len(n_bytes)
    end = np.full(n_flows, np.inf, dtype=np.float64)
    left = n_bytes.copy()
    rate = np.zeros(n_flows, dtype=np.float64)
    active = np.zeros(n_flows, dtype=np.bool_)
    order = np.argsort(start_seconds)
    work = _workspace(route_first, route_links, len(capacity))
    n_started = 0
    n_active = 0
    now = 0.0
    while n_started < n_flows or n_active > 0:
        if n_active == 0:
            now = max(now, start_seconds[order[n_started]])
        while n_started < n_flows and start_seconds[order[n_started]] <= now:
            active[order[n_started]] = True
            n_active += 1
            n_started += 1
        _fill(route_first, route_links, route_shares, capacity, active, rate, work)
        soonest = np.inf
        for f in range(n_flows):
            if active[f]:
                soonest = min(soonest, left[f] / rate[f] if left[f] > 0.0 else 0.0)
        if n_started < n_flows:
            soonest = min(soonest, start_seconds[order[n_started]] - now)
        for f in range(n_flows):
            if active[f]:
                need = left[f] / rate[f] if left[f] > 0.0 else 0.0
                if need <= soonest * (1.0 + 1e-12):
                    active[f] = False
                    n_active -= 1
                    left[f] = 0.0
                    end[f] = now + soonest
                else:
                    left[f] -= rate[f] * soonest
        now += soonest
    return end
