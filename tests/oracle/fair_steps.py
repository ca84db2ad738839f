"""A step with max-min fair flows in plain Python: rates are filled anew whenever a flow starts or ends."""

from __future__ import annotations

import heapq

from flow_simulation import Item, added_up, step_seconds

from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step


def fair_step_seconds(step: Step, placement: Placement, fabric: Fabric) -> float:
    """Return the time of a step."""
    return step_seconds(step, placement, fabric, _play)


def _rates(flows: list[Item], fabric: Fabric) -> dict[Item, float]:
    rate: dict[Item, float] = {}
    free = {link: 1.0 / float(fabric.seconds_per_byte[link]) for flow in flows for link in flow.links}
    while len(rate) < len(flows):
        share = {}
        for link, left in free.items():
            count = sum(flow not in rate and link in flow.links for flow in flows)
            if count:
                share[link] = left / count
        level = min(share.values())
        full = {link for link, value in share.items() if value <= level * (1 + 1e-12)}
        for flow in [flow for flow in flows if flow not in rate and full & set(flow.links)]:
            rate[flow] = level
            for link in flow.links:
                free[link] -= level
    return rate


def _play(first: list[Item], fabric: Fabric) -> float:
    queue: list[tuple[float, int, str, Item]] = []
    counter = iter(range(10**9))
    server_free: dict[int, float] = {}
    left: dict[Item, float] = {}
    inside_free: dict[int, float] = {}
    now = last = 0.0

    def push(time: float, what: str, item: Item) -> None:
        heapq.heappush(queue, (time, next(counter), what, item))

    def finish(item: Item) -> None:
        nonlocal last
        last = max(last, item.end)
        for other in sorted(item.then, key=lambda entry: entry.kind == "reduce"):
            other.ready = max(other.ready, item.end)
            other.n_before -= 1
            if other.n_before == 0:
                push(other.ready, "begin", other)

    for item in first:
        push(0.0, "begin", item)
    while queue or left:
        rate = _rates(list(left), fabric)
        moment = min((now + left[flow] / rate[flow] for flow in left), default=float("inf"))
        if queue and queue[0][0] < moment:
            moment = queue[0][0]
        for flow in list(left):
            left[flow] -= rate[flow] * (moment - now)
            if left[flow] <= 1e-7 * flow.n_left:
                del left[flow]
                push(moment + len(flow.links) * fabric.latency_seconds, "arrive", flow)
        now = moment
        while queue and queue[0][0] <= now:
            _, _, what, item = heapq.heappop(queue)
            if what == "arrive":
                item.end = now
                finish(item)
            elif item.kind == "reduce":
                begin = added_up(item, now, inside_free)
                for flow in item.flows:
                    push(begin, "begin", flow)
            elif item.kind == "compute":
                item.end = max(now, server_free.get(item.server, 0.0)) + item.seconds
                server_free[item.server] = item.end
                finish(item)
            else:
                left[item] = float(item.n_left)
    return last
