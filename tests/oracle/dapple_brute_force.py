"""DAPPLE's corrected problem by brute force: every plan, played task by task, in plain Python and from its own formulas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from events import Play  # tests/oracle/events.py

from meshwright.schedules import BACKWARD, FORWARD, slots
from meshwright.sim.transfers import Transfers

NVLINK, ETHERNET, COLLECTIVE, MEMORY = 25e9, 1e9, 3e9, 16e9


@dataclass(frozen=True)
class Layer:
    """Seconds and bytes of one sample; parameter bytes in all."""

    forward: float
    backward: float
    activation: float
    parameter: float


@dataclass(frozen=True)
class Stage:
    first: int
    last: int
    devices: tuple[int, ...]
    recompute: bool


def depth(n_stages: int, s: int, n_microbatches: int, policy: str) -> int:
    left = n_stages - s
    return min(n_microbatches, left if policy == "a" else 2 * left - 1)


def orders(n_stages: int, n_microbatches: int, policy: str) -> list[list[tuple[str, int]]]:
    """The tasks of each stage: a warm-up of forwards, then backward and forward in turn."""
    result = []
    for s in range(n_stages):
        warm = depth(n_stages, s, n_microbatches, policy)
        tasks = [("F", i) for i in range(warm)]
        for i in range(n_microbatches):
            tasks.append(("B", i))
            if warm + i < n_microbatches:
                tasks.append(("F", warm + i))
        result.append(tasks)
    return result


def play(forward: list[float], backward: list[float], sends: list[dict], m: int, policy: str) -> list[float]:
    """When each stage is done with its last backward; links shared fairly by whatever is on them."""
    n = len(forward)
    codes = {"F": FORWARD, "B": BACKWARD}
    rows = [[(s, i, codes[kind]) for kind, i in row] for s, row in enumerate(orders(n, m, policy))]
    tasks = [forward, backward, [0.0] * n, backward]
    run = Play(slots(rows, np.arange(n)), tasks, on_links(n, sends)).run()
    return [run.tasks[s, m - 1, BACKWARD][1] for s in range(n)]


def on_links(n: int, sends: list[dict]) -> Transfers:
    """The same bytes forward and, with the ends of every link exchanged, backward."""
    other = {"out": "in", "in": "out", "leave": "enter", "enter": "leave"}
    names = sorted({link for load in sends for link in load} | {(other[a], b) for load in sends for a, b in load})
    number = {link: i for i, link in enumerate(names)}
    channel = np.full((2, n), -1)
    seconds, sent = np.zeros((2, n)), np.zeros((2, n))
    links, busy = [np.empty(0, np.int64)] * (2 * n), [np.empty(0)] * (2 * n)
    for s, load in enumerate(sends):
        for way, stage, carried in ((0, s, load), (1, s + 1, {(other[a], b): x for (a, b), x in load.items()})):
            channel[way, stage] = 2 * s + way
            seconds[way, stage] = max(n_bytes / speed(link) for link, n_bytes in carried.items())
            sent[way, stage] = 1.0
            links[way * n + stage] = np.array([number[link] for link in carried])
            busy[way * n + stage] = np.array(list(carried.values()))
    capacity = np.array([speed(link) for link in names])
    return Transfers(channel, seconds, np.zeros((2, n)), sent, tuple(links), tuple(busy), capacity if names else None)


def all_reduce(devices: tuple[int, ...], machine: list[int], n_bytes: float) -> float:
    n = len(devices)
    if n == 1:
        return 0.0
    volume = 2.0 * n_bytes * (n - 1) / n
    if len({machine[device] for device in devices}) > 1:
        return volume / COLLECTIVE
    return volume / (NVLINK * (n // 2))


def transfer(sources: tuple[int, ...], targets: tuple[int, ...], machine: list[int], n_bytes: float) -> dict:
    """Bytes on every link when a micro-batch passes: overlaps of senders' and receivers' slices travel at once."""
    a, b = len(sources), len(targets)
    load: dict[tuple, float] = {}
    for i in range(a):
        for j in range(b):
            share = min((i + 1) / a, (j + 1) / b) - max(i / a, j / b)
            if share < 1e-12:
                continue
            links = [("out", sources[i]), ("in", targets[j])]
            if machine[sources[i]] != machine[targets[j]]:
                links += [("leave", machine[sources[i]]), ("enter", machine[targets[j]])]
            for link in links:
                load[link] = load.get(link, 0.0) + share * n_bytes
    return load


def speed(link: tuple) -> float:
    return ETHERNET if link[0] in ("leave", "enter") else NVLINK


def step(layers: list[Layer], stages: list[Stage], machine: list[int], batch: int, m: int, policy: str, scaling: float):
    """Seconds of a step; None where a stage does not fit."""
    size = batch // m
    forward, backward, reduce, send = [], [], [], []
    for s, stage in enumerate(stages):
        inside = layers[stage.first : stage.last + 1]
        samples = size // len(stage.devices)
        f = sum(layer.forward for layer in inside) * samples
        b = sum(layer.backward for layer in inside) * samples
        kept = sum(layer.activation for layer in inside) * samples
        weights = sum(layer.parameter for layer in inside)
        entering = layers[stage.first - 1].activation * samples if s else 0.0
        held = depth(len(stages), s, m, policy)
        need = scaling * weights + (held * entering + kept if stage.recompute else held * kept)
        if need > MEMORY:
            return None
        forward.append(f)
        backward.append(b + f if stage.recompute else b)
        reduce.append(all_reduce(stage.devices, machine, weights))
        if s + 1 < len(stages):
            send.append(transfer(stage.devices, stages[s + 1].devices, machine, layers[stage.last].activation * size))
    done = play(forward, backward, send, m, policy)
    return max(end + seconds for end, seconds in zip(done, reduce))


def plans(n_layers: int, n_devices: int, size: int) -> Iterator[list[Stage]]:
    """Every chain of stages on every choice of devices whose number divides the micro-batch,
    with every choice of recomputation.
    """

    def extend(first: int, free: tuple[int, ...]) -> Iterator[list[tuple[int, int, tuple[int, ...]]]]:
        if first == n_layers:
            yield []
            return
        for last in range(first, n_layers):
            for width in range(1, len(free) + 1):
                if size % width:
                    continue
                for devices in itertools.combinations(free, width):
                    rest = tuple(device for device in free if device not in devices)
                    for tail in extend(last + 1, rest):
                        yield [(first, last, devices), *tail]

    for chain in extend(0, tuple(range(n_devices))):
        for flags in itertools.product((False, True), repeat=len(chain)):
            yield [Stage(*stage, flag) for stage, flag in zip(chain, flags)]


def best(layers: list[Layer], sizes: tuple[int, ...], batch: int, scaling: float = 4.0) -> float | None:
    """Quickest step of all plans, None where none fits."""
    machine = [i for i, size in enumerate(sizes) for _ in range(size)]
    found = None
    for m in (m for m in range(1, batch + 1) if batch % m == 0):
        for stages in plans(len(layers), len(machine), batch // m):
            for policy in ("a", "b") if len(stages) > 1 else ("a",):
                seconds = step(layers, stages, machine, batch, m, policy, scaling)
                if seconds is not None and (found is None or seconds < found):
                    found = seconds
    return found
