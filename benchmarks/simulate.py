"""How long a simulation takes: 64 stages x 512 micro-batches, with and without shared links, and what a search asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from meshwright import sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.stage_cost import StageCost
from meshwright.sim import engine
from meshwright.sim.traffic import PARTS, Traffic
from meshwright.sim.transfers import Transfers, fixed


def ladder(n_stages: int) -> Transfers:
    """Every stage leaves through one port and enters through another, which both directions share."""
    sends = fixed(np.arange(n_stages), np.full(n_stages - 1, 0.3))
    links, busy = [], []
    for way in (0, 1):
        for stage in range(n_stages):
            target = stage + 1 - 2 * way
            there = 0 <= target < n_stages
            links.append(np.array([2 * stage, 2 * target + 1] if there else [], dtype=np.int64))
            busy.append(np.full(len(links[-1]), 0.3))
    return Transfers(
        sends.channel, sends.seconds, sends.latency_seconds, sends.seconds, tuple(links), tuple(busy), np.ones(2 * n_stages)
    )


def collectives(stage_costs: tuple[StageCost, ...]) -> Traffic:
    """Every stage's collectives leave through its port too: they block tasks, run beside them and reduce gradients."""
    n_stages = len(stage_costs)
    seconds = np.full((len(PARTS), n_stages), 0.2)
    seconds[PARTS.index("reduce")], seconds[PARTS.index("gather")] = 3.0, 1.0
    links = [np.array([2 * stage, 2 * stage + 1], dtype=np.int64) for _ in PARTS for stage in range(n_stages)]
    return Traffic(seconds, tuple(links), tuple(np.full(2, value) for value in 0.8 * seconds.ravel()))


def spine(sends: Transfers, traffic: Traffic) -> tuple[Transfers, Traffic]:
    """Everything also crosses one link with room for twenty transfers at once."""
    assert sends.link_bytes_per_second is not None
    link = len(sends.link_bytes_per_second)
    speed = np.append(sends.link_bytes_per_second, 20.0)
    links = [(np.append(own, link) if len(own) else own for own in side.links) for side in (sends, traffic)]
    n_bytes = [
        (np.append(own, own[0]) if len(own) else own for own in side) for side in (sends.busy_bytes, traffic.bytes)
    ]  # fmt: skip
    shared = replace(sends, links=tuple(links[0]), busy_bytes=tuple(n_bytes[0]), link_bytes_per_second=speed)
    return shared, replace(traffic, links=tuple(links[1]), bytes=tuple(n_bytes[1]))


def seconds_of(call: Callable[[], object], n_times: int = 3) -> float:
    """Return the least CPU seconds of a few calls, compiled before."""
    call()
    spent = []
    for _ in range(n_times):
        before = time.process_time()
        call()
        spent.append(time.process_time() - before)
    return min(spent)


def whole(word: str, stage_costs: tuple[StageCost, ...]) -> None:
    """Print what a whole timeline of 64 stages x 512 micro-batches takes."""
    plan = Plan(tuple(Stage((i,), (i,)) for i in range(64)), 512, 1, word, 512)
    traffic = collectives(stage_costs)
    for name, sends, also in (
        ("links of their own", fixed(np.arange(64), np.full(63, 0.3)), None),
        ("transfers share ports", ladder(64), None),
        ("collectives too", ladder(64), traffic),
        ("all over one spine", *spine(ladder(64), traffic)),
    ):
        spent = seconds_of(partial(engine.play, plan, stage_costs, sends, also))
        print(f"{word:6} 64 x 512, whole timeline, {name:22} {spent:8.3f} s")


def quick(word: str, n_chunks: int, rng: np.random.Generator) -> None:
    """Print what a search waits for one answer."""
    columns = [*rng.random((3, 16 * n_chunks)), rng.random(16 * n_chunks - 1)]
    spent = seconds_of(partial(sim.step_seconds, word, 16, n_chunks, 64, *columns))
    print(f"{word:18} 16 ranks x {n_chunks} stages x 64, step_seconds {spent * 1e3:8.2f} ms")


def main() -> None:
    """Print one line per case."""
    rng = np.random.default_rng(0)
    one = (("tensor", 0.2),)
    stage_costs = tuple(
        StageCost(
            0.8 + x,
            0.8 + x,
            1.0,
            forward_communication=one,
            backward_communication=one,
            output_bytes=1.0,
            activation_bytes=1.0,
            reduce_seconds=3.0,
            overlap_ratio=0.5,
        )
        for x in rng.random(64)
    )
    for word in ("gpipe", "1f1b", "zb_h1"):
        whole(word, stage_costs)
    for word, n_chunks in (("1f1b", 1), ("interleaved_1f1b", 4), ("zb_h1", 1), ("zb_v", 2)):
        quick(word, n_chunks, rng)


if __name__ == "__main__":
    main()
