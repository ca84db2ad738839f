"""DAPPLE's corrected problem by brute force: every plan, played task by task, in plain Python and from its own formulas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

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


def play(forward: list[float], backward: list[float], send: list[float], n_microbatches: int, policy: str) -> list[float]:
    """When each stage is done with its last backward; one transfer at a time in each direction of each boundary."""
    n = len(forward)
    queues = orders(n, n_microbatches, policy)
    at, free = [0] * n, [0.0] * n
    arrived: dict[tuple[str, int, int], float] = {("F", 0, i): 0.0 for i in range(n_microbatches)}
    finished: dict[tuple[int, int], float] = {}
    line = {("F", s): 0.0 for s in range(n)} | {("B", s): 0.0 for s in range(n)}
    progress = True
    while progress:
        progress = False
        for s in range(n):
            while at[s] < len(queues[s]):
                kind, i = queues[s][at[s]]
                if kind == "B" and s == n - 1:
                    ready = finished.get((s, i))
                else:
                    ready = arrived.get((kind, s, i))
                if ready is None:
                    break
                start = max(free[s], ready)
                free[s] = start + (forward[s] if kind == "F" else backward[s])
                if kind == "F":
                    finished[s, i] = free[s]
                target = s + 1 if kind == "F" else s - 1
                if 0 <= target < n:
                    seconds = send[min(s, target)]
                    line[kind, s] = max(line[kind, s], free[s]) + seconds
                    arrived[kind, target, i] = line[kind, s]
                at[s] += 1
                progress = True
    assert all(at[s] == len(queues[s]) for s in range(n))
    return free


def all_reduce(devices: tuple[int, ...], machine: list[int], n_bytes: float) -> float:
    n = len(devices)
    if n == 1:
        return 0.0
    volume = 2.0 * n_bytes * (n - 1) / n
    if len({machine[device] for device in devices}) > 1:
        return volume / COLLECTIVE
    return volume / (NVLINK * (n // 2))


def transfer(sources: tuple[int, ...], targets: tuple[int, ...], machine: list[int], n_bytes: float) -> float:
    """Time for a micro-batch: every overlap of a sender's and a receiver's slice travels at once, each as long as the longest."""
    a, b = len(sources), len(targets)
    overlaps = []
    for i in range(a):
        for j in range(b):
            share = min((i + 1) / a, (j + 1) / b) - max(i / a, j / b)
            if share > 1e-12:
                overlaps.append((sources[i], targets[j], share))
    largest = max(share for *_, share in overlaps)
    load: dict[tuple, int] = {}
    for source, target, _ in overlaps:
        links = [("out", source), ("in", target)]
        if machine[source] != machine[target]:
            links += [("leave", machine[source]), ("enter", machine[target])]
        for link in links:
            load[link] = load.get(link, 0) + 1
    slowest = max(n / (ETHERNET if link[0] in ("leave", "enter") else NVLINK) for link, n in load.items())
    return slowest * largest * n_bytes


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
    """Every chain of stages on every choice of devices whose number divides the micro-batch, with every choice of recomputation."""

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
