"""Plays a step in plain Python: at every moment run what can run, share every link, go to the next moment.

Slow and simple: no queue of events, no links or copies left out, remaining work kept as numbers that shrink.
"""

from __future__ import annotations

from itertools import pairwise

from meshwright.schedules import BACKWARD_WEIGHT, FORWARD, Actions
from meshwright.sim.end_of_step import TailTasks
from meshwright.sim.pairs import TaskPairs
from meshwright.sim.traffic import PARTS, Traffic
from meshwright.sim.transfers import Transfers

Task = tuple[int, int, int]


def fair_rates(routes: dict[int, dict[int, float]], capacity: list[float], ceilings: dict[int, float]) -> dict[int, float]:
    """Return the max-min fair rate of every flow: raise all together, stop those that meet a full link or their ceiling."""
    rates: dict[int, float] = {}
    while len(rates) < len(routes):
        left = [flow for flow in routes if flow not in rates]
        free = list(capacity)
        for flow, rate in rates.items():
            for link, weight in routes[flow].items():
                free[link] -= rate * weight
        level = {}
        for flow in left:
            limits = [ceilings[flow]]
            for link in routes[flow]:
                limits.append(free[link] / sum(routes[other].get(link, 0.0) for other in left))
            level[flow] = min(limits)
        lowest = min(level.values())
        rates |= {flow: lowest for flow in left if level[flow] <= lowest * (1 + 1e-11)}
    return rates


class Links:
    """Every flow by (part, stage) with its share of each link alone, its lane, and its unit on links that can be full."""

    def __init__(self, slots: Actions, transfers: Transfers, traffic: Traffic | None) -> None:
        self.shares: dict[tuple[str, int], dict[int, float]] = {}
        self.lane: dict[tuple[str, int], tuple] = {}
        self.seconds: dict[tuple[str, int], float] = {}
        n_stages = slots.n_stages
        for stage in range(n_stages):
            for way, word in enumerate(("send", "return")):
                flow = way * n_stages + stage
                carry = float(transfers.seconds[way, stage] - transfers.latency_seconds[way, stage])
                self.lane[word, stage] = ("channel", int(transfers.channel[way, stage]))
                if transfers.link_bytes_per_second is not None and carry > 0.0:
                    self._add((word, stage), transfers, transfers.links[flow], transfers.busy_bytes[flow], carry)
            for part, word in enumerate(PARTS):
                kind = "end" if word in ("reduce", "gather") else "beside" if "beside" in word else "blocking"
                self.lane[word, stage] = (kind, int(slots.rank_of_stage[stage]))
                if traffic is not None:
                    flow = part * n_stages + stage
                    self.seconds[word, stage] = float(traffic.seconds[part, stage])
                    if self.seconds[word, stage] > 0.0:
                        args = transfers, traffic.links[flow], traffic.bytes[flow], self.seconds[word, stage]
                        self._add((word, stage), *args)
        for flow in range(0 if traffic is None else len(traffic.paired_seconds)):
            rank = int(traffic.paired_ranks[flow // 4])
            self.lane["pair", flow] = (("blocking", "beside")[flow % 2], rank)
            self.seconds["pair", flow] = float(traffic.paired_seconds[flow])
            if self.seconds["pair", flow] > 0.0:
                args = traffic.paired_links[flow], traffic.paired_bytes[flow], self.seconds["pair", flow]
                self._add(("pair", flow), transfers, *args)
        asked: dict[int, dict[tuple, float]] = {}
        for flow, shares in self.shares.items():
            for link, share in shares.items():
                lanes = asked.setdefault(link, {})
                lanes[self.lane[flow]] = max(lanes.get(self.lane[flow], 0.0), share)
        self.tight = {link for link, lanes in asked.items() if len(lanes) > 1 and sum(lanes.values()) > 1.0 + 1e-9}

    def _add(self, flow: tuple[str, int], transfers: Transfers, links, n_bytes, seconds: float) -> None:  # type: ignore[no-untyped-def]
        shares = {
            int(k): float(b) / float(transfers.link_bytes_per_second[k]) / seconds
            for k, b in zip(links, n_bytes, strict=True)
            if b
        }
        most = max(1.0, max(shares.values(), default=0.0))
        self.shares[flow] = {link: share / most for link, share in shares.items()}

    def rates(self, flowing: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
        """Return how much of its own seconds each flow does per second."""
        tight = {flow: {k: v for k, v in self.shares.get(flow, {}).items() if k in self.tight} for flow in flowing}
        unit = {flow: max(tight[flow].values(), default=1.0) for flow in flowing}
        routes = {i: {k: v / unit[flow] for k, v in tight[flow].items()} for i, flow in enumerate(flowing)}
        n_links = max(self.tight, default=-1) + 1
        found = fair_rates(routes, [1.0] * n_links, {i: unit[flow] for i, flow in enumerate(flowing)})
        return {flow: found[i] / unit[flow] for i, flow in enumerate(flowing)}


class Play:
    """One run; `tasks` and `sends` hold (start, end) by (stage, micro-batch, phase), `ends` by number of the item."""

    def __init__(
        self, slots: Actions, task_seconds: list[list[float]], sends: Transfers, traffic: Traffic | None = None,
        items: TailTasks | None = None, together: TaskPairs | None = None,
    ) -> None:  # fmt: skip
        self.slots, self.seconds, self.transfers, self.items = slots, task_seconds, sends, items
        self.links = Links(slots, sends, traffic)
        self.with_traffic = traffic is not None
        self.tasks: dict[Task, tuple[float, float]] = {}
        self.sends: dict[Task, tuple[float, float]] = {}
        self.ends: dict[int, tuple[float, float]] = {}
        flat = list(zip(slots.stage.tolist(), slots.microbatch.tolist(), slots.phase.tolist(), strict=True))
        self.names = flat
        # By task of a pair: its sort, whether it is the second, and the other one.
        self.pair: dict[Task, tuple[int, int, Task]] = {}
        self.pair_seconds = [] if together is None else together.seconds.tolist()
        for first, sort in [] if together is None else zip(together.first.tolist(), together.sort.tolist(), strict=True):
            self.pair[flat[first]], self.pair[flat[first + 1]] = (sort, 0, flat[first + 1]), (sort, 1, flat[first])
        self.todo = [flat[a:b] for a, b in zip(slots.first[:-1].tolist(), slots.first[1:].tolist(), strict=True)]
        self.left_items: list[list[int]] = [[] for _ in self.todo]
        if items is not None:
            bounds = items.ends.first.tolist()
            self.left_items = [list(range(a, b)) for a, b in pairwise(bounds)]
        self.running: dict[int, tuple[Task, set[str]]] = {}
        self.waiting: dict[int, list[Task]] = {}
        # By lane: what it carries, its flow, latency left, seconds alone left. Compute is a lane without a flow.
        self.busy: dict[tuple, list] = {}
        self.arrived: set[tuple[str, int, int]] = set()

    def ready(self, task: Task) -> bool:
        stage, i, phase = task
        if phase == FORWARD:
            return stage == 0 or ("activation", stage, i) in self.arrived
        if phase == BACKWARD_WEIGHT:
            return ("input", stage, i) in self.arrived
        last = stage == self.slots.n_stages - 1
        return ("forward", stage, i) in self.arrived and (last or ("gradient", stage, i) in self.arrived)

    def run(self) -> Play:
        now = 0.0
        while True:
            while self.start_what_can(now):
                pass
            flowing = [entry[1] for entry in self.busy.values() if entry[1] is not None and entry[2] <= 0.0]
            found = self.links.rates(flowing)
            rates = {lane: found.get(entry[1], 1.0) for lane, entry in self.busy.items()}
            times = [now + (entry[2] if entry[2] > 0.0 else entry[3] / rates[lane]) for lane, entry in self.busy.items()]
            if not times:
                assert not any(self.todo), "deadlock"
                assert not any(self.left_items)
                return self
            self.advance(now, min(times), rates)
            now = min(times)

    def start_what_can(self, now: float) -> bool:
        started = False
        for channel, queue in self.waiting.items():
            if queue and ("channel", channel) not in self.busy:
                task = queue.pop(0)
                way, stage = (0 if task[2] == FORWARD else 1), task[0]
                latency = float(self.transfers.latency_seconds[way, stage])
                carry = float(self.transfers.seconds[way, stage]) - latency
                self.busy["channel", channel] = [task, (("send", "return")[way], stage), latency, carry]
                self.sends[task] = (now, now)
                started = True
        for rank, row in enumerate(self.todo):
            second = row and row[0] in self.pair and self.pair[row[0]][1] == 0
            if rank not in self.running and row and self.ready(row[0]) and (not second or self.ready(row[1])):
                self.start(rank, row.pop(0), now)
                started = True
            elif self.left_items[rank] and ("end", rank) not in self.busy:
                item = self.left_items[rank][0]
                trigger = int(self.items.ends.trigger[item])
                over = not row and rank not in self.running
                if over if trigger < 0 else self.names[trigger] in self.tasks:
                    del self.left_items[rank][0]
                    flow = int(self.items.ends.flow[item])
                    part, stage = divmod(flow, self.slots.n_stages)
                    named = (PARTS[part - 2], stage) if flow >= 0 else None
                    self.busy["end", rank] = [item, named, 0.0, float(self.items.ends.seconds[item])]
                    self.ends[item] = (now, now)
                    started = True
        return started

    def start(self, rank: int, task: Task, now: float) -> None:
        stage, _, phase = task
        self.tasks[task] = (now, now)
        seconds, parts = self.seconds[phase][stage], {"compute"}
        if task in self.pair:
            seconds = self.pair_seconds[self.pair[task][0]][self.pair[task][1]]
        if phase != BACKWARD_WEIGHT and self.with_traffic:
            flow, beside = self.flows(task)
            if self.links.shares.get(flow):
                seconds = max(seconds - self.links.seconds[flow], 0.0)
                parts.add("blocking")
            if self.links.shares.get(beside):
                parts.add("beside")
                flow = beside
                self.busy["beside", rank] = [task, flow, 0.0, self.links.seconds[flow]]
        self.running[rank] = (task, parts)
        self.busy["compute", rank] = [task, None, 0.0, seconds]

    def flows(self, task: Task) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return what a task waits for, and what runs beside it."""
        if task in self.pair:
            sort, which, _ = self.pair[task]
            return ("pair", 4 * sort + 2 * which), ("pair", 4 * sort + 2 * which + 1)
        word = "forward" if task[2] == FORWARD else "backward"
        return (word, task[0]), (f"{word}_beside", task[0])

    def advance(self, before: float, now: float, rates: dict[tuple, float]) -> None:
        tiny = 1e-12 * max(now, 1.0)
        for lane, entry in list(self.busy.items()):
            if entry[2] > 0.0:
                entry[2] = 0.0 if before + entry[2] <= now + tiny else entry[2] - (now - before)
                done = entry[2] <= 0.0 and entry[3] <= 0.0
            else:
                entry[3] -= (now - before) * rates[lane]
                done = entry[3] <= tiny
            if done:
                del self.busy[lane]
                self.done(lane, entry[0], now)

    def done(self, lane: tuple, what, now: float) -> None:  # type: ignore[no-untyped-def]
        kind, number = lane
        if kind == "channel":
            self.sends[what] = (self.sends[what][0], now)
            self.deliver(what)
            return
        if kind == "end":
            self.ends[what] = (self.ends[what][0], now)
            return
        task, parts = self.running[number]
        parts.remove(kind)
        if kind == "compute" and "blocking" in parts:
            flow = self.flows(task)[0]
            self.busy["blocking", number] = [task, flow, 0.0, self.links.seconds[flow]]
        if parts:
            return
        del self.running[number]
        self.tasks[task] = (self.tasks[task][0], now)
        if task not in self.pair:
            self.hand_on(task)
        elif self.pair[task][1] == 1:  # what both made is there when both are done
            self.hand_on(self.pair[task][2])
            self.hand_on(task)

    def hand_on(self, task: Task) -> None:
        stage, i, phase = task
        self.arrived.add(({0: "forward", 2: "weight"}.get(phase, "input"), stage, i))
        if phase == BACKWARD_WEIGHT:
            return
        way = 0 if phase == FORWARD else 1
        channel = int(self.transfers.channel[way, stage])
        if channel >= 0:
            self.waiting.setdefault(channel, []).append(task)
        elif 0 <= stage + 1 - 2 * way < self.slots.n_stages:
            self.deliver(task)

    def deliver(self, task: Task) -> None:
        stage, i, phase = task
        self.arrived.add(("activation", stage + 1, i) if phase == FORWARD else ("gradient", stage - 1, i))
