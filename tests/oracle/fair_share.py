"""Slow twin of `meshwright._kernels.fair_share`: progressive filling in exact fractions."""

from __future__ import annotations

from fractions import Fraction


def rates(routes: list[list[int]], capacity: list[int]) -> list[Fraction]:
    """Return max-min fair rates of flows over whole routes, exactly."""
    rate: list[Fraction | None] = [None] * len(routes)
    free = [Fraction(c) for c in capacity]
    while any(r is None for r in rate):
        share = {
            link: free[link] / n
            for link in range(len(capacity))
            if (n := sum(rate[f] is None and link in route for f, route in enumerate(routes)))
        }
        level = min(share.values())
        full = {link for link, value in share.items() if value == level}
        for f in [f for f, route in enumerate(routes) if rate[f] is None and full & set(route)]:
            rate[f] = level
            for link in routes[f]:
                free[link] -= level
    return [r for r in rate if r is not None]


def finish(routes: list[list[int]], capacity: list[int], start: list[int], n_bytes: list[int]) -> list[Fraction]:
    """Return when each flow ends, exactly."""
    left = [Fraction(b) for b in n_bytes]
    end: list[Fraction | None] = [None] * len(routes)
    now = Fraction(min(start))
    while any(e is None for e in end):
        running = [f for f in range(len(routes)) if end[f] is None and start[f] <= now]
        coming = [Fraction(start[f]) for f in range(len(routes)) if start[f] > now]
        if not running:
            now = min(coming)
            continue
        rate = dict(zip(running, rates([routes[f] for f in running], capacity), strict=True))
        step = min([left[f] / rate[f] for f in running] + [moment - now for moment in coming])
        now += step
        for f in running:
            left[f] -= rate[f] * step
            if left[f] == 0:
                end[f] = now
    return [e for e in end if e is not None]
