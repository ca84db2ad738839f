"""Max-min fair rates of flows that share links, and the times at which such flows end."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["finish", "rates"]


@njit(cache=True)
def _fill(route_first, route_links, route_shares, capacity, active, rate, free, weight, used, position):
    """Fill the rates of the active flows progressively; the last four arrays are workspace, zeroed or -1 on entry and exit.

    All rates rise together; where a link is full, the flows on it stop and the others go on.
    """
    n_flows = len(route_first) - 1
    n_used = 0
    n_left = 0
    for f in range(n_flows):
        if not active[f]:
            continue
        rate[f] = -1.0
        if route_first[f] == route_first[f + 1]:
            rate[f] = np.inf
            continue
        n_left += 1
        for k in range(route_first[f], route_first[f + 1]):
            link = route_links[k]
            if position[link] < 0:
                position[link] = n_used
                used[n_used] = link
                free[link] = capacity[link]
                weight[link] = 0.0
                n_used += 1
            weight[link] += route_shares[k]
    level = 0.0
    while n_left > 0:
        lowest = np.inf
        for i in range(n_used):
            link = used[i]
            if weight[link] > 1e-9:
                lowest = min(lowest, level + max(free[link], 0.0) / weight[link])
        if lowest == np.inf:
            break
        for i in range(n_used):  # what all flows take while they rise together
            link = used[i]
            if weight[link] > 1e-9:
                full = level + max(free[link], 0.0) / weight[link] <= lowest * (1.0 + 1e-12)
                free[link] -= (lowest - level) * weight[link]
                position[link] = n_flows + 1 if full else 0
        level = lowest
        for f in range(n_flows):
            if not active[f] or rate[f] >= 0.0:
                continue
            stopped = False
            for k in range(route_first[f], route_first[f + 1]):
                if position[route_links[k]] == n_flows + 1:
                    stopped = True
                    break
            if stopped:
                rate[f] = level
                n_left -= 1
                for k in range(route_first[f], route_first[f + 1]):
                    weight[route_links[k]] -= route_shares[k]
        for i in range(n_used):
            if position[used[i]] == n_flows + 1:
                position[used[i]] = 0
                weight[used[i]] = 0.0
    for i in range(n_used):
        position[used[i]] = -1


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
    n_links = len(capacity)
    rate = np.zeros(len(route_first) - 1, dtype=np.float64)
    active = np.ones(len(rate), dtype=np.bool_)
    _fill(
        route_first, route_links, route_shares, capacity, active, rate, np.zeros(n_links), np.zeros(n_links),
        np.empty(n_links, dtype=np.int64), np.full(n_links, -1, dtype=np.int64),
    )  # fmt: skip
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
    n_links = len(capacity)
    end = np.full(n_flows, np.inf, dtype=np.float64)
    left = n_bytes.copy()
    rate = np.zeros(n_flows, dtype=np.float64)
    active = np.zeros(n_flows, dtype=np.bool_)
    order = np.argsort(start_seconds)
    free = np.zeros(n_links)
    weight = np.zeros(n_links)
    used = np.empty(n_links, dtype=np.int64)
    position = np.full(n_links, -1, dtype=np.int64)
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
        _fill(route_first, route_links, route_shares, capacity, active, rate, free, weight, used, position)
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
