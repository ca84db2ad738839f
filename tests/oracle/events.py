"""Plays an order of work in plain Python: at every moment run what can run, share every link, go to the next moment.

Slow and simple: no queue of events, no links left out, remaining work kept as numbers that shrink.
"""

from __future__ import annotations

from meshwright.schedules import BACKWARD_WEIGHT, FORWARD, Slots
from meshwright.sim.transfers import Transfers


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


class Play:
    """One run; `tasks` and `sends` hold (start, end) by (stage, micro-batch, phase)."""

    def __init__(self, slots: Slots, task_seconds: list[list[float]], sends: Transfers) -> None:
        self.slots, self.seconds, self.transfers = slots, task_seconds, sends
        self.tasks: dict[tuple[int, int, int], tuple[float, float]] = {}
        self.sends: dict[tuple[int, int, int], tuple[float, float]] = {}
        flat = list(zip(slots.stage.tolist(), slots.microbatch.tolist(), slots.phase.tolist(), strict=True))
        self.todo = [flat[a:b] for a, b in zip(slots.first[:-1].tolist(), slots.first[1:].tolist(), strict=True)]
        self.running: dict[int, tuple[float, tuple[int, int, int]]] = {}
        self.waiting: dict[int, list[tuple[int, int, int]]] = {}
        # Per channel: the task, its flow, latency left, share of the transfer left.
        self.on_way: dict[int, list] = {}
        self.arrived: set[tuple[str, int, int]] = set()

    def ready(self, task: tuple[int, int, int]) -> bool:
        stage, i, phase = task
        if phase == FORWARD:
            return stage == 0 or ("activation", stage, i) in self.arrived
        if phase == BACKWARD_WEIGHT:
            return ("input", stage, i) in self.arrived
        last = stage == self.slots.n_stages - 1
        return ("forward", stage, i) in self.arrived and (last or ("gradient", stage, i) in self.arrived)

    def deliver(self, task: tuple[int, int, int]) -> None:
        stage, i, phase = task
        self.arrived.add(("activation", stage + 1, i) if phase == FORWARD else ("gradient", stage - 1, i))

    def run(self) -> Play:
        now = 0.0
        while True:
            self.start_what_can(now)
            rates = self.rates()
            times = [end for end, _ in self.running.values()]
            for channel, (_, _, latency, left) in self.on_way.items():
                times.append(now + latency if latency > 0 else now + left / rates[channel] if left > 0 else now)
            if not times:
                assert not any(self.todo), "deadlock"
                return self
            self.advance(now, min(times), rates)
            now = min(times)

    def start_what_can(self, now: float) -> None:
        for channel, queue in self.waiting.items():
            if queue and channel not in self.on_way:
                task = queue.pop(0)
                way, stage = (0 if task[2] == FORWARD else 1), task[0]
                latency = float(self.transfers.latency_seconds[way, stage])
                carry = float(self.transfers.seconds[way, stage]) - latency
                self.on_way[channel] = [task, way * self.slots.n_stages + stage, latency, carry]
                self.sends[task] = (now, now)
        for rank, row in enumerate(self.todo):
            if rank not in self.running and row and self.ready(row[0]):
                task = row.pop(0)
                self.running[rank] = (now + self.seconds[task[2]][task[0]], task)
                self.tasks[task] = (now, self.running[rank][0])

    def rates(self) -> dict[int, float]:
        """Return how much of its own seconds each channel does per second."""
        flowing = {channel: entry[1] for channel, entry in self.on_way.items() if entry[2] <= 0}
        if self.transfers.link_bytes_per_second is None:
            return dict.fromkeys(flowing, 1.0)
        n_sent = self.transfers.bytes.ravel()
        carry = (self.transfers.seconds - self.transfers.latency_seconds).ravel()
        routes = {
            channel: {
                int(link): float(n_bytes) / n_sent[flow]
                for link, n_bytes in zip(self.transfers.links[flow], self.transfers.busy_bytes[flow], strict=True)
            }
            for channel, flow in flowing.items()
        }
        ceilings = {channel: n_sent[flow] / carry[flow] for channel, flow in flowing.items()}
        found = fair_rates(routes, self.transfers.link_bytes_per_second.tolist(), ceilings)
        return {channel: rate / ceilings[channel] for channel, rate in found.items()}

    def advance(self, before: float, now: float, rates: dict[int, float]) -> None:
        tiny = 1e-12 * max(now, 1.0)
        for channel, entry in list(self.on_way.items()):
            task, _, latency, left = entry
            if latency > 0:
                entry[2] = 0.0 if before + latency <= now + tiny else latency - (now - before)
                done = entry[2] <= 0 and left <= 0
            else:
                entry[3] = left - (now - before) * rates[channel]
                done = entry[3] <= tiny
            if done:
                del self.on_way[channel]
                self.sends[task] = (self.sends[task][0], now)
                self.deliver(task)
        for rank, (end, task) in list(self.running.items()):
            if end <= now:
                del self.running[rank]
                stage, i, phase = task
                self.arrived.add(({0: "forward", 2: "weight"}.get(phase, "input"), stage, i))
                if phase == BACKWARD_WEIGHT:
                    continue
                way = 0 if phase == FORWARD else 1
                channel = int(self.transfers.channel[way, stage])
                if channel >= 0:
                    self.waiting.setdefault(channel, []).append(task)
                elif 0 <= stage + 1 - 2 * way < self.slots.n_stages:
                    self.deliver(task)
